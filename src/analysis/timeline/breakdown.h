// Breakdown: where every byte of a device went at one moment. The rows add up to the total exactly
// (design rule):
//
//   live allocations by category (requested bytes)       parameters … unknown
// + rounding   = allocated - requested                   = allocated
// + cached     = reserved - allocated                    = reserved
// + managed    = managed memory that is on the card
// + other      = other device allocations - reserved     (not PyTorch's)
// + local      = local memory of kernels (modelled)
// + context    = contexts and machine code (modelled)    = device total
//
// Without the driver's events (a PyTorch snapshot) the total is reserved, and the last four rows
// are missing.
#pragma once

#include <array>
#include <vector>

#include "analysis/report.h"
#include "analysis/timeline/timeline.h"

namespace tonnage::analysis {

using abi::kCategoryCount;

// In the order of the report's rows.
inline constexpr auto kRowOrder = [] {
  std::array<Category, kCategoryCount> order{};
  for (size_t i = 0; i < kCategoryCount; ++i) order[i] = abi::kCategories[i].category;
  return order;
}();

// After the event. Cost: proportional to the live set.
Breakdown breakdown_at(const Timeline& timeline, int device, uint64_t event);

// A stacked chart: for each of `points` equal shares of the samples, the breakdown of allocated at
// the share's own peak.
struct CategoryPoint {
  uint32_t event = 0;
  uint64_t time_ns = 0;
  uint64_t allocated_bytes = 0, reserved_bytes = 0, device_bytes = 0;
  uint64_t by_category[kCategoryCount] =
      {};  // by Category; requested bytes, and kRounding: together allocated_bytes
};
// Cost: one pass over the allocations.
std::vector<CategoryPoint> category_series(const Timeline& timeline, int device, size_t points);

// allocated, reserved, device, by equal shares of the samples; exact at the peaks.
Series sample_series(const Timeline& timeline, int device, size_t points);

}  // namespace tonnage::analysis
