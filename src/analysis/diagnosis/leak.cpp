#include "analysis/diagnosis/leak.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "analysis/diagnosis/leak_lines.h"
#include "analysis/diagnosis/oom_facts.h"
#include "analysis/timeline/categories.h"

namespace tonnage::analysis {
namespace {

using abi::EventKind;
using abi::MemoryEvent;

constexpr size_t kMinIterations = 4;
constexpr size_t kManyIterations = 32;  // over so many, less proves as much
constexpr uint64_t kMinBytesOverMany = 1 << 20;
constexpr size_t kMinOccurrences = 4;  // of what is left behind now and then

uint64_t allocated_at(const Timeline& timeline, int device, uint64_t event) {
  const auto found = timeline.devices().find(device);
  if (found == timeline.devices().end()) return 0;
  const Sample* sample = found->second.at(event);
  return sample ? sample->allocated_bytes : 0;
}

bool has_phase(const Timeline& timeline, uint32_t process, const std::vector<Iteration>& iterations,
               Phase wanted) {
  const auto& record = timeline.record();
  for (const Iteration& iteration : iterations)
    for (uint32_t i = iteration.first_event; i < iteration.end_event && i < record.events.size();
         ++i) {
      const MemoryEvent& event = record.events[i];
      if (event.process != process ||
          (event.kind != EventKind::kAlloc && event.kind != EventKind::kFreeRequested))
        continue;
      if (phase_of(record, timeline.stacks(), event, true) == wanted) return true;
    }
  return false;
}

// A leak leaves something behind during the whole run: in nearly each iteration, or at equal
// distances (each epoch, each validation). A cache fills early. A queue of fixed length, and a
// reference cycle that waits for the garbage collector, hold only recent tensors. So these are not
// evenly spread.
Pattern pattern_of(const std::vector<uint64_t>& bytes, size_t first, size_t end) {
  Pattern pattern;
  for (size_t k = first; k < end; ++k) {
    if (bytes[k] > 0) pattern.at.push_back(k);
  }
  const size_t present = pattern.at.size();
  if (present >= 2 && present * 5 >= (end - first) * 4) {
    pattern.every = 1;
    return pattern;
  }
  if (present < kMinOccurrences) return pattern;
  std::vector<uint64_t> gaps;
  for (size_t i = 1; i < present; ++i) gaps.push_back(pattern.at[i] - pattern.at[i - 1]);
  const uint64_t usual = median(gaps);
  const bool even = std::all_of(gaps.begin(), gaps.end(),
                                [&](uint64_t gap) { return gap + 1 >= usual && gap <= usual + 1; });
  if (even && usual >= 2 && pattern.at.front() <= first + usual &&
      pattern.at.back() + usual + 1 >= end)
    pattern.every = usual;
  return pattern;
}

// Whether what is allocated rises from one of these iterations to the next, nearly always.
bool rises_between(const std::vector<uint64_t>& allocated, const std::vector<size_t>& at) {
  size_t rises = 0;
  for (size_t i = 1; i < at.size(); ++i) rises += allocated[at[i]] > allocated[at[i - 1]];
  return at.size() >= 2 && rises * 10 >= (at.size() - 1) * 7;
}

// These lines made tensors before the range, which were kept for a while and then freed. So they
// will be freed again (the results of a validation).
std::map<LineKey, uint64_t> released_before(const Timeline& timeline, int device, uint32_t process,
                                            uint32_t first_event, uint32_t last_event,
                                            const std::map<LineKey, uint64_t>& lines) {
  std::map<LineKey, uint64_t> released;
  std::map<uint32_t, std::vector<const Allocation*>> by_stack;
  for (const Allocation& a : timeline.allocations()) {
    if (a.device != device || a.process != process || a.before_history) continue;
    if (a.alloc_event >= first_event) break;
    if (a.free_event <= last_event) by_stack[a.stack].push_back(&a);
  }
  for (const auto& [stack, made] : by_stack) {
    const LineKey key = key_of(timeline.stacks().site(stack, abi::kNoId, abi::kNoId));
    if (lines.count(key) == 0) continue;
    // For a while: until the line had made at least two more.
    for (size_t i = 0; i + 2 < made.size(); ++i) {
      if (made[i]->free_event > made[i + 2]->alloc_event) released[key] += made[i]->block_bytes;
    }
  }
  return released;
}

// If the beginning of the history was overwritten, it has only the last iterations. Older blocks
// with the sizes that a line still leaves behind most likely come from this line, too.
void find_older(const Timeline& timeline, int device, uint32_t process, uint64_t end_event,
                GrowthReport& report) {
  std::map<uint64_t, size_t> lines;  // size -> index of the growth, largest first
  for (size_t i = report.growth.size(); i-- > 0;) {
    for (const uint64_t event : report.growth[i].events) {
      const uint64_t size = timeline.record().events[event].size_bytes;
      if (size >= kMinBytesPerIteration) lines[size] = i;
    }
  }
  for (const Allocation& a : timeline.allocations()) {
    if (!a.before_history) break;
    if (a.device != device || a.process != process || a.category != Category::kUnknown ||
        !a.live_at(end_event))
      continue;
    const auto found = lines.find(a.requested_bytes);
    if (found == lines.end()) continue;
    report.growth[found->second].older_bytes += a.block_bytes;
    ++report.growth[found->second].older_count;
  }
  // A few such blocks prove nothing: they may be parameters of that size, if recording began late.
  for (Growth& growth : report.growth) {
    if (growth.older_bytes < growth.kept_bytes) growth.older_bytes = growth.older_count = 0;
  }
}

using PartKey = std::pair<LineKey, bool>;  // made by backward passes

struct Survivors {
  std::map<PartKey, LineSum> lines;
  uint64_t forward_bytes = 0;  // made inside modules, in the iterations that count
};

// Operators that create a tensor without inputs: autograd saves it only if it is the input of
// another operator.
bool is_factory(const std::string& op) {
  for (const char* name :
       {"zeros", "ones", "full", "empty", "empty_strided", "rand", "randn", "randint", "arange",
        "eye", "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like"}) {
    if (op.starts_with("aten::") && std::string_view(op).substr(6) == name) return true;
  }
  return false;
}

// What iterations before end_kept made and what is alive at end_event, by line.
Survivors survivors_of(const Timeline& timeline, int device, uint32_t process,
                       const std::vector<Iteration>& iterations, const GrowthRange& range,
                       size_t end_kept, uint64_t end_event) {
  const record::Record& record = timeline.record();
  Survivors out;
  std::map<std::pair<uint32_t, bool>, LineSum*>
      line_of_stack;  // sites are texts: one for each stack, not for each allocation
  const auto line_of = [&](const Allocation& a, bool backward) -> LineSum*& {
    return line_of_stack[{a.stack, backward}];
  };
  for (const Allocation& a : timeline.allocations()) {
    if (a.device != device || a.process != process || a.before_history) continue;
    const size_t k = iteration_of(iterations, a.alloc_event);
    if (k == SIZE_MAX) continue;
    const MemoryEvent& event = record.events[a.alloc_event];
    const StackFacts& facts = timeline.stacks()[a.stack];
    const Phase phase = event.phase;
    const bool backward =
        facts.in_backward || phase == Phase::kBackward || (facts.empty && phase == Phase::kOther);
    const bool in_forward =
        (facts.in_module || phase == Phase::kForward || phase == Phase::kEval) && !backward;
    if (in_forward && k >= range.first_old && k < range.end_old) out.forward_bytes += a.block_bytes;
    if (stays_by_design(timeline, a)) continue;
    const bool survives = k < end_kept && a.live_at(end_event);
    // Stacks that know nothing are told apart by their operators.
    LineSum* known = facts.empty ? nullptr : line_of(a, backward);
    if (!known && (survives || !facts.empty)) {
      const Site site = timeline.stacks().site(event);
      LineSum& sum = out.lines[{key_of(site), backward}];
      if (sum.bytes.empty()) {
        sum.bytes.resize(iterations.size());
        sum.counts.resize(iterations.size());
        sum.made.resize(iterations.size());
        sum.first_event.resize(iterations.size(), UINT32_MAX);
        sum.last_event.resize(iterations.size());
        sum.site = site;
        sum.backward = backward;
      }
      known = &sum;
      if (!facts.empty) line_of(a, backward) = known;
    }
    if (!known) continue;
    LineSum& sum = *known;
    ++sum.made[k];
    const size_t freed_in =
        a.free_event == kNever ? SIZE_MAX : iteration_of(iterations, a.free_event);
    if (freed_in != k && k + 2 >= iterations.size()) ++sum.born_late;
    if (freed_in != k && freed_in != SIZE_MAX && freed_in + 2 >= iterations.size()) {
      ++sum.died_late;
      sum.youngest_died = std::max(sum.youngest_died, a.alloc_event);
    }
    if (!survives) continue;
    sum.bytes[k] += a.block_bytes;
    ++sum.counts[k];
    sum.first_event[k] = std::min(sum.first_event[k], a.alloc_event);
    sum.last_event[k] = std::max(sum.last_event[k], a.alloc_event);
    sum.total_bytes += a.block_bytes;
    sum.categories[a.category] += a.block_bytes;
    if (a.category == Category::kActivation) sum.activation_bytes += a.block_bytes;
    if (in_forward || (facts.in_functional && !facts.in_backward))
      sum.forward_bytes += a.block_bytes;
    if (event.op != abi::kNoId && !facts.in_module && is_factory(record.string(event.op)))
      sum.factory_bytes += a.block_bytes;
    if (k >= range.first_old && k < range.end_old) {
      ++sum.sizes[a.requested_bytes];
      sum.stacks[a.stack] += a.block_bytes;
      if (sum.events.size() < 8) sum.events.push_back(a.alloc_event);
    }
  }
  std::erase_if(out.lines, [](const auto& line) { return line.second.total_bytes == 0; });
  return out;
}

// A tensor that is replaced by a larger one each time, while single tensors stay, is made from
// these: a queue that is joined, or scores against everything that a memory bank holds.
void add_replaced(Growth replaced, GrowthReport& report) {
  Growth* of = nullptr;
  for (Growth& growth : report.growth) {
    if (growth.may_be_filling && !growth.replaced && growth.every == 1 &&
        (!of || growth.kept_bytes > of->kept_bytes))
      of = &growth;
  }
  if (!of) {
    report.growth.push_back(std::move(replaced));
    return;
  }
  if (of->parts.empty())
    of->parts.push_back({GrowthPart::Role::kBeside, of->site, of->bytes_per_iteration,
                         of->allocations_per_iteration});
  of->parts.push_back(
      {GrowthPart::Role::kReplaced, replaced.site, replaced.bytes_per_iteration, 1});
  of->kept_bytes += replaced.kept_bytes;
  of->bytes_each += replaced.bytes_per_iteration;
  of->bytes_per_iteration += replaced.bytes_per_iteration;
}

// A snapshot is taken while the program runs: what was freed before it was no leak.
bool gone_at_the_end(const Timeline& timeline, const Growth& growth) {
  // What takes the place of the last one lets the earlier ones go.
  if (growth.events.empty() || growth.replaced) return false;
  size_t gone = 0;
  const auto& allocations = timeline.allocations();
  for (const uint64_t event : growth.events) {
    const auto found = std::find_if(allocations.begin(), allocations.end(), [&](const auto& a) {
      return !a.before_history && a.alloc_event == event;
    });
    gone += found != allocations.end() && found->free_event != kNever;
  }
  return gone == growth.events.size();
}

// What the frames of a few of the allocations say of who keeps them.
void mark_mechanism(const Timeline& timeline, Growth& growth) {
  const record::Record& record = timeline.record();
  size_t checkpointed = 0, collected = 0;
  for (const uint64_t event : growth.events) {
    const uint32_t stack = record.events[event].stack;
    checkpointed += timeline.stacks()[stack].in_backward &&
                    stack_in(record, stack, "torch/utils/checkpoint.py");
    for (const char* function : {"nested_concat", "torch_pad_and_concatenate", "evaluation_loop",
                                 "prediction_loop", "pad_across_processes"})
      if (stack_in(record, stack, "", function)) {
        ++collected;
        break;
      }
  }
  growth.in_checkpoint = checkpointed * 2 > growth.events.size();
  growth.in_evaluation_collect = collected * 2 > growth.events.size();
}

GrowthReport growth_over(const Timeline& timeline, int device, uint32_t process,
                         const IterationRange& range, uint64_t end_event, bool failed) {
  GrowthReport report;
  const auto& iterations = range.iterations;
  report.are_steps = range.are_steps;
  report.failed = failed;
  report.anchor = range.anchor;
  report.iterations = static_cast<uint32_t>(iterations.size());
  report.end_event = end_event;
  if (iterations.empty()) return report;
  report.last_number = iterations.back().number;
  report.last_peak_bytes =
      timeline.peak_between(device, iterations.back().first_event, iterations.back().end_event)
          .allocated;
  if (iterations.size() < kMinIterations) return report;
  // The first iteration warms up (optimizer state, workspaces, caches); what the last one made may
  // still be in use.
  const size_t first_old = 1, end_old = iterations.size() - 1;
  const size_t old = end_old - first_old;
  // At a failure, the last iteration counts as kept memory, but does not prove growth.
  const size_t end_kept = failed ? iterations.size() : end_old;

  GrowthRange counted{first_old, end_old, 0};
  const Survivors survivors =
      survivors_of(timeline, device, process, iterations, counted, end_kept, end_event);
  counted.forward_bytes = survivors.forward_bytes;
  std::map<LineKey, uint64_t> left_behind;
  for (const auto& [key, sum] : survivors.lines) left_behind[key.first] += sum.total_bytes;

  // Does the whole really grow?
  std::vector<uint64_t> after;
  for (const Iteration& iteration : iterations)
    after.push_back(allocated_at(timeline, device, iteration.end_event - 1));
  const uint64_t net_growth = after.back() > after.front() ? after.back() - after.front() : 0;
  const std::map<LineKey, uint64_t> released =
      failed ? std::map<LineKey, uint64_t>{}
             : released_before(timeline, device, process, iterations.front().first_event,
                               static_cast<uint32_t>(end_event), left_behind);

  std::vector<GrowingLine> lines;
  for (const auto& [key, sum] : survivors.lines) {
    Pattern pattern = pattern_of(sum.bytes, first_old, end_old);
    if (pattern.every == 0 || !rises_between(after, pattern.at)) continue;
    if (const auto found = released.find(key.first);
        found != released.end() && found->second * 2 >= sum.total_bytes)
      continue;
    std::vector<uint64_t> in_old, counts;
    for (size_t k = first_old; k < end_old; ++k) {
      if (pattern.every > 1 && sum.bytes[k] == 0) continue;
      in_old.push_back(sum.bytes[k]);
      counts.push_back(sum.counts[k]);
    }
    Growth growth;
    growth.site = sum.site;
    growth.kept_bytes = sum.total_bytes;
    growth.every = static_cast<uint32_t>(pattern.every);
    growth.bytes_each = median(in_old);
    growth.bytes_per_iteration = growth.bytes_each / pattern.every;
    growth.allocations_per_iteration = median(counts);
    growth.iterations = static_cast<uint32_t>(std::count_if(
        sum.bytes.begin(), sum.bytes.end(), [](uint64_t bytes) { return bytes > 0; }));
    growth.events = sum.events;
    if (sum.sizes.size() == 1) growth.size_each = sum.sizes.begin()->first;
    growth.category =
        std::max_element(sum.categories.begin(), sum.categories.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; })
            ->first;
    growth.backward = sum.backward;
    growth.idle_iterations = idle_iterations(sum, counted);
    lines.push_back({&sum, std::move(pattern), std::move(growth)});
  }
  report.growth = join_lines(timeline, process, std::move(lines), counted, failed);
  std::erase_if(report.growth, [&](const Growth& growth) {
    const bool long_and_sure =
        iterations.size() >= kManyIterations && growth.kept_bytes >= kMinBytesOverMany;
    // Lines that are little each do not become much by belonging together.
    const uint64_t largest = growth.parts.empty() || growth.whole_graph
                                 ? growth.bytes_per_iteration
                                 : growth.parts.front().bytes_per_iteration;
    return largest < kMinBytesPerIteration && !long_and_sure;
  });
  for (Growth& growth :
       find_replaced(timeline, device, process, iterations, end_event, failed, left_behind))
    add_replaced(std::move(growth), report);
  if (timeline.record().history_truncated) find_older(timeline, device, process, end_event, report);
  std::stable_sort(report.growth.begin(), report.growth.end(),
                   [](const Growth& a, const Growth& b) { return a.kept_bytes > b.kept_bytes; });
  if (timeline.record().kind == record::Record::Kind::kSnapshot && !failed)
    std::erase_if(report.growth,
                  [&](const Growth& growth) { return gone_at_the_end(timeline, growth); });
  for (Growth& growth : report.growth) mark_mechanism(timeline, growth);
  for (const Growth& growth : report.growth) {
    report.bytes_per_iteration += growth.bytes_per_iteration;
    report.kept_bytes += growth.kept_bytes;
    report.older_bytes += growth.older_bytes;
  }
  // If other tensors were freed for the survivors, they replace those; this is not growth.
  if (net_growth * 2 < report.bytes_per_iteration * old) {
    report.growth.clear();
    report.bytes_per_iteration = report.kept_bytes = report.older_bytes = 0;
  }
  report.saw_backward = has_phase(timeline, process, iterations, Phase::kBackward);
  return report;
}

}  // namespace

Site common_caller(const Timeline& timeline,
                   const std::vector<std::pair<uint32_t, uint64_t>>& stack_bytes) {
  const record::Record& record = timeline.record();
  std::vector<std::pair<uint32_t, uint64_t>> inside;
  for (const auto& [stack, bytes] : stack_bytes) {
    if (!record.stacks[stack].empty()) inside.emplace_back(stack, bytes);
  }
  Site site;
  for (size_t depth = 0;; ++depth) {
    std::map<std::tuple<uint32_t, uint32_t, uint32_t>, uint64_t>
        next;  // file, line, function -> bytes
    uint64_t all = 0;
    for (const auto& [stack, bytes] : inside) {
      all += bytes;
      const auto& frames = record.stacks[stack];
      if (depth >= frames.size()) continue;
      const abi::Frame& frame = frames[frames.size() - 1 - depth];
      next[{frame.file, frame.line, frame.function}] += bytes;
    }
    if (next.empty()) return site;
    const auto most = std::max_element(
        next.begin(), next.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most->second * 10 < all * 9) return site;
    const auto [file, line, function] = most->first;
    // Inside a module's call, the line belongs to the model; the line that calls the model is more
    // useful.
    const std::string_view name = bare_name(record.string(function));
    if (site.line.known() && (name == "_call_impl" || name == "_wrapped_call_impl")) return site;
    if (owner_of(record.string(file)) == FileOwner::kUser) {
      site.line = {record.string(file), line, record.string(function)};
      site.user_line = site.line;
    }
    std::erase_if(inside, [&](const auto& entry) {
      const auto& frames = record.stacks[entry.first];
      if (depth >= frames.size()) return true;
      const abi::Frame& frame = frames[frames.size() - 1 - depth];
      return std::tuple(frame.file, frame.line, frame.function) != most->first;
    });
  }
}

GrowthReport find_growth(const Timeline& timeline, int device, uint32_t process,
                         std::optional<uint64_t> failure) {
  const uint64_t events = timeline.record().events.size();
  if (events == 0) return {};
  IterationRange steps = step_iterations(timeline, process);
  if (failure)
    std::erase_if(steps.iterations,
                  [&](const Iteration& iteration) { return iteration.end_event > *failure; });
  GrowthReport best;
  best.are_steps = true;
  if (!steps.iterations.empty()) {
    const uint64_t end = failure ? *failure : steps.iterations.back().end_event - 1;
    best = growth_over(timeline, device, process, steps, end, failure.has_value());
  }
  const auto to = static_cast<uint32_t>(failure ? *failure : events);
  const auto try_loop = [&](uint32_t from) {
    const IterationRange loop = loop_iterations(timeline, process, from, to);
    if (loop.iterations.empty()) return;
    const uint64_t end = failure ? *failure : loop.iterations.back().end_event - 1;
    GrowthReport looped = growth_over(timeline, device, process, loop, end, failure.has_value());
    if (looped.kept_bytes > best.kept_bytes || steps.iterations.empty()) best = std::move(looped);
  };
  // A loop after the last step, or instead of steps. Guessed steps may be wrong.
  const bool guessed =
      std::any_of(timeline.steps().begin(), timeline.steps().end(), [&](const Step& step) {
        return step.process == process && step.source == StepSource::kPeriod;
      });
  try_loop(steps.iterations.empty() ? 0 : steps.iterations.back().end_event);
  if (guessed && best.growth.empty()) try_loop(0);
  return best;
}

}  // namespace tonnage::analysis
