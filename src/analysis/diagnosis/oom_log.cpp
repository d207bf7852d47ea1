#include "analysis/diagnosis/oom_log.h"

#include <algorithm>

#include "analysis/diagnosis/finding_parts.h"

namespace tonnage::analysis {
namespace {

using sources::LogCard;
using sources::LogOom;
using sources::OomFormat;
using S = Statement;
using R = Remedy;

constexpr size_t kShownText = 300;
constexpr uint64_t kCachedWorthAWord = 64ull << 20;

// The beginning of the message, its line ends as spaces.
std::string one_line(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool space = c == ' ' || c == '\n' || c == '\t' || c == '\r';
    if (!space || (!out.empty() && out.back() != ' ')) out += space ? ' ' : c;
    if (out.size() >= kShownText) break;
  }
  return out;
}

int device_of(const LogOom& oom) {
  return oom.device ? static_cast<int>(std::min<uint64_t>(*oom.device, INT32_MAX)) : 0;
}

// torch.cuda.memory_summary(): counters and sums at one moment, after the failure.
void memory_summary(const LogOom& oom, std::vector<Finding>& out) {
  Finding finding;
  finding.cause = Cause::kCapacity;
  finding.title = fact(S::kTitleMemorySummary);
  finding.confidence = 0.7;
  finding.text = {
      fact(S::kSummaryCounters, {count(oom.ooms.value_or(0)), count(oom.retries.value_or(0))})};
  const uint64_t allocated = oom.allocated ? oom.allocated->bytes : 0,
                 reserved = oom.reserved ? oom.reserved->bytes : 0;
  if (oom.allocated && oom.reserved) {
    finding.bytes = above(reserved, allocated);
    finding.text.push_back(fact(
        S::kSummarySums, {bytes(allocated), bytes(reserved), bytes(above(reserved, allocated))}));
  }
  if (oom.peak) finding.text.push_back(fact(S::kSummaryPeak, {bytes(oom.peak->bytes)}));
  if (oom.other) finding.text.push_back(fact(S::kSummaryPieces, {bytes(oom.other->bytes)}));
  if (oom.retries.value_or(0) > 0) finding.text.push_back(fact(S::kRetriesMean));
  if (reserved > 0 && share(above(reserved, allocated), reserved) >= 0.08 &&
      above(reserved, allocated) >= kCachedWorthAWord)
    finding.advice.push_back(
        advice(R::kExpandableSegmentsLog, {bytes(reserved - allocated)}, reserved - allocated));
  finding.advice.push_back(advice(R::kSmallerBatchFreesActivations));
  finding.advice.push_back(advice(R::kRecordHistory));
  out.push_back(std::move(finding));
}

// A table without errors, printed by the program: what was in use at that moment.
Finding memory_table(const LogOom& oom) {
  std::vector<Finding> found;
  memory_summary(oom, found);
  Finding finding = std::move(found.front());
  finding.title = fact(S::kTitleMemoryTable);
  finding.device = device_of(oom);
  finding.text.front() = fact(S::kSummaryNoErrors, {count(oom.retries.value_or(0))});
  finding.evidence.push_back(
      evidence(fact(S::kLineOfLog, {count(oom.line_number), name(one_line(oom.text))})));
  return finding;
}

// A refusal within a search for the batch size: what was looked for.
void trial(std::vector<Finding>& out) {
  Finding finding;
  finding.cause = Cause::kHarmless;
  finding.title = fact(S::kTitleTrial);
  finding.text = {fact(S::kTrial)};
  finding.confidence = 0.9;
  out.push_back(std::move(finding));
}

void unknown(const LogOom& oom, const TraceFacts& trace, std::vector<Finding>& out) {
  Finding finding;
  finding.cause = Cause::kUnknown;
  finding.title = fact(S::kTitleOutOfMemory);
  finding.confidence = 0.5;
  finding.bytes = oom.requested ? oom.requested->bytes : 0;
  finding.text = {oom.requested ? fact(S::kMessageCut, {printed(oom.requested)})
                                : fact(S::kMessageNoFigures)};
  finding.advice = {advice(R::kWholeMessage)};
  if (trace.server == sources::LogFramework::kComfyUi)  // its message is never longer
    finding.advice = {advice(R::kComfyLowVram), advice(R::kTiledDecode),
                      advice(R::kSmallerPicture)};
  out.push_back(std::move(finding));
}

// What looks like a great saving is a part of the model that is not trained any more.
Finding untrained_checkpoint(const sources::Log& log) {
  Finding finding;
  finding.cause = Cause::kCheckpointInactive;
  finding.title = fact(S::kTitleUntrained);
  finding.text = {fact(S::kUntrained)};
  finding.confidence = 0.95;
  finding.evidence.push_back(
      evidence(fact(S::kUntrainedLine, {count(log.checkpoint_warning_line)})));
  finding.advice = {advice(R::kNoReentrance)};
  return finding;
}

// What such a message cannot say.
Statement limit_of(const LogOom& oom) {
  if (oom.format == OomFormat::kKernelResources) return S::kNothing;
  if (oom.backend == "CPU") return S::kLimitHost;
  return oom.framework == sources::LogFramework::kPyTorch ? S::kLimitMessageSums
                                                          : S::kLimitLibrarySums;
}

const LogCard* card_of(const sources::Log& log, const LogOom& oom) {
  for (const LogCard& card : log.cards) {
    if (card.index == oom.device.value_or(0)) return &card;
  }
  return nullptr;
}

Failure failure_of(const LogOom& oom) {
  Failure failure;
  failure.device = device_of(oom);
  failure.rank = oom.rank;
  const LogFigures figures = log_figures(oom);
  if (oom.requested) failure.request_bytes = oom.requested->bytes;
  if (oom.capacity) failure.capacity_bytes = oom.capacity->bytes;
  if (oom.free) failure.free_bytes = oom.free->bytes;
  if (oom.allocated) failure.allocated_bytes = oom.allocated->bytes;
  failure.reserved_bytes = figures.reserved;
  if (oom.allowed) failure.limit_bytes = oom.allowed->bytes;
  failure.limit_is_cap = figures.cap_binds;
  failure.message = oom;
  return failure;
}

}  // namespace

std::vector<Finding> diagnose(const LogOom& oom) {
  std::vector<Finding> findings;
  const TraceFacts trace = read_traceback(oom);
  const LogFigures figures = log_figures(oom);
  if (oom.is_trial) trial(findings);
  if (oom.format == OomFormat::kMemorySummary) memory_summary(oom, findings);
  const bool special = !findings.empty() || diagnose_host(oom, trace, findings) ||
                       diagnose_compiled(oom, findings) || diagnose_server(oom, findings) ||
                       diagnose_library(oom, findings) || diagnose_disguised(oom, trace, findings);
  if (!special) diagnose_pytorch_figures(oom, figures, trace, findings);
  if (findings.empty()) unknown(oom, trace, findings);
  findings.front().primary = true;
  for (Finding& finding : findings) {
    finding.device = device_of(oom);
    if (!finding.site) finding.site = trace.site;
    finding.evidence.push_back(
        evidence(fact(S::kLineOfLog, {count(oom.line_number), name(one_line(oom.text))})));
  }
  return findings;
}

Finding finding_of_card(const LogCard& card) {
  Finding finding;
  finding.kind = FindingKind::kOutside;
  finding.cause = Cause::kCapacity;
  finding.device = static_cast<int>(std::min<uint64_t>(card.index, INT32_MAX));
  finding.confidence = 0.8;
  finding.bytes = card.used.bytes;
  finding.title = fact(S::kTitleSmi);
  finding.text = {fact(S::kSmiUse, {count(card.index), name(card.used.text), name(card.total.text),
                                    bytes(above(card.total.bytes, card.used.bytes))})};
  std::string named;
  for (const LogCard::Process& process : card.processes) {
    named += named.empty() ? "" : ", ";
    named += process.name + " (process " + std::to_string(process.pid);
    named += process.used ? ", " + process.used->text + ")" : ")";
  }
  if (!named.empty()) finding.text.push_back(fact(S::kSmiProcesses, {name(named)}));
  std::string slices;
  for (const LogCard::Slice& slice : card.slices)
    slices += (slices.empty() ? "" : ", ") + ("instance " + std::to_string(slice.instance)) +
              " with " + slice.used.text + " of " + slice.total.text + " in use";
  if (!slices.empty()) finding.text.push_back(fact(S::kSmiSlices, {name(slices)}));
  if (card.processes.empty() && card.used.bytes > card.total.bytes / 4)
    finding.text.push_back(fact(S::kSmiNobody));
  finding.evidence.push_back(evidence(fact(S::kSmiLine, {count(card.line_number)})));
  finding.advice = {advice(card.processes.size() > 1 ? R::kSmiStopOthers : R::kSmiRead)};
  return finding;
}

void read_cards(const sources::Log& log, const LogOom& oom, std::vector<Finding>& out) {
  const LogCard* card = card_of(log, oom);
  if (!card || oom.backend == "CPU" || out.empty() || oom.format == OomFormat::kKernelResources)
    return;
  Finding finding = finding_of_card(*card);
  finding.failure = out.front().failure;
  if (card->processes.size() > 1) finding.cause = Cause::kOtherProcess;
  out.push_back(std::move(finding));
}

Explanation explain(const sources::Log& log, const ExplainOptions&) {
  Explanation out;
  out.source = log.source;
  out.kind = Explanation::Kind::kLog;
  out.notes = log.notes;
  out.log_lines = log.lines;
  for (const LogOom& oom : log.ooms) {
    const int index = static_cast<int>(out.failures.size());
    std::vector<Finding> findings = diagnose(oom);
    for (Finding& finding : findings) finding.failure = index;
    read_cards(log, oom, findings);
    std::move(findings.begin(), findings.end(), std::back_inserter(out.findings));
    out.failures.push_back(failure_of(oom));
  }
  if (log.checkpoint_warning_line > 0) out.findings.push_back(untrained_checkpoint(log));
  if (out.failures.empty()) {
    for (const LogOom& summary : log.summaries) out.findings.push_back(memory_table(summary));
    for (const LogCard& card : log.cards) out.findings.push_back(finding_of_card(card));
    return out;
  }
  // Harmless retries do not make the headline if there is a real failure.
  const auto harmless = [&](int failure) {
    return std::any_of(out.findings.begin(), out.findings.end(), [&](const Finding& f) {
      return f.failure == failure && f.primary && f.cause == Cause::kHarmless;
    });
  };
  while (out.lead_failure + 1 < static_cast<int>(out.failures.size()) && harmless(out.lead_failure))
    ++out.lead_failure;
  out.limits.push_back(fact(limit_of(log.ooms[static_cast<size_t>(out.lead_failure)])));
  std::stable_sort(out.findings.begin(), out.findings.end(),
                   [&](const Finding& a, const Finding& b) {
                     return (a.failure == out.lead_failure) > (b.failure == out.lead_failure);
                   });
  return out;
}

}  // namespace tonnage::analysis
