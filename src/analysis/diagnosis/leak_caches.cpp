// Caches that are filling look like a leak until they are full. This finds signs of a cache before
// that.
#include "analysis/diagnosis/leak_lines.h"

#include <algorithm>

namespace tonnage::analysis {
namespace {

constexpr size_t kMinForTrend = 9;  // iterations: three of them for each third
constexpr size_t kMinKinds = 6;     // tensors of as many sizes

// Ever fewer tensors: more and more requests are answered from the cache. A leak keeps equally many
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

// Full since recently: for each new tensor one is freed that is older than all kept ones. (Not
// counted: what the first iteration made and keeps, for example a library's workspace, which has
// the line that first needed it.)
bool gives_back_the_oldest(const LineSum& sum, const GrowthRange& range) {
  const uint32_t oldest = *std::min_element(
      sum.first_event.begin() + static_cast<ptrdiff_t>(range.first_old), sum.first_event.end());
  return sum.born_late > 0 && sum.died_late >= sum.born_late && sum.youngest_died < oldest;
}

// One tensor of each size, and sometimes none: a cache by shape (masks, position encodings, plans).
// The number of shapes is limited.
bool one_of_each_size(const LineSum& sum, const GrowthRange& range) {
  const bool once = std::all_of(sum.sizes.begin(), sum.sizes.end(),
                                [](const auto& size) { return size.second == 1; });
  return once && sum.sizes.size() >= kMinKinds && idle_iterations(sum, range) > 0;
}

// Keys and values of one generation: they are freed when the generation ends.
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
