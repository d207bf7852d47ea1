#include "analysis/report.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

#include "analysis/device_report.h"
#include "analysis/timeline/categories.h"
#include "analysis/timeline/failures.h"

namespace tonnage::analysis {
namespace {

using abi::EventKind;
using abi::MemoryEvent;

// The devices to report: those of the record that were used, else all of them.
std::vector<record::Device> devices_of(const record::Record& record, const Timeline& timeline) {
  std::map<int, record::Device> used;
  for (const auto& [index, samples] : timeline.devices()) used[index].index = index;
  for (const record::Device& device : record.devices) {
    if (used.empty() || timeline.devices().empty() || used.count(device.index) != 0)
      used[device.index] = device;
  }
  std::vector<record::Device> out;
  for (auto& [index, device] : used) out.push_back(device);
  return out;
}

std::vector<ProcessReport> process_reports(const Timeline& timeline) {
  const auto& record = timeline.record();
  std::vector<ProcessReport> out;
  for (const record::Process& process : record.processes) {
    ProcessReport report;
    report.pid = process.pid;
    report.command = process.command;
    report.ended = process.ended;
    out.push_back(std::move(report));
  }
  for (const auto& [key, peak] : timeline.processes()) {
    if (key.first >= out.size()) continue;
    if (peak.device > 0) out[key.first].peak_device[key.second] = peak.device;
    if (peak.reserved == 0) continue;
    out[key.first].peak_allocated[key.second] = peak.allocated;
    out[key.first].peak_reserved[key.second] = peak.reserved;
  }
  std::map<std::pair<uint32_t, int>, uint64_t> launches;
  for (const MemoryEvent& event : record.events) {
    if (event.kind != EventKind::kKernelCount) continue;
    uint64_t& most = launches[{event.process, event.device}];
    most = std::max(most, event.value);
  }
  for (const auto& [key, count] : launches) {
    if (key.first < out.size())
      out[key.first].launches = out[key.first].launches.value_or(0) + count;
  }
  return out;
}

// Sums events of one kind by line, operator and name.
std::vector<LineCount> count_by_line(const Timeline& timeline, EventKind kind) {
  using Key = std::tuple<std::string, uint32_t, uint32_t, uint32_t>;  // file, line, operator, name
  std::map<Key, LineCount> lines;
  for (const MemoryEvent& event : timeline.record().events) {
    if (event.kind != kind) continue;
    const Place line = timeline.stacks().line(event.stack);
    LineCount& count = lines[{line.file, line.line, event.op, event.name}];
    if (count.count++ == 0) {
      count.site = timeline.stacks().site(event);
      count.name = timeline.record().string(event.name);
    }
    if (kind == EventKind::kAssumedSize) {
      count.bytes = std::max(count.bytes, event.size_bytes);
      count.taken = event.value;
    } else {
      count.bytes += event.size_bytes;
    }
  }
  std::vector<LineCount> out;
  for (auto& [key, count] : lines) out.push_back(std::move(count));
  std::stable_sort(out.begin(), out.end(),
                   [](const LineCount& a, const LineCount& b) { return a.count > b.count; });
  return out;
}

void read_messages(const Timeline& timeline, Report& out) {
  const auto& record = timeline.record();
  std::unordered_map<std::string, size_t> seen;
  auto add = [&](const std::string& text, bool warning) {
    auto [it, made] = seen.try_emplace(text, out.messages.size());
    if (made) {
      out.messages.push_back({text, warning, 1});
    } else {
      ++out.messages[it->second].count;
      out.messages[it->second].warning |= warning;
    }
  };
  for (const std::string& note : record.notes) add(note, true);
  std::set<std::string> stubs;
  for (const MemoryEvent& event : record.events) {
    if (event.kind == EventKind::kMessage) add(record.string(event.name), event.value != 0);
    if (event.kind == EventKind::kStubCall) stubs.insert(record.string(event.name));
  }
  out.stub_calls.assign(stubs.begin(), stubs.end());
}

// What the host refused, and the limit that ended the command from outside.
std::vector<HostRefusal> host_refusals(const Timeline& timeline,
                                       const std::vector<Refusal>& refusals) {
  const record::Record& record = timeline.record();
  std::vector<HostRefusal> out;
  for (const HostRefusals& found : find_host_refusals(record, refusals)) {
    const MemoryEvent& event = record.events[found.last];
    HostRefusal refusal;
    refusal.limit = record.string(event.name);
    refusal.request_bytes = event.size_bytes;
    refusal.limit_bytes = event.value;
    refusal.ended = found.ended;
    refusal.count = found.count;
    refusal.moment = moment_of(timeline, found.last);
    out.push_back(std::move(refusal));
  }
  if (const record::HostLimit& limit = record.end.host_limit; !limit.name.empty()) {
    HostRefusal killed;
    killed.limit = limit.name;
    killed.limit_bytes = limit.bytes;
    killed.ended = true;
    out.push_back(std::move(killed));
  }
  return out;
}

bool used(const DeviceReport& device) {
  return device.device || device.reserved || !device.out_of_memory.empty();
}

// Whether the record holds as much as the session's ledger saw in use; null: there is no ledger.
std::optional<bool> agrees_with_account(const Report& report) {
  if (report.end.device_peak_bytes.empty()) return std::nullopt;
  uint64_t account = 0, ours = 0;
  for (const uint64_t bytes : report.end.device_peak_bytes) account += bytes;
  for (const DeviceReport& device : report.devices)
    ours += device.device ? device.device->bytes : 0;
  // The times in several processes' records are not quite those of the ledger, and peaks of devices
  // add up otherwise.
  uint64_t tolerance = report.processes.size() > 1 ? std::max<uint64_t>(64 << 20, account / 50) : 0;
  // The card had room for what the host then refused: the account saw it for a moment.
  for (const HostRefusal& refusal : report.host_refusals)
    tolerance = std::max(tolerance, refusal.request_bytes);
  return account <= ours + tolerance;
}

// A process that was killed took with it what it had not written yet.
bool part_is_lost(const Timeline& timeline, const Report& report) {
  const record::Record& record = timeline.record();
  if (record.kind == record::Record::Kind::kSnapshot) return false;
  const std::optional<bool> agrees = agrees_with_account(report);
  if (record.missing_parts > 0 || record.end.write_failed || agrees == false) return true;
  if (record.end.drivers_loaded.value_or(0) > record.processes.size()) return true;
  if (agrees == true) return false;
  for (const auto& [key, peak] : timeline.processes()) {
    if (key.first < record.processes.size() && !record.processes[key.first].ended) return true;
  }
  return false;
}

bool stopped_by_timeout(const record::CommandEnd& end, const std::string& command) {
  constexpr int kTimeoutsCode = 124;
  const std::string first = command.substr(0, command.find(' '));
  return end.known && end.exit_code == kTimeoutsCode &&
         (first == "timeout" || first.ends_with("/timeout"));
}

VerdictFacts facts_of(const Timeline& timeline, const Report& report) {
  VerdictFacts facts;
  facts.from_snapshot = report.from_snapshot;
  facts.has_session = timeline.record().has_session;
  facts.lost = part_is_lost(timeline, report);
  facts.ended_by_host = std::any_of(report.host_refusals.begin(), report.host_refusals.end(),
                                    [](const HostRefusal& refusal) { return refusal.ended; });
  facts.stopped_by_timeout = stopped_by_timeout(report.end, report.command);
  facts.end = report.end;
  std::map<uint32_t, uint32_t> steps;
  for (const Step& step : timeline.steps()) {
    if (step.complete) facts.complete_steps = std::max(facts.complete_steps, ++steps[step.process]);
  }
  for (const DeviceReport& device : report.devices) {
    DeviceFacts one;
    one.total_bytes = device.total_bytes;
    if (device.device) one.peak_bytes = device.device->bytes;
    one.used = used(device);
    one.ended_by_refusal = std::any_of(device.out_of_memory.begin(), device.out_of_memory.end(),
                                       [](const OutOfMemory& oom) { return oom.ended; });
    one.rests_on_assumption = device.rests_on_assumption;
    facts.devices.push_back(one);
  }
  return facts;
}

void add_verdict(const Timeline& timeline, Report& report) {
  const Judgement judgement = judge(facts_of(timeline, report));
  report.verdict = judgement.verdict;
  report.cut = judgement.cut;
  report.stopped = judgement.stopped;
  for (size_t i = 0; i < report.devices.size(); ++i)
    report.devices[i].verdict = judgement.devices[i];
}

}  // namespace

Report make_report(const record::Record& record, const ReportOptions& options) {
  Timeline timeline(record);
  infer_categories(timeline);
  return make_report(timeline, options);
}

Report make_report(const Timeline& timeline, const ReportOptions& options) {
  const record::Record& record = timeline.record();
  Report out;
  out.source = record.source;
  out.from_snapshot = record.kind == record::Record::Kind::kSnapshot;
  out.history_truncated = record.history_truncated;
  out.torch_version = record.torch_version;
  out.alloc_conf = record.settings.text;
  out.info = record.info;
  out.events = record.events.size();
  out.end = record.end;
  out.need = record.need;
  if (const auto command = record.info.find("command"); command != record.info.end())
    out.command = command->second;
  const std::vector<Refusal> refusals = find_refusals(record, timeline.stacks(), timeline.steps());
  for (const record::Device& device : devices_of(record, timeline))
    out.devices.push_back(make_device_report(timeline, device, refusals, options));
  out.host_refusals = host_refusals(timeline, refusals);
  out.processes = process_reports(timeline);
  for (const ProcessReport& process : out.processes) {
    if (process.launches) out.launches = out.launches.value_or(0) + *process.launches;
  }
  out.unknown_reads = count_by_line(timeline, EventKind::kUnknownRead);
  out.assumed_sizes = count_by_line(timeline, EventKind::kAssumedSize);
  read_messages(timeline, out);
  out.inconsistencies = timeline.inconsistencies();
  for (const auto& [key, peak] : timeline.processes()) out.host_pinned_peak_bytes += peak.pinned;
  add_verdict(timeline, out);
  return out;
}

}  // namespace tonnage::analysis
