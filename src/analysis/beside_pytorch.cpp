#include "analysis/beside_pytorch.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "analysis/timeline/steps.h"

namespace tonnage::analysis {
namespace {

// Alike: same size, purpose, kernel and line.
using Key = std::tuple<uint64_t, Category, std::string, std::string, uint32_t>;
using Groups = std::map<Key, LiveGroup>;

void add(const Timeline& timeline, Groups& groups, Category category, uint64_t bytes,
         const std::string& name, uint32_t process, uint32_t event) {
  const record::Record& record = timeline.record();
  if (event >= record.events.size() || bytes == 0) return;
  const abi::MemoryEvent& made = record.events[event];
  const Place line = timeline.stacks().line(made.stack);
  const auto [at, is_new] = groups.try_emplace({bytes, category, name, line.file, line.line});
  LiveGroup& group = at->second;
  if (!is_new) {
    ++group.count;
    return;
  }
  group.size_bytes = group.block_bytes = bytes;
  group.category = category;
  group.name = name;
  group.kind = category_name(category);
  group.site = timeline.stacks().site(made);
  if (const Step* step = step_at(timeline.steps(), process, event)) group.step = step->number;
}

}  // namespace

std::vector<LiveGroup> largest_beside_pytorch(const Timeline& timeline, int device, uint64_t event,
                                              size_t count) {
  Groups groups;
  for (const LocalMemory& local : timeline.local_memory()) {
    if (local.device == device && local.live_at(event))
      add(timeline, groups, Category::kLocalMemory, local.size_bytes,
          timeline.record().string(local.kernel), local.process, local.first_event);
  }
  for (const DeviceAllocation& a : timeline.device_allocations()) {
    if (a.device == device && a.kind == abi::DeviceMemoryKind::kManaged && a.live_at(event))
      add(timeline, groups, Category::kManaged, a.size_bytes, "", a.process, a.alloc_event);
  }
  std::vector<LiveGroup> out;
  for (auto& [key, group] : groups) out.push_back(std::move(group));
  std::stable_sort(out.begin(), out.end(), [](const LiveGroup& a, const LiveGroup& b) {
    return a.size_bytes * a.count > b.size_bytes * b.count;
  });
  if (out.size() > count) out.resize(count);
  return out;
}

}  // namespace tonnage::analysis
