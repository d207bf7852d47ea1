#include "analysis/diagnosis/oom_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "analysis/device_report.h"
#include "analysis/diagnosis/oom_parts.h"
#include "analysis/timeline/failures.h"

namespace tonnage::analysis {
namespace {

using abi::EventKind;
using abi::MemoryEvent;
using record::Record;

// Who else is on the card: other processes of the record, those that the error's message names, or
// what is missing from its size.
void read_others(const Timeline& timeline, const ExplainOptions& options, OomFacts& facts) {
  const Record& record = timeline.record();
  std::map<uint32_t, uint64_t> held;
  for (const DeviceAllocation& a : timeline.device_allocations()) {
    if (a.device == facts.failure.device && a.process != facts.process && a.live_at(facts.event))
      held[a.process] += a.size_bytes;
  }
  const auto name = [&](int64_t pid, uint64_t bytes) {
    facts.other_processes += fmt::format(
        "{}process {} ({})", facts.other_processes.empty() ? "" : ", ", pid, size_text(bytes));
  };
  for (const auto& [process, bytes] : held) {
    facts.other_process_bytes += bytes;
    if (process < record.processes.size()) name(record.processes[process].pid, bytes);
  }
  if (options.message && held.empty()) {
    for (const auto& process : options.message->processes) {
      if (process.is_self || !process.plausible) continue;
      facts.other_process_bytes += process.in_use.bytes;
      name(static_cast<int64_t>(process.pid.value_or(0)), process.in_use.bytes);
    }
  }
  if (record.kind != Record::Kind::kSnapshot || !facts.failure.capacity_bytes ||
      !facts.failure.free_bytes || !facts.failure.reserved_bytes)
    return;
  const uint64_t known = *facts.failure.free_bytes + *facts.failure.reserved_bytes;
  constexpr uint64_t kContextBytes =
      1ull << 30;  // this process's own context and libraries stay below it
  if (*facts.failure.capacity_bytes > known + kContextBytes)
    facts.unaccounted_bytes = *facts.failure.capacity_bytes - known;
}

// PyTorch's asynchronous allocator (cudaMallocAsync) tells of no segments: its memory is that of
// the driver's pools. PyTorch's own counts show that it is PyTorch's.
void read_asynchronous_allocator(const Timeline& timeline, OomFacts& facts) {
  Failure& failure = facts.failure;
  if (failure.reserved_bytes.value_or(0) > 0 || !facts.device_other_bytes) return;
  const bool counted = std::ranges::any_of(timeline.counters(), [&](const CounterSample& sample) {
    return sample.process == facts.process && sample.device == failure.device &&
           sample.theirs > 0 && sample.ours == UINT64_MAX &&
           timeline.record().string(sample.name) == "reserved_bytes.all.peak";
  });
  if (!counted) return;
  failure.reserved_bytes = failure.allocated_bytes = facts.device_other_bytes;
  facts.device_other_bytes = 0;
}

void read_limit(const Timeline& timeline, const ExplainOptions& options, OomFacts& facts) {
  Failure& failure = facts.failure;
  const Record& record = timeline.record();
  for (const record::Device& device : record.devices) {
    if (device.index == failure.device && device.total_bytes > 0)
      failure.capacity_bytes = device.total_bytes;
  }
  if (options.memory_bytes) failure.capacity_bytes = options.memory_bytes;
  if (options.message && options.message->capacity)
    failure.capacity_bytes = options.message->capacity->bytes;

  const uint64_t reserved = failure.reserved_bytes.value_or(0);
  // What PyTorch ever reserved is within its cap.
  uint64_t reserved_peak = reserved;
  if (const auto found = timeline.processes().find({facts.process, failure.device});
      found != timeline.processes().end())
    reserved_peak = std::max(reserved_peak, found->second.reserved);
  // More than it was refused: the cap has been another one then.
  if (reserved_peak >= reserved + facts.wanted_bytes) reserved_peak = reserved;
  if (options.message && options.message->allowed &&
      (!failure.capacity_bytes ||
       options.message->allowed->bytes < *failure.capacity_bytes / 50 * 49)) {
    failure.limit_bytes = options.message->allowed->bytes;
    failure.limit_is_cap = true;
  } else if (failure.free_bytes && *failure.free_bytes >= facts.wanted_bytes + kFreeMarginBytes) {
    // The driver had enough: PyTorch's own cap refused. It lies between what was reserved and what
    // was asked for on top.
    failure.limit_bytes = std::max(reserved_peak, reserved + facts.wanted_bytes - 1);
    failure.limit_at_least_bytes = reserved_peak;
    failure.limit_is_cap = true;
    failure.limit_is_estimate = true;
  } else if (failure.free_bytes) {
    failure.limit_bytes = reserved + *failure.free_bytes;
  }
  facts.limit_bytes = failure.limit_bytes.value_or(0);
}

}  // namespace

bool stack_in(const Record& record, uint32_t stack, std::string_view file_end,
              std::string_view function) {
  if (stack >= record.stacks.size()) return false;
  for (const auto& frame : record.stacks[stack]) {
    if (std::string_view(record.string(frame.file)).ends_with(file_end) &&
        (function.empty() || bare_name(record.string(frame.function)) == function))
      return true;
  }
  return false;
}

OomFacts collect_oom_facts(const Timeline& timeline, uint32_t index,
                           const ExplainOptions& options) {
  const Record& record = timeline.record();
  const MemoryEvent& event = record.events[index];
  OomFacts facts;
  facts.event = index;
  facts.process = event.process;
  facts.stream = event.stream;
  facts.from_pytorch = event.kind == EventKind::kOom;
  for (const OomAttempts& attempts : find_oom_attempts(record, timeline.stacks())) {
    const MemoryEvent& earlier = record.events[attempts.last];
    if (attempts.last >= index || attempts.overcome) continue;
    if (earlier.kind == EventKind::kOom && earlier.process == event.process &&
        earlier.device == event.device)
      facts.earlier_failure = attempts.last;
  }
  Failure& failure = facts.failure;
  failure.device = event.device;
  failure.request_bytes = event.size_bytes;
  failure.free_bytes = event.value;
  failure.moment = moment_of(timeline, index);
  facts.wanted_bytes = event.size_bytes;
  if (facts.from_pytorch) {
    failure.segment_bytes =
        segment_request(round_request(event.size_bytes, record.settings.roundup_power2_divisions));
    facts.wanted_bytes = *failure.segment_bytes;
    failure.segments.push_back(segment_map_at(timeline, event.device, event.process, index));
    facts.fragmentation = measure_fragmentation(failure.segments.back());
    const uint64_t rounded =
        round_request(event.size_bytes, record.settings.roundup_power2_divisions);
    facts.pieces = free_pieces(failure.segments.back(), rounded, event.stream);
    failure.reserved_bytes = facts.fragmentation.reserved;
    failure.allocated_bytes = facts.fragmentation.requested + facts.fragmentation.rounding;
  } else if (const auto found = timeline.devices().find(event.device);
             found != timeline.devices().end()) {
    if (const Sample* sample = found->second.at(index)) {
      failure.allocated_bytes = sample->allocated_bytes;
      failure.reserved_bytes = sample->reserved_bytes;
    }
  }
  if (const auto found = timeline.devices().find(event.device);
      found != timeline.devices().end() && found->second.has_device) {
    const Breakdown breakdown = breakdown_at(timeline, event.device, index);
    for (const BreakdownRow& row : breakdown.rows) {
      if (row.category == Category::kOther || row.category == Category::kManaged)
        facts.device_other_bytes = facts.device_other_bytes.value_or(0) + row.bytes;
      if (row.category == Category::kContext || row.category == Category::kLocalMemory)
        facts.context_bytes = facts.context_bytes.value_or(0) + row.bytes;
    }
  }
  facts.phase = failure.moment.phase;
  facts.site = failure.moment.site;
  read_asynchronous_allocator(timeline, facts);
  read_limit(timeline, options, facts);
  read_others(timeline, options, facts);
  compare_with_earlier_steps(timeline, facts);
  read_live(timeline, facts);
  if (facts.from_pytorch) {
    const uint64_t reserved = failure.reserved_bytes.value_or(0);
    const uint64_t headroom = facts.limit_bytes > reserved && !failure.limit_is_estimate
                                  ? facts.limit_bytes - reserved
                                  : 0;
    const uint64_t rounded =
        round_request(event.size_bytes, record.settings.roundup_power2_divisions);
    facts.move = smallest_move(failure.segments.back(), rounded, event.stream, headroom);
  }
  if (facts.from_pytorch) predict_state(timeline, facts);
  facts.growth = find_growth(timeline, event.device, event.process, index);
  return facts;
}

}  // namespace tonnage::analysis
