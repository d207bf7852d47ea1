// What changed between two records: peaks, categories and lines, at each one's own allocated peak.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "analysis/diagnosis/findings.h"

namespace tonnage::analysis {

struct DiffMetric {
  std::string name;  // "allocated_peak", "reserved_peak", "device_peak"
  std::optional<uint64_t> before, after;
};
struct DiffCategory {
  Category category = Category::kUnknown;
  uint64_t before = 0, after = 0;
};
struct DiffLine {
  Site site;  // of the side that has it
  Category category = Category::kUnknown;
  uint64_t before = 0, after = 0;  // requested bytes alive at the peak
  uint64_t count_before = 0, count_after = 0;
};
struct DeviceDiff {
  int device = 0;
  std::vector<DiffMetric> metrics;
  std::vector<DiffCategory> categories;  // in the report's order, also the unchanged ones
  std::vector<DiffLine> lines;           // that changed, largest change first
};
struct Diff {
  std::string before, after;  // sources
  std::vector<DeviceDiff> devices;
};

// Cost: two passes over the live sets at the peaks.
Diff diff(const Explanation& before, const Explanation& after, size_t max_lines = 20);

// One peak in one number, for a threshold.
enum class PeakMetric : uint8_t { kAllocated, kReserved, kDevice };
const char* peak_metric_name(PeakMetric metric);
// Of the fullest device; null if the record does not have it.
std::optional<uint64_t> peak_of(const Report& report, PeakMetric metric);

}  // namespace tonnage::analysis
