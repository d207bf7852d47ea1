// Explanations, differences and checks as JSON: bytes are integers, what is not known is null.
#pragma once

#include <string>

#include "analysis/diagnosis/findings.h"
#include "analysis/diagnosis/findings_diff.h"

namespace tonnage::cli {

inline constexpr int kExplainSchema = 1;

struct CheckRow {
  std::string name;  // "max_peak", "baseline", "no_leak", "out_of_memory", "verdict"
  std::optional<uint64_t> value, limit;  // bytes
  bool passed = true;
  std::string text;
};

std::string explanations_to_json(const std::vector<analysis::Explanation>& explanations);
// What must be known of one side's figures: it ran out of memory, was cut, failed.
struct DiffNote {
  std::string source, text;
};

std::string diff_to_json(const analysis::Diff& diff, const std::vector<DiffNote>& notes);
std::string check_to_json(const std::string& source, const std::string& metric,
                          const std::vector<CheckRow>& rows, bool passed);

}  // namespace tonnage::cli
