// What `tonnage run` and `tonnage report` say under the headline: the main finding in a sentence or
// two, and the command that says more.
#pragma once

#include <string>
#include <vector>

#include "analysis/diagnosis/findings.h"

namespace tonnage::report {

// more: "tonnage explain run.tonnage". Empty if nothing was found.
std::vector<std::string> main_finding(const analysis::Explanation& explanation,
                                      const std::string& more);

}  // namespace tonnage::report
