#include "analysis/diagnosis/leak_loops.h"

#include <algorithm>
#include <map>

namespace tonnage::analysis {
namespace {

using abi::EventKind;
using abi::MemoryEvent;

constexpr size_t kMinIterations = 3;
constexpr size_t kMaxCandidates = 16;  // each costs a pass over the events
constexpr uint32_t kMinWork = 3;       // allocations of an iteration

}  // namespace

IterationRange step_iterations(const Timeline& timeline, uint32_t process) {
  IterationRange range;
  range.are_steps = true;
  const auto& events = timeline.record().events;
  std::vector<uint32_t> failures;
  for (uint32_t i = 0; i < events.size(); ++i) {
    if (events[i].kind == EventKind::kOom && events[i].process == process) failures.push_back(i);
  }
  const auto changes_between = [&](uint32_t first, uint32_t end) {
    for (uint32_t i = first; i < end && i < events.size(); ++i) {
      if (events[i].process == process &&
          (events[i].kind == EventKind::kAlloc || events[i].kind == EventKind::kFreeRequested))
        return true;
    }
    return false;
  };
  for (const Step& step : timeline.steps()) {
    if (step.process != process || !step.complete) continue;
    // A step that ended with the error did not complete: the failure is its last event, or follows
    // at once.
    const bool failed = std::any_of(failures.begin(), failures.end(), [&](uint32_t failure) {
      if (failure < step.first_event) return false;
      if (failure < step.end_event) return !changes_between(failure + 1, step.end_event);
      return step.source == StepSource::kOptimizer && failure - step.end_event < 64 &&
             !changes_between(step.end_event, failure);
    });
    if (!failed) range.iterations.push_back({step.number, step.first_event, step.end_event});
  }
  if (timeline.record().history_truncated) {
    // Step marks reach further back than the allocations: steps without allocations are left out.
    const auto first = std::find_if(
        range.iterations.begin(), range.iterations.end(),
        [&](const Iteration& step) { return changes_between(step.first_event, step.end_event); });
    range.iterations.erase(range.iterations.begin(), first);
  }
  return range;
}

namespace {

// Lines that can mark an iteration because they repeat: outside of every module's call, first the
// user's own lines, then those of packages that run the loop for the user (a trainer).
bool is_anchor(const StackFacts& stack, bool of_package) {
  if (!of_package)
    return stack.only_user && !stack.in_forward && !stack.in_backward && !stack.starts_backward;
  return !stack.empty && !stack.only_user && !stack.in_module && !stack.in_functional &&
         !stack.in_optimizer && !stack.in_backward && !stack.starts_backward &&
         !stack.converts_module && !stack.builds_module;
}

bool goes_back(const MemoryEvent& event, const StackFacts& stack) {
  return event.phase == Phase::kBackward || stack.in_backward || stack.starts_backward;
}

IterationRange loop_of(const Timeline& timeline, uint32_t process, uint32_t first_event,
                       uint32_t end_event, bool of_package) {
  const auto& events = timeline.record().events;
  const Stacks& stacks = timeline.stacks();
  // Candidates by depth, then by first appearance.
  std::map<std::pair<size_t, uint32_t>, uint32_t> candidates;  // (depth, first event) -> stack
  std::map<uint32_t, uint32_t> counts;
  for (uint32_t i = first_event; i < end_event; ++i) {
    const MemoryEvent& event = events[i];
    if (event.kind != EventKind::kAlloc || event.process != process ||
        !is_anchor(stacks[event.stack], of_package))
      continue;
    if (counts[event.stack]++ == 0)
      candidates[{timeline.record().stacks[event.stack].size(), i}] = event.stack;
  }
  size_t tried = 0;
  for (const auto& [key, anchor] : candidates) {
    if (counts[anchor] < kMinIterations) continue;
    if (++tried > kMaxCandidates) break;
    // Several tensors of one batch may come from the line: an iteration begins with the first after
    // other work.
    std::vector<uint32_t> starts;
    std::vector<uint32_t> work;    // allocations of a forward pass in between, per start
    std::vector<uint32_t> others;  // from other lines; they count where a backward pass follows
    std::vector<bool> backward;
    uint32_t since = UINT32_MAX;
    for (uint32_t i = first_event; i < end_event; ++i) {
      const MemoryEvent& event = events[i];
      if (event.kind != EventKind::kAlloc || event.process != process) continue;
      if (event.stack == anchor) {
        if (since > 0) {
          starts.push_back(i);
          work.push_back(0);
          others.push_back(0);
          backward.push_back(false);
        }
        since = 0;
      } else if (!starts.empty()) {
        ++since;
        ++others.back();
        if (!stacks[event.stack].only_user) ++work.back();
        if (goes_back(event, stacks[event.stack])) backward.back() = true;
      }
    }
    if (starts.size() < kMinIterations + 1) continue;  // the last one is not known to be complete
    size_t busy = 0;
    for (size_t i = 0; i + 1 < work.size(); ++i)
      busy += work[i] >= kMinWork || (backward[i] && others[i] >= kMinWork);
    if (busy * 5 < (work.size() - 1) * 4) continue;
    IterationRange range;
    range.anchor = stacks.line(anchor);
    for (size_t i = 0; i + 1 < starts.size(); ++i)
      range.iterations.push_back({static_cast<uint32_t>(i + 1), starts[i], starts[i + 1]});
    return range;
  }
  return {};
}

}  // namespace

IterationRange loop_iterations(const Timeline& timeline, uint32_t process, uint32_t first_event,
                               uint32_t end_event) {
  end_event = std::min<uint32_t>(end_event, static_cast<uint32_t>(timeline.record().events.size()));
  IterationRange range = loop_of(timeline, process, first_event, end_event, false);
  return range.iterations.empty() ? loop_of(timeline, process, first_event, end_event, true)
                                  : range;
}

}  // namespace tonnage::analysis
