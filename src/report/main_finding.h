// What `tonnage run` and `tonnage report` say under the headline: the main finding in a sentence or
// two.
#pragma once

#include <string>
#include <vector>

#include "analysis/diagnosis/findings.h"

namespace tonnage::report {

// Empty if nothing was found.
std::vector<std::string> main_finding(const analysis::Explanation& explanation);

}  // namespace tonnage::report
