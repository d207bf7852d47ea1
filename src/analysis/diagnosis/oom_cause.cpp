#include "analysis/diagnosis/oom_cause.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "analysis/diagnosis/oom_diagnosis.h"

namespace tonnage::analysis {
namespace {

using S = Statement;
using R = Remedy;

constexpr double kFragmentedShare =
    0.08;  // of reserved: below it, closing every hole would buy little
constexpr double kFragmentedSurely = 0.2;  // of reserved: as the main reason whatever else there is
constexpr double kKeptShare = 0.25;        // of what is allocated
constexpr double kLargeSampleRatio = 1.25;
constexpr size_t kShownMoves = 64, kShownLines = 3;

}  // namespace

OomDiagnosis::OomDiagnosis(const OomFacts& facts, const Timeline& timeline)
    : f_(facts), timeline_(timeline) {
  request_ = f_.failure.request_bytes;
  // Without events of tensors (cudaMallocAsync) there is the sum only.
  held_ = std::max<uint64_t>(
      f_.held_bytes > 0 ? f_.held_bytes : f_.failure.allocated_bytes.value_or(0), 1);
  limit_ = f_.limit_bytes ? f_.limit_bytes : f_.failure.reserved_bytes.value_or(held_);
  activations_ =
      f_.of(Category::kActivation) + f_.of(Category::kTemporary) + f_.of(Category::kInput);
}

std::vector<Finding> OomDiagnosis::run() {
  // In this order: what makes the later ones pointless comes first.
  too_large();
  private_pool();
  fragmentation();
  kept_by_exception();
  kept();
  others();
  optimizer_first_step();
  optimizer_copies();
  model_state();
  logits();
  large_sample();
  checkpoint_inactive();
  copies();
  workspaces();
  outside();
  activations();
  // Where nothing else is known, the limit that refused is the reason.
  if (findings_.empty() && f_.failure.limit_is_cap) cap();
  const bool cap_is_said = !findings_.empty() && findings_[0].cause == Cause::kMemoryFraction;
  if (findings_.empty() || cap_is_said) capacity();
  // Free pieces that would only just serve this request are not the reason if the rest of the pass
  // needs more.
  if (findings_.size() > 1 && findings_.front().cause == Cause::kFragmentation &&
      !fragmentation_decides())
    std::rotate(findings_.begin(), findings_.begin() + 1, findings_.begin() + 2);
  // Copies and workspaces are the main reason only if they are larger than the activations.
  if (const Cause first = findings_.front().cause;
      first == Cause::kAutocastCopies || first == Cause::kWorkspaces) {
    const auto larger = std::find_if(findings_.begin(), findings_.end(), [&](const Finding& f) {
      return f.cause == Cause::kActivations &&
             f.bytes > (first == Cause::kAutocastCopies ? 2 : 1) * findings_.front().bytes;
    });  // copies are among the activations
    if (larger != findings_.end()) std::rotate(findings_.begin(), larger, larger + 1);
  }
  findings_.front().primary = true;
  name_mechanisms(findings_.front());
  if (!cap_is_said) cap();
  for (Finding& finding : findings_) {
    finding.device = f_.failure.device;
    std::stable_sort(finding.advice.begin(), finding.advice.end(),
                     [](const Advice& a, const Advice& b) {
                       return a.saves_bytes.value_or(0) > b.saves_bytes.value_or(0);
                     });
  }
  return std::move(findings_);
}

Finding& OomDiagnosis::add(Cause cause, Statement title, uint64_t about, double confidence) {
  Finding finding;
  finding.kind = FindingKind::kOutOfMemory;
  finding.cause = cause;
  finding.title = fact(title);
  finding.bytes = about;
  finding.confidence = confidence;
  finding.site = f_.site;
  findings_.push_back(std::move(finding));
  return findings_.back();
}

void OomDiagnosis::too_large() {
  const uint64_t whole = f_.failure.capacity_bytes.value_or(0);
  const bool over_card = whole > 0 && request_ > whole;
  const bool over_limit =
      f_.limit_bytes > 0 && request_ > f_.limit_bytes && !f_.failure.limit_is_estimate;
  if (!over_card && !over_limit) return;
  const uint64_t most = over_card ? whole : f_.limit_bytes;
  Finding& finding = add(Cause::kRequestTooLarge, S::kTitleLargerThanMemory, request_, 1);
  finding.text = {fact(over_card ? S::kTensorOverCard : S::kTensorOverLimit,
                       {bytes(request_), at(f_.site), bytes(most)})};
  finding.evidence.push_back(
      evidence(fact(S::kRequestAvailable, {bytes(request_), bytes(most)}), request_, f_.site));
  finding.advice.push_back(
      advice(R::kSplitInParts, {count(request_ / std::max<uint64_t>(most / 2, 1) + 1)}, request_));
}

bool OomDiagnosis::fragmented() const {
  if (!f_.from_pytorch || request_ == 0) return false;
  if (f_.pieces.largest_bytes >= request_) return false;
  return f_.pieces.total_bytes >= request_ ||
         (f_.pieces.total_bytes * 2 >= request_ &&
          f_.pieces.total_bytes + headroom() >= f_.wanted_bytes);
}

// What PyTorch could still have got from the driver. Together with the segments that hold the free
// pieces, it would have been enough.
uint64_t OomDiagnosis::headroom() const {
  const uint64_t reserved = f_.failure.reserved_bytes.value_or(0);
  return f_.limit_bytes > reserved && !f_.failure.limit_is_estimate ? f_.limit_bytes - reserved : 0;
}

// Whether joining the free pieces would be enough: they are a large part of all memory, or several
// times the request, or the same step fitted before.
bool OomDiagnosis::fragmentation_decides() const {
  const uint64_t unused = f_.fragmentation.pinned + f_.fragmentation.cached;
  if (share(f_.growth.kept_bytes + f_.growth.older_bytes, held_) >= kKeptShare) return false;
  const bool fitted_before = f_.steps_before >= 2 && f_.largest_ratio > 0 &&
                             f_.largest_ratio < kLargeSampleRatio && f_.growth.growth.empty();
  if (f_.pieces.total_bytes < request_)
    return fitted_before || share(unused, f_.fragmentation.reserved) >= 0.5;
  return share(unused, f_.fragmentation.reserved) >= kFragmentedSurely || unused >= 3 * request_ ||
         fitted_before;
}

// PyTorch gives its free segments back before it gives up. Free segments that are still there, and
// would have been enough, belong to a pool that is in use: PyTorch does not give those back.
void OomDiagnosis::private_pool() {
  if (!f_.from_pytorch || f_.wanted_bytes == 0) return;
  const uint64_t free_segments = f_.fragmentation.cached;
  if (free_segments == 0 || free_segments + headroom() < f_.wanted_bytes ||
      timeline_.record().settings.expandable_segments)
    return;
  Finding& finding = add(Cause::kPrivatePool, S::kTitlePrivatePool, free_segments, 0.85);
  finding.text = {fact(S::kPoolKeepsSegments,
                       {bytes(free_segments), bytes(request_), at(f_.site), bytes(headroom())})};
  finding.evidence.push_back(evidence(
      fact(S::kReservedSum, {bytes(f_.fragmentation.reserved), bytes(f_.fragmentation.requested),
                             bytes(f_.fragmentation.rounding), bytes(f_.fragmentation.pending),
                             bytes(f_.fragmentation.cached), bytes(f_.fragmentation.pinned)}),
      free_segments));
  finding.advice = {advice(R::kLeavePool, {bytes(free_segments)}, free_segments),
                    advice(R::kOnePool)};
}

void OomDiagnosis::fragmentation() {
  if (!fragmented() || (!findings_.empty() && findings_.front().cause == Cause::kPrivatePool))
    return;
  const uint64_t reserved = f_.fragmentation.reserved;
  const uint64_t unused = f_.fragmentation.pinned + f_.fragmentation.cached;
  if (share(unused, reserved) < kFragmentedShare) return;
  Finding& finding = add(Cause::kFragmentation, S::kTitleFragmentation, unused, 0.95);
  if (f_.pieces.total_bytes >= request_)
    finding.text.push_back(fact(
        S::kFreeInPieces, {bytes(f_.pieces.total_bytes), bytes(reserved), bytes(request_),
                           at(f_.site), count(f_.pieces.count), bytes(f_.pieces.largest_bytes)}));
  else
    finding.text.push_back(
        fact(S::kFreeInPiecesWithHeadroom,
             {bytes(f_.pieces.total_bytes), bytes(reserved), bytes(headroom()), bytes(request_),
              at(f_.site), count(f_.pieces.count), bytes(f_.pieces.largest_bytes)}));
  finding.text.push_back(fact(S::kPinnedSegments, {count(f_.fragmentation.pinned_segments),
                                                   count(f_.fragmentation.segments)}));
  finding.evidence.push_back(evidence(
      fact(S::kReservedSum, {bytes(reserved), bytes(f_.fragmentation.requested),
                             bytes(f_.fragmentation.rounding), bytes(f_.fragmentation.pending),
                             bytes(f_.fragmentation.cached), bytes(f_.fragmentation.pinned)}),
      unused));
  if (f_.move && !f_.move->blocks.empty()) name_moves(finding);
  if (timeline_.record().settings.expandable_segments)
    finding.advice.push_back(advice(R::kExpandableAlreadyOn));
  else
    finding.advice.push_back(advice(R::kExpandableSegments, {bytes(unused)}, unused));
  finding.advice.push_back(advice(R::kMakeItFirst, {bytes(request_), at(f_.site)}, request_));
}

// The smallest set of blocks that would have to move, and the lines that made them.
void OomDiagnosis::name_moves(Finding& finding) const {
  const MovePlan& plan = *f_.move;
  Evidence move = evidence(
      plan.empties_segments
          ? fact(S::kMoveEmpties, {count(plan.blocks.size()), bytes(plan.move_bytes),
                                   count(plan.segments.size()), bytes(plan.gained_bytes)})
          : fact(S::kMoveWithin,
                 {count(plan.blocks.size()), bytes(plan.move_bytes), bytes(plan.gained_bytes)}),
      plan.move_bytes);
  struct Line {
    Site site;
    uint64_t count = 0, bytes = 0;
  };
  std::map<std::tuple<std::string, uint32_t, std::string>, Line> by_line;
  for (const MapBlock& block : plan.blocks) {
    if (move.addresses.size() < kShownMoves) move.addresses.push_back(block.address);
    if (block.alloc_event != kNever && move.events.size() < kShownMoves)
      move.events.push_back(block.alloc_event);
    const Site site = timeline_.stacks().site(block.stack, abi::kNoId, abi::kNoId);
    Line& line = by_line[{site.line.file, site.line.line, site.line.function}];
    line.site = site;
    ++line.count;
    line.bytes += block.size_bytes;
  }
  finding.evidence.push_back(std::move(move));
  std::vector<Line> lines;
  for (auto& [key, line] : by_line) lines.push_back(std::move(line));
  std::stable_sort(lines.begin(), lines.end(),
                   [](const Line& a, const Line& b) { return a.bytes > b.bytes; });
  for (size_t i = 0; i < lines.size() && i < kShownLines; ++i)
    finding.evidence.push_back(evidence(
        fact(S::kMoveLine, {count(lines[i].count), bytes(lines[i].bytes), at(lines[i].site)}),
        lines[i].bytes, lines[i].site));
}

// An exception that is still being handled holds the frames of the failed attempt, and they hold
// its tensors.
void OomDiagnosis::kept_by_exception() {
  if (share(f_.kept_by_failure_bytes, held_) < kKeptShare) return;
  Finding& finding =
      add(Cause::kKeptByException, S::kTitleKeptByException, f_.kept_by_failure_bytes, 0.85);
  finding.text = {
      fact(S::kKeptByException, {bytes(f_.kept_by_failure_bytes), count(f_.kept_by_failure_count),
                                 percent(share(f_.kept_by_failure_bytes, held_))})};
  finding.evidence.push_back(evidence(fact(S::kOlderThanFailure, {count(f_.kept_by_failure_count)}),
                                      f_.kept_by_failure_bytes));
  finding.advice.push_back(
      advice(R::kRetryAfterExcept, {bytes(f_.kept_by_failure_bytes)}, f_.kept_by_failure_bytes));
}

void OomDiagnosis::kept() {
  const GrowthReport& growth = f_.growth;
  if (growth.growth.empty() || share(growth.kept_bytes + growth.older_bytes, held_) < kKeptShare)
    return;
  for (const Growth& line : growth.growth) {
    if (share(line.kept_bytes + line.older_bytes, held_) < 0.05) continue;
    Finding finding = growth_finding(line, growth);
    finding.kind = FindingKind::kOutOfMemory;
    if (finding.cause == Cause::kLeak) finding.cause = Cause::kKeptAcrossSteps;
    finding.fails_at_step.reset();
    finding.evidence.push_back(
        evidence(fact(S::kOfAllocated, {bytes(line.kept_bytes), bytes(held_)}), line.kept_bytes));
    findings_.push_back(std::move(finding));
  }
}

// What the rest of the card is taken by, if it is a good part: nothing in this program has to
// change then.
void OomDiagnosis::others() {
  const uint64_t card = f_.failure.capacity_bytes.value_or(0);
  const bool named = share(f_.other_process_bytes, card) >= 0.25;
  if (card == 0 || (!named && share(f_.unaccounted_bytes, card) < 0.25)) return;
  const uint64_t amount = named ? f_.other_process_bytes : f_.unaccounted_bytes;
  Finding& finding =
      add(named ? Cause::kOtherProcess : Cause::kOutsideAllocator,
          named ? S::kTitleOtherProcess : S::kTitleOutside, amount, named ? 0.9 : 0.7);
  finding.kind = FindingKind::kOutside;
  const uint64_t reserved = f_.failure.reserved_bytes.value_or(0);
  if (named)
    finding.text.push_back(
        fact(S::kHeldByOthers, {bytes(card), bytes(amount), name(f_.other_processes),
                                bytes(reserved), bytes(request_), at(f_.site)}));
  else
    finding.text.push_back(fact(S::kHeldByUnknown, {bytes(card), bytes(amount), bytes(reserved),
                                                    bytes(request_), at(f_.site)}));
  finding.evidence.push_back(
      evidence(fact(S::kCapacityFreeReserved,
                    {bytes(card), bytes(f_.failure.free_bytes.value_or(0)), bytes(reserved)}),
               amount));
  finding.advice.push_back(
      advice(named ? R::kStopOther : R::kFindWithSmi, {bytes(amount)}, amount));
}

void OomDiagnosis::outside() {
  if (!f_.device_other_bytes ||
      share(*f_.device_other_bytes, f_.failure.capacity_bytes.value_or(limit_)) < 0.1)
    return;
  Finding& finding =
      add(Cause::kOutsideAllocator, S::kTitleOutsideAllocator, *f_.device_other_bytes, 0.9);
  finding.kind = FindingKind::kOutside;
  finding.text = {fact(S::kOutsideAllocator, {bytes(*f_.device_other_bytes)})};
  finding.advice.push_back(advice(R::kFewerCommunicators, {}, *f_.device_other_bytes));
}

void OomDiagnosis::cap() {
  if (!f_.failure.limit_is_cap) return;
  const uint64_t free = f_.failure.free_bytes.value_or(0);
  Finding& finding =
      add(Cause::kMemoryFraction, S::kTitleOwnLimit, free, f_.failure.limit_is_estimate ? 0.9 : 1);
  if (f_.failure.limit_is_estimate)
    finding.text = {fact(S::kOwnLimitBetween, {bytes(free), bytes(f_.failure.limit_at_least_bytes),
                                               bytes(f_.limit_bytes)})};
  else
    finding.text = {fact(S::kOwnLimit, {bytes(free), bytes(f_.limit_bytes)})};
  finding.evidence.push_back(evidence(
      fact(S::kFreeReservedAsked,
           {bytes(free), bytes(f_.failure.reserved_bytes.value_or(0)), bytes(f_.wanted_bytes)}),
      f_.failure.free_bytes));
  finding.advice.push_back(advice(R::kRaiseFraction, {bytes(free)}, f_.failure.free_bytes));
}

void OomDiagnosis::capacity() {
  Finding& finding = add(Cause::kCapacity, S::kTitleMemoryFull, held_, 0.5);
  finding.text = {fact(S::kAllocatedUnknown, {bytes(held_)})};
  if (f_.limit_bytes > 0 && share(request_, f_.limit_bytes) >= 0.25)
    finding.text.push_back(
        fact(S::kFailingRequestOfLimit,
             {bytes(request_), at(f_.site), percent(share(request_, f_.limit_bytes))}));
  else
    finding.text.push_back(fact(S::kFailingRequest, {bytes(request_), at(f_.site)}));
  name_lines(finding, f_.top_lines, 0);
  if (!f_.top_lines.empty())
    finding.advice.push_back(
        advice(R::kLookThereFirst, {at(f_.top_lines.front().site)}, f_.top_lines.front().bytes));
}

std::vector<Finding> diagnose(const OomFacts& facts, const Timeline& timeline) {
  return OomDiagnosis(facts, timeline).run();
}

}  // namespace tonnage::analysis
