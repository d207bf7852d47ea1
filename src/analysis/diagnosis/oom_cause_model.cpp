// Causes in the program's own tensors: parameters, gradients and optimizer state; activations;
// logits; copies.
#include <algorithm>

#include "analysis/diagnosis/oom_diagnosis.h"

namespace tonnage::analysis {
namespace {

using S = Statement;
using R = Remedy;

constexpr double kStateShare = 0.8;  // of the limit: nothing else can be made small enough
constexpr double kLogitsShare = 0.25;
constexpr double kLargeSampleRatio = 1.25;
constexpr size_t kShownLines = 4;
constexpr double kMechanismShare = 0.05;  // of what is allocated

}  // namespace

void OomDiagnosis::name_lines(Finding& finding, const std::vector<LineBytes>& lines,
                              uint64_t whole) const {
  for (const LineBytes& line : lines) {
    if (finding.evidence.size() >= kShownLines || share(line.bytes, whole) < 0.01 * (whole > 0))
      break;
    finding.evidence.push_back(
        evidence(fact(S::kMadeInTensors, {bytes(line.bytes), tensors(line.count), at(line.site)}),
                 line.bytes, line.site));
  }
}

void OomDiagnosis::optimizer_first_step() {
  if (!f_.first_state) return;
  const uint64_t state = f_.of(Category::kOptimizerState);
  const uint64_t parameters = f_.of(Category::kParameter), gradients = f_.of(Category::kGradient);
  const uint64_t whole = f_.static_bytes - state + f_.predicted_state_bytes;
  Finding& finding =
      add(Cause::kOptimizerFirstStep, S::kTitleFirstStep, f_.predicted_state_bytes, 0.95);
  finding.text.push_back(
      fact(S::kFirstStepState, {tensors(f_.state_tensors_per_parameter),
                                bytes(f_.predicted_state_bytes), bytes(state), at(f_.site)}));
  if (parameters > 0)
    finding.text.push_back(
        fact(S::kFirstStepWhole, {bytes(parameters), bytes(gradients), bytes(whole)}));
  else
    finding.text.push_back(fact(S::kFirstStepWholeNoParameters, {bytes(gradients), bytes(whole)}));
  if (f_.limit_bytes > 0)
    finding.text.push_back(
        fact(f_.failure.limit_is_estimate ? S::kPyTorchMayUseAtMost : S::kPyTorchMayUse,
             {bytes(f_.limit_bytes)}));
  finding.evidence.push_back(evidence(
      fact(S::kStateParts,
           {bytes(parameters), bytes(gradients), bytes(state), bytes(f_.predicted_state_bytes)}),
      whole, f_.site));
  finding.evidence.push_back(
      evidence(fact(S::kActivationsThen, {bytes(activations_)}), activations_));
  state_advice(finding, f_.predicted_state_bytes, gradients, parameters);
  if (f_.limit_bytes > whole)
    finding.advice.push_back(advice(R::kRestHasToGo, {bytes(f_.limit_bytes - whole)}));
}

void OomDiagnosis::state_advice(Finding& finding, uint64_t state, uint64_t gradients,
                                uint64_t parameters) const {
  if (state > 0)
    finding.advice.push_back(advice(R::kEightBitOptimizer, {bytes(state)}, state / 4 * 3));
  const uint64_t all = parameters + gradients + state;
  finding.advice.push_back(advice(R::kShardState, {bytes(all), bytes(all / 8)}, all / 2));
  if (state + gradients > 0 && parameters > 0)
    finding.advice.push_back(
        advice(R::kAdaptersOnly, {bytes(state + gradients)}, state + gradients));
}

void OomDiagnosis::optimizer_copies() {
  if (f_.first_state || f_.phase != Phase::kOptimizer) return;
  const uint64_t made = f_.optimizer_temporary_bytes + request_;
  if (share(made, held_ + request_) < 0.05) return;
  Finding& finding =
      add(Cause::kOptimizerCopies, S::kTitleOptimizerCopies, made, f_.foreach_copies ? 0.95 : 0.8);
  finding.text = {fact(S::kOptimizerCopies, {bytes(made), at(f_.site), bytes(request_)})};
  if (f_.foreach_copies) finding.text.push_back(fact(S::kForeachAtOnce));
  finding.evidence.push_back(
      evidence(fact(S::kOptimizerTemporaries, {bytes(f_.optimizer_temporary_bytes)}),
               f_.optimizer_temporary_bytes, f_.site));
  finding.advice.push_back(advice(R::kFusedOptimizer, {bytes(made)}, made));
}

void OomDiagnosis::model_state() {
  // A second copy of the weights comes from one line. It counts if it is large enough to matter.
  const uint64_t second = share(f_.weight_copies_bytes, held_) >= 0.1 ? f_.weight_copies_bytes : 0;
  uint64_t grown = 0;  // gradients that are collected are no state of the model
  for (const Growth& line : f_.growth.growth)
    grown += line.category == Category::kGradient ? line.kept_bytes : 0;
  if (f_.first_state ||
      share(f_.static_bytes - std::min(grown, f_.static_bytes) + second, limit_) < kStateShare)
    return;
  const uint64_t parameters = f_.of(Category::kParameter) + f_.of(Category::kBuffer);
  const uint64_t gradients = f_.of(Category::kGradient), state = f_.of(Category::kOptimizerState);
  Finding& finding = add(Cause::kModelState, S::kTitleModelState, f_.static_bytes + second, 0.9);
  finding.text = {
      fact(S::kModelState, {bytes(parameters), bytes(gradients), bytes(state),
                            bytes(f_.static_bytes), bytes(limit_), bytes(activations_)})};
  if (second > 0)
    finding.text.push_back(fact(S::kSecondWeights, {bytes(second), at(f_.weight_copies_site)}));
  finding.evidence.push_back(
      evidence(fact(S::kShareOfLimit, {percent(share(f_.static_bytes + second, limit_))}),
               f_.static_bytes + second, f_.site));
  if (second > 0) {
    finding.evidence.push_back(
        evidence(fact(S::kCopiesMade, {bytes(second), at(f_.weight_copies_site)}), second,
                 f_.weight_copies_site));
    finding.advice.push_back(advice(R::kCopyOnHost, {bytes(second)}, second));
  }
  if (parameters > 0 && gradients >= 2 * parameters)
    finding.advice.push_back(advice(
        R::kWholeGradients, {times(share(gradients, parameters)), bytes(gradients - parameters)},
        gradients - parameters));
  state_advice(finding, state, gradients, parameters);
  gradient_advice(finding, gradients);
}

// Gradients of the last step that are alive during the next forward pass. They are intended only
// with accumulation.
void OomDiagnosis::gradient_advice(Finding& finding, uint64_t gradients) const {
  if (f_.phase != Phase::kForward || gradients <= held_ / 50) return;
  finding.advice.push_back(advice(R::kZeroGradToNone, {bytes(gradients)}, gradients));
}

void OomDiagnosis::logits() {
  if (share(f_.logits_bytes, held_ + request_) < kLogitsShare || f_.logits_each == 0) return;
  Finding& finding = add(Cause::kLogits, S::kTitleLogitsLargest, f_.logits_bytes, 0.9);
  const uint64_t copies = (f_.logits_bytes + f_.logits_each / 2) / f_.logits_each;
  if (f_.logits_by_size) {
    finding.confidence = 0.7;
    finding.text = {
        fact(S::kLogitsBySize, {count(copies), bytes(f_.logits_each), bytes(f_.logits_bytes),
                                bytes(held_ + request_), at(f_.site)})};
  } else {
    finding.text = {fact(S::kLogits, {bytes(f_.logits_each), bytes(f_.logits_bytes),
                                      bytes(held_ + request_), at(f_.site), count(copies)})};
  }
  finding.evidence.push_back(evidence(
      fact(S::kAboutTensors, {count(copies), bytes(f_.logits_each)}), f_.logits_bytes, f_.site));
  finding.advice = {advice(R::kChunkedLoss, {bytes(f_.logits_bytes / 8), bytes(f_.logits_bytes)},
                           f_.logits_bytes / 8 * 7),
                    advice(R::kFewerLogits)};
}

void OomDiagnosis::large_sample() {
  if (f_.steps_before < 3 || f_.largest_ratio < kLargeSampleRatio || !f_.growth.growth.empty())
    return;
  const auto usual =
      static_cast<uint64_t>(static_cast<double>(activations_ + request_) / f_.largest_ratio);
  const uint64_t extra = activations_ + request_ - usual;
  Finding& finding = add(Cause::kLargeSample, S::kTitleLargeSample, extra, 0.85);
  if (f_.largest_ratio_site.line.known())
    finding.site = f_.site.line.known() ? f_.site : f_.largest_ratio_site;
  finding.text = {fact(S::kLargeSample, {count(f_.failure.moment.step), times(f_.largest_ratio),
                                         count(f_.steps_before), bytes(f_.median_step_peak)})};
  finding.evidence.push_back(
      evidence(fact(S::kLargestTensors, {times(f_.largest_ratio, 2), at(f_.largest_ratio_site)}),
               std::nullopt, f_.largest_ratio_site));
  finding.advice = {advice(R::kLimitSample, {bytes(extra)}, extra), advice(R::kLargestFirst)};
}

void OomDiagnosis::checkpoint_inactive() {
  const uint64_t activations = f_.of(Category::kActivation);
  if (!f_.checkpoint_seen || share(f_.checkpointed_bytes, activations) < 0.5 ||
      share(f_.checkpointed_bytes, held_) < 0.2 || f_.blocks < 3)
    return;
  Finding& finding =
      add(Cause::kCheckpointInactive, S::kTitleCheckpointInactive, f_.checkpointed_bytes, 0.8);
  finding.text = {fact(S::kCheckpointInactive, {bytes(f_.checkpointed_bytes)})};
  finding.advice.push_back(advice(R::kCheckCheckpoint, {}, f_.checkpointed_bytes));
}

void OomDiagnosis::copies() {
  if (share(f_.copies_bytes, held_) < 0.1) return;
  Finding& finding = add(Cause::kAutocastCopies, S::kTitleCopies, f_.copies_bytes, 0.7);
  finding.text = {
      fact(f_.copies_by_size ? S::kCopiesBySize : S::kCopies, {bytes(f_.copies_bytes)})};
  finding.advice.push_back(advice(R::kSmallerParameters, {}, f_.copies_bytes));
}

void OomDiagnosis::workspaces() {
  const uint64_t scratch = f_.of(Category::kWorkspace);
  if (share(scratch, held_) < 0.15) return;
  Finding& finding = add(Cause::kWorkspaces, S::kTitleWorkspaces, scratch, 0.7);
  finding.text = {fact(S::kWorkspaces, {bytes(scratch)})};
  finding.advice.push_back(advice(R::kSmallerWorkspaces, {}, scratch / 2));
}

void OomDiagnosis::activations() {
  const uint64_t live = f_.of(Category::kActivation);
  const bool largest = live >= f_.static_bytes && live >= f_.of(Category::kUnknown);
  if (live == 0 || (!largest && share(live, held_) < 0.3)) return;
  // Kept graphs are activations too: said already.
  if (!f_.growth.growth.empty() && share(f_.growth.kept_bytes, live) > 0.6) return;
  Finding& finding = add(Cause::kActivations, S::kTitleActivationsFill, live, 0.9);
  finding.text = {fact(S::kActivationsSaved, {bytes(live), bytes(held_)}), static_fact(),
                  fact(f_.phase == Phase::kForward ? S::kFailedBeforeForwardEnded : S::kFailedAt,
                       {at(f_.site)})};
  name_lines(finding, f_.top_activations, live);
  if (f_.blocks >= 3) {
    const uint64_t all = f_.block_bytes * f_.blocks,
                   stays = f_.block_bytes + f_.blocks * f_.block_boundary_bytes;
    if (all > stays && share(all - stays, live) >= 0.1)
      finding.advice.push_back(advice(
          R::kCheckpointBlocks,
          {count(f_.blocks), bytes(f_.block_bytes), bytes(all - stays), bytes(live)}, all - stays));
  }
  finding.advice.push_back(advice(R::kHalfBatch, {bytes(live / 2)}, live / 2));
  // Autocast that is on already leaves copies.
  if (!f_.autocast_seen) finding.advice.push_back(advice(R::kAutocast, {}, live * 2 / 5));
  gradient_advice(finding, f_.of(Category::kGradient));
}

// The mechanism that made a large part of it, if the frames show it, and its remedy.
void OomDiagnosis::name_mechanisms(Finding& finding) const {
  for (const MechanismBytes& part : f_.mechanisms) {
    const bool formula = part.mechanism == Mechanism::kUnfusedActivation;
    if (share(part.bytes, held_) < kMechanismShare) break;
    if (part.mechanism == Mechanism::kLanguageModelHead && finding.cause == Cause::kLogits)
      continue;
    finding.text.push_back(fact(statement_of(part.mechanism), {bytes(part.bytes), at(part.site)}));
    const uint64_t saves =
        formula ? part.bytes / part.count * (part.count - part.groups) : part.bytes;
    finding.advice.push_back(advice(remedy_of(part.mechanism), {bytes(part.bytes)}, saves));
  }
}

// What is older than the history has no line: it may be the model.
Fact OomDiagnosis::static_fact() const {
  const uint64_t unknown = f_.of(Category::kUnknown);
  if (unknown <= f_.static_bytes || share(unknown, held_) < 0.02)
    return fact(S::kStateTakes, {bytes(f_.static_bytes)});
  return fact(S::kStateTakesAtLeast, {bytes(f_.static_bytes), bytes(unknown)});
}

}  // namespace tonnage::analysis
