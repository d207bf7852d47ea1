#include "analysis/timeline/timeline.h"

#include <algorithm>
#include <memory>
#include <tuple>
#include <unordered_map>

#include "abi/driver_memory.h"

namespace tonnage::analysis {
namespace {

using abi::DeviceMemoryKind;
using abi::EventKind;
using abi::MemoryEvent;

constexpr size_t kChunk = 256;

bool takes_device_memory(DeviceMemoryKind kind) {
  return kind != DeviceMemoryKind::kIpc && kind != DeviceMemoryKind::kHostPinned &&
         kind != DeviceMemoryKind::kHostRegistered;
}

}  // namespace

// The state of the pass over the events.
struct Timeline::Builder {
  struct Scope {  // one process on one device
    explicit Scope(const record::AllocatorSettings& settings) : tracker(settings) {}
    BlockTracker tracker;
    std::unordered_map<uint64_t, uint32_t> device_live;  // address -> index into device_allocations_
    uint64_t out_of_memory = 0;                          // PyTorch's errors
    uint64_t context = 0;
    uint64_t device_bytes = 0;  // all that the process holds on the device, context included
    ProcessPeak peak;
    uint64_t seen_allocated = 0, seen_reserved = 0, seen_device = 0,
             seen_context = 0;  // its share in `totals`
  };
  struct Totals {
    DeviceTimeline* timeline = nullptr;
    uint64_t allocated = 0, reserved = 0, device = 0, context = 0;
  };

  Timeline& out;
  const record::Record& record;
  std::unordered_map<uint64_t, std::unique_ptr<Scope>> scopes;
  uint64_t last_key = UINT64_MAX;
  Scope* last_scope = nullptr;
  std::map<int, Totals> totals;
  std::map<uint32_t, std::pair<uint64_t, uint64_t>> pinned;  // process -> now, peak
  std::unordered_map<uint64_t, uint64_t> pinned_live;        // address ^ process -> bytes

  explicit Builder(Timeline& timeline) : out(timeline), record(*timeline.record_) {}

  Scope& scope(uint32_t process, uint8_t device) {
    const uint64_t key = uint64_t{process} << 8 | device;
    if (key == last_key) return *last_scope;
    auto& slot = scopes[key];
    if (!slot) slot = std::make_unique<Scope>(record.settings);
    last_key = key;
    last_scope = slot.get();
    return *slot;
  }

  Totals& total(uint8_t device) {
    Totals& t = totals[device];
    if (t.timeline == nullptr) {
      t.timeline = &out.devices_[device];
      t.timeline->device = device;
    }
    return t;
  }

  // A process that is killed takes its last events with it: what it had given back seems to be its
  // own until it is found dead. The session's account knows that never more was in use.
  uint64_t most_in_use(uint8_t device) const {
    const bool is_known = record.processes.size() > 1 &&
                          device < record.end.device_peak_bytes.size() &&
                          record.end.device_peak_bytes[device] > 0;
    return is_known ? record.end.device_peak_bytes[device] : UINT64_MAX;
  }

  // Brings the device's sums up to date with one scope and notes the sample.
  void settle(Scope& s, uint8_t device, uint32_t event) {
    Totals& t = total(device);
    const uint64_t allocated = s.tracker.allocated_bytes(), reserved = s.tracker.reserved_bytes();
    t.allocated += allocated - s.seen_allocated;
    t.reserved += reserved - s.seen_reserved;
    t.device += s.device_bytes - s.seen_device;
    if (s.context != s.seen_context) {
      t.context += s.context - s.seen_context;
      out.context_[device].emplace_back(event, t.context);
    }
    s.seen_allocated = allocated;
    s.seen_reserved = reserved;
    s.seen_device = s.device_bytes;
    s.seen_context = s.context;
    s.peak.device = std::max(s.peak.device, s.device_bytes);
    s.peak.allocated = std::max(s.peak.allocated, allocated);
    s.peak.reserved = std::max(s.peak.reserved, reserved);
    s.peak.active = std::max(s.peak.active, s.tracker.active_bytes());
    s.peak.requested = std::max(s.peak.requested, s.tracker.requested_bytes());
    if (s.device_bytes > 0 && t.device > most_in_use(device)) return;
    auto& samples = t.timeline->samples;
    const Sample now{event, t.allocated, t.reserved, t.device};
    if (!samples.empty()) {
      const Sample& last = samples.back();
      if (last.allocated_bytes == now.allocated_bytes &&
          last.reserved_bytes == now.reserved_bytes && last.device_bytes == now.device_bytes)
        return;
    }
    samples.push_back(now);
  }

  void begin() {
    for (auto& [device, state] : initial_states(record)) {
      if (device < 0 || device > UINT8_MAX) continue;
      Scope& s = scope(0, static_cast<uint8_t>(device));
      std::vector<BlockTracker::Tag> tags;
      for (const auto& block : state.blocks) {
        Allocation allocation;
        allocation.before_history = true;
        allocation.device = static_cast<uint8_t>(device);
        allocation.address = block.address;
        allocation.requested_bytes = block.requested_bytes;
        allocation.stack = block.stack;
        if (block.pending) allocation.free_event = 0;
        tags.push_back(static_cast<uint32_t>(out.allocations_.size()));
        out.allocations_.push_back(allocation);
      }
      apply_initial_state(state, s.tracker, &tags);
      for (const auto& [address, block] : s.tracker.blocks()) {
        if (block.state == BlockTracker::Block::State::kFree ||
            block.tag >= out.allocations_.size())
          continue;
        out.allocations_[block.tag].block_bytes = block.size_bytes;
        out.allocations_[block.tag].exact = !block.size_assumed;
      }
      Totals& t = total(static_cast<uint8_t>(device));
      t.timeline->has_allocator = true;
      settle(s, static_cast<uint8_t>(device), 0);
      t.timeline->initial_allocated_bytes = t.allocated;
      t.timeline->initial_reserved_bytes = t.reserved;
    }
  }

  void allocator_event(const MemoryEvent& event, uint32_t index) {
    Scope& s = scope(event.process, event.device);
    Totals& t = total(event.device);
    t.timeline->has_allocator = true;
    switch (event.kind) {
      case EventKind::kSegmentAlloc:
        if (auto it = s.device_live.find(event.address); it != s.device_live.end())
          out.device_allocations_[it->second].is_segment = true;
        play(event, s.tracker);
        break;
      case EventKind::kAlloc: {
        const auto tag = static_cast<uint32_t>(out.allocations_.size());
        const auto placed = s.tracker.alloc(event.address, event.size_bytes, tag);
        Allocation allocation;
        allocation.alloc_event = index;
        allocation.process = event.process;
        allocation.device = event.device;
        allocation.address = event.address;
        allocation.requested_bytes = event.size_bytes;
        allocation.block_bytes = placed.block_bytes;
        allocation.exact = placed.consistent;
        allocation.stack = event.stack;
        out.allocations_.push_back(allocation);
        ++t.timeline->allocations;
        break;
      }
      case EventKind::kFreeRequested:
        if (auto block = s.tracker.free_requested(event.address);
            block && block->tag < out.allocations_.size())
          out.allocations_[block->tag].free_event = index;
        break;
      case EventKind::kFreeCompleted:
        if (auto block = s.tracker.free_completed(event.address);
            block && block->tag < out.allocations_.size()) {
          Allocation& allocation = out.allocations_[block->tag];
          allocation.complete_event = index;
          if (allocation.free_event == kNever) allocation.free_event = index;
        }
        break;
      default: play(event, s.tracker);
    }
    settle(s, event.device, index);
  }

  void device_event(const MemoryEvent& event, uint32_t index) {
    Scope& s = scope(event.process, event.device);
    total(event.device).timeline->has_device = true;
    switch (event.kind) {
      case EventKind::kDeviceAlloc: {
        const auto kind = static_cast<DeviceMemoryKind>(event.value);
        if (!takes_device_memory(kind)) return;
        DeviceAllocation allocation;
        allocation.alloc_event = index;
        allocation.process = event.process;
        allocation.device = event.device;
        allocation.kind = kind;
        allocation.address = event.address;
        allocation.size_bytes = event.size_bytes;
        s.device_live.insert_or_assign(event.address,
                                       static_cast<uint32_t>(out.device_allocations_.size()));
        out.device_allocations_.push_back(allocation);
        s.device_bytes += event.size_bytes;
        break;
      }
      case EventKind::kDeviceFree: {
        auto it = s.device_live.find(event.address);
        if (it == s.device_live.end()) return;  // an IPC mapping, or host memory
        DeviceAllocation& allocation = out.device_allocations_[it->second];
        allocation.free_event = index;
        s.device_bytes -= allocation.size_bytes;
        s.device_live.erase(it);
        break;
      }
      case EventKind::kContextEnd: {
        const uint64_t bytes = std::min({event.size_bytes, s.context, s.device_bytes});
        s.context -= bytes;
        s.device_bytes -= bytes;
        end_local_memory(event.process, event.device, index);
        break;
      }
      default:  // kContext, kModuleLoad
        if (event.kind == EventKind::kModuleLoad &&
            event.value == static_cast<uint64_t>(abi::DriverMemory::kLocalMemory))
          out.local_memory_.push_back(
              {index, kNever, event.process, event.device, event.size_bytes, event.name});
        s.context += event.size_bytes;
        s.device_bytes += event.size_bytes;
    }
    settle(s, event.device, index);
  }

  void end_local_memory(uint32_t process, uint8_t device, uint32_t index) {
    for (LocalMemory& local : out.local_memory_) {
      if (local.process == process && local.device == device && local.end_event == kNever)
        local.end_event = index;
    }
  }

  void host_event(const MemoryEvent& event) {
    auto& [now, peak] = pinned[event.process];
    const uint64_t key = event.address ^ (uint64_t{event.process} << 48);
    // Managed memory is not pinned; what of it is on a card has events of its own.
    if (event.value == static_cast<uint64_t>(abi::DeviceMemoryKind::kManaged)) return;
    if (event.kind == EventKind::kHostAlloc) {
      pinned_live[key] = event.size_bytes;
      now += event.size_bytes;
      peak = std::max(peak, now);
    } else if (auto it = pinned_live.find(key); it != pinned_live.end()) {
      now -= std::min(now, it->second);
      pinned_live.erase(it);
    }
  }

  // The driver takes back all that an ended process held.
  void process_end(uint32_t process, uint32_t index) {
    for (auto& [key, s] : scopes) {
      if (key >> 8 != process) continue;
      s->peak.allocated_end = s->tracker.allocated_bytes();
      s->peak.reserved_end = s->tracker.reserved_bytes();
      for (const auto& [address, id] : s->device_live)
        out.device_allocations_[id].free_event = index;
      for (const auto* blocks : {&s->tracker.blocks(), &s->tracker.loose()}) {
        for (const auto& [address, block] : *blocks) {
          if (block.state == BlockTracker::Block::State::kFree ||
              block.tag >= out.allocations_.size())
            continue;
          Allocation& allocation = out.allocations_[block.tag];
          if (allocation.free_event == kNever) allocation.free_event = index;
          if (allocation.complete_event == kNever) allocation.complete_event = index;
        }
      }
      const ProcessPeak peak = s->peak;
      const uint64_t lost = s->tracker.inconsistencies();
      out.inconsistencies_ += lost;
      s->device_live.clear();
      end_local_memory(process, static_cast<uint8_t>(key & 0xff), index);
      s->device_bytes = 0;
      s->context = 0;
      s->tracker = BlockTracker(record.settings);
      s->peak = peak;
      settle(*s, static_cast<uint8_t>(key & 0xff), index);
      s->peak = peak;
      ended.push_back(key);
    }
  }
  std::vector<uint64_t> ended;

  void run() {
    begin();
    size_t allocs = 0;
    for (const MemoryEvent& event : record.events) allocs += event.kind == EventKind::kAlloc;
    out.allocations_.reserve(out.allocations_.size() + allocs);
    const size_t count = std::min<size_t>(record.events.size(), kNever - 1);
    for (uint32_t i = 0; i < count; ++i) {
      const MemoryEvent& event = record.events[i];
      switch (event.kind) {
        case EventKind::kAlloc:
        case EventKind::kFreeRequested:
        case EventKind::kFreeCompleted:
        case EventKind::kSegmentAlloc:
        case EventKind::kSegmentFree:
        case EventKind::kSegmentMap:
        case EventKind::kSegmentUnmap: allocator_event(event, i); break;
        case EventKind::kDeviceAlloc:
        case EventKind::kDeviceFree:
        case EventKind::kContext:
        case EventKind::kContextEnd:
        case EventKind::kModuleLoad: device_event(event, i); break;
        case EventKind::kHostAlloc:
        case EventKind::kHostFree: host_event(event); break;
        case EventKind::kLabel: label(event); break;
        case EventKind::kOom: ++scope(event.process, event.device).out_of_memory; break;
        case EventKind::kCounter: counter(event, i); break;
        case EventKind::kProcessEnd: process_end(event.process, i); break;
        default: break;
      }
    }
    finish();
  }

  void label(const MemoryEvent& event) {
    if (event.value >= abi::kCategoryCount ||
        !abi::category_info(static_cast<Category>(event.value)).is_label)
      return;
    // Addresses are unique in a process, whatever the card: the recorder does not say which card a
    // label's is on.
    uint64_t tag = out.allocations_.size();
    for (const auto& [key, s] : scopes)
      if (key >> 8 == event.process && tag >= out.allocations_.size())
        tag = s->tracker.find(event.address);
    if (tag >= out.allocations_.size()) return;
    Allocation& allocation = out.allocations_[tag];
    if (allocation.source == CategorySource::kTold) return;  // the first label wins
    allocation.category = static_cast<Category>(event.value);
    allocation.source = CategorySource::kTold;
    allocation.confidence_percent = 100;
    allocation.name = event.name;
  }

  void counter(const MemoryEvent& event, uint32_t index) {
    const Scope& s = scope(event.process, event.device);
    const std::string& name = record.string(event.name);
    CounterSample sample{index, event.process, event.device, event.name, event.value, UINT64_MAX};
    const auto device = out.devices_.find(event.device);
    // Without events of the allocator (cudaMallocAsync) there is nothing to compare with.
    if (device == out.devices_.end() || !device->second.has_allocator) {
      out.counters_.push_back(sample);
      return;
    }
    if (name == "allocated_bytes.all.current") sample.ours = s.tracker.allocated_bytes();
    if (name == "allocated_bytes.all.peak") sample.ours = s.peak.allocated;
    if (name == "reserved_bytes.all.current") sample.ours = s.tracker.reserved_bytes();
    if (name == "reserved_bytes.all.peak") sample.ours = s.peak.reserved;
    if (name == "active_bytes.all.current") sample.ours = s.tracker.active_bytes();
    if (name == "active_bytes.all.peak") sample.ours = s.peak.active;
    if (name == "requested_bytes.all.current") sample.ours = s.tracker.requested_bytes();
    if (name == "requested_bytes.all.peak") sample.ours = s.peak.requested;
    if (name == "num_ooms") sample.ours = s.out_of_memory;
    out.counters_.push_back(sample);
  }

  void finish() {
    for (auto& [key, s] : scopes) {
      out.inconsistencies_ += s->tracker.inconsistencies();
      if (std::find(ended.begin(), ended.end(), key) == ended.end()) {
        s->peak.allocated_end = s->tracker.allocated_bytes();
        s->peak.reserved_end = s->tracker.reserved_bytes();
      }
      out.processes_[{static_cast<uint32_t>(key >> 8), static_cast<int>(key & 0xff)}] = s->peak;
    }
    for (const auto& [process, value] : pinned) out.processes_[{process, 0}].pinned = value.second;
    for (auto& entry : out.devices_) {
      DeviceTimeline& timeline =
          entry.second;  // not a structured binding: clang 14 cannot capture one
      auto best = [&](auto order) {
        size_t at = 0;
        for (size_t i = 1; i < timeline.samples.size(); ++i) {
          if (order(timeline.samples[at]) < order(timeline.samples[i])) at = i;
        }
        return at;
      };
      timeline.allocated_peak = best([](const Sample& s) {
        return std::make_tuple(s.allocated_bytes, s.reserved_bytes, s.device_bytes);
      });
      timeline.reserved_peak = best([](const Sample& s) {
        return std::make_tuple(s.reserved_bytes, s.allocated_bytes, s.device_bytes);
      });
      timeline.device_peak = best([](const Sample& s) {
        return std::make_tuple(s.device_bytes, s.allocated_bytes, s.reserved_bytes);
      });
    }
    out.chunk_last_free_.assign((out.allocations_.size() + kChunk - 1) / kChunk, 0);
    for (size_t i = 0; i < out.allocations_.size(); ++i) {
      uint32_t& last = out.chunk_last_free_[i / kChunk];
      const Allocation& allocation = out.allocations_[i];
      last = std::max(last, std::max(allocation.free_event, allocation.complete_event == kNever
                                                                ? allocation.free_event
                                                                : allocation.complete_event));
    }
  }
};

Timeline::Timeline(const record::Record& record)
    : record_(&record), stacks_(record), steps_(find_steps(record, stacks_)) {
  Builder(*this).run();
}

const Sample* DeviceTimeline::at(uint64_t event) const {
  auto it = std::upper_bound(samples.begin(), samples.end(), event,
                             [](uint64_t e, const Sample& sample) { return e < sample.event; });
  return it == samples.begin() ? nullptr : &*std::prev(it);
}

void Timeline::for_each_live(int device, uint64_t event,
                             const std::function<void(const Allocation&)>& visit) const {
  for (size_t chunk = 0; chunk < chunk_last_free_.size(); ++chunk) {
    const size_t first = chunk * kChunk;
    if (!allocations_[first].before_history && allocations_[first].alloc_event > event) break;
    if (chunk_last_free_[chunk] <= event) continue;
    const size_t end = std::min(first + kChunk, allocations_.size());
    for (size_t i = first; i < end; ++i) {
      if (allocations_[i].device == device && allocations_[i].live_at(event))
        visit(allocations_[i]);
    }
  }
}

std::vector<uint32_t> Timeline::live_set(int device, uint64_t event) const {
  std::vector<uint32_t> ids;
  for_each_live(device, event, [&](const Allocation& allocation) {
    ids.push_back(static_cast<uint32_t>(&allocation - allocations_.data()));
  });
  return ids;
}

uint64_t Timeline::context_bytes(int device, uint64_t event) const {
  auto found = context_.find(device);
  if (found == context_.end()) return 0;
  const auto& changes = found->second;
  auto it = std::upper_bound(
      changes.begin(), changes.end(), event,
      [](uint64_t e, const std::pair<uint32_t, uint64_t>& change) { return e < change.first; });
  return it == changes.begin() ? 0 : std::prev(it)->second;
}

uint64_t Timeline::pending_bytes(int device, uint64_t event) const {
  uint64_t bytes = 0;
  for (size_t chunk = 0; chunk < chunk_last_free_.size(); ++chunk) {
    const size_t first = chunk * kChunk;
    if (!allocations_[first].before_history && allocations_[first].alloc_event > event) break;
    if (chunk_last_free_[chunk] <= event) continue;
    const size_t end = std::min(first + kChunk, allocations_.size());
    for (size_t i = first; i < end; ++i) {
      const Allocation& a = allocations_[i];
      if (a.device == device && a.free_event <= event && event < a.complete_event)
        bytes += a.block_bytes;
    }
  }
  return bytes;
}

StepPeak Timeline::peak_between(int device, uint32_t first_event, uint32_t end_event) const {
  StepPeak peak;
  auto found = devices_.find(device);
  if (found == devices_.end()) return peak;
  const auto& samples = found->second.samples;
  auto it =
      std::lower_bound(samples.begin(), samples.end(), first_event,
                       [](const Sample& sample, uint32_t event) { return sample.event < event; });
  if (it != samples.begin()) --it;  // what was there when the step began
  for (; it != samples.end() && it->event < end_event; ++it) {
    peak.allocated = std::max(peak.allocated, it->allocated_bytes);
    peak.reserved = std::max(peak.reserved, it->reserved_bytes);
    peak.device = std::max(peak.device, it->device_bytes);
    peak.allocated_after = it->allocated_bytes;
  }
  return peak;
}

}  // namespace tonnage::analysis
