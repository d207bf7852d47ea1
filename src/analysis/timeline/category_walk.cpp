#include "analysis/timeline/category_walk.h"

#include <algorithm>
#include <vector>

namespace tonnage::analysis {

void walk_categories(const Timeline& timeline, int device,
                     const std::function<void(const CategoryPoint&)>& visit) {
  const auto found = timeline.devices().find(device);
  if (found == timeline.devices().end()) return;
  const std::vector<Allocation>& allocations = timeline.allocations();
  std::vector<uint32_t> by_end;
  for (uint32_t i = 0; i < allocations.size(); ++i) {
    if (allocations[i].device == device && allocations[i].free_event != kNever) by_end.push_back(i);
  }
  std::ranges::sort(by_end, {}, [&](uint32_t i) { return allocations[i].free_event; });

  const auto& events = timeline.record().events;
  CategoryPoint point;
  uint64_t requested[kCategoryCount] = {};
  size_t begun = 0, ended = 0;
  for (const Sample& sample : found->second.samples) {
    for (; begun < allocations.size() &&
           (allocations[begun].before_history || allocations[begun].alloc_event <= sample.event);
         ++begun) {
      const Allocation& a = allocations[begun];
      if (a.device == device) requested[static_cast<size_t>(a.category)] += a.requested_bytes;
    }
    for (; ended < by_end.size() && allocations[by_end[ended]].free_event <= sample.event;
         ++ended) {
      const Allocation& a = allocations[by_end[ended]];
      uint64_t& bytes = requested[static_cast<size_t>(a.category)];
      bytes -= std::min(bytes, a.requested_bytes);
    }
    point.event = sample.event;
    point.time_ns = sample.event < events.size() ? events[sample.event].time_ns : 0;
    point.allocated_bytes = sample.allocated_bytes;
    point.reserved_bytes = sample.reserved_bytes;
    point.device_bytes = sample.device_bytes;
    uint64_t sum = 0;
    for (size_t i = 0; i < kCategoryCount; ++i) sum += point.by_category[i] = requested[i];
    if (point.allocated_bytes > sum)
      point.by_category[static_cast<size_t>(Category::kRounding)] = point.allocated_bytes - sum;
    visit(point);
  }
}

}  // namespace tonnage::analysis
