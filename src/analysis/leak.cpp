#include "analysis/leak.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "analysis/categories.h"
#include "analysis/leak_lines.h"

namespace tonnage::analysis {
namespace {

using record::Event;
using record::EventKind;

constexpr size_t kMinIterations = 4;
constexpr size_t kManyIterations = 32;              // over so many, less proves as much
constexpr uint64_t kMinBytesOverMany = 1 << 20;
constexpr size_t kMinOccurrences = 4;               // of what is left behind now and then
constexpr size_t kGraphTensors = 5;                 // fewer tensors an iteration are not called a graph
constexpr size_t kGraphKinds = 3;                   // nor are equal ones: different sizes and stacks
constexpr size_t kGraphPart = 5;                    // a graph holds at least a fifth of what the forward pass makes
constexpr size_t kSurelyGraph = 24;                 // tensors an iteration: nobody keeps so many one by one

struct LineSum {
  std::vector<uint64_t> bytes, counts;  // by iteration
  std::map<uint64_t, uint64_t> sizes;   // requested size -> count, in the iterations that count
  std::map<uint32_t, uint64_t> stacks;  // stack -> bytes
  uint64_t activation_bytes = 0, forward_bytes = 0, backward_bytes = 0, total_bytes = 0;
  std::map<Category, uint64_t> categories;
  std::vector<uint64_t> events;
  Site site;
};

uint64_t median(std::vector<uint64_t> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

uint64_t allocated_at(const Timeline& timeline, int device, uint64_t event) {
  const auto found = timeline.devices().find(device);
  if (found == timeline.devices().end()) return 0;
  const Sample* sample = found->second.at(event);
  return sample ? sample->allocated_bytes : 0;
}

bool has_phase(const Timeline& timeline, uint32_t process, const std::vector<Iteration>& iterations, Phase wanted) {
  const auto& record = timeline.record();
  for (const Iteration& iteration : iterations)
    for (uint32_t i = iteration.first_event; i < iteration.end_event && i < record.events.size(); ++i) {
      const Event& event = record.events[i];
      if (event.process != process || (event.kind != EventKind::kAlloc && event.kind != EventKind::kFreeRequested)) continue;
      if (phase_of(record, timeline.stacks(), event, true) == wanted) return true;
    }
  return false;
}

// Which of the iterations that count left something behind at a line.
struct Pattern {
  std::vector<size_t> at;  // iterations with survivors, in order
  size_t every = 0;        // 1: in nearly each; n: in every n-th; 0: no pattern
};

// A leak leaves something behind all along: in nearly each iteration, or at an even distance (each epoch, each validation). A cache
// fills early, a queue of fixed length and a cycle that waits for the garbage collector hold recent ones only: neither is even.
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
  const bool even = std::all_of(gaps.begin(), gaps.end(), [&](uint64_t gap) { return gap + 1 >= usual && gap <= usual + 1; });
  if (even && usual >= 2 && pattern.at.front() <= first + usual && pattern.at.back() + usual + 1 >= end) pattern.every = usual;
  return pattern;
}

// Whether what is allocated rises from one of these iterations to the next, nearly always.
bool rises_between(const std::vector<uint64_t>& allocated, const std::vector<size_t>& at) {
  size_t rises = 0;
  for (size_t i = 1; i < at.size(); ++i) rises += allocated[at[i]] > allocated[at[i - 1]];
  return at.size() >= 2 && rises * 10 >= (at.size() - 1) * 7;
}

// Made by these lines before the range, kept for a while, and given back: then it is given back again (the results of a validation).
std::map<LineKey, uint64_t> released_before(const Timeline& timeline, int device, uint32_t process, uint32_t first_event, uint32_t last_event, const std::map<LineKey, LineSum>& lines) {
  std::map<LineKey, uint64_t> released;
  std::map<uint32_t, std::vector<const Allocation*>> by_stack;
  for (const Allocation& a : timeline.allocations()) {
    if (a.device != device || a.process != process || a.before_history) continue;
    if (a.alloc_event >= first_event) break;
    if (a.free_event <= last_event) by_stack[a.stack].push_back(&a);
  }
  for (const auto& [stack, made] : by_stack) {
    const LineKey key = key_of(timeline.stacks().site(stack, record::kNoId, record::kNoId));
    if (lines.count(key) == 0) continue;
    // For a while: until the line had made at least two more.
    for (size_t i = 0; i + 2 < made.size(); ++i) {
      if (made[i]->free_event > made[i + 2]->alloc_event) released[key] += made[i]->block_bytes;
    }
  }
  return released;
}

// Whether a backward pass freed what some forward pass called from that line had made.
bool trains_from(const Timeline& timeline, uint32_t process, const Place& line) {
  const trace::Record& record = timeline.record();
  if (!line.known()) return false;
  std::vector<int> known(record.stacks.size(), -1);
  for (const Allocation& a : timeline.allocations()) {
    if (a.process != process || a.before_history || a.free_event == kNever || a.category != Category::kActivation || a.stack >= record.stacks.size()) continue;
    int& from_line = known[a.stack];
    if (from_line < 0) {
      const auto& frames = record.stacks[a.stack];
      from_line = std::any_of(frames.begin(), frames.end(), [&](const record::Frame& frame) { return frame.line == line.line && record.string(frame.file) == line.file && record.string(frame.function) == line.function; });
    }
    if (from_line == 1 && phase_of(record, timeline.stacks(), record.events[a.free_event], true) == Phase::kBackward) return true;
  }
  return false;
}

// A history whose beginning was overwritten shows the last iterations only. What is older, and of the sizes that a line still leaves
// behind, is most likely the same.
void find_older(const Timeline& timeline, int device, uint32_t process, uint64_t end_event, GrowthReport& report) {
  std::map<uint64_t, size_t> lines;  // size -> index of the growth, largest first
  for (size_t i = report.growth.size(); i-- > 0;) {
    for (const uint64_t event : report.growth[i].events) {
      const uint64_t size = timeline.record().events[event].size_bytes;
      if (size >= kMinBytesPerIteration) lines[size] = i;
    }
  }
  for (const Allocation& a : timeline.allocations()) {
    if (!a.before_history) break;
    if (a.device != device || a.process != process || a.category != Category::kUnknown || !a.live_at(end_event)) continue;
    const auto found = lines.find(a.requested_bytes);
    if (found == lines.end()) continue;
    report.growth[found->second].older_bytes += a.block_bytes;
    ++report.growth[found->second].older_count;
  }
  // A few are anything: parameters of that size, say, where recording only began late.
  for (Growth& growth : report.growth) {
    if (growth.older_bytes < growth.kept_bytes) growth.older_bytes = growth.older_count = 0;
  }
}

// Lines that a forward pass leaves tensors behind at, in the same iterations.
struct GraphParts {
  std::map<LineKey, const LineSum*> lines;
  uint64_t total_bytes = 0;
};

// The lines together, if they are what autograd saves of a pass, and not a few outputs that someone keeps.
std::optional<Growth> graph_of(const Timeline& timeline, uint32_t process, const GraphParts& parts, size_t every, size_t first_old, size_t end_old, uint64_t forward_bytes) {
  std::vector<uint64_t> bytes(end_old), counts(end_old);
  size_t kinds = 0, iterations = 0;
  std::vector<std::pair<uint32_t, uint64_t>> stacks;
  for (const auto& [key, sum] : parts.lines) {
    kinds += sum->sizes.size() + sum->stacks.size();
    for (size_t k = 0; k < end_old; ++k) {
      bytes[k] += sum->bytes[k];
      counts[k] += sum->counts[k];
    }
    for (const auto& [stack, of_stack] : sum->stacks) stacks.emplace_back(stack, of_stack);
  }
  std::vector<uint64_t> bytes_old, counts_old;
  uint64_t all = 0;
  for (size_t k = first_old; k < end_old; ++k) {
    all += bytes[k];
    if (every > 1 && bytes[k] == 0) continue;
    bytes_old.push_back(bytes[k]);
    counts_old.push_back(counts[k]);
  }
  for (const auto& [key, sum] : parts.lines)
    iterations = std::max(iterations, static_cast<size_t>(std::count_if(sum->bytes.begin(), sum->bytes.end(), [](uint64_t of) { return of > 0; })));
  const uint64_t tensors = median(counts_old);
  // It keeps much of what the forward pass makes.
  if (tensors < kGraphTensors || kinds < kGraphKinds || (all * kGraphPart < forward_bytes && tensors < kSurelyGraph)) return std::nullopt;
  Growth graph;
  graph.whole_graph = true;
  graph.category = Category::kActivation;
  graph.every = static_cast<uint32_t>(every);
  graph.bytes_each = median(bytes_old);
  graph.allocations_per_iteration = tensors;
  graph.iterations = static_cast<uint32_t>(iterations);
  graph.kept_bytes = parts.total_bytes;
  graph.site = common_caller(timeline, stacks);
  graph.trains_elsewhere = trains_from(timeline, process, graph.site.line);
  std::vector<std::pair<uint64_t, Place>> by_bytes;
  for (const auto& [key, sum] : parts.lines) {
    if (graph.events.size() < 8) graph.events.insert(graph.events.end(), sum->events.begin(), sum->events.end());
    by_bytes.emplace_back(sum->total_bytes, sum->site.line);
  }
  std::stable_sort(by_bytes.begin(), by_bytes.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  for (size_t i = 0; i < by_bytes.size() && i < 4; ++i) graph.lines.push_back(by_bytes[i].second);
  if (!graph.site.line.known() && !by_bytes.empty()) graph.site.line = graph.site.user_line = by_bytes.front().second;
  return graph;
}

struct Survivors {
  std::map<LineKey, LineSum> lines;
  uint64_t forward_bytes = 0;  // made inside modules, in the iterations that count
};

// What iterations before end_kept made and what is alive at end_event, by line. [first_old, end_old): the iterations that count.
Survivors survivors_of(const Timeline& timeline, int device, uint32_t process, const std::vector<Iteration>& iterations, size_t first_old, size_t end_old, size_t end_kept, uint64_t end_event) {
  Survivors out;
  for (const Allocation& a : timeline.allocations()) {
    if (a.device != device || a.process != process || a.before_history) continue;
    const size_t k = iteration_of(iterations, a.alloc_event);
    if (k == SIZE_MAX) continue;
    const StackFacts& facts = timeline.stacks()[a.stack];
    const Phase phase = timeline.record().events[a.alloc_event].phase;
    const bool in_forward = (facts.in_module || phase == Phase::kForward || phase == Phase::kEval) && !facts.in_backward;
    if (in_forward && k >= first_old && k < end_old) out.forward_bytes += a.block_bytes;
    if (k >= end_kept || !a.live_at(end_event) || stays_by_design(timeline, a)) continue;
    const Site site = timeline.stacks().site(timeline.record().events[a.alloc_event]);
    LineSum& sum = out.lines[key_of(site)];
    if (sum.bytes.empty()) {
      sum.bytes.resize(iterations.size());
      sum.counts.resize(iterations.size());
      sum.site = site;
    }
    sum.bytes[k] += a.block_bytes;
    ++sum.counts[k];
    sum.total_bytes += a.block_bytes;
    sum.categories[a.category] += a.block_bytes;
    if (a.category == Category::kActivation) sum.activation_bytes += a.block_bytes;
    if (in_forward || (facts.in_functional && !facts.in_backward)) sum.forward_bytes += a.block_bytes;
    if (facts.in_backward || phase == Phase::kBackward || (facts.empty && phase == Phase::kOther)) sum.backward_bytes += a.block_bytes;
    if (k >= first_old && k < end_old) {
      ++sum.sizes[a.requested_bytes];
      sum.stacks[a.stack] += a.block_bytes;
      if (sum.events.size() < 8) sum.events.push_back(a.alloc_event);
    }
  }
  return out;
}

GrowthReport growth_over(const Timeline& timeline, int device, uint32_t process, const IterationRange& range, uint64_t end_event, bool failed) {
  GrowthReport report;
  const auto& iterations = range.iterations;
  report.are_steps = range.are_steps;
  report.anchor = range.anchor;
  report.iterations = static_cast<uint32_t>(iterations.size());
  report.end_event = end_event;
  if (iterations.empty()) return report;
  report.last_number = iterations.back().number;
  report.last_peak_bytes = timeline.peak_between(device, iterations.back().first_event, iterations.back().end_event).allocated;
  if (iterations.size() < kMinIterations) return report;
  // The first iteration warms up (optimizer state, workspaces, caches); what the last one made may still be in use.
  const size_t first_old = 1, end_old = iterations.size() - 1;
  const size_t old = end_old - first_old;
  // At a failure the last one's part counts among what is kept, but proves nothing.
  const size_t end_kept = failed ? iterations.size() : end_old;

  const Survivors survivors = survivors_of(timeline, device, process, iterations, first_old, end_old, end_kept, end_event);
  const std::map<LineKey, LineSum>& lines = survivors.lines;

  // Does the whole really grow?
  std::vector<uint64_t> after;
  for (const Iteration& iteration : iterations) after.push_back(allocated_at(timeline, device, iteration.end_event - 1));
  const uint64_t net_growth = after.back() > after.front() ? after.back() - after.front() : 0;
  const std::map<LineKey, uint64_t> released = failed ? std::map<LineKey, uint64_t>{} : released_before(timeline, device, process, iterations.front().first_event, static_cast<uint32_t>(end_event), lines);

  std::map<size_t, GraphParts> graphs;  // by how often they come
  std::vector<std::pair<LineKey, Growth>> singles;
  for (const auto& [key, sum] : lines) {
    const Pattern pattern = pattern_of(sum.bytes, first_old, end_old);
    if (pattern.every == 0 || !rises_between(after, pattern.at)) continue;
    if (const auto found = released.find(key); found != released.end() && found->second * 2 >= sum.total_bytes) continue;
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
    growth.iterations = static_cast<uint32_t>(std::count_if(sum.bytes.begin(), sum.bytes.end(), [](uint64_t bytes) { return bytes > 0; }));
    growth.events = sum.events;
    if (sum.sizes.size() == 1) growth.size_each = sum.sizes.begin()->first;
    growth.category = std::max_element(sum.categories.begin(), sum.categories.end(), [](const auto& a, const auto& b) { return a.second < b.second; })->first;
    // Parts of a graph: made by the forward pass, of several kinds.
    growth.backward = sum.backward_bytes * 2 >= sum.total_bytes;
    if (!growth.backward && (sum.activation_bytes * 2 >= sum.total_bytes || sum.forward_bytes * 2 >= sum.total_bytes)) {
      GraphParts& parts = graphs[pattern.every];
      parts.lines[key] = &sum;
      parts.total_bytes += sum.total_bytes;
    }
    singles.emplace_back(key, std::move(growth));
  }
  std::set<LineKey> in_graph;
  const auto largest = std::max_element(graphs.begin(), graphs.end(), [](const auto& a, const auto& b) { return a.second.total_bytes < b.second.total_bytes; });
  if (largest != graphs.end()) {
    if (auto graph = graph_of(timeline, process, largest->second, largest->first, first_old, end_old, survivors.forward_bytes)) {
      for (const auto& [key, sum] : largest->second.lines) in_graph.insert(key);
      // What a backward pass made that can be gone through again (create_graph) hangs on the same graph.
      for (const auto& [key, growth] : singles) {
        if (!growth.backward || growth.every != graph->every || growth.bytes_each > 4 * graph->bytes_each) continue;
        in_graph.insert(key);
        graph->kept_bytes += growth.kept_bytes;
        graph->bytes_each += growth.bytes_each;
        graph->allocations_per_iteration += growth.allocations_per_iteration;
      }
      graph->bytes_per_iteration = graph->bytes_each / graph->every;
      report.growth.push_back(std::move(*graph));
    }
  }
  for (auto& [key, growth] : singles) {
    if (in_graph.count(key) == 0) report.growth.push_back(std::move(growth));
  }
  std::erase_if(report.growth, [&](const Growth& growth) {
    const bool long_and_sure = iterations.size() >= kManyIterations && growth.kept_bytes >= kMinBytesOverMany;
    return growth.bytes_per_iteration < kMinBytesPerIteration && !long_and_sure;
  });
  std::map<LineKey, uint64_t> left_behind;
  for (const auto& [key, sum] : lines) left_behind[key] = sum.total_bytes;
  for (Growth& growth : find_replaced(timeline, device, process, iterations, end_event, failed, left_behind)) report.growth.push_back(std::move(growth));
  if (timeline.record().history_truncated) find_older(timeline, device, process, end_event, report);
  std::stable_sort(report.growth.begin(), report.growth.end(), [](const Growth& a, const Growth& b) { return a.kept_bytes > b.kept_bytes; });
  for (const Growth& growth : report.growth) {
    report.bytes_per_iteration += growth.bytes_per_iteration;
    report.kept_bytes += growth.kept_bytes;
    report.older_bytes += growth.older_bytes;
  }
  // Survivors that something else made room for are an exchange, not growth.
  if (net_growth * 2 < report.bytes_per_iteration * old) {
    report.growth.clear();
    report.bytes_per_iteration = report.kept_bytes = report.older_bytes = 0;
  }
  report.saw_backward = has_phase(timeline, process, iterations, Phase::kBackward);
  return report;
}

}  // namespace

Site common_caller(const Timeline& timeline, const std::vector<std::pair<uint32_t, uint64_t>>& stack_bytes) {
  const trace::Record& record = timeline.record();
  std::vector<std::pair<uint32_t, uint64_t>> inside;
  for (const auto& [stack, bytes] : stack_bytes) {
    if (!record.stacks[stack].empty()) inside.emplace_back(stack, bytes);
  }
  Site site;
  for (size_t depth = 0;; ++depth) {
    std::map<std::tuple<uint32_t, uint32_t, uint32_t>, uint64_t> next;  // file, line, function -> bytes
    uint64_t all = 0;
    for (const auto& [stack, bytes] : inside) {
      all += bytes;
      const auto& frames = record.stacks[stack];
      if (depth >= frames.size()) continue;
      const record::Frame& frame = frames[frames.size() - 1 - depth];
      next[{frame.file, frame.line, frame.function}] += bytes;
    }
    if (next.empty()) return site;
    const auto most = std::max_element(next.begin(), next.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most->second * 10 < all * 9) return site;
    const auto [file, line, function] = most->first;
    // Inside a module's call it is the model's own code; the line that calls it is the one to look at.
    const std::string_view name = bare_name(record.string(function));
    if (site.line.known() && (name == "_call_impl" || name == "_wrapped_call_impl")) return site;
    if (owner_of(record.string(file)) == FileOwner::kUser) {
      site.line = {record.string(file), line, record.string(function)};
      site.user_line = site.line;
    }
    std::erase_if(inside, [&](const auto& entry) {
      const auto& frames = record.stacks[entry.first];
      if (depth >= frames.size()) return true;
      const record::Frame& frame = frames[frames.size() - 1 - depth];
      return std::tuple(frame.file, frame.line, frame.function) != most->first;
    });
  }
}

GrowthReport find_growth(const Timeline& timeline, int device, uint32_t process, std::optional<uint64_t> failure) {
  const uint64_t events = timeline.record().events.size();
  if (events == 0) return {};
  IterationRange steps = step_iterations(timeline, process);
  if (failure) std::erase_if(steps.iterations, [&](const Iteration& iteration) { return iteration.end_event > *failure; });
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
  // After the last step, or instead of steps: a loop. Steps that are only guessed may be none.
  const bool guessed = std::any_of(timeline.steps().begin(), timeline.steps().end(), [&](const Step& step) { return step.process == process && step.source == StepSource::kPeriod; });
  try_loop(steps.iterations.empty() ? 0 : steps.iterations.back().end_event);
  if (guessed && best.growth.empty()) try_loop(0);
  return best;
}

}  // namespace tonnage::analysis
