#include "analysis/diagnosis/findings.h"

#include <fmt/format.h>

#include <algorithm>

#include "analysis/diagnosis/leak.h"
#include "analysis/diagnosis/oom_cause.h"
#include "analysis/diagnosis/oom_facts.h"
#include "analysis/timeline/categories.h"
#include "analysis/timeline/failures.h"

namespace tonnage::analysis {
namespace {

using abi::EventKind;
using abi::MemoryEvent;
using record::Record;

constexpr size_t kMaxFailures = 20;    // each costs a replay
constexpr double kUnusedShare = 0.15;  // reserved but unused at the peak: below it, nothing is said
constexpr uint64_t kUnusedBytes = 256 << 20;

// The failures of the program itself: PyTorch's, and the driver's refusals of processes that do not
// use PyTorch. Those that a library got over by itself are counted apart.
std::vector<uint32_t> failure_events(const Timeline& timeline, std::vector<OomAttempts>& overcome) {
  std::vector<uint32_t> out;
  for (const OomAttempts& attempts : find_oom_attempts(timeline.record(), timeline.stacks())) {
    const MemoryEvent& event = timeline.record().events[attempts.last];
    if (event.kind == EventKind::kDeviceOom) {
      const auto found = timeline.processes().find({event.process, event.device});
      if (found != timeline.processes().end() && found->second.reserved > 0) continue;
    }
    if (attempts.overcome) {
      overcome.push_back(attempts);
    } else {
      out.push_back(attempts.last);
    }
  }
  return out;
}

// A library that was refused its scratch memory and did with less: slower, perhaps, but no failure.
void name_overcome(const Timeline& timeline, const std::vector<OomAttempts>& overcome,
                   Explanation& out) {
  if (overcome.empty()) return;
  Finding finding;
  finding.kind = FindingKind::kOutOfMemory;
  finding.cause = Cause::kHarmless;
  finding.confidence = 0.85;
  uint64_t times = 0;
  const MemoryEvent* largest = nullptr;
  for (const OomAttempts& attempts : overcome) {
    times += attempts.count;
    for (uint32_t i = attempts.first; i <= attempts.last; ++i) {
      const MemoryEvent& event = timeline.record().events[i];
      if (event.kind == EventKind::kOom && (!largest || event.size_bytes > largest->size_bytes))
        largest = &event;
    }
  }
  if (!largest) return;
  finding.device = largest->device;
  finding.bytes = largest->size_bytes;
  finding.title = "A library was refused memory and did with less";
  finding.text = fmt::format(
      "{} of up to {} refused inside operators that went on all the same: a convolution tries "
      "algorithms with large workspaces first. No error reached the program; it may be slower so "
      "near the limit.",
      times == 1 ? "A request" : fmt::format("{} requests", times),
      size_text(largest->size_bytes) + (times == 1 ? " was" : " were"));
  const Site site = timeline.stacks().site(*largest);
  if (site.line.known()) finding.site = site;
  finding.advice.push_back({fmt::format("A little less in use ({}) lets the faster algorithms run",
                                        size_text(largest->size_bytes)),
                            std::nullopt, ""});
  out.findings.push_back(std::move(finding));
}

// Whether the process went on to allocate after it.
bool went_on(const Record& record, uint32_t index) {
  const MemoryEvent& failed = record.events[index];
  for (size_t i = index + 1; i < record.events.size(); ++i) {
    const MemoryEvent& event = record.events[i];
    if (event.process == failed.process &&
        (event.kind == EventKind::kAlloc || event.kind == EventKind::kDeviceAlloc))
      return true;
  }
  return false;
}

const char* phase_text(Phase phase) {
  switch (phase) {
    case Phase::kInit: return "while the model is made";
    case Phase::kForward: return "in the forward pass";
    case Phase::kBackward: return "in the backward pass";
    case Phase::kOptimizer: return "in the optimizer's step";
    case Phase::kData: return "while data is loaded";
    case Phase::kEval: return "in evaluation";
    case Phase::kOther: break;
  }
  return "";
}

std::string when_text(const Moment& moment) {
  std::string out;
  if (moment.step > 0) out += fmt::format(" in step {}", moment.step);
  if (moment.phase != Phase::kOther)
    out += fmt::format("{} {}", out.empty() ? "" : ",", phase_text(moment.phase));
  return out;
}

// "at train.py:9"; where no line is known, "in aten::mm".
std::string where_text(const Site& site) {
  const std::string text = site_text(site);
  return text.empty() || text.starts_with("in ") ? text : "at " + text;
}

std::string failure_summary(const Failure& failure, const std::vector<Finding>& findings,
                            int index) {
  const Finding* primary = nullptr;
  const Finding* cap = nullptr;
  for (const Finding& finding : findings) {
    if (finding.failure != index) continue;
    if (finding.primary) primary = &finding;
    if (finding.cause == Cause::kMemoryFraction) cap = &finding;
  }
  std::string out =
      fmt::format("Out of memory on GPU {}{}", failure.device, when_text(failure.moment));
  if (const std::string where = where_text(failure.moment.site); !where.empty())
    out += ", " + where;
  out += fmt::format(": {} more were asked for", size_text(failure.request_bytes));
  if (failure.allocated_bytes && failure.reserved_bytes)
    out += fmt::format(
        ", with {} allocated and {} reserved{}", size_text(*failure.allocated_bytes),
        size_text(*failure.reserved_bytes),
        failure.limit_bytes && !failure.limit_is_cap
            ? fmt::format(" of {} that PyTorch could get", size_text(*failure.limit_bytes))
            : "");
  out += ". ";
  if (primary) {
    out += primary->text;
    if (!primary->advice.empty()) out += " " + primary->advice.front().text + ".";
  }
  if (cap && cap != primary) out += " " + cap->text;
  return out;
}

// What the file can know of it: a snapshot ends where it was taken, whatever came then.
std::string no_failure_text(const Record& record) {
  if (record.kind == Record::Kind::kSnapshot) {
    if (record.events.empty())
      return "The snapshot has no history: whether the program ran out of memory is not in it.";
    return record.history_truncated
               ? "No out-of-memory error is in this part of the history, which ends where the "
                 "snapshot was taken."
               : "No out-of-memory error up to the moment at which the snapshot was taken.";
  }
  const bool cut = std::any_of(record.processes.begin(), record.processes.end(),
                               [](const record::Process& process) { return !process.ended; });
  return cut ? "It did not run out of memory as far as the record goes; it ends before the program "
               "did."
             : "It did not run out of memory.";
}

std::string peak_summary(const Record& record, const Report& report) {
  const DeviceReport* fullest = nullptr;
  for (const DeviceReport& device : report.devices) {
    if (device.reserved && (!fullest || device.reserved->bytes > fullest->reserved->bytes))
      fullest = &device;
  }
  if (!fullest || !fullest->allocated) return "The record holds no allocations of PyTorch's.";
  std::string out = fmt::format("{} PyTorch allocated up to {} and reserved {} on GPU {}",
                                no_failure_text(record), size_text(fullest->allocated->bytes),
                                size_text(fullest->reserved->bytes), fullest->index);
  if (fullest->allocated->moment.step > 0)
    out += fmt::format("; the peak is in step {}", fullest->allocated->moment.step);
  if (const std::string where = where_text(fullest->allocated->moment.site); !where.empty())
    out += ", " + where;
  out += ".";
  std::vector<BreakdownRow> rows = fullest->allocated->breakdown.rows;
  std::erase_if(rows, [](const BreakdownRow& row) {
    return row.category == Category::kCached || row.category == Category::kContext ||
           row.category == Category::kOther;
  });
  std::stable_sort(rows.begin(), rows.end(),
                   [](const BreakdownRow& a, const BreakdownRow& b) { return a.bytes > b.bytes; });
  if (!rows.empty()) {
    out += " Most of it:";
    for (size_t i = 0; i < rows.size() && i < 3; ++i) {
      std::string name = category_name(rows[i].category);
      std::replace(name.begin(), name.end(), '_', ' ');
      out += fmt::format("{} {} {}", i == 0 ? "" : ",", name, size_text(rows[i].bytes));
    }
    out += ".";
  }
  return out;
}

// Reserved far above allocated at the peak: what it is made of, and what would help.
void find_unused(const Timeline& timeline, const Report& report, Explanation& out) {
  for (const DeviceReport& device : report.devices) {
    if (!device.reserved || !device.allocated) continue;
    if (std::any_of(out.findings.begin(), out.findings.end(), [&](const Finding& finding) {
          return finding.device == device.index && finding.cause == Cause::kFragmentation;
        }))
      continue;
    const Moment& moment = device.reserved->moment;
    const uint64_t reserved = device.reserved->bytes, allocated_peak = device.allocated->bytes;
    if (reserved < allocated_peak + kUnusedBytes ||
        static_cast<double>(reserved - allocated_peak) <
            kUnusedShare * static_cast<double>(reserved))
      continue;
    const SegmentMap map =
        segment_map_at(timeline, device.index, static_cast<uint32_t>(moment.process), moment.event);
    const Fragmentation parts = measure_fragmentation(map);
    Finding finding;
    finding.kind = FindingKind::kFragmentation;
    finding.cause = Cause::kReservedUnused;
    finding.device = device.index;
    finding.bytes = reserved - allocated_peak;
    finding.confidence = 0.9;
    finding.title = "PyTorch reserves far more than it ever allocates";
    finding.text = fmt::format(
        "The reserved peak of {} is {} above the allocated peak of {}. When it was reached, {} "
        "were free in whole segments and {} in pieces of {} segments that were in use.",
        size_text(reserved), size_text(finding.bytes), size_text(allocated_peak),
        size_text(parts.cached), size_text(parts.pinned), parts.pinned_segments);
    Evidence evidence;
    evidence.text = fmt::format(
        "reserved {} = requested {} + rounding {} + waiting for streams {} + free segments {} + "
        "free pieces {}",
        size_text(parts.reserved), size_text(parts.requested), size_text(parts.rounding),
        size_text(parts.pending), size_text(parts.cached), size_text(parts.pinned));
    evidence.bytes = finding.bytes;
    evidence.events.push_back(moment.event);
    evidence.site = moment.site;
    finding.evidence.push_back(std::move(evidence));
    if (!timeline.record().settings.expandable_segments) {
      finding.advice.push_back({fmt::format("Expandable segments keep reserved close to allocated "
                                            "where sizes change; at best {} less",
                                            size_text(finding.bytes)),
                                finding.bytes, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"});
    } else {
      finding.advice.push_back(
          {"Expandable segments are on already; the rest is kept for reuse and given back before "
           "an out-of-memory error",
           std::nullopt, ""});
    }
    if (timeline.record().settings.max_split_size_bytes != UINT64_MAX)
      finding.advice.push_back(
          {fmt::format("max_split_size of {} is set: blocks above it are never split and only "
                       "serve requests of nearly their size; try without it",
                       size_text(timeline.record().settings.max_split_size_bytes)),
           std::nullopt, ""});
    out.findings.push_back(std::move(finding));
  }
}

void find_leaks(const Timeline& timeline, const Report& report, const ExplainOptions& options,
                Explanation& out) {
  for (const auto& [key, peak] : timeline.processes()) {
    const auto [process, device] = key;
    if (peak.reserved == 0) continue;
    const GrowthReport growth = find_growth(timeline, device, process);
    for (const Growth& line : growth.growth) {
      Finding finding = growth_finding(line, growth, timeline);
      finding.device = device;
      std::optional<uint64_t> limit = options.memory_bytes;
      for (const DeviceReport& entry : report.devices) {
        if (entry.index == device && entry.total_bytes && !limit)
          limit = *entry.total_bytes - std::min(*entry.total_bytes, entry.context_bytes);
      }
      const char* unit = growth.are_steps ? "step" : "iteration";
      if (limit && growth.bytes_per_iteration > 0) {
        const uint64_t left = *limit > growth.last_peak_bytes ? *limit - growth.last_peak_bytes : 0;
        finding.fails_at_step = growth.last_number + left / growth.bytes_per_iteration + 1;
        finding.text += fmt::format(
            " {} {} {} will fail on {}{}.",
            line.may_be_filling ? "If it goes on at this rate," : "At this rate", unit,
            *finding.fails_at_step, size_text(*limit),
            line.may_be_filling && !line.replaced ? "; what is full before that fits" : "");
      }
      out.findings.push_back(std::move(finding));
    }
  }
}

void name_limits(const Record& record, const Report& report, Explanation& out) {
  if (record.kind == Record::Kind::kSnapshot) {
    out.limits.push_back(
        "A PyTorch snapshot shows PyTorch's allocator only: contexts, NCCL, other libraries and "
        "other processes are not in it.");
    if (!out.failures.empty() && !out.failures.back().capacity_bytes)
      out.limits.push_back(fmt::format(
          "How large the card is: {}if it has much more than PyTorch could get, another process or "
          "another library holds the rest (--memory SIZE, or the log of the error beside the "
          "snapshot, tells).",
          out.failures.back().limit_bytes && !out.failures.back().limit_is_cap
              ? size_text(*out.failures.back().limit_bytes) + " is what PyTorch could get; "
              : ""));
    if (record.events.empty())
      out.limits.push_back(
          "There is no history, only the state when the snapshot was taken: peaks, growth and "
          "causes need _record_memory_history().");
  }
  uint64_t live = 0, unknown = 0;
  for (const DeviceReport& device : report.devices) {
    if (!device.allocated) continue;
    for (const BreakdownRow& row : device.allocated->breakdown.rows) {
      if (row.category == Category::kCached) continue;
      live += row.bytes;
      if (row.category == Category::kUnknown) unknown += row.bytes;
    }
  }
  if (live > 0 && unknown * 10 > live)
    out.limits.push_back(fmt::format("What {} of the {} at the peak are for could not be told.",
                                     size_text(unknown), size_text(live)));
  for (const Finding& finding : out.findings) {
    if (finding.bytes_per_step) {
      out.limits.push_back(
          "Which variable keeps the memory alive is not recorded: the line that made it is.");
      break;
    }
  }
  if (record.history_truncated)
    out.limits.push_back(
        "The history begins in the middle: what was allocated before has no line, and an earlier "
        "peak is not seen.");
}

int importance(const Finding& finding) {
  if (finding.primary) return 0;
  if (finding.failure >= 0) return 1;
  if (finding.kind == FindingKind::kLeak) return 2;
  return 3;
}

}  // namespace

Explanation explain(std::shared_ptr<const Record> record, const ExplainOptions& options) {
  Explanation out;
  out.source = record->source;
  out.kind = record->kind == Record::Kind::kSnapshot ? Explanation::Kind::kSnapshot
                                                     : Explanation::Kind::kRecord;
  out.notes = record->notes;
  auto timeline = std::make_shared<Timeline>(*record);
  infer_categories(*timeline);
  auto report = std::make_shared<Report>(make_report(*timeline));
  out.record = record;
  out.timeline = timeline;
  out.report = report;

  std::vector<OomAttempts> overcome;
  std::vector<uint32_t> failures = failure_events(*timeline, overcome);
  if (failures.size() > kMaxFailures) {
    out.notes.push_back(
        fmt::format("{} failures; the last {} are explained", failures.size(), kMaxFailures));
    failures.erase(failures.begin(), failures.end() - kMaxFailures);
  }
  for (const uint32_t event : failures) {
    OomFacts facts = collect_oom_facts(*timeline, event, options);
    facts.failure.recovered = went_on(*record, event);
    const int index = static_cast<int>(out.failures.size());
    for (Finding& finding : diagnose(facts, *timeline)) {
      finding.failure = index;
      out.findings.push_back(std::move(finding));
    }
    out.failures.push_back(std::move(facts.failure));
  }
  const bool failed = !out.failures.empty() && !out.failures.back().recovered;
  if (!failed) find_leaks(*timeline, *report, options, out);
  find_unused(*timeline, *report, out);
  name_overcome(*timeline, overcome, out);
  std::stable_sort(out.findings.begin(), out.findings.end(),
                   [](const Finding& a, const Finding& b) {
                     // The last failure is the one that ended the program.
                     if (importance(a) != importance(b)) return importance(a) < importance(b);
                     if (a.failure != b.failure) return a.failure > b.failure;
                     return importance(a) >= 2 && a.bytes > b.bytes;
                   });

  if (!out.failures.empty()) {
    const int last = static_cast<int>(out.failures.size()) - 1;
    out.summary = failure_summary(out.failures.back(), out.findings, last);
    if (out.failures.back().recovered) out.summary += " The program went on afterwards.";
    if (last > 0)
      out.summary += last == 1 ? " (An earlier failure is listed below.)"
                               : fmt::format(" ({} earlier failures are listed below.)", last);
  } else {
    out.summary = peak_summary(*record, *report);
    for (const Finding& finding : out.findings) {
      if (finding.kind != FindingKind::kLeak && finding.kind != FindingKind::kFragmentation)
        continue;
      out.summary += " " + finding.text;
      if (!finding.advice.empty()) out.summary += " " + finding.advice.front().text + ".";
      break;
    }
  }
  name_limits(*record, *report, out);
  return out;
}

}  // namespace tonnage::analysis
