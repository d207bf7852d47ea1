// The report as JSON: bytes are integers, what is not known is null, "schema" is a number that
// grows with the format.
#pragma once

#include <string>

#include "analysis/report.h"

namespace tonnage::report {

inline constexpr int kJsonSchema = 1;

// indent < 0: one line. Strings that are not UTF-8 get replacement characters.
std::string to_json(const analysis::Report& report, int indent = 2,
                    const std::string& main_finding = "");

}  // namespace tonnage::report
