// What follows from the figures of PyTorch's own message: a cap, other processes, fragmentation, or
// a card that is full.
#include <algorithm>

#include "analysis/diagnosis/finding_parts.h"
#include "analysis/diagnosis/oom_facts.h"
#include "analysis/diagnosis/oom_log.h"

namespace tonnage::analysis {
namespace {

using sources::LogFramework;
using sources::LogOom;
using sources::LogProcess;
using sources::OomFormat;
using S = Statement;
using R = Remedy;

constexpr uint64_t kOutsideBytes = 2ull << 30;  // a context with its libraries stays below it
constexpr double kSlackShare = 0.08;            // of reserved
constexpr double kSlackSurely = 0.2;            // of reserved: the main reason
constexpr double kHugeShare = 0.25;    // of the card: one tensor that large is the problem itself
constexpr double kPrivateShare = 0.1;  // of reserved: worth a word

class FigureDiagnosis {
 public:
  FigureDiagnosis(const LogOom& oom, const LogFigures& figures, const TraceFacts& trace,
                  std::vector<Finding>& out)
      : oom_(oom), figures_(figures), trace_(trace), findings_(out) {
    request_ = oom.requested->bytes;
    capacity_ = oom.capacity->bytes;
    free_ = oom.free ? oom.free->bytes : 0;
    slack_ = figures.slack.value_or(0);
    reserved_ = figures.reserved.value_or(0);
  }

  void run() {
    if (figures_.cap_binds) cap();
    if (figures_.oversubscribed) oversubscribed();
    if (request_ > capacity_) larger_than_the_card();
    if (!oom_.allocated) return;  // cut off: what is left proves nothing
    const bool room = oom_.free && free_ > request_ + kFreeMarginBytes;
    if (room && !figures_.cap_binds) not_capacity();
    if (figures_.outside && *figures_.outside > kOutsideBytes &&
        share(*figures_.outside, capacity_) > 0.1)
      outside();
    const bool decided = !findings_.empty() && findings_.front().cause != Cause::kOtherProcess &&
                         findings_.front().cause != Cause::kOutsideAllocator;
    if (decided && (room || figures_.oversubscribed || request_ > capacity_ || figures_.cap_binds))
      return;
    const bool pieces = slack_ + free_ >= request_ && slack_ >= request_ / 2;
    const double slack_share = share(slack_, reserved_);
    if (!pieces || slack_share < kSlackShare) {
      full();
    } else if (slack_share >= kSlackSurely || slack_ >= 3 * request_) {
      fragmentation();
    } else {
      // It holds this one request and hardly more: the rest of the pass would fail next.
      full();
      fragmentation();
      findings_.back().confidence = 0.5;
    }
    private_pools();
  }

 private:
  Finding& add(Cause cause, Statement title, std::vector<Fact> text, double confidence,
               uint64_t about) {
    Finding finding;
    finding.cause = cause;
    finding.title = fact(title);
    finding.text = std::move(text);
    finding.confidence = confidence;
    finding.bytes = about;
    findings_.push_back(std::move(finding));
    return findings_.back();
  }

  void cap() {
    Finding& finding = add(Cause::kMemoryFraction, S::kTitleOwnLimit,
                           {fact(S::kLogOwnLimit, {printed(oom_.allowed), bytes(reserved_),
                                                   printed(oom_.requested), printed(oom_.free)})},
                           0.95, free_);
    if (free_ > request_)
      finding.advice.push_back(advice(R::kRaiseFractionLog, {printed(oom_.free)}, free_));
    finding.advice.push_back(
        advice(R::kWithinLimit, {printed(oom_.allowed), printed(oom_.allocated)}));
  }

  void oversubscribed() {
    const uint64_t over = oom_.allocated->bytes - capacity_;
    Finding& finding =
        add(Cause::kOversubscribed, S::kTitleOversubscribed,
            {fact(S::kOversubscribed, {printed(oom_.allocated), printed(oom_.capacity)})}, 0.9,
            oom_.allocated->bytes);
    finding.advice = {advice(R::kNeedsMoreThanCard, {bytes(over)}, over),
                      advice(R::kNoSystemFallback)};
  }

  void larger_than_the_card() {
    Finding& finding = add(
        Cause::kRequestTooLarge, S::kTitleLargerThanCard,
        {fact(S::kLargerThanCard, {printed(oom_.requested), printed(oom_.capacity)})}, 1, request_);
    finding.advice = {advice(
        R::kWorkInParts, {count(request_ / std::max<uint64_t>(capacity_ / 2, 1) + 1)}, request_)};
  }

  void not_capacity() {
    Finding& finding = add(Cause::kNotCapacity, S::kTitleEnoughFree,
                           {fact(S::kEnoughFree, {printed(oom_.requested), printed(oom_.free)})},
                           0.8, free_ - request_);
    finding.advice = {advice(R::kLookForLimits), advice(R::kRunAlone),
                      advice(R::kBatchWouldNotHelp)};
  }

  bool foreign(const LogProcess& process) const {
    return !process.is_self && process.plausible && &process != figures_.own;
  }

  void outside() {
    const uint64_t amount = *figures_.outside;
    std::string named;
    uint64_t held = 0, contexts = 0, others = 0;
    for (const LogProcess& process : oom_.processes) {
      if (!foreign(process)) continue;
      ++others;
      held += process.in_use.bytes;
      contexts += process.in_use.bytes < kOutsideBytes;
      named += named.empty() ? "" : ", ";
      named +=
          "process " + std::to_string(process.pid.value_or(0)) + " (" + process.in_use.text + ")";
    }
    const bool other = held > amount / 2;
    const bool only_contexts = other && contexts >= 2 && contexts == others;
    Finding& finding =
        add(other ? Cause::kOtherProcess : Cause::kOutsideAllocator,
            only_contexts ? S::kTitleOtherContexts
            : other       ? S::kTitleOtherProcess
                          : S::kTitleOutside,
            {named.empty() ? fact(S::kOutsideUnnamed,
                                  {printed(oom_.capacity), bytes(amount), printed(oom_.requested)})
                           : fact(S::kOutsideNamed, {printed(oom_.capacity), bytes(amount),
                                                     name(named), printed(oom_.requested)})},
            other ? 0.95 : 0.8, amount);
    finding.kind = FindingKind::kOutside;
    if (figures_.own)
      finding.text.push_back(
          fact(S::kOwnProcess, {count(figures_.own->pid.value_or(0)),
                                name(figures_.own->in_use.text), bytes(reserved_)}));
    if (only_contexts)
      finding.text.push_back(fact(S::kContextsOnly, {count(contexts), bytes(held)}));
    finding.evidence.push_back(evidence(
        fact(S::kOutsideSum,
             {printed(oom_.capacity), printed(oom_.free), bytes(reserved_), bytes(amount)}),
        amount));
    if (other && contexts >= 2)
      finding.advice.push_back(advice(R::kOwnGpuPerRank, {count(contexts)}, held));
    if (other && !only_contexts)
      finding.advice.push_back(advice(R::kStopProcess, {name(named), bytes(held)}, held));
    if (!other) finding.advice.push_back(advice(R::kFindWhoHas, {bytes(amount)}, amount));
    if (request_ < amount) finding.advice.push_back(advice(R::kEmptyCardMayDo));
  }

  void fragmentation() {
    Finding& finding = add(Cause::kFragmentation, S::kTitleFragmentationLikely,
                           {fact(S::kFragmentationLikely, {bytes(slack_), bytes(reserved_),
                                                           bytes(free_), printed(oom_.requested)})},
                           0.7, slack_);
    finding.evidence.push_back(
        evidence(fact(S::kSlackSum, {bytes(request_), bytes(slack_), bytes(free_)}), slack_));
    finding.advice = {advice(R::kExpandableSegmentsLog, {bytes(slack_)}, slack_),
                      advice(R::kLargeBuffersEarly)};
  }

  // Memory of CUDA graphs serves only them: what is cached there is no hole to be closed.
  void private_pools() {
    if (!oom_.private_pools || findings_.empty() ||
        share(oom_.private_pools->bytes, reserved_) < kPrivateShare / 2)
      return;
    Finding& finding = findings_.front();
    finding.text.push_back(
        fact(S::kPrivatePools, {printed(oom_.private_pools), printed(oom_.allocated)}));
    finding.advice.push_back(
        advice(R::kFewerGraphs, {printed(oom_.private_pools)}, oom_.private_pools->bytes));
  }

  // Where it failed, and what is special there.
  struct Place {
    Cause cause = Cause::kCapacity;
    Statement title = S::kTitleCardFull, text = S::kNothing;
  };
  Place where() const {
    if (trace_.loading) return {Cause::kCapacity, S::kTitleCardFull, S::kWhileLoading};
    if (trace_.saving) return {Cause::kCapacity, S::kTitleCardFull, S::kWhileSaving};
    if (trace_.first_state)
      return {Cause::kOptimizerFirstStep, S::kTitleFirstStep, S::kInFirstStep};
    if (trace_.optimizer && !trace_.backward)
      return {Cause::kModelState, S::kTitleOptimizerStep, S::kInOptimizerStep};
    if (trace_.loss) return {Cause::kLogits, S::kTitleLogits, S::kInLoss};
    if (trace_.collects) return {Cause::kCapacity, S::kTitleCardFull, S::kInCollection};
    if (trace_.evaluation) return {Cause::kCapacity, S::kTitleCardFull, S::kInEvaluation};
    if (trace_.moving) return {Cause::kModelState, S::kTitleModelTooLarge, S::kWhileMoving};
    if (trace_.backward) return {Cause::kActivations, S::kTitleActivations, S::kInBackward};
    return {};
  }

  // Of the driver's own pools the message has no figure of what they keep.
  uint64_t pool_of_driver() const {
    if (oom_.format != OomFormat::kCudaMallocAsync || !oom_.free) return 0;
    return above(above(capacity_, free_), oom_.allocated->bytes);
  }

  void full() {
    const uint64_t allocated = oom_.allocated->bytes;
    const bool huge = share(request_, capacity_) >= kHugeShare && request_ >= allocated / 4;
    const Place place = where();
    std::vector<Fact> text = {
        fact(S::kAllocatedOf, {printed(oom_.allocated), printed(oom_.capacity),
                               printed(oom_.requested), bytes(slack_ + free_)})};
    if (place.text != S::kNothing) text.push_back(fact(place.text));
    if (const uint64_t other = pool_of_driver(); other > kOutsideBytes / 4)
      text.push_back(fact(S::kPoolOfDriver, {bytes(other)}));
    if (huge)
      text.push_back(
          fact(S::kHugeTensor, {printed(oom_.requested), percent(share(request_, capacity_))}));
    if (slack_ + free_ >= request_ && share(slack_, reserved_) < kSlackShare)
      text.push_back(
          fact(S::kSlackTooSmall, {bytes(slack_), percent(share(slack_, reserved_), 1)}));
    const bool only_huge = huge && place.cause == Cause::kCapacity;
    Finding& finding =
        add(only_huge ? Cause::kActivations : place.cause,
            only_huge ? S::kTitleHugeTensor : place.title, std::move(text), 0.7, allocated);
    if (const uint64_t missing = above(request_, slack_ + free_); missing > 0)
      finding.evidence.push_back(evidence(fact(S::kMissingAtLeast, {bytes(missing)}), missing));
    remedies(finding, huge);
  }

  void remedies(Finding& finding, bool huge) const {
    if (trace_.loading) finding.advice.push_back(advice(R::kLoadToHost, {}, request_));
    if (trace_.saving) finding.advice.push_back(advice(R::kShardedStateDict));
    if (trace_.collects) finding.advice.push_back(advice(R::kEvalAccumulation));
    if (huge)
      finding.advice.push_back(
          advice(R::kSplitTensor, {printed(oom_.requested), bytes(request_ / 2)}, request_ / 2));
    if (trace_.server) return remedies_of_server(finding);
    finding.advice.push_back(advice(R::kFirstSteps));
    finding.advice.push_back(advice(R::kLaterSteps));
  }

  void remedies_of_server(Finding& finding) const {
    const auto add = [&](std::initializer_list<Remedy> remedies) {
      for (const Remedy remedy : remedies) finding.advice.push_back(advice(remedy));
    };
    switch (*trace_.server) {
      case LogFramework::kSglang:
        return add({R::kSglangLessStatic, R::kSglangSmallerGraphs, R::kQuantizeOrParallel});
      case LogFramework::kTgi:
        return add({R::kTgiPrefill, R::kTgiFraction, R::kQuantizeOrParallel});
      case LogFramework::kComfyUi:
        return add({R::kComfyLowVram, R::kTiledDecode, R::kSmallerPicture});
      case LogFramework::kWebUi: return add({R::kWebUiLowVram, R::kSmallerPicture});
      case LogFramework::kDiffusers: return add({R::kPipelineOffload, R::kSmallerPicture});
      case LogFramework::kTransformers:
        return add({R::kFewerTokens, R::kCacheOffload, R::kQuantizeOrParallel});
      default: return add({R::kLessShare, R::kFewerSequences, R::kQuantizeOrParallel});
    }
  }

  const LogOom& oom_;
  const LogFigures& figures_;
  const TraceFacts& trace_;
  std::vector<Finding>& findings_;
  uint64_t request_ = 0, capacity_ = 0, free_ = 0, slack_ = 0, reserved_ = 0;
};

// Inside a container this process appears under its host number: of those that hold about as much
// as PyTorch has reserved, and not less, the closest.
const LogProcess* own_process(const LogOom& oom, uint64_t reserved) {
  const LogProcess* own = nullptr;
  for (const LogProcess& process : oom.processes) {
    if (process.is_self) return nullptr;
    // Figures are rounded to two decimals.
    const uint64_t rounding =
        process.in_use.plus_minus_bytes + (oom.allocated ? oom.allocated->plus_minus_bytes : 0);
    if (!process.plausible || process.in_use.bytes + rounding < reserved ||
        above(process.in_use.bytes, reserved) >= kOutsideBytes)
      continue;
    if (!own || process.in_use.bytes < own->in_use.bytes) own = &process;
  }
  return own;
}

}  // namespace

LogFigures log_figures(const LogOom& oom) {
  LogFigures out;
  if (oom.reserved)
    out.reserved = oom.reserved->bytes;
  else if (oom.allocated && oom.unallocated)
    out.reserved = oom.allocated->bytes + oom.unallocated->bytes;
  if (out.reserved && oom.allocated)
    out.slack =
        oom.unallocated ? oom.unallocated->bytes : above(*out.reserved, oom.allocated->bytes);
  if (oom.format == OomFormat::kMps || oom.format == OomFormat::kXlaMemorySpace) return out;
  if (oom.capacity && oom.free && out.reserved)
    out.outside = above(above(oom.capacity->bytes, oom.free->bytes), *out.reserved);
  if (out.reserved) out.own = own_process(oom, *out.reserved);
  uint64_t others = 0;
  bool any = false;
  for (const LogProcess& process : oom.processes) {
    if (!process.plausible) continue;
    if (process.is_self || &process == out.own) {
      if (out.reserved) out.own_outside = above(process.in_use.bytes, *out.reserved);
      continue;
    }
    others += process.in_use.bytes;
    any = true;
  }
  if (any) out.others = others;
  out.oversubscribed = oom.capacity && oom.allocated && oom.allocated->bytes > oom.capacity->bytes;
  if (oom.allowed && oom.requested && oom.capacity) {
    // Allowed = capacity is no cap. Rounded figures: half of the last digit may be missing.
    const uint64_t tolerance =
        oom.allowed->plus_minus_bytes + (oom.allocated ? oom.allocated->plus_minus_bytes : 0);
    const bool below_card = share(oom.allowed->bytes, oom.capacity->bytes) < 0.98;
    const uint64_t held = out.reserved ? *out.reserved : oom.allocated ? oom.allocated->bytes : 0;
    out.cap_binds = below_card && held + oom.requested->bytes + tolerance >= oom.allowed->bytes;
  }
  return out;
}

void diagnose_pytorch_figures(const LogOom& oom, const LogFigures& figures, const TraceFacts& trace,
                              std::vector<Finding>& out) {
  if (oom.requested && oom.capacity && oom.capacity->bytes > 0)
    FigureDiagnosis(oom, figures, trace, out).run();
}

}  // namespace tonnage::analysis
