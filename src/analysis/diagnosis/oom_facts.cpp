#include "analysis/diagnosis/oom_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "analysis/device_report.h"
#include "analysis/timeline/categories.h"
#include "analysis/timeline/failures.h"

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

// Who else is on the card: other processes of the record, those that the error's message names, or
// what is missing from its size.
void read_others(const Timeline& timeline, const ExplainOptions& options, OomFacts& facts) {
  const Record& record = timeline.record();
  std::map<uint32_t, uint64_t> held;
  for (const DeviceAllocation& a : timeline.device_allocations()) {
    if (a.device == facts.failure.device && a.process != facts.process && a.live_at(facts.event))
      held[a.process] += a.size_bytes;
  }
  const auto name = [&](int64_t pid, uint64_t bytes) {
    facts.other_processes += fmt::format(
        "{}process {} ({})", facts.other_processes.empty() ? "" : ", ", pid, size_text(bytes));
  };
  for (const auto& [process, bytes] : held) {
    facts.other_process_bytes += bytes;
    if (process < record.processes.size()) name(record.processes[process].pid, bytes);
  }
  if (options.message && held.empty()) {
    for (const auto& process : options.message->processes) {
      if (process.is_self || !process.plausible) continue;
      facts.other_process_bytes += process.in_use.bytes;
      name(static_cast<int64_t>(process.pid.value_or(0)), process.in_use.bytes);
    }
  }
  if (record.kind != Record::Kind::kSnapshot || !facts.failure.capacity_bytes ||
      !facts.failure.free_bytes || !facts.failure.reserved_bytes)
    return;
  const uint64_t known = *facts.failure.free_bytes + *facts.failure.reserved_bytes;
  constexpr uint64_t kContextBytes =
      1ull << 30;  // this process's own context and libraries stay below it
  if (*facts.failure.capacity_bytes > known + kContextBytes)
    facts.unaccounted_bytes = *facts.failure.capacity_bytes - known;
}

void read_limit(const Timeline& timeline, const ExplainOptions& options, OomFacts& facts) {
  Failure& failure = facts.failure;
  const Record& record = timeline.record();
  for (const record::Device& device : record.devices) {
    if (device.index == failure.device && device.total_bytes > 0)
      failure.capacity_bytes = device.total_bytes;
  }
  if (options.memory_bytes) failure.capacity_bytes = options.memory_bytes;
  if (options.message && options.message->capacity)
    failure.capacity_bytes = options.message->capacity->bytes;

  const uint64_t reserved = failure.reserved_bytes.value_or(0);
  // What PyTorch ever reserved is within its cap.
  uint64_t reserved_peak = reserved;
  if (const auto found = timeline.processes().find({facts.process, failure.device});
      found != timeline.processes().end())
    reserved_peak = std::max(reserved_peak, found->second.reserved);
  // More than it was refused: the cap has been another one then.
  if (reserved_peak >= reserved + facts.wanted_bytes) reserved_peak = reserved;
  if (options.message && options.message->allowed &&
      (!failure.capacity_bytes ||
       options.message->allowed->bytes < *failure.capacity_bytes / 50 * 49)) {
    failure.limit_bytes = options.message->allowed->bytes;
    failure.limit_is_cap = true;
  } else if (failure.free_bytes && *failure.free_bytes >= facts.wanted_bytes + kFreeMarginBytes) {
    // The driver had enough: PyTorch's own cap refused. It lies between what was reserved and what
    // was asked for on top.
    failure.limit_bytes = std::max(reserved_peak, reserved + facts.wanted_bytes - 1);
    failure.limit_at_least_bytes = reserved_peak;
    failure.limit_is_cap = true;
    failure.limit_is_estimate = true;
  } else if (failure.free_bytes) {
    failure.limit_bytes = reserved + *failure.free_bytes;
  }
  facts.limit_bytes = failure.limit_bytes.value_or(0);
}

constexpr uint64_t kMinLogitsBytes = 16 << 20;

// Of one size, or of another type. A loss that shifts its labels works on one position of the
// sequence less.
bool near(uint64_t a, uint64_t b) { return (a > b ? a - b : b - a) <= std::max(a, b) / 25; }
bool alike(uint64_t a, uint64_t b) { return near(a, b) || near(a, b * 2) || near(a * 2, b); }

// Stacks that made, in steps before, what the loss then worked on: a tensor or two a step, of the
// loss's size.
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

// Logits: what the loss makes is of the logits' size; everything live of that size (or half:
// another type) belongs to them.
void read_logits(const Timeline& timeline, const std::vector<const Allocation*>& live,
                 OomFacts& facts) {
  const Record& record = timeline.record();
  const uint64_t request = facts.failure.request_bytes;
  const auto is_pass = [](const Allocation& a) {
    return a.category == Category::kActivation || a.category == Category::kTemporary ||
           a.category == Category::kUnknown;
  };
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
    return;
  }
  // No loss was reached, or none that has a name: the last tensors of the pass, few and far larger
  // than all before them.
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

// The weights a second time: a checkpoint that was loaded to the GPU, a copy for averaging.
void read_weight_copies(const Timeline& timeline, const std::vector<const Allocation*>& live,
                        OomFacts& facts) {
  constexpr uint64_t kMinBytes = 64 << 10;
  std::map<uint64_t, uint64_t> parameters;  // size -> how many
  for (const Allocation* a : live) {
    if (a->category == Category::kParameter && a->requested_bytes >= kMinBytes)
      ++parameters[a->requested_bytes];
  }
  std::map<std::tuple<std::string, uint32_t, std::string>, LineBytes> lines;
  for (const Allocation* a : live) {
    if (a->before_history || (a->category != Category::kUnknown && a->category != Category::kInput))
      continue;
    const StackFacts& stack = timeline.stacks()[a->stack];
    if (stack.empty || stack.in_module || stack.in_functional || stack.in_backward ||
        stack.in_optimizer)
      continue;
    const auto found = parameters.find(a->requested_bytes);
    if (found == parameters.end()) continue;
    const Site site = timeline.stacks().site(timeline.record().events[a->alloc_event]);
    LineBytes& line = lines[{site.line.file, site.line.line, site.line.function}];
    // Not more of one size from one line than there are parameters of it: those would be samples
    // that happen to be as large.
    line.site = site;
    line.bytes += a->requested_bytes;
    ++line.count;
  }
  size_t all = 0;
  for (const auto& [size, count] : parameters) all += count;
  for (const auto& [key, line] : lines) {
    if (line.count < 3 || line.count > all || line.bytes <= facts.weight_copies_bytes) continue;
    facts.weight_copies_bytes = line.bytes;
    facts.weight_copies_site = line.site;
  }
}

// Without the operators' names autocast's copies are known by their number and size: half of a
// parameter's, as many as there are parameters of it, and nearly all that the pass has made so far.
void read_copies_by_size(const Timeline& timeline, const std::vector<const Allocation*>& live,
                         OomFacts& facts) {
  std::map<uint64_t, uint64_t> halves;  // size -> how many parameters are twice as large
  for (const Allocation* a : live) {
    if (a->category == Category::kParameter && a->requested_bytes >= (64 << 10))
      ++halves[a->requested_bytes / 2];
  }
  uint64_t bytes = 0;
  for (const Allocation* a : live) {
    const StackFacts& stack = timeline.stacks()[a->stack];
    if (a->before_history || timeline.record().events[a->alloc_event].op != abi::kNoId ||
        a->category != Category::kActivation || (!stack.in_module && !stack.in_functional))
      continue;
    const auto found = halves.find(a->requested_bytes);
    if (found == halves.end() || found->second == 0) continue;
    --found->second;
    bytes += a->requested_bytes;
  }
  if (bytes * 5 < facts.of(Category::kActivation) * 4) return;
  facts.copies_bytes = bytes;
  facts.copies_by_size = bytes > 0;
  facts.autocast_seen |= bytes > 0;
}

void read_live(const Timeline& timeline, OomFacts& facts) {
  const Record& record = timeline.record();
  using Key = std::tuple<std::string, uint32_t, std::string>;
  std::map<Key, LineBytes> lines, activations;
  std::map<std::pair<uint32_t, uint64_t>, uint64_t> activation_groups;  // (stack, size) -> count
  std::vector<const Allocation*> live;
  timeline.for_each_live(facts.failure.device, facts.event, [&](const Allocation& a) {
    if (a.process != facts.process) return;
    live.push_back(&a);
  });
  std::unordered_map<uint32_t, int> checkpoint_stacks, foreach_stacks;
  const auto cached = [](std::unordered_map<uint32_t, int>& known, uint32_t stack, auto&& compute) {
    auto [it, made] = known.try_emplace(stack, 0);
    if (made) it->second = compute();
    return it->second != 0;
  };
  std::vector<const Allocation*> casts;
  std::unordered_set<uint64_t> parameter_sizes;
  for (const Allocation* a : live) {
    if (a->category == Category::kParameter) parameter_sizes.insert(a->requested_bytes);
    const MemoryEvent* event = a->before_history || a->alloc_event >= record.events.size()
                                   ? nullptr
                                   : &record.events[a->alloc_event];
    facts.by_category[static_cast<size_t>(a->category)] += a->requested_bytes;
    facts.held_bytes += a->block_bytes;
    const Site site = event ? timeline.stacks().site(*event)
                            : timeline.stacks().site(a->stack, abi::kNoId, abi::kNoId);
    const Key key{site.line.file, site.line.line, site.line.function};
    const auto add = [&](std::map<Key, LineBytes>& to) {
      LineBytes& entry = to[key];
      if (entry.count++ == 0) entry.site = site;
      entry.bytes += a->requested_bytes;
    };
    add(lines);
    const bool made_for_a_pass = a->category == Category::kActivation ||
                                 a->category == Category::kTemporary ||
                                 a->category == Category::kInput;
    if (facts.earlier_failure && event && a->alloc_event < *facts.earlier_failure &&
        made_for_a_pass) {
      facts.kept_by_failure_bytes += a->requested_bytes;
      ++facts.kept_by_failure_count;
    }
    if (a->category == Category::kActivation) {
      add(activations);
      ++activation_groups[{a->stack, a->requested_bytes}];
      if (cached(checkpoint_stacks, a->stack,
                 [&] { return stack_in(record, a->stack, "torch/utils/checkpoint.py"); })) {
        facts.checkpointed_bytes += a->requested_bytes;
        facts.checkpoint_seen = true;
      }
    }
    if (event && timeline.stacks()[a->stack].in_optimizer &&
        a->category != Category::kOptimizerState) {
      facts.optimizer_temporary_bytes += a->requested_bytes;
      facts.foreach_copies |= cached(foreach_stacks, a->stack, [&] {
        const auto& frames = record.stacks[a->stack];
        return std::any_of(frames.begin(), frames.end(), [&](const auto& f) {
          return contains(record.string(f.function), "_multi_tensor_");
        });
      });
    }
    const bool moved = timeline.stacks()[a->stack].converts_module ||
                       a->category == Category::kParameter || a->category == Category::kBuffer ||
                       a->category == Category::kInput;
    // Moving to the device is no copy in another type, and a conversion outside of a pass is the
    // program's own.
    const bool in_pass =
        event &&
        (event->phase == Phase::kForward || event->phase == Phase::kBackward ||
         event->phase == Phase::kEval || timeline.stacks()[a->stack].in_module ||
         timeline.stacks()[a->stack].in_functional || timeline.stacks()[a->stack].in_backward);
    if (in_pass && event->op != abi::kNoId && facts.phase != Phase::kOptimizer && !moved) {
      const std::string& op = record.string(event->op);
      if (op == "aten::_to_copy" || op == "aten::to") {
        facts.autocast_seen = true;
        casts.push_back(a);
      }
    }
  }
  // Casts of activations are activations; those of parameters' sizes are kept beside them.
  for (const Allocation* cast : casts) {
    const uint64_t size = cast->requested_bytes;
    const bool of_parameter = parameter_sizes.count(size * 2) || parameter_sizes.count(size / 2) ||
                              parameter_sizes.count(size);
    if (of_parameter) facts.copies_bytes += size;
  }
  facts.mechanisms = find_mechanisms(timeline, live);
  facts.static_bytes = facts.of(Category::kParameter) + facts.of(Category::kBuffer) +
                       facts.of(Category::kGradient) + facts.of(Category::kOptimizerState);

  if (facts.copies_bytes == 0 && facts.phase == Phase::kForward)
    read_copies_by_size(timeline, live, facts);
  read_logits(timeline, live, facts);
  read_weight_copies(timeline, live, facts);

  // Repeated layers: the number of repetitions that carries the most bytes.
  std::map<uint64_t, std::pair<uint64_t, std::map<uint64_t, uint64_t>>>
      by_count;  // count -> bytes per repetition, sizes
  for (const auto& [key, count] : activation_groups) {
    if (count < 3) continue;
    auto& [bytes, sizes] = by_count[count];
    bytes += key.second;
    sizes[key.second] += 1;
  }
  uint64_t most = 0;
  for (const auto& [count, entry] : by_count) {
    // Neighbouring counts are the same layers, some of them not finished; twice as many are two a
    // layer.
    uint64_t block = 0;
    std::map<uint64_t, uint64_t> sizes;
    for (const auto& [other, other_entry] : by_count) {
      for (uint64_t times = 1; times <= 4; ++times) {
        if (other + 1 < count * times || other > count * times) continue;
        block += other_entry.first * times;
        for (const auto& [size, number] : other_entry.second) sizes[size] += number * times;
        break;
      }
    }
    if (block * count <= most) continue;
    most = block * count;
    facts.blocks = count;
    facts.block_bytes = block;
    // What passes from layer to layer is the size that most tensors have.
    facts.block_boundary_bytes =
        std::max_element(sizes.begin(), sizes.end(), [](const auto& a, const auto& b) {
          return a.second < b.second;
        })->first;
  }
  const auto sorted = [](const std::map<Key, LineBytes>& from) {
    std::vector<LineBytes> out;
    for (const auto& [key, entry] : from) out.push_back(entry);
    std::stable_sort(out.begin(), out.end(),
                     [](const LineBytes& a, const LineBytes& b) { return a.bytes > b.bytes; });
    if (out.size() > 10) out.resize(10);
    return out;
  };
  facts.top_activations = sorted(activations);
  facts.top_lines = sorted(lines);
}

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
  // Of a ring that was overwritten only the last steps are there, but their number tells how many
  // there were.
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

  // The largest tensor of each step from the same place. The place ends at the outermost module's
  // call, so that a validation pass is compared with the training passes that run the same model.
  struct Sizes {
    std::vector<uint64_t> earlier;
    size_t step = SIZE_MAX;
    uint64_t now = 0;
    uint32_t stack = abi::kNoId;
  };
  std::map<uint64_t, Sizes> by_place;
  const auto place_of = [&](uint32_t stack) {
    uint64_t hash = 0;
    const auto& frames = timeline.record().stacks[stack];
    size_t depth = frames.size();
    while (depth > 0 && !std::string_view(timeline.record().string(frames[depth - 1].file))
                             .ends_with("torch/nn/modules/module.py"))
      --depth;
    if (depth == 0) depth = frames.size();
    for (size_t i = 0; i < depth; ++i) {
      for (const uint64_t part :
           {uint64_t{frames[i].file}, uint64_t{frames[i].line}, uint64_t{frames[i].function}})
        hash = (hash ^ part) * 0x9e3779b97f4a7c15ull, hash ^= hash >> 32;
    }
    return hash;
  };
  size_t step = 0;
  const bool no_stacks = timeline.record().stacks.size() <= 1;  // then the whole step is one place
  for (const Allocation& a : timeline.allocations()) {
    if (a.process != facts.process || a.device != facts.failure.device || a.before_history ||
        a.alloc_event > facts.event)
      continue;
    if ((a.stack == abi::kNoId && !no_stacks) || a.stack >= timeline.record().stacks.size() ||
        a.requested_bytes < (1u << 20))
      continue;
    while (step < before.size() && a.alloc_event >= before[step].end_event) ++step;
    if (step == 0) continue;  // the first step warms up
    Sizes& sizes = by_place[place_of(a.stack)];
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
  const MemoryEvent& event = timeline.record().events[facts.event];
  if ((event.stack != abi::kNoId || no_stacks) && event.stack < timeline.record().stacks.size()) {
    Sizes& sizes = by_place[place_of(event.stack)];
    sizes.now = std::max(sizes.now, event.size_bytes);
    sizes.stack = event.stack;
  }
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

}  // namespace

bool stack_in(const Record& record, uint32_t stack, std::string_view file_end,
              std::string_view function) {
  if (stack >= record.stacks.size()) return false;
  for (const auto& frame : record.stacks[stack]) {
    if (std::string_view(record.string(frame.file)).ends_with(file_end) &&
        (function.empty() || bare_name(record.string(frame.function)) == function))
      return true;
  }
  return false;
}

OomFacts collect_oom_facts(const Timeline& timeline, uint32_t index,
                           const ExplainOptions& options) {
  const Record& record = timeline.record();
  const MemoryEvent& event = record.events[index];
  OomFacts facts;
  facts.event = index;
  facts.process = event.process;
  facts.stream = event.stream;
  facts.from_pytorch = event.kind == EventKind::kOom;
  for (const OomAttempts& attempts : find_oom_attempts(record, timeline.stacks())) {
    const MemoryEvent& earlier = record.events[attempts.last];
    if (attempts.last >= index || attempts.overcome) continue;
    if (earlier.kind == EventKind::kOom && earlier.process == event.process &&
        earlier.device == event.device)
      facts.earlier_failure = attempts.last;
  }
  Failure& failure = facts.failure;
  failure.device = event.device;
  failure.request_bytes = event.size_bytes;
  failure.free_bytes = event.value;
  failure.moment = moment_of(timeline, index);
  facts.wanted_bytes = event.size_bytes;
  if (facts.from_pytorch) {
    failure.segment_bytes =
        segment_request(round_request(event.size_bytes, record.settings.roundup_power2_divisions));
    facts.wanted_bytes = *failure.segment_bytes;
    failure.segments.push_back(segment_map_at(timeline, event.device, event.process, index));
    facts.fragmentation = measure_fragmentation(failure.segments.back());
    const uint64_t rounded =
        round_request(event.size_bytes, record.settings.roundup_power2_divisions);
    facts.pieces = free_pieces(failure.segments.back(), rounded, event.stream);
    failure.reserved_bytes = facts.fragmentation.reserved;
    failure.allocated_bytes = facts.fragmentation.requested + facts.fragmentation.rounding;
  } else if (const auto found = timeline.devices().find(event.device);
             found != timeline.devices().end()) {
    if (const Sample* sample = found->second.at(index)) {
      failure.allocated_bytes = sample->allocated_bytes;
      failure.reserved_bytes = sample->reserved_bytes;
    }
  }
  if (const auto found = timeline.devices().find(event.device);
      found != timeline.devices().end() && found->second.has_device) {
    const Breakdown breakdown = breakdown_at(timeline, event.device, index);
    for (const BreakdownRow& row : breakdown.rows) {
      if (row.category == Category::kOther) facts.device_other_bytes = row.bytes;
      if (row.category == Category::kContext) facts.context_bytes = row.bytes;
    }
  }
  facts.phase = failure.moment.phase;
  facts.site = failure.moment.site;
  read_limit(timeline, options, facts);
  read_others(timeline, options, facts);
  compare_with_earlier_steps(timeline, facts);
  read_live(timeline, facts);
  if (facts.from_pytorch) {
    const uint64_t reserved = failure.reserved_bytes.value_or(0);
    const uint64_t headroom = facts.limit_bytes > reserved && !failure.limit_is_estimate
                                  ? facts.limit_bytes - reserved
                                  : 0;
    const uint64_t rounded =
        round_request(event.size_bytes, record.settings.roundup_power2_divisions);
    facts.move = smallest_move(failure.segments.back(), rounded, event.stream, headroom);
  }
  if (facts.from_pytorch) predict_state(timeline, facts);
  facts.growth = find_growth(timeline, event.device, event.process, index);
  return facts;
}

}  // namespace tonnage::analysis
