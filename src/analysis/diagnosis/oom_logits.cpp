// Logits: the tensors that the loss works on.
#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "analysis/diagnosis/oom_parts.h"

namespace tonnage::analysis {
namespace {

using abi::EventKind;
using abi::MemoryEvent;
using record::Record;

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// Functions that compute a loss over classes: their inputs are logits.
bool is_loss_function(std::string_view function) {
  return contains(function, "cross_entropy") || contains(function, "nll_loss") ||
         contains(function, "log_softmax") || contains(function, "CrossEntropy");
}

bool stack_has_loss(const Record& record, uint32_t stack) {
  if (stack >= record.stacks.size()) return false;
  const auto& frames = record.stacks[stack];
  for (const auto& frame : frames) {
    if (is_loss_function(record.string(frame.function))) return true;
  }
  return false;
}

constexpr uint64_t kMinLogitsBytes = 16 << 20;

// Of the same size, or with another data type. A loss that shifts its labels works on a sequence
// that is shorter by one.
bool near(uint64_t a, uint64_t b) { return (a > b ? a - b : b - a) <= std::max(a, b) / 25; }
bool alike(uint64_t a, uint64_t b) { return near(a, b) || near(a, b * 2) || near(a * 2, b); }

// Stacks that made the loss's inputs in earlier steps: one or two tensors of the loss's size in
// each step.
std::unordered_set<uint32_t> logits_stacks(const Timeline& timeline, const OomFacts& facts,
                                           std::unordered_map<uint32_t, bool>& loss_stacks) {
  const Record& record = timeline.record();
  std::unordered_set<uint32_t> found;
  std::vector<uint32_t> ends;
  for (const Step& step : timeline.steps()) {
    if (step.process == facts.process && step.complete && step.end_event <= facts.event)
      ends.push_back(step.end_event);
  }
  ends.push_back(facts.event);
  size_t step = 0;
  uint64_t largest = 0;
  std::map<uint32_t, std::map<uint64_t, uint32_t>> made;  // stack -> size -> times in this step
  const auto settle = [&] {
    for (const auto& [stack, sizes] : made) {
      for (const auto& [size, times] : sizes) {
        if (largest > 0 && times <= 2 && alike(size, largest)) found.insert(stack);
      }
    }
    made.clear();
    largest = 0;
  };
  for (const Allocation& a : timeline.allocations()) {
    if (a.process != facts.process || a.device != facts.failure.device || a.before_history ||
        a.requested_bytes < (1 << 20))
      continue;
    if (a.alloc_event > facts.event) break;
    while (step < ends.size() && a.alloc_event >= ends[step]) {
      settle();
      ++step;
    }
    auto [known, is_new] = loss_stacks.try_emplace(a.stack, false);
    if (is_new) known->second = stack_has_loss(record, a.stack);
    if (known->second) {
      largest = std::max(largest, a.requested_bytes);
    } else if (const StackFacts& stack = timeline.stacks()[a.stack];
               !stack.empty && !stack.in_optimizer) {
      ++made[a.stack][a.requested_bytes];
    }
  }
  settle();
  return found;
}

bool is_pass(const Allocation& a) {
  return a.category == Category::kActivation || a.category == Category::kTemporary ||
         a.category == Category::kUnknown;
}

// Logits: the loss makes tensors of the logits' size. All live tensors of that size belong to them
// (or of half the size: another data type).
bool read_known_logits(const Timeline& timeline, const std::vector<const Allocation*>& live,
                       OomFacts& facts) {
  const Record& record = timeline.record();
  const uint64_t request = facts.failure.request_bytes;
  std::unordered_map<uint32_t, bool> loss_stacks;
  const std::unordered_set<uint32_t> before = logits_stacks(timeline, facts, loss_stacks);
  const auto of_loss = [&](uint32_t stack) {
    auto [known, is_new] = loss_stacks.try_emplace(stack, false);
    if (is_new) known->second = stack_has_loss(record, stack);
    return known->second || before.count(stack) != 0;
  };
  const uint32_t failed_stack = record.events[facts.event].stack;
  uint64_t each = of_loss(failed_stack) ? request : 0;
  for (const Allocation* a : live) {
    if (is_pass(*a) && !a->before_history && of_loss(a->stack))
      each = std::max(each, a->requested_bytes);
  }
  constexpr size_t kMost = 8;  // more of one size are layers
  if (each >= kMinLogitsBytes) {
    size_t count = 0;
    uint64_t bytes = 0, surely = 0;
    for (const Allocation* a : live) {
      if (!alike(a->requested_bytes, each) || !is_pass(*a)) continue;
      ++count;
      bytes += a->requested_bytes;
      if (of_loss(a->stack)) surely += a->requested_bytes;
    }
    facts.logits_bytes = count <= kMost ? bytes : surely;
    if (alike(request, each)) facts.logits_bytes += request;
    facts.logits_each = each;
    return true;
  }
  return false;
}

// No loss was reached, or none with a known name. Then the logits are the last tensors of the pass,
// if they are few and far larger than all before them.
void read_last_tensors(const Timeline& timeline, const std::vector<const Allocation*>& live,
                       OomFacts& facts) {
  const uint64_t request = facts.failure.request_bytes;
  constexpr size_t kFew = 6, kMinOthers = 8;
  constexpr uint64_t kFarLarger = 4;
  if (facts.steps_before > 0 || request < kMinLogitsBytes ||
      (facts.phase != Phase::kForward && facts.phase != Phase::kBackward))
    return;
  uint64_t bytes = request, smallest = request, largest_other = 0;
  size_t count = 0, others = 0;
  uint32_t first = kNever;
  std::vector<uint32_t> other_events;
  for (const Allocation* a : live) {
    if (a->before_history || !is_pass(*a)) continue;
    if (alike(a->requested_bytes, request)) {
      if (timeline.stacks()[a->stack].empty && facts.phase == Phase::kForward)
        return;  // where it was made is part of the proof
      ++count;
      bytes += a->requested_bytes;
      smallest = std::min(smallest, a->requested_bytes);
      first = std::min(first, a->alloc_event);
    } else {
      ++others;
      largest_other = std::max(largest_other, a->requested_bytes);
      other_events.push_back(a->alloc_event);
    }
  }
  if (count == 0 || count > kFew || others < kMinOthers || smallest < largest_other * kFarLarger)
    return;
  const auto later = std::count_if(other_events.begin(), other_events.end(),
                                   [&](uint32_t event) { return event > first; });
  if (static_cast<size_t>(later) * 5 > others) return;
  facts.logits_bytes = bytes;
  facts.logits_each = request;
  facts.logits_by_size = true;
}

}  // namespace

void read_logits(const Timeline& timeline, const std::vector<const Allocation*>& live,
                 OomFacts& facts) {
  if (!read_known_logits(timeline, live, facts)) read_last_tensors(timeline, live, facts);
}

}  // namespace tonnage::analysis
