#include "analysis/diagnosis/findings.h"

#include <algorithm>

#include "analysis/diagnosis/finding_parts.h"
#include "analysis/diagnosis/leak.h"
#include "analysis/diagnosis/oom_cause.h"
#include "analysis/diagnosis/oom_facts.h"
#include "analysis/diagnosis/other_contexts.h"
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

// What the program heard of, by event. What a library got over by itself is counted apart.
std::vector<Refusal> failures_of(const Timeline& timeline, std::vector<OomAttempts>& overcome) {
  std::vector<Refusal> out;
  for (Refusal& refusal : find_refusals(timeline.record(), timeline.stacks(), timeline.steps())) {
    if (refusal.fate == Fate::kRetried || refusal.by_host) continue;
    if (refusal.fate == Fate::kOtherWay) {
      overcome.push_back(refusal.events);
    } else {
      out.push_back(std::move(refusal));
    }
  }
  return out;
}

// A library that was refused its scratch memory and did with less: slower, perhaps, but no failure.
void name_overcome(const Timeline& timeline, const std::vector<OomAttempts>& overcome,
                   Explanation& out) {
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
  Finding finding;
  finding.kind = FindingKind::kOutOfMemory;
  finding.cause = Cause::kHarmless;
  finding.confidence = 0.85;
  finding.device = largest->device;
  finding.bytes = largest->size_bytes;
  finding.title = fact(Statement::kTitleDidWithLess);
  finding.text = {times == 1
                      ? fact(Statement::kDidWithLessOnce, {bytes(largest->size_bytes)})
                      : fact(Statement::kDidWithLess, {count(times), bytes(largest->size_bytes)})};
  const Site site = timeline.stacks().site(*largest);
  if (site.line.known()) finding.site = site;
  finding.advice.push_back(advice(Remedy::kALittleLess, {bytes(largest->size_bytes)}));
  out.findings.push_back(std::move(finding));
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
    finding.title = fact(Statement::kTitleReservedUnused);
    finding.text = {fact(Statement::kReservedUnused,
                         {bytes(reserved), bytes(finding.bytes), bytes(allocated_peak)}),
                    fact(Statement::kReservedUnusedParts,
                         {bytes(parts.cached), bytes(parts.pinned), count(parts.pinned_segments)})};
    Evidence sum =
        evidence(fact(Statement::kReservedSum,
                      {bytes(parts.reserved), bytes(parts.requested), bytes(parts.rounding),
                       bytes(parts.pending), bytes(parts.cached), bytes(parts.pinned)}),
                 finding.bytes, moment.site);
    sum.events.push_back(moment.event);
    finding.evidence.push_back(std::move(sum));
    const record::AllocatorSettings& settings = timeline.record().settings;
    if (settings.expandable_segments)
      finding.advice.push_back(advice(Remedy::kExpandableKept));
    else
      finding.advice.push_back(
          advice(Remedy::kExpandableCloser, {bytes(finding.bytes)}, finding.bytes));
    if (settings.max_split_size_bytes != UINT64_MAX)
      finding.advice.push_back(
          advice(Remedy::kWithoutMaxSplit, {bytes(settings.max_split_size_bytes)}));
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
      Finding finding = growth_finding(line, growth);
      finding.device = device;
      std::optional<uint64_t> limit = options.memory_bytes;
      for (const DeviceReport& entry : report.devices) {
        if (entry.index == device && entry.total_bytes && !limit)
          limit = *entry.total_bytes - std::min(*entry.total_bytes, entry.context_bytes);
      }
      if (limit && growth.bytes_per_iteration > 0) {
        const uint64_t left = above(*limit, growth.last_peak_bytes);
        finding.fails_at_step = growth.last_number + left / growth.bytes_per_iteration + 1;
        const Statement forecast = !line.may_be_filling ? Statement::kWillFail
                                   : line.replaced      ? Statement::kWillFailIfOn
                                                        : Statement::kWillFailUnlessFull;
        finding.text.push_back(
            fact(forecast, {unit(growth.are_steps), count(*finding.fails_at_step), bytes(*limit)}));
      }
      out.findings.push_back(std::move(finding));
    }
  }
}

void name_snapshot_limits(const Record& record, Explanation& out) {
  out.limits.push_back(fact(Statement::kLimitSnapshot));
  if (!out.failures.empty() && !out.failures.back().capacity_bytes) {
    const Failure& last = out.failures.back();
    out.limits.push_back(last.limit_bytes && !last.limit_is_cap
                             ? fact(Statement::kLimitCardSizeAtLeast, {bytes(*last.limit_bytes)})
                             : fact(Statement::kLimitCardSize));
  }
  if (record.events.empty()) out.limits.push_back(fact(Statement::kLimitNoHistory));
}

void name_limits(const Record& record, const Report& report, Explanation& out) {
  if (record.kind == Record::Kind::kSnapshot) name_snapshot_limits(record, out);
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
    out.limits.push_back(fact(Statement::kLimitUnknownBytes, {bytes(unknown), bytes(live)}));
  if (std::any_of(out.findings.begin(), out.findings.end(),
                  [](const Finding& finding) { return finding.bytes_per_step.has_value(); }))
    out.limits.push_back(fact(Statement::kLimitHolder));
  if (record.history_truncated) out.limits.push_back(fact(Statement::kLimitTruncated));
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
  std::vector<Refusal> failures = failures_of(*timeline, overcome);
  if (failures.size() > kMaxFailures) {
    out.failures_left_out = failures.size() - kMaxFailures;
    failures.erase(failures.begin(), failures.end() - kMaxFailures);
  }
  for (const Refusal& refusal : failures) {
    OomFacts facts = collect_oom_facts(*timeline, refusal.events.last, options);
    facts.failure.recovered = refusal.fate != Fate::kEnded;
    const int index = static_cast<int>(out.failures.size());
    for (Finding& finding : diagnose(facts, *timeline)) {
      finding.failure = index;
      out.findings.push_back(std::move(finding));
    }
    out.failures.push_back(std::move(facts.failure));
  }
  const bool failed = !out.failures.empty() && !out.failures.back().recovered;
  if (!failed) find_leaks(*timeline, *report, options, out);
  for (Finding& finding : find_other_contexts(*timeline))
    out.findings.push_back(std::move(finding));
  find_unused(*timeline, *report, out);
  name_overcome(*timeline, overcome, out);
  std::stable_sort(out.findings.begin(), out.findings.end(),
                   [](const Finding& a, const Finding& b) {
                     // The last failure is the one that ended the program.
                     if (importance(a) != importance(b)) return importance(a) < importance(b);
                     if (a.failure != b.failure) return a.failure > b.failure;
                     return importance(a) >= 2 && a.bytes > b.bytes;
                   });

  out.lead_failure = std::max(0, static_cast<int>(out.failures.size()) - 1);
  name_limits(*record, *report, out);
  return out;
}

}  // namespace tonnage::analysis
