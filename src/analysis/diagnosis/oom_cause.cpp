#include "analysis/diagnosis/oom_cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "analysis/diagnosis/finding_parts.h"

namespace tonnage::analysis {
namespace {

constexpr double kFragmentedShare =
    0.08;  // of reserved: below it, closing every hole would buy little
constexpr double kFragmentedSurely = 0.2;  // of reserved: as the main reason whatever else there is
constexpr double kStateShare = 0.8;        // of the limit: nothing else can be made small enough
constexpr double kKeptShare = 0.25;        // of what is allocated
constexpr double kLogitsShare = 0.25;
constexpr double kLargeSampleRatio = 1.25;

double share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

class Diagnosis {
 public:
  Diagnosis(const OomFacts& facts, const Timeline& timeline) : f_(facts), timeline_(timeline) {
    request_ = f_.failure.request_bytes;
    held_ = std::max<uint64_t>(f_.held_bytes, 1);
    limit_ = f_.limit_bytes ? f_.limit_bytes : f_.failure.reserved_bytes.value_or(held_);
    activations_ =
        f_.of(Category::kActivation) + f_.of(Category::kTemporary) + f_.of(Category::kInput);
  }

  std::vector<Finding> run() {
    // In this order: what makes the later ones pointless comes first.
    too_large();
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
    if (findings_.empty()) capacity();
    // Holes that would hardly serve this one request are not the reason while the rest of the pass
    // wants more.
    if (findings_.size() > 1 && findings_.front().cause == Cause::kFragmentation &&
        !fragmentation_decides())
      std::rotate(findings_.begin(), findings_.begin() + 1, findings_.begin() + 2);
    // Copies and scratch are the main reason only where activations are not more.
    if (const Cause first = findings_.front().cause;
        first == Cause::kAutocastCopies || first == Cause::kWorkspaces) {
      const auto larger =
          std::find_if(findings_.begin(), findings_.end(), [&](const Finding& finding) {
            return finding.cause == Cause::kActivations &&
                   finding.bytes >
                       (first == Cause::kAutocastCopies ? 2 : 1) * findings_.front().bytes;
          });  // copies are among the activations
      if (larger != findings_.end()) std::rotate(findings_.begin(), larger, larger + 1);
    }
    findings_.front().primary = true;
    cap();
    for (Finding& finding : findings_) {
      finding.device = f_.failure.device;
      std::stable_sort(finding.advice.begin(), finding.advice.end(),
                       [](const Advice& a, const Advice& b) {
                         return a.saves_bytes.value_or(0) > b.saves_bytes.value_or(0);
                       });
    }
    return std::move(findings_);
  }

 private:
  Finding& add(Cause cause, std::string title, uint64_t bytes, double confidence) {
    Finding finding;
    finding.kind = FindingKind::kOutOfMemory;
    finding.cause = cause;
    finding.title = std::move(title);
    finding.bytes = bytes;
    finding.confidence = confidence;
    finding.site = f_.site;
    findings_.push_back(std::move(finding));
    return findings_.back();
  }

  void too_large() {
    const uint64_t whole = f_.failure.capacity_bytes.value_or(0);
    const bool over_card = whole > 0 && request_ > whole;
    const bool over_limit =
        f_.limit_bytes > 0 && request_ > f_.limit_bytes && !f_.failure.limit_is_estimate;
    if (!over_card && !over_limit) return;
    const uint64_t most = over_card ? whole : f_.limit_bytes;
    Finding& finding =
        add(Cause::kRequestTooLarge, "One tensor is larger than the memory there is", request_, 1);
    finding.text = fmt::format(
        "A single tensor of {} was asked for {}; {} has {}. Nothing else matters: freeing every "
        "other byte would not make it fit.",
        size_text(request_), at(f_.site), over_card ? "the card" : "PyTorch", size_text(most));
    finding.evidence.push_back(
        evidence(fmt::format("request {}, available {}", size_text(request_), size_text(most)),
                 request_, f_.site));
    finding.advice.push_back(advice(
        fmt::format("Split the tensor into at least {} parts that are computed one after the other",
                    request_ / std::max<uint64_t>(most / 2, 1) + 1),
        request_));
  }

  bool fragmented() const {
    if (!f_.from_pytorch || request_ == 0) return false;
    if (f_.pieces.largest_bytes >= request_) return false;
    return f_.pieces.total_bytes >= request_ ||
           (f_.pieces.total_bytes * 2 >= request_ &&
            f_.pieces.total_bytes + headroom() >= f_.wanted_bytes);
  }

  // What PyTorch could still have got from the driver: with the segments that the pieces hold it
  // would have been enough.
  uint64_t headroom() const {
    const uint64_t reserved = f_.failure.reserved_bytes.value_or(0);
    return f_.limit_bytes > reserved && !f_.failure.limit_is_estimate ? f_.limit_bytes - reserved
                                                                      : 0;
  }

  // Whether closing the holes would do: they are a good part of all, or hold the request several
  // times, or the same step fitted before.
  bool fragmentation_decides() const {
    const uint64_t unused = f_.fragmentation.pinned + f_.fragmentation.cached;
    if (share(f_.growth.kept_bytes + f_.growth.older_bytes, held_) >= kKeptShare) return false;
    const bool fitted_before = f_.steps_before >= 2 && f_.largest_ratio > 0 &&
                               f_.largest_ratio < kLargeSampleRatio && f_.growth.growth.empty();
    if (f_.pieces.total_bytes < request_)
      return fitted_before || share(unused, f_.fragmentation.reserved) >= 0.5;
    return share(unused, f_.fragmentation.reserved) >= kFragmentedSurely ||
           unused >= 3 * request_ || fitted_before;
  }

  void fragmentation() {
    if (!fragmented()) return;
    const uint64_t reserved = f_.fragmentation.reserved;
    const uint64_t unused = f_.fragmentation.pinned + f_.fragmentation.cached;
    if (share(unused, reserved) < kFragmentedShare) return;
    Finding& finding =
        add(Cause::kFragmentation, "Enough memory is free, but not in one piece", unused, 0.95);
    finding.kind = FindingKind::kOutOfMemory;
    finding.text = fmt::format(
        "{} of the {} that PyTorch has reserved are free, {}more than the {} that were asked for "
        "{}, but in {} pieces of which the largest is {}. "
        "{} of {} segments are held by something small that lives on, so that they could not be "
        "given back.",
        size_text(f_.pieces.total_bytes), size_text(reserved),
        f_.pieces.total_bytes >= request_
            ? ""
            : fmt::format("and {} outside of them: together ", size_text(headroom())),
        size_text(request_), at(f_.site), f_.pieces.count, size_text(f_.pieces.largest_bytes),
        f_.fragmentation.pinned_segments, f_.fragmentation.segments);
    finding.evidence.push_back(evidence(
        fmt::format("reserved {} = requested {} + rounding {} + waiting for streams {} + free "
                    "segments {} + free pieces of segments in use {}",
                    size_text(reserved), size_text(f_.fragmentation.requested),
                    size_text(f_.fragmentation.rounding), size_text(f_.fragmentation.pending),
                    size_text(f_.fragmentation.cached), size_text(f_.fragmentation.pinned)),
        unused));
    if (f_.move) {
      Evidence move = evidence(
          f_.move->empties_segments
              ? fmt::format("moving {} blocks of together {} would empty {} segments ({}), enough "
                            "for the request",
                            f_.move->blocks.size(), size_text(f_.move->move_bytes),
                            f_.move->segments.size(), size_text(f_.move->gained_bytes))
              : fmt::format(
                    "moving {} blocks of together {} within one segment would make a hole of {}",
                    f_.move->blocks.size(), size_text(f_.move->move_bytes),
                    size_text(f_.move->gained_bytes)),
          f_.move->move_bytes);
      std::map<std::string, std::pair<uint64_t, uint64_t>> by_line;
      for (const MapBlock& block : f_.move->blocks) {
        if (move.addresses.size() < 64) move.addresses.push_back(block.address);
        if (block.alloc_event != kNever && move.events.size() < 64)
          move.events.push_back(block.alloc_event);
        auto& [count, bytes] =
            by_line[site_text(timeline_.stacks().site(block.stack, abi::kNoId, abi::kNoId))];
        ++count;
        bytes += block.size_bytes;
      }
      finding.evidence.push_back(std::move(move));
      std::vector<std::pair<uint64_t, std::string>> lines;
      for (const auto& [line, entry] : by_line)
        lines.emplace_back(
            entry.second,
            fmt::format("{} of them, {}, were made at {}", entry.first, size_text(entry.second),
                        line.empty() ? "lines that the history does not name" : line));
      std::sort(lines.rbegin(), lines.rend());
      for (size_t i = 0; i < lines.size() && i < 3; ++i)
        finding.evidence.push_back(evidence(lines[i].second, lines[i].first));
    }
    const bool expandable = timeline_.record().settings.expandable_segments;
    if (!expandable) {
      finding.advice.push_back(
          advice(fmt::format("Expandable segments let pieces of different segments serve one "
                             "request; they would make most of the {} usable",
                             size_text(unused)),
                 unused, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"));
    } else {
      finding.advice.push_back(
          advice("Expandable segments are on already; what is left are pieces smaller than a page "
                 "(2 or 20 MiB) beside live blocks"));
    }
    finding.advice.push_back(advice(fmt::format("Make the {} tensor {} before the small ones that "
                                                "stay, or make it once and use it again",
                                                size_text(request_), at(f_.site)),
                                    request_));
  }

  // An exception that is still being handled holds the frames of the failed attempt, and they hold
  // its tensors.
  void kept_by_exception() {
    if (share(f_.kept_by_failure_bytes, held_) < kKeptShare) return;
    Finding& finding =
        add(Cause::kKeptByException, "What the failed attempt before made is still alive",
            f_.kept_by_failure_bytes, 0.85);
    finding.text = fmt::format(
        "It had run out of memory before. {} in {} tensors of that attempt are still alive now, "
        "{:.0f} % of what is allocated: an exception that is kept (inside its except block, or as "
        "the last one of a notebook) "
        "holds the frames of the failed call, and they hold its tensors.",
        size_text(f_.kept_by_failure_bytes), f_.kept_by_failure_count,
        100 * share(f_.kept_by_failure_bytes, held_));
    finding.evidence.push_back(
        evidence(fmt::format("{} tensors older than the earlier failure", f_.kept_by_failure_count),
                 f_.kept_by_failure_bytes));
    finding.advice.push_back(advice(
        fmt::format("Try again after the except block, not inside it: the {} are freed when the "
                    "exception is; gc.collect() and empty_cache() inside it cannot free them",
                    size_text(f_.kept_by_failure_bytes)),
        f_.kept_by_failure_bytes));
  }

  void kept() {
    const GrowthReport& growth = f_.growth;
    if (growth.growth.empty() || share(growth.kept_bytes + growth.older_bytes, held_) < kKeptShare)
      return;
    for (const Growth& line : growth.growth) {
      if (share(line.kept_bytes + line.older_bytes, held_) < 0.05) continue;
      Finding finding = growth_finding(line, growth, timeline_);
      finding.kind = FindingKind::kOutOfMemory;
      if (finding.cause == Cause::kLeak) finding.cause = Cause::kKeptAcrossSteps;
      finding.fails_at_step.reset();
      finding.evidence.push_back(evidence(
          fmt::format("{} of the {} allocated", size_text(line.kept_bytes), size_text(held_)),
          line.kept_bytes));
      findings_.push_back(std::move(finding));
    }
  }

  void optimizer_first_step() {
    if (!f_.first_state) return;
    const uint64_t state = f_.of(Category::kOptimizerState);
    const uint64_t parameters = f_.of(Category::kParameter), gradients = f_.of(Category::kGradient);
    const uint64_t whole = f_.static_bytes - state + f_.predicted_state_bytes;
    Finding& finding =
        add(Cause::kOptimizerFirstStep,
            "The optimizer's first step makes its state, and there is no room for it",
            f_.predicted_state_bytes, 0.95);
    finding.text = fmt::format(
        "The optimizer keeps {} per parameter and makes {} in its first step: about {} in all, of "
        "which {} existed when it failed {}. With {} "
        "and {} of gradients the model's state needs about {}{}.",
        tensors(f_.state_tensors_per_parameter),
        f_.state_tensors_per_parameter == 1 ? "it" : "them", size_text(f_.predicted_state_bytes),
        size_text(state), at(f_.site),
        parameters > 0 ? size_text(parameters) + " of parameters"
                       : "parameters (how many is not in the history)",
        size_text(gradients), size_text(whole), limit_text());
    finding.evidence.push_back(
        evidence(fmt::format("parameters {}, gradients {}, optimizer state {} of about {}",
                             size_text(parameters), size_text(gradients), size_text(state),
                             size_text(f_.predicted_state_bytes)),
                 whole, f_.site));
    finding.evidence.push_back(
        evidence(fmt::format("activations then: {}; a smaller batch frees none of the state",
                             size_text(activations_)),
                 activations_));
    state_advice(finding, f_.predicted_state_bytes, gradients, parameters);
    if (f_.limit_bytes > whole)
      finding.advice.push_back(
          advice(fmt::format("The state alone would fit with {} to spare: what else is alive in "
                             "the step has to go first (loss, outputs, caches)",
                             size_text(f_.limit_bytes - whole))));
  }

  void state_advice(Finding& finding, uint64_t state, uint64_t gradients, uint64_t parameters) {
    if (state > 0)
      finding.advice.push_back(
          advice(fmt::format("An 8-bit optimizer keeps about a quarter of the {} of 32-bit state",
                             size_text(state)),
                 state / 4 * 3));
    const uint64_t all = parameters + gradients + state;
    finding.advice.push_back(
        advice(fmt::format("Sharding parameters, gradients and state over 2 GPUs (FSDP, ZeRO-3) "
                           "halves the {} per GPU; over 8 it leaves {}",
                           size_text(all), size_text(all / 8)),
               all / 2));
    if (state + gradients > 0 && parameters > 0)
      finding.advice.push_back(advice(fmt::format("Training adapters only (LoRA) needs next to "
                                                  "none of the {} of gradients and optimizer state",
                                                  size_text(state + gradients)),
                                      state + gradients));
  }

  void optimizer_copies() {
    if (f_.first_state || f_.phase != Phase::kOptimizer) return;
    const uint64_t copies = f_.optimizer_temporary_bytes + request_;
    if (share(copies, held_ + request_) < 0.05) return;
    Finding& finding =
        add(Cause::kOptimizerCopies, "The optimizer's step makes copies of the parameters' size",
            copies, f_.foreach_copies ? 0.95 : 0.8);
    finding.text = fmt::format(
        "{} are temporaries of the optimizer's step {}, the {} that failed included{}; they exist "
        "only during step(), on top of parameters, gradients and state.",
        size_text(copies), at(f_.site), size_text(request_),
        f_.foreach_copies ? ": the foreach implementation works on all parameters at once" : "");
    finding.evidence.push_back(evidence(fmt::format("live temporaries made inside torch/optim: {}",
                                                    size_text(f_.optimizer_temporary_bytes)),
                                        f_.optimizer_temporary_bytes, f_.site));
    finding.advice.push_back(advice(
        fmt::format(
            "fused=True (or foreach=False) in the optimizer's constructor needs none of these {}",
            size_text(copies)),
        copies, "fused=True"));
  }

  void model_state() {
    // A second copy of the weights is one line's doing; it counts where it matters.
    const uint64_t copies =
        share(f_.weight_copies_bytes, held_) >= 0.1 ? f_.weight_copies_bytes : 0;
    uint64_t grown = 0;  // gradients that are collected are no state of the model
    for (const Growth& line : f_.growth.growth)
      grown += line.category == Category::kGradient ? line.kept_bytes : 0;
    if (f_.first_state ||
        share(f_.static_bytes - std::min(grown, f_.static_bytes) + copies, limit_) < kStateShare)
      return;
    const uint64_t parameters = f_.of(Category::kParameter) + f_.of(Category::kBuffer);
    const uint64_t gradients = f_.of(Category::kGradient), state = f_.of(Category::kOptimizerState);
    Finding& finding =
        add(Cause::kModelState, "The model's own state fills the memory", f_.static_bytes, 0.9);
    finding.text = fmt::format(
        "Parameters ({}), gradients ({}) and optimizer state ({}) take {} of {}; activations have "
        "{}. A smaller batch cannot make room for the state.{}",
        size_text(parameters), size_text(gradients), size_text(state), size_text(f_.static_bytes),
        size_text(limit_), size_text(activations_),
        copies > 0 ? fmt::format(" {} more have the parameters' sizes and were made {}: the "
                                 "weights a second time (a checkpoint loaded to the GPU, a copy).",
                                 size_text(copies), at(f_.weight_copies_site))
                   : "");
    finding.evidence.push_back(evidence(fmt::format("{:.0f} % of what PyTorch may use",
                                                    100 * share(f_.static_bytes + copies, limit_)),
                                        f_.static_bytes + copies, f_.site));
    if (copies > 0) {
      finding.bytes += copies;
      finding.evidence.push_back(evidence(
          fmt::format("{} of copies, made {}", size_text(copies), at(f_.weight_copies_site)),
          copies, f_.weight_copies_site));
      finding.advice.push_back(advice(fmt::format("Keep the copy on the host (torch.load with "
                                                  "map_location=\"cpu\", .cpu()): {} are free",
                                                  size_text(copies)),
                                      copies, "map_location=\"cpu\""));
    }
    if (parameters > 0 && gradients >= 2 * parameters)
      finding.advice.push_back(advice(
          fmt::format(
              "Gradients are {:.1f} times the parameters: of a sharded model they are whole while "
              "FSDP's no_sync() accumulates. Without it (or with set_requires_gradient_sync) they "
              "are sharded in each micro-step: about {} less",
              share(gradients, parameters), size_text(gradients - parameters)),
          gradients - parameters));
    state_advice(finding, state, gradients, parameters);
    gradient_advice(finding, gradients);
  }

  // Gradients of the step before, still there while the next forward pass runs: wanted only where
  // they accumulate.
  void gradient_advice(Finding& finding, uint64_t gradients) const {
    if (f_.phase != Phase::kForward || gradients <= held_ / 50) return;
    finding.advice.push_back(
        advice(fmt::format("{} of gradients are alive during the forward pass: unless you "
                           "accumulate, zero_grad(set_to_none=True) before it frees them",
                           size_text(gradients)),
               gradients, "optimizer.zero_grad(set_to_none=True)"));
  }

  void logits() {
    if (share(f_.logits_bytes, held_ + request_) < kLogitsShare || f_.logits_each == 0) return;
    Finding& finding =
        add(Cause::kLogits, "The logits of the loss are the largest part", f_.logits_bytes, 0.9);
    const uint64_t copies = (f_.logits_bytes + f_.logits_each / 2) / f_.logits_each;
    finding.text = fmt::format(
        "Tensors of the loss's size ({} each: samples or tokens x classes) take {} of {}, the "
        "request that failed {} included: the loss works on about {} of them at a time.",
        size_text(f_.logits_each), size_text(f_.logits_bytes), size_text(held_ + request_),
        at(f_.site), copies);
    if (f_.logits_by_size) {
      finding.confidence = 0.7;
      finding.text = fmt::format(
          "The last {} tensors of the pass, of {} (or half or double), are far larger than all "
          "before them and take {} of {}, the request that failed {} included: a model's last "
          "tensors are its logits (samples or tokens x classes), "
          "of which the loss makes more.",
          copies, size_text(f_.logits_each), size_text(f_.logits_bytes),
          size_text(held_ + request_), at(f_.site));
    }
    finding.evidence.push_back(
        evidence(fmt::format("about {} tensors of {}", copies, size_text(f_.logits_each)),
                 f_.logits_bytes, f_.site));
    finding.advice.push_back(advice(
        fmt::format(
            "A chunked or fused linear cross-entropy (8 chunks) would hold about {} instead of {}",
            size_text(f_.logits_bytes / 8), size_text(f_.logits_bytes)),
        f_.logits_bytes / 8 * 7));
    finding.advice.push_back(advice(
        "Compute logits only for the positions that the loss needs (labels that are not ignored)"));
  }

  void large_sample() {
    if (f_.steps_before < 3 || f_.largest_ratio < kLargeSampleRatio || !f_.growth.growth.empty())
      return;
    const auto usual =
        static_cast<uint64_t>(static_cast<double>(activations_ + request_) / f_.largest_ratio);
    const uint64_t extra = activations_ + request_ - usual;
    Finding& finding =
        add(Cause::kLargeSample, "This step's sample is larger than the others", extra, 0.85);
    if (f_.largest_ratio_site.line.known())
      finding.site = f_.site.line.known() ? f_.site : f_.largest_ratio_site;
    finding.text = fmt::format(
        "In step {} the tensors made at the same lines are {:.1f} times as large as in the usual "
        "step before it; {} steps had passed, with a peak of {} in the median. "
        "The memory follows the largest sample, not the average one.",
        f_.failure.moment.step, f_.largest_ratio, f_.steps_before, size_text(f_.median_step_peak));
    finding.evidence.push_back(
        evidence(fmt::format("largest tensors {:.2f} x the median step's, e.g. {}",
                             f_.largest_ratio, at(f_.largest_ratio_site)),
                 std::nullopt, f_.largest_ratio_site));
    finding.advice.push_back(
        advice(fmt::format("Limit the sample's length or size (or put similar ones together): at "
                           "the usual size about {} less would be alive here",
                           size_text(extra)),
               extra));
    finding.advice.push_back(
        advice("Run the largest sample first, so that it fails in the first step or never"));
  }

  void checkpoint_inactive() {
    const uint64_t activations = f_.of(Category::kActivation);
    if (!f_.checkpoint_seen || share(f_.checkpointed_bytes, activations) < 0.5 ||
        share(f_.checkpointed_bytes, held_) < 0.2 || f_.blocks < 3)
      return;
    Finding& finding = add(Cause::kCheckpointInactive,
                           "Checkpointing is called, but activations are kept all the same",
                           f_.checkpointed_bytes, 0.8);
    finding.text = fmt::format(
        "{} of activations that are alive were made inside torch.utils.checkpoint, which should "
        "have dropped them after the forward pass.",
        size_text(f_.checkpointed_bytes));
    finding.advice.push_back(
        advice("Check that the checkpointed function is what runs (use_reentrant, modules in eval "
               "mode, outputs kept by hooks)",
               f_.checkpointed_bytes));
  }

  void copies() {
    if (share(f_.copies_bytes, held_) < 0.1) return;
    Finding& finding = add(Cause::kAutocastCopies, "Copies in another type are a large part",
                           f_.copies_bytes, 0.7);
    finding.text =
        f_.copies_by_size
            ? fmt::format(
                  "{} have half the parameters' sizes, one for each, and were made inside modules: "
                  "copies that autocast makes of parameters and keeps until the end of its block.",
                  size_text(f_.copies_bytes))
            : fmt::format(
                  "{} were made by conversions (aten::_to_copy), as autocast makes them of "
                  "parameters and inputs.",
                  size_text(f_.copies_bytes));
    finding.advice.push_back(
        advice("Keep the parameters themselves in the smaller type, so that autocast has nothing "
               "to convert",
               f_.copies_bytes));
  }

  void workspaces() {
    const uint64_t bytes = f_.of(Category::kWorkspace);
    if (share(bytes, held_) < 0.15) return;
    Finding& finding =
        add(Cause::kWorkspaces, "Workspaces of libraries are a large part", bytes, 0.7);
    finding.text = fmt::format(
        "{} are scratch memory of cuBLAS, cuDNN or others; cuBLAS keeps one per stream and thread.",
        size_text(bytes));
    finding.advice.push_back(advice("Smaller cuBLAS workspaces, and fewer streams", bytes / 2,
                                    "CUBLAS_WORKSPACE_CONFIG=:4096:2:16:8"));
  }

  // What the rest of the card is taken by, if it is a good part: nothing in this program has to
  // change then.
  void others() {
    const uint64_t capacity = f_.failure.capacity_bytes.value_or(0);
    const bool named = share(f_.other_process_bytes, capacity) >= 0.25;
    if (capacity == 0 || (!named && share(f_.unaccounted_bytes, capacity) < 0.25)) return;
    const uint64_t amount = named ? f_.other_process_bytes : f_.unaccounted_bytes;
    Finding& finding =
        add(named ? Cause::kOtherProcess : Cause::kOutsideAllocator,
            named ? "Another process holds the card" : "Much of the card is not PyTorch's", amount,
            named ? 0.9 : 0.7);
    finding.kind = FindingKind::kOutside;
    finding.text = fmt::format(
        "Of {} on the card {} were {}; this process had {} reserved when {} more were asked for "
        "{}.",
        size_text(capacity), size_text(amount),
        named
            ? "held by " + (f_.other_processes.empty() ? "other processes" : f_.other_processes)
            : "neither free nor PyTorch's: other processes, contexts or other libraries have them",
        size_text(f_.failure.reserved_bytes.value_or(0)), size_text(request_), at(f_.site));
    finding.evidence.push_back(
        evidence(fmt::format("capacity {}, free {}, reserved {}", size_text(capacity),
                             size_text(f_.failure.free_bytes.value_or(0)),
                             size_text(f_.failure.reserved_bytes.value_or(0))),
                 amount));
    finding.advice.push_back(
        advice(fmt::format("{}, or use another GPU: {} would come free, and nothing in the model "
                           "may have to change",
                           named ? "Stop the other process (a crashed run that is still there?)"
                                 : "Find with nvidia-smi who has it",
                           size_text(amount)),
               amount));
  }

  void outside() {
    if (!f_.device_other_bytes ||
        share(*f_.device_other_bytes, f_.failure.capacity_bytes.value_or(limit_)) < 0.1)
      return;
    Finding& finding =
        add(Cause::kOutsideAllocator, "Much of the card is taken outside PyTorch's allocator",
            *f_.device_other_bytes, 0.9);
    finding.kind = FindingKind::kOutside;
    finding.text = fmt::format(
        "{} on the device belong neither to PyTorch's allocator nor to contexts: libraries (NCCL, "
        "cuDNN) or other frameworks allocate on their own.",
        size_text(*f_.device_other_bytes));
    finding.advice.push_back(
        advice("Fewer communicators and process groups; other frameworks with on-demand growth",
               *f_.device_other_bytes));
  }

  void activations() {
    const uint64_t live = f_.of(Category::kActivation);
    const bool largest = live >= f_.static_bytes && live >= f_.of(Category::kUnknown);
    if (live == 0 || (!largest && share(live, held_) < 0.3)) return;
    // Kept graphs are activations too: said already.
    if (!f_.growth.growth.empty() && share(f_.growth.kept_bytes, live) > 0.6) return;
    Finding& finding = add(Cause::kActivations, "Activations fill the memory", live, 0.9);
    const bool forward = f_.phase == Phase::kForward;
    finding.text = fmt::format(
        "{} of the {} allocated are activations that the forward pass saved for the backward pass; "
        "{}.{}",
        size_text(live), size_text(held_), static_text(),
        forward ? fmt::format(" It failed {}, before the forward pass was through: the whole pass "
                              "needs more still.",
                              at(f_.site))
                : fmt::format(" It failed {}.", at(f_.site)));
    for (const LineBytes& line : f_.top_activations) {
      if (finding.evidence.size() >= 4 || share(line.bytes, live) < 0.01) break;
      finding.evidence.push_back(evidence(fmt::format("{} in {} made {}", size_text(line.bytes),
                                                      tensors(line.count), at(line.site)),
                                          line.bytes, line.site));
    }
    if (f_.blocks >= 3) {
      const uint64_t all = f_.block_bytes * f_.blocks,
                     stays = f_.block_bytes + f_.blocks * f_.block_boundary_bytes;
      if (all > stays && share(all - stays, live) >= 0.1)
        finding.advice.push_back(advice(
            fmt::format("Activation checkpointing of the {} alike layers ({} each) would free "
                        "about {} of the {}, for one more forward pass",
                        f_.blocks, size_text(f_.block_bytes), size_text(all - stays),
                        size_text(live)),
            all - stays, "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)"));
    }
    finding.advice.push_back(
        advice(fmt::format("Half the batch (with gradient accumulation, if the whole one is "
                           "wanted) halves the activations: about {} less here",
                           size_text(live / 2)),
               live / 2));
    finding.advice.push_back(
        advice("If the model runs in float32: bfloat16 autocast makes most activations half as "
               "large (the record does not say the type)",
               live * 2 / 5));
    gradient_advice(finding, f_.of(Category::kGradient));
  }

  void capacity() {
    Finding& finding = add(Cause::kCapacity, "The memory is full", held_, 0.5);
    finding.text = fmt::format(
        "{} are allocated; what most of it is for is not known from the record. The failing "
        "request was {} {}{}.",
        size_text(held_), size_text(request_), at(f_.site),
        f_.limit_bytes > 0 && share(request_, f_.limit_bytes) >= 0.25
            ? fmt::format(", {:.0f} % of what PyTorch could get by itself",
                          100 * share(request_, f_.limit_bytes))
            : "");
    for (const LineBytes& line : f_.top_lines) {
      if (finding.evidence.size() >= 4) break;
      finding.evidence.push_back(evidence(fmt::format("{} in {} made {}", size_text(line.bytes),
                                                      tensors(line.count), at(line.site)),
                                          line.bytes, line.site));
    }
    if (!f_.top_lines.empty())
      finding.advice.push_back(advice(fmt::format("The largest part is made {}: look there first",
                                                  at(f_.top_lines.front().site)),
                                      f_.top_lines.front().bytes));
  }

  void cap() {
    if (!f_.failure.limit_is_cap) return;
    Finding& finding =
        add(Cause::kMemoryFraction, "PyTorch's own limit refused, not the card",
            f_.failure.free_bytes.value_or(0), f_.failure.limit_is_estimate ? 0.9 : 1);
    finding.text = fmt::format(
        "{} of the card were free: PyTorch's own limit{} refused (set_per_process_memory_fraction, "
        "or per_process_memory_fraction in the allocator's settings).",
        size_text(f_.failure.free_bytes.value_or(0)),
        f_.failure.limit_is_estimate
            ? fmt::format(", between {} and {},", size_text(f_.failure.limit_at_least_bytes),
                          size_text(f_.limit_bytes))
            : fmt::format(" of {}", size_text(f_.limit_bytes)));
    finding.evidence.push_back(evidence(
        fmt::format("free on the device {}, reserved {}, asked for {}",
                    size_text(f_.failure.free_bytes.value_or(0)),
                    size_text(f_.failure.reserved_bytes.value_or(0)), size_text(f_.wanted_bytes)),
        f_.failure.free_bytes));
    finding.advice.push_back(advice(
        fmt::format("If nothing else needs the rest of the card, raise the fraction: {} are there",
                    size_text(f_.failure.free_bytes.value_or(0))),
        f_.failure.free_bytes, "torch.cuda.set_per_process_memory_fraction(1.0)"));
  }

  // What is older than the history has no line: it may be the model.
  std::string static_text() const {
    const uint64_t unknown = f_.of(Category::kUnknown);
    if (unknown <= f_.static_bytes || share(unknown, held_) < 0.02)
      return fmt::format("parameters, gradients and optimizer state take {}",
                         size_text(f_.static_bytes));
    return fmt::format(
        "parameters, gradients and optimizer state are at least {}, and what {} are for could not "
        "be told",
        size_text(f_.static_bytes), size_text(unknown));
  }

  std::string limit_text() const {
    if (f_.limit_bytes == 0) return "";
    return fmt::format(", and PyTorch may use {}{}", f_.failure.limit_is_estimate ? "at most " : "",
                       size_text(f_.limit_bytes));
  }

  const OomFacts& f_;
  const Timeline& timeline_;
  uint64_t request_, held_, limit_, activations_;
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> diagnose(const OomFacts& facts, const Timeline& timeline) {
  return Diagnosis(facts, timeline).run();
}

}  // namespace tonnage::analysis
