// Explanations, differences and checks as text for a terminal.
#pragma once

#include <string>

#include "analysis/diagnosis/findings.h"
#include "analysis/diagnosis/findings_diff.h"
#include "cli/explain_json.h"
#include "report/text.h"

namespace tonnage::cli {

// with_report: followed by the report (breakdown, largest tensors, steps) of a record.
std::string render_explanation(const analysis::Explanation& explanation,
                               const report::TextOptions& options, bool with_report);
std::string render_diff(const analysis::Diff& diff, const std::vector<DiffNote>& notes,
                        const report::TextOptions& options);

// Text broken at spaces into lines of at most `width` columns, each with `indent` spaces in front
// (the first with `first`).
std::string wrap_text(const std::string& text, int width, const std::string& first,
                      const std::string& indent);

}  // namespace tonnage::cli
