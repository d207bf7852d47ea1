// Compares the failing step with earlier steps: is it the optimizer's first step, is its sample
// larger?
#include <algorithm>
#include <map>

#include "analysis/diagnosis/oom_parts.h"

namespace tonnage::analysis {
namespace {

using abi::MemoryEvent;
using record::Record;

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// The largest tensor of each step from the same place. The place ends at the outermost module's
// call, so that a validation pass is compared with the training passes that run the same model.
struct Sizes {
  std::vector<uint64_t> earlier;
  size_t step = SIZE_MAX;
  uint64_t now = 0;
  uint32_t stack = abi::kNoId;
};

uint64_t place_of(const Record& record, uint32_t stack) {
  uint64_t hash = 0;
  const auto& frames = record.stacks[stack];
  size_t depth = frames.size();
  while (depth > 0 && !std::string_view(record.string(frames[depth - 1].file))
                           .ends_with("torch/nn/modules/module.py"))
    --depth;
  if (depth == 0) depth = frames.size();
  for (size_t i = 0; i < depth; ++i) {
    for (const uint64_t part :
         {uint64_t{frames[i].file}, uint64_t{frames[i].line}, uint64_t{frames[i].function}})
      hash = (hash ^ part) * 0x9e3779b97f4a7c15ull, hash ^= hash >> 32;
  }
  return hash;
}

std::map<uint64_t, Sizes> sizes_by_place(const Timeline& timeline, const OomFacts& facts,
                                         const std::vector<Iteration>& before) {
  const Record& record = timeline.record();
  std::map<uint64_t, Sizes> by_place;
  size_t step = 0;
  const bool no_stacks = record.stacks.size() <= 1;  // then the whole step is one place
  for (const Allocation& a : timeline.allocations()) {
    if (a.process != facts.process || a.device != facts.failure.device || a.before_history ||
        a.alloc_event > facts.event)
      continue;
    if ((a.stack == abi::kNoId && !no_stacks) || a.stack >= record.stacks.size() ||
        a.requested_bytes < (1u << 20))
      continue;
    while (step < before.size() && a.alloc_event >= before[step].end_event) ++step;
    if (step == 0) continue;  // the first step warms up
    Sizes& sizes = by_place[place_of(record, a.stack)];
    sizes.stack = a.stack;
    if (step == before.size()) {
      sizes.now = std::max(sizes.now, a.requested_bytes);
      continue;
    }
    if (sizes.step != step) sizes.earlier.push_back(0);
    sizes.step = step;
    sizes.earlier.back() = std::max(sizes.earlier.back(), a.requested_bytes);
  }
  // The request itself counts, and the largest tensors weigh the most.
  const MemoryEvent& event = record.events[facts.event];
  if ((event.stack != abi::kNoId || no_stacks) && event.stack < record.stacks.size()) {
    Sizes& sizes = by_place[place_of(record, event.stack)];
    sizes.now = std::max(sizes.now, event.size_bytes);
    sizes.stack = event.stack;
  }
  return by_place;
}

}  // namespace

// In its first step an optimizer makes its state parameter by parameter; each line that does so
// will end with as much as there are gradients (parameters that have none get no state). PyTorch's
// Adam has a function for it; SGD's momentum and the optimizers that people write are known by
// failing in the very first step, with nothing else that makes state.
void predict_state(const Timeline& timeline, OomFacts& facts) {
  const Record& record = timeline.record();
  const MemoryEvent& failed = record.events[facts.event];
  const Stacks& stacks = timeline.stacks();
  const bool named = stacks[failed.stack].makes_state;
  if (!named) {
    if (facts.phase != Phase::kOptimizer || !stacks[failed.stack].in_optimizer ||
        facts.steps_before > 0 || contains(record.string(failed.op), "_foreach_"))
      return;
    if (std::any_of(timeline.allocations().begin(), timeline.allocations().end(),
                    [&](const Allocation& a) {
                      return a.process == facts.process && stacks[a.stack].makes_state;
                    }))
      return;
  }
  const uint64_t basis = std::max(facts.of(Category::kGradient), uint64_t{1});
  std::map<std::pair<std::string, uint32_t>, std::pair<uint64_t, uint64_t>> lines;  // bytes, tensors
  const auto innermost = [&](uint32_t stack) {
    const auto& frames = record.stacks[stack];
    const auto frame = std::find_if(frames.begin(), frames.end(), [&](const auto& f) {
      return owner_of(record.string(f.file)) != FileOwner::kNative;
    });
    return frame == frames.end() ? std::pair<std::string, uint32_t>{}
                                 : std::pair(record.string(frame->file), frame->line);
  };
  timeline.for_each_live(facts.failure.device, facts.event, [&](const Allocation& a) {
    if (a.process != facts.process || a.stack >= record.stacks.size()) return;
    if (named ? !stacks[a.stack].makes_state
              : a.before_history || !stacks[a.stack].in_optimizer ||
                    a.category != Category::kOptimizerState)
      return;
    auto& [bytes, tensors] = lines[innermost(a.stack)];
    bytes += a.requested_bytes;
    ++tensors;
  });
  if (named) {
    auto& [bytes, tensors] = lines[innermost(failed.stack)];
    bytes += facts.failure.request_bytes;
    ++tensors;
  }
  for (const auto& [line, made] : lines) {
    if (made.first * 50 >= basis && (named || made.second >= 2))
      ++facts.state_tensors_per_parameter;  // not the counters of a few bytes
  }
  if (facts.state_tensors_per_parameter == 0) return;
  facts.first_state = true;
  facts.predicted_state_bytes =
      std::max(facts.of(Category::kOptimizerState) + facts.failure.request_bytes,
               basis * facts.state_tensors_per_parameter);
}

// Are this step's tensors larger than the earlier steps' from the same lines?
void compare_with_earlier_steps(const Timeline& timeline, OomFacts& facts) {
  const IterationRange steps = step_iterations(timeline, facts.process);
  std::vector<Iteration> before;
  for (const Iteration& step : steps.iterations) {
    if (step.end_event <= facts.event) before.push_back(step);
  }
  // If the ring buffer was overwritten, only the last steps are there. But their numbers say how
  // many there were.
  facts.steps_before = static_cast<uint32_t>(before.size());
  if (timeline.record().history_truncated && !before.empty())
    facts.steps_before = std::max(facts.steps_before, before.back().number);
  facts.failure.moment.step = timeline.steps().empty() ? 0
                              : before.empty()         ? 1
                                                       : before.back().number + 1;
  if (before.size() < 2) return;
  std::vector<uint64_t> peaks;
  for (const Iteration& step : before)
    peaks.push_back(
        timeline.peak_between(facts.failure.device, step.first_event, step.end_event).allocated);
  std::nth_element(peaks.begin(), peaks.begin() + static_cast<ptrdiff_t>(peaks.size() / 2),
                   peaks.end());
  facts.median_step_peak = peaks[peaks.size() / 2];

  std::map<uint64_t, Sizes> by_place = sizes_by_place(timeline, facts, before);
  double weighted = 0, weight = 0, best = 0;
  for (auto& [place, sizes] : by_place) {
    if (sizes.now == 0 || sizes.earlier.empty()) continue;
    std::nth_element(sizes.earlier.begin(),
                     sizes.earlier.begin() + static_cast<ptrdiff_t>(sizes.earlier.size() / 2),
                     sizes.earlier.end());
    const double usual = static_cast<double>(sizes.earlier[sizes.earlier.size() / 2]);
    const double now = static_cast<double>(sizes.now);
    weighted += now / usual * now;
    weight += now;
    if (now > best) {
      best = now;
      facts.largest_ratio_site = timeline.stacks().site(sizes.stack, abi::kNoId, abi::kNoId);
    }
  }
  if (weight > 0) facts.largest_ratio = weighted / weight;
}

}  // namespace tonnage::analysis
