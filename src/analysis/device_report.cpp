#include "analysis/device_report.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <unordered_map>

#include "analysis/beside_pytorch.h"
#include "analysis/timeline/breakdown.h"
#include "analysis/timeline/categories.h"

namespace tonnage::analysis {
namespace {

using abi::EventKind;
using abi::MemoryEvent;

bool has_allocator(const Timeline& timeline, uint32_t process, int device) {
  auto found = timeline.processes().find({process, device});
  return found != timeline.processes().end() && found->second.reserved > 0;
}

Peak peak_at(const Timeline& timeline, int device, const Sample& sample, uint64_t bytes) {
  Peak peak;
  peak.bytes = bytes;
  peak.moment = moment_of(timeline, sample.event);
  peak.breakdown = breakdown_at(timeline, device, sample.event);
  return peak;
}

// The process whose steps the device's table shows: the one that made most of PyTorch's memory there.
std::optional<uint32_t> stepping_process(const Timeline& timeline, int device) {
  std::optional<uint32_t> best;
  uint64_t most = 0;
  std::set<uint32_t> with_steps;
  for (const Step& step : timeline.steps()) with_steps.insert(step.process);
  for (const auto& [key, peak] : timeline.processes()) {
    if (key.second != device || with_steps.count(key.first) == 0) continue;
    if (!best || peak.reserved > most) {
      best = key.first;
      most = peak.reserved;
    }
  }
  return best;
}

std::vector<StepRow> step_rows(const Timeline& timeline, const DeviceTimeline& samples) {
  std::vector<StepRow> rows;
  const auto process = stepping_process(timeline, samples.device);
  if (!process) return rows;
  const auto& events = timeline.record().events;
  // Launch counts are written just before a step's end; a step's own number is the difference.
  std::vector<std::pair<uint32_t, uint64_t>> launches;
  for (uint32_t i = 0; i < events.size(); ++i) {
    if (events[i].kind == EventKind::kKernelCount && events[i].process == *process &&
        events[i].device == samples.device)
      launches.emplace_back(i, events[i].value);
  }
  auto launches_before = [&](uint32_t event) -> std::optional<uint64_t> {
    auto it =
        std::lower_bound(launches.begin(), launches.end(), std::make_pair(event, uint64_t{0}));
    if (it == launches.begin()) return std::nullopt;
    return std::prev(it)->second;
  };
  uint64_t counted = 0;
  for (const Step& step : timeline.steps()) {
    if (step.process != *process) continue;
    const StepPeak peak = timeline.peak_between(samples.device, step.first_event, step.end_event);
    StepRow row;
    row.number = step.number;
    row.complete = step.complete;
    row.peak_allocated = peak.allocated;
    row.peak_reserved = peak.reserved;
    if (samples.has_device) row.peak_device = peak.device;
    row.allocated_after = peak.allocated_after;
    if (step.first_event < events.size() && step.end_event > step.first_event)
      row.duration_ns =
          events[step.end_event - 1].time_ns -
          std::min(events[step.first_event].time_ns, events[step.end_event - 1].time_ns);
    if (auto now = launches_before(step.end_event); now && *now >= counted) {
      row.launches = *now - counted;
      counted = *now;
    }
    rows.push_back(row);
  }
  return rows;
}

// What the program heard of, and how often it did not have to.
void read_out_of_memory(const Timeline& timeline, const std::vector<Refusal>& refusals,
                        DeviceReport& out) {
  const auto& events = timeline.record().events;
  const auto samples = timeline.devices().find(out.index);
  for (const Refusal& refusal : refusals) {
    if (refusal.device != out.index || refusal.by_host) continue;
    if (refusal.fate == Fate::kRetried) ++out.retries;
    if (refusal.fate == Fate::kOtherWay) out.other_ways += refusal.events.count;
    if (refusal.fate == Fate::kRetried || refusal.fate == Fate::kOtherWay) continue;
    const uint32_t index = refusal.events.last;
    OutOfMemory oom;
    oom.request_bytes = events[index].size_bytes;
    oom.free_bytes = events[index].value;
    oom.asker = refusal.asker;
    oom.library = refusal.library;
    oom.from_pytorch = refusal.asker == Asker::kPyTorch;
    oom.ended = refusal.fate == Fate::kEnded;
    oom.went_on = !oom.ended;
    oom.count = refusal.events.count;
    oom.moment = moment_of(timeline, index);
    if (samples != timeline.devices().end()) {
      if (const Sample* sample = samples->second.at(index)) {
        oom.allocated_bytes = sample->allocated_bytes;
        oom.reserved_bytes = sample->reserved_bytes;
      }
    }
    out.out_of_memory.push_back(std::move(oom));
  }
}

// Sizes that were assumed to be as large as they can be, before the device's peak.
bool rests_on_assumption(const Timeline& timeline, int device, uint64_t peak_event) {
  const auto& events = timeline.record().events;
  for (size_t i = 0; i < events.size() && i <= peak_event; ++i) {
    const MemoryEvent& event = events[i];
    if (event.kind == EventKind::kAssumedSize && event.device == device && event.size_bytes > 1 &&
        event.value >= event.size_bytes)
      return true;
  }
  return false;
}

// The steps' own peak, where the device's comes after the last whole one.
void tell_steps_apart(DeviceReport& out) {
  if (!out.device) return;
  uint64_t most = 0;
  uint32_t last = 0;
  for (const StepRow& row : out.steps) {
    if (!row.complete || !row.peak_device) continue;
    most = std::max(most, *row.peak_device);
    last = row.number;
  }
  if (last > 0 && most < out.device->bytes && out.device->moment.step > last)
    out.peak_of_steps = most;
}

// The last count under each name, or the first that differs from ours.
std::vector<CounterCheck> counter_checks(const Timeline& timeline, int device) {
  std::map<std::pair<uint32_t, uint32_t>, CounterCheck> checks;  // process, name
  for (const CounterSample& sample : timeline.counters()) {
    if (sample.device != device) continue;
    CounterCheck check{timeline.record().string(sample.name), static_cast<int>(sample.process),
                       sample.theirs, std::nullopt};
    if (sample.ours != UINT64_MAX) check.ours = sample.ours;
    auto [it, made] = checks.try_emplace({sample.process, sample.name}, check);
    if (!made && it->second.equal()) it->second = check;
  }
  std::vector<CounterCheck> out;
  for (auto& [key, check] : checks) out.push_back(std::move(check));
  return out;
}

}  // namespace

Moment moment_of(const Timeline& timeline, uint64_t index) {
  Moment moment;
  const auto& events = timeline.record().events;
  moment.event = index;
  if (index >= events.size()) return moment;
  const MemoryEvent& event = events[index];
  moment.time_ns = event.time_ns;
  if (const Step* step = step_at(timeline.steps(), event.process, index)) {
    moment.step = step->number;
  } else {
    // After the last whole step, with nothing in it but this.
    for (const Step& last : timeline.steps()) {
      if (last.process == event.process && last.end_event <= index) moment.step = last.number + 1;
    }
    if (moment.step == 0 && event.step > 0) moment.step = event.step + 1;
  }
  moment.phase = phase_of(timeline.record(), timeline.stacks(), event, true);
  moment.process = static_cast<int>(event.process);
  moment.site = timeline.stacks().site(event);
  return moment;
}

std::vector<LiveGroup> largest_live(const Timeline& timeline, int device, uint64_t event,
                                    size_t count) {
  const auto& record = timeline.record();
  // Alike: same size, purpose, operator and line.
  using Key = std::tuple<uint64_t, Category, uint32_t, uint32_t, int>;
  struct Group {
    uint64_t count = 0;
    const Allocation* first = nullptr;
    const DeviceAllocation* device_first = nullptr;
  };
  std::map<Key, Group> groups;
  std::map<std::tuple<std::string, uint32_t, std::string>, uint32_t>
      lines;  // equal lines of different stacks are one
  std::unordered_map<uint32_t, uint32_t> line_of_stack;
  auto line_id = [&](uint32_t stack) {
    auto [it, made] = line_of_stack.try_emplace(stack, 0);
    if (made) {
      const Place line = timeline.stacks().line(stack);
      it->second = lines
                       .try_emplace({line.file, line.line, line.function},
                                    static_cast<uint32_t>(lines.size()))
                       .first->second;
    }
    return it->second;
  };
  auto event_of = [&](uint32_t index) -> const MemoryEvent& {
    static const MemoryEvent none;
    return index < record.events.size() ? record.events[index] : none;
  };
  timeline.for_each_live(device, event, [&](const Allocation& a) {
    const uint32_t op = a.before_history ? abi::kNoId : event_of(a.alloc_event).op;
    Group& group = groups[{a.requested_bytes, a.category, op, line_id(a.stack), -1}];
    if (group.count++ == 0) group.first = &a;
  });
  for (const DeviceAllocation& a : timeline.device_allocations()) {
    if (a.device != device || a.is_segment || !a.live_at(event)) continue;
    // Expandable segments are made of virtual memory, whose pieces PyTorch's events do not name one
    // by one.
    if (a.kind == abi::DeviceMemoryKind::kVirtual && has_allocator(timeline, a.process, device))
      continue;
    const MemoryEvent& made = event_of(a.alloc_event);
    const Category category =
        a.kind == abi::DeviceMemoryKind::kManaged ? Category::kManaged : Category::kOther;
    Group& group =
        groups[{a.size_bytes, category, made.op, line_id(made.stack), static_cast<int>(a.kind)}];
    if (group.count++ == 0) group.device_first = &a;
  }
  std::vector<std::pair<Key, Group>> sorted(groups.begin(), groups.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return std::get<0>(a.first) * a.second.count > std::get<0>(b.first) * b.second.count;
  });
  if (sorted.size() > count) sorted.resize(count);
  std::vector<LiveGroup> out;
  for (const auto& [key, group] : sorted) {
    LiveGroup live;
    live.count = group.count;
    live.size_bytes = std::get<0>(key);
    live.category = std::get<1>(key);
    uint32_t born = 0, process = 0;
    if (group.first != nullptr) {
      const Allocation& a = *group.first;
      live.block_bytes = a.block_bytes;
      live.inferred = a.source == CategorySource::kInferred;
      live.name = record.string(a.name);
      const MemoryEvent none;
      const MemoryEvent& made = a.before_history ? none : event_of(a.alloc_event);
      live.site = a.before_history ? timeline.stacks().site(a.stack, abi::kNoId, abi::kNoId)
                                   : timeline.stacks().site(made);
      born = a.alloc_event;
      process = a.process;
    } else {
      const DeviceAllocation& a = *group.device_first;
      live.block_bytes = a.size_bytes;
      live.kind = memory_kind_name(a.kind);
      live.site = timeline.stacks().site(event_of(a.alloc_event));
      born = a.alloc_event;
      process = a.process;
    }
    if (const Step* step = step_at(timeline.steps(), process, born)) live.step = step->number;
    out.push_back(std::move(live));
  }
  return out;
}

DeviceReport make_device_report(const Timeline& timeline, const record::Device& device,
                                const std::vector<Refusal>& refusals,
                                const ReportOptions& options) {
  DeviceReport out;
  out.index = device.index;
  out.name = device.name;
  if (device.total_bytes > 0) out.total_bytes = device.total_bytes;
  auto found = timeline.devices().find(device.index);
  read_out_of_memory(timeline, refusals, out);
  if (found == timeline.devices().end() || found->second.samples.empty()) {
    out.headroom_bytes = out.total_bytes;
    return out;
  }
  const DeviceTimeline& samples = found->second;
  out.uses_pytorch = samples.has_allocator;
  out.allocations = samples.allocations;
  const Sample* top = &samples.samples[samples.device_peak];
  if (samples.has_device) {
    out.device = peak_at(timeline, device.index, *top, top->device_bytes);
    out.context_bytes = timeline.context_bytes(device.index, top->event);
    for (const DeviceAllocation& a : timeline.device_allocations()) {
      if (a.device == device.index && a.live_at(top->event))
        out.device_bytes_by_kind[memory_kind_name(a.kind)] += a.size_bytes;
    }
  }
  if (out.device)
    out.beside_pytorch = largest_beside_pytorch(timeline, device.index, out.device->moment.event,
                                                options.largest_count);
  if (samples.has_allocator) {
    const Sample& allocated = samples.samples[samples.allocated_peak];
    const Sample& reserved = samples.samples[samples.reserved_peak];
    out.allocated = peak_at(timeline, device.index, allocated, allocated.allocated_bytes);
    out.reserved = peak_at(timeline, device.index, reserved, reserved.reserved_bytes);
    top = &allocated;
  }
  out.largest = largest_live(timeline, device.index, top->event, options.largest_count);
  out.steps = step_rows(timeline, samples);
  tell_steps_apart(out);
  out.rests_on_assumption =
      out.device && rests_on_assumption(timeline, device.index, out.device->moment.event);
  out.counters = counter_checks(timeline, device.index);
  out.series = sample_series(timeline, device.index, options.series_points);
  if (out.total_bytes && out.device && out.device->bytes <= *out.total_bytes)
    out.headroom_bytes = *out.total_bytes - out.device->bytes;
  return out;
}

}  // namespace tonnage::analysis
