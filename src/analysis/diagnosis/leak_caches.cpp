// Caches that fill: they look like a leak until they are full. What shows them before that.
#include "analysis/diagnosis/leak_lines.h"

#include <algorithm>

namespace tonnage::analysis {
namespace {

constexpr size_t kMinForTrend = 9;  // iterations: three of them for each third
constexpr size_t kMinKinds = 6;     // tensors of as many sizes

// Ever fewer tensors: more and more of what is asked for is there already. A leak keeps as many
// each time, whatever their sizes.
bool slows_down(const GrowingLine& line, const GrowthRange& range) {
  const LineSum& sum = *line.sum;
  const size_t old = range.end_old - range.first_old;
  if (line.pattern.every != 1 || old < kMinForTrend) return false;
  const auto first = sum.counts.begin() + static_cast<ptrdiff_t>(range.first_old),
             end = sum.counts.begin() + static_cast<ptrdiff_t>(range.end_old);
  const auto third = static_cast<ptrdiff_t>(old / 3);
  uint64_t early = 0, late = 0;
  for (auto it = first; it != first + third; ++it) early += *it;
  for (auto it = end - third; it != end; ++it) late += *it;
  return late * 2 <= early;
}

// Full since a moment ago: for each tensor that comes, one goes that is older than all that are
// kept (but for what the first iteration made for good: a library's scratch memory has the line of
// the first who needed it).
bool gives_back_the_oldest(const LineSum& sum, const GrowthRange& range) {
  const uint32_t oldest = *std::min_element(
      sum.first_event.begin() + static_cast<ptrdiff_t>(range.first_old), sum.first_event.end());
  return sum.born_late > 0 && sum.died_late >= sum.born_late && sum.youngest_died < oldest;
}

// One tensor of each size, and none at times: a cache by shape (masks, position encodings, plans),
// whose sizes come to an end.
bool one_of_each_size(const LineSum& sum, const GrowthRange& range) {
  const bool once = std::all_of(sum.sizes.begin(), sum.sizes.end(),
                                [](const auto& size) { return size.second == 1; });
  return once && sum.sizes.size() >= kMinKinds && idle_iterations(sum, range) > 0;
}

// Keys and values of one generation: what its passes keep is gone when it ends.
bool of_one_generation(const Timeline& timeline, const LineSum& sum) {
  return !sum.stacks.empty() &&
         std::all_of(sum.stacks.begin(), sum.stacks.end(), [&](const auto& stack) {
           return timeline.stacks()[stack.first].in_module &&
                  generates(timeline.record(), stack.first);
         });
}

}  // namespace

uint32_t idle_iterations(const LineSum& sum, const GrowthRange& range) {
  return static_cast<uint32_t>(
      std::count(sum.made.begin() + static_cast<ptrdiff_t>(range.first_old),
                 sum.made.begin() + static_cast<ptrdiff_t>(range.end_old), 0u));
}

bool fills_a_cache(const Timeline& timeline, const GrowingLine& line, const GrowthRange& range) {
  const LineSum& sum = *line.sum;
  return slows_down(line, range) || gives_back_the_oldest(sum, range) ||
         one_of_each_size(sum, range) || of_one_generation(timeline, sum);
}

}  // namespace tonnage::analysis
