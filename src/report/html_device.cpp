// One device's part of the page: its chart, the lives of its blocks, its segment maps, its trees.
#include "report/html_device.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "analysis/block_lives.h"
#include "analysis/diagnosis/fragmentation.h"
#include "analysis/timeline/breakdown.h"
#include "report/html.h"
#include "report/html_lives.h"
#include "report/html_tree.h"

namespace tonnage::report {
namespace {

using Json = nlohmann::ordered_json;
using namespace analysis;

Json series_of(const Timeline& timeline, int device) {
  const auto points = category_series(timeline, device, kSeriesPoints);
  Json event = Json::array(), time = Json::array(), allocated = Json::array(),
       reserved = Json::array(), total = Json::array();
  Json by_category = Json::object();
  for (const Category category : kRowOrder) {
    if (category == Category::kCached || category == Category::kOther ||
        category == Category::kManaged || category == Category::kLocalMemory ||
        category == Category::kContext)
      continue;
    Json values = Json::array();
    bool any = false;
    for (const CategoryPoint& point : points) {
      const uint64_t bytes = point.by_category[static_cast<size_t>(category)];
      any = any || bytes > 0;
      values.push_back(bytes);
    }
    if (any) by_category[category_name(category)] = std::move(values);
  }
  for (const CategoryPoint& point : points) {
    event.push_back(point.event);
    time.push_back(point.time_ns);
    allocated.push_back(point.allocated_bytes);
    reserved.push_back(point.reserved_bytes);
    total.push_back(point.device_bytes);
  }
  Json step_events = Json::array();
  for (const Step& step : timeline.steps())
    if (step.complete) step_events.push_back({step.number, step.end_event, step.process});
  const bool has_device = timeline.devices().at(device).has_device;
  return {{"event", std::move(event)},
          {"time_ns", std::move(time)},
          {"allocated", std::move(allocated)},
          {"reserved", std::move(reserved)},
          {"device", has_device ? std::move(total) : Json(nullptr)},
          {"by_category", std::move(by_category)},
          {"steps", std::move(step_events)}};
}

// The allocation behind a block of the map; null: free, or not known.
class AllocationIndex {
 public:
  AllocationIndex(const Timeline& timeline, int device) : allocations_(timeline.allocations()) {
    for (; old_ < allocations_.size() && allocations_[old_].before_history; ++old_)
      if (allocations_[old_].device == device)
        old_at_.try_emplace({allocations_[old_].process, allocations_[old_].address}, old_);
  }
  // alloc_event kNever: one that is older than the history, of which there is one at an address.
  const Allocation* find(uint64_t address, uint32_t alloc_event, uint32_t process) const {
    if (alloc_event == kNever) {
      const auto old = old_at_.find({process, address});
      return old == old_at_.end() ? nullptr : &allocations_[old->second];
    }
    const auto at = std::lower_bound(allocations_.begin() + static_cast<std::ptrdiff_t>(old_),
                                     allocations_.end(), alloc_event,
                                     [](const Allocation& allocation, uint32_t wanted) {
                                       return allocation.alloc_event < wanted;
                                     });
    return at != allocations_.end() && at->alloc_event == alloc_event ? &*at : nullptr;
  }

 private:
  const std::vector<Allocation>& allocations_;
  size_t old_ = 0;
  std::map<std::pair<uint32_t, uint64_t>, size_t> old_at_;
};

Json to_value(const SegmentMap& map, const AllocationIndex& index, SiteTable& sites) {
  size_t blocks = 0;
  uint64_t bytes = 0;
  for (const MapSegment& segment : map.segments)
    blocks += segment.blocks.size(), bytes += segment.size_bytes;
  // Blocks below this size are drawn together with their neighbour if both are in the same state.
  const uint64_t threshold = blocks > kMapBlocks ? 4 * bytes / kMapBlocks : 0;
  Json segments = Json::array();
  for (const MapSegment& segment : map.segments) {
    Json drawn = Json::array();
    struct Drawn {
      uint64_t size = 0;
      int state = -1;
      const char* category = "";
      uint64_t count = 0;
      int64_t site = -1;
    } last;
    auto flush = [&] {
      if (last.count > 0)
        drawn.push_back({last.size, last.state, last.category, last.count, last.site});
      last = {};
    };
    for (const MapBlock& block : segment.blocks) {
      const int state = static_cast<int>(block.state);
      if (last.count > 0 && block.size_bytes < threshold && last.size < threshold &&
          last.state == state) {
        last.size += block.size_bytes;
        ++last.count;
        last.site = -1;
        continue;
      }
      flush();
      last = {block.size_bytes, state, "", 1, -1};
      if (block.state == BlockTracker::Block::State::kFree) continue;
      const Allocation* allocation = index.find(block.address, block.alloc_event, map.process);
      last.category = category_name(allocation ? allocation->category : Category::kUnknown);
      last.site =
          sites.of(block.alloc_event, block.stack, allocation ? allocation->name : abi::kNoId);
    }
    flush();
    char address[32];
    std::snprintf(address, sizeof address, "0x%llx",
                  static_cast<unsigned long long>(segment.address));
    segments.push_back({{"address", address},
                        {"bytes", segment.size_bytes},
                        {"stream", segment.stream},
                        {"expandable", segment.expandable},
                        {"small", segment.small_pool},
                        {"live", segment.live_bytes},
                        {"pending", segment.pending_bytes},
                        {"free", segment.free_bytes},
                        {"largest_free", segment.largest_free_bytes},
                        {"blocks", std::move(drawn)}});
  }
  const Fragmentation split = measure_fragmentation(map);
  return {{"process", map.process},         {"merged", threshold > 0},
          {"reserved", split.reserved},     {"requested", split.requested},
          {"rounding", split.rounding},     {"pending", split.pending},
          {"cached", split.cached},         {"pinned", split.pinned},
          {"segments", std::move(segments)}};
}

// The moments that a reader asks about: peaks, failures, the ends of steps, the end.
std::vector<std::pair<std::string, uint64_t>> moments_of(const Explanation& explanation,
                                                         const DeviceReport& device,
                                                         bool any_moment) {
  const Timeline& timeline = *explanation.timeline;
  std::vector<std::pair<std::string, uint64_t>> moments;
  auto add = [&](const std::string& label, uint64_t event) {
    if (moments.size() < kMapMoments &&
        std::ranges::none_of(moments, [&](const auto& moment) { return moment.second == event; }))
      moments.emplace_back(label, event);
  };
  if (device.allocated) add("peak of allocated", device.allocated->moment.event);
  if (device.reserved) add("peak of reserved", device.reserved->moment.event);
  for (const OutOfMemory& oom : device.out_of_memory) add("out of memory", oom.moment.event);
  const auto& samples = timeline.devices().at(device.index).samples;
  if (!samples.empty()) add("end", samples.back().event);
  std::vector<const Step*> steps;
  for (const Step& step : timeline.steps())
    if (step.complete && step.end_event > 0) steps.push_back(&step);
  const size_t stride = std::max<size_t>(1, (steps.size() + 3) / 4);
  for (size_t i = 0; i < steps.size(); i += stride)
    add("end of step " + std::to_string(steps[i]->number), steps[i]->end_event - 1);
  if (any_moment) return moments;
  // The rest at equal distances, so that one is near whatever moment the reader chooses.
  const size_t rest = kMapMoments - moments.size();
  for (size_t i = 1; i <= rest && samples.size() > rest; ++i)
    add("on the way", samples[samples.size() * i / (rest + 1)].event);
  return moments;
}

bool same_map(const SegmentMap& a, const SegmentMap& b) {
  return std::ranges::equal(a.segments, b.segments, [](const MapSegment& x, const MapSegment& y) {
    return x.address == y.address && x.size_bytes == y.size_bytes && x.stream == y.stream &&
           x.expandable == y.expandable &&
           std::ranges::equal(x.blocks, y.blocks, [](const MapBlock& m, const MapBlock& n) {
             return m.address == n.address && m.size_bytes == n.size_bytes &&
                    m.requested_bytes == n.requested_bytes && m.state == n.state &&
                    m.alloc_event == n.alloc_event;
           });
  });
}

uint64_t order_of(Category category) {
  return static_cast<uint64_t>(std::ranges::find(kRowOrder, category) - std::begin(kRowOrder));
}

// Category and site of a block.
std::pair<uint64_t, int64_t> origin_of(const BlockLife& life, uint32_t process,
                                       const AllocationIndex& index, SiteTable& sites) {
  const Allocation* allocation = index.find(life.address, life.alloc_event, process);
  return {order_of(allocation ? allocation->category : Category::kUnknown),
          sites.of(life.alloc_event, life.stack, allocation ? allocation->name : abi::kNoId)};
}

size_t size_of(const Json& encoded) {
  size_t bytes = 0;
  for (const char* part : {"segments", "shapes", "blocks"})
    bytes += encoded[part].get_ref<const std::string&>().size();
  return bytes;
}

// The lives of the blocks of each process; null if they are too much for the page, or (events that
// contradict each other) are not what a replay gives. budget: what is left of it.
Json lives_of(const Explanation& explanation, const DeviceReport& device,
              const AllocationIndex& index, SiteTable& sites, size_t& budget) {
  const Timeline& timeline = *explanation.timeline;
  Json out = Json::array();
  size_t left = budget;
  for (const auto& [key, peak] : timeline.processes()) {
    if (key.second != device.index || peak.reserved == 0) continue;
    const BlockLives lives = block_lives(timeline, device.index, key.first);
    for (const auto& [label, event] : moments_of(explanation, device, true))
      if (!same_map(map_of(lives, event), segment_map_at(timeline, device.index, key.first, event)))
        return nullptr;
    auto encoded = encode_lives(
        lives, [&](const BlockLife& life) { return origin_of(life, lives.process, index, sites); },
        left);
    if (!encoded) return nullptr;
    left -= std::min(left, size_of(*encoded));
    out.push_back(std::move(*encoded));
  }
  budget = left;
  return out;
}

// What was allocated where the page cannot hold every block's life: the largest ones.
Json largest_of(const Timeline& timeline, int device, SiteTable& sites) {
  std::vector<const Allocation*> chosen;
  for (const Allocation& allocation : timeline.allocations())
    if (allocation.device == device) chosen.push_back(&allocation);
  const auto larger = [](const Allocation* a, const Allocation* b) {
    return std::tuple(b->block_bytes, a->alloc_event) < std::tuple(a->block_bytes, b->alloc_event);
  };
  if (chosen.size() > kTableBlocks) {
    std::ranges::nth_element(chosen, chosen.begin() + kTableBlocks, larger);
    chosen.resize(kTableBlocks);
    std::ranges::sort(chosen);  // as they lie in the timeline: by event
  }
  std::map<uint32_t, BlockLives> by_process;
  Json out = Json::array();
  for (const Allocation* a : chosen) {
    BlockLives& lives = by_process[a->process];
    lives.process = a->process;
    lives.blocks.push_back({.address = a->address,
                            .size_bytes = a->block_bytes,
                            .requested_bytes = a->requested_bytes,
                            .from = a->before_history ? 0 : a->alloc_event,
                            .freed = a->free_event,
                            .gone = a->complete_event,
                            .alloc_event = a->before_history ? kNever : a->alloc_event,
                            .stack = a->stack});
  }
  const AllocationIndex index(timeline, device);
  for (const auto& [process, lives] : by_process) {
    auto encoded = encode_lives(
        lives, [&](const BlockLife& life) { return origin_of(life, process, index, sites); },
        kLivesBytes);
    if (encoded) out.push_back(std::move(*encoded));
  }
  return out;
}

// What the driver gave to others than PyTorch's allocator, in the same form.
Json others_of(const Timeline& timeline, int device, SiteTable& sites, size_t& budget) {
  std::map<uint32_t, BlockLives> by_process;
  std::map<uint32_t, std::vector<const DeviceAllocation*>> allocations;
  for (const DeviceAllocation& a : timeline.device_allocations()) {
    if (a.device != device || a.is_segment) continue;
    BlockLives& lives = by_process[a.process];
    lives.process = a.process;
    lives.blocks.push_back({.address = a.address,
                            .size_bytes = a.size_bytes,
                            .requested_bytes = a.size_bytes,
                            .from = a.alloc_event,
                            .freed = a.free_event,
                            .gone = a.free_event,
                            .alloc_event = a.alloc_event,
                            .stack = timeline.record().events[a.alloc_event].stack});
    allocations[a.process].push_back(&a);
  }
  Json out = Json::array();
  for (const auto& [process, lives] : by_process) {
    const auto& list = allocations[process];
    auto encoded = encode_lives(
        lives,
        [&](const BlockLife& life) {
          const auto kind = list[static_cast<size_t>(&life - lives.blocks.data())]->kind;
          return std::pair(
              order_of(kind == abi::DeviceMemoryKind::kManaged ? Category::kManaged
                                                               : Category::kOther),
              sites.of(life.alloc_event, life.stack, abi::kNoId, memory_kind_name(kind)));
        },
        budget);
    if (!encoded) continue;
    budget -= std::min(budget, size_of(*encoded));
    out.push_back(std::move(*encoded));
  }
  return out;
}

}  // namespace

Json device_data(const Explanation& explanation, const DeviceReport& device, OriginTables& tables,
                 size_t& lives_budget) {
  const Timeline& timeline = *explanation.timeline;
  Json out = {{"index", device.index}, {"series", series_of(timeline, device.index)}};
  Json maps = Json::array(), lives = nullptr, part = nullptr;
  SiteTable sites(tables);
  if (device.uses_pytorch) {
    const AllocationIndex index(timeline, device.index);
    lives = lives_of(explanation, device, index, sites, lives_budget);
    if (lives.is_null()) part = largest_of(timeline, device.index, sites);
    for (const auto& [label, event] : moments_of(explanation, device, !lives.is_null())) {
      for (const auto& [key, peak] : timeline.processes()) {
        if (key.second != device.index || peak.reserved == 0 || maps.size() >= 2 * kMapMoments)
          continue;
        const SegmentMap map = segment_map_at(timeline, device.index, key.first, event);
        if (map.segments.empty()) continue;
        Json value = to_value(map, index, sites);
        value["label"] = label;
        value["event"] = event;
        maps.push_back(std::move(value));
      }
    }
  }
  out["lives"] = std::move(lives);
  out["largest_lives"] = std::move(part);
  out["other_lives"] = others_of(timeline, device.index, sites, lives_budget);
  out["maps"] = std::move(maps);
  out["sites"] = sites.to_json();
  const auto& peak = device.allocated;
  out["by_stack"] =
      peak ? tree_by_stack(timeline, device.index, peak->moment.event) : Json(nullptr);
  out["by_module"] =
      peak ? tree_by_module(timeline, device.index, peak->moment.event) : Json(nullptr);
  return out;
}

}  // namespace tonnage::report
