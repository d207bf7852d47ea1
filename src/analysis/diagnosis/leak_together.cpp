// Lines that grow together: one cause, one finding.
#include "analysis/diagnosis/leak_lines.h"

#include <algorithm>
#include <map>

#include "analysis/timeline/categories.h"

namespace tonnage::analysis {
namespace {

// The innermost line of the user's own code that most of the bytes have in common, seen from
// outside and not beyond a module's call.
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

using Role = GrowthPart::Role;

constexpr size_t kGraphTensors = 5;   // fewer tensors an iteration are not called a graph
constexpr size_t kInsideTensors = 3;  // of one line, made between modules of PyTorch
constexpr size_t kGraphKinds = 3;     // nor are equal ones: different sizes and stacks
constexpr size_t kGraphPart = 5;  // a graph holds at least a fifth of what the forward pass makes
constexpr uint64_t kSmallPart = 100;  // less than a hundredth of the largest line is not told of
constexpr size_t kSurelyGraph = 24;   // tensors an iteration: nobody keeps so many one by one

// Whether the stack passes through that line.
bool passes(const record::Record& record, uint32_t stack, const Place& line) {
  const auto& frames = record.stacks[stack];
  return std::any_of(frames.begin(), frames.end(), [&](const abi::Frame& frame) {
    return frame.line == line.line && record.string(frame.file) == line.file &&
           record.string(frame.function) == line.function;
  });
}

// Whether a backward pass freed what some forward pass called from that line had made.
bool trains_from(const Timeline& timeline, uint32_t process, const Place& line) {
  const record::Record& record = timeline.record();
  if (!line.known()) return false;
  std::vector<int> known(record.stacks.size(), -1);
  for (const Allocation& a : timeline.allocations()) {
    if (a.process != process || a.before_history || a.free_event == kNever ||
        a.category != Category::kActivation || a.stack >= record.stacks.size())
      continue;
    int& from_line = known[a.stack];
    if (from_line < 0) from_line = passes(record, a.stack, line);
    if (from_line == 1 &&
        phase_of(record, timeline.stacks(), record.events[a.free_event], true) == Phase::kBackward)
      return true;
  }
  return false;
}

// Whether both leave something behind in the same iterations, with one or two exceptions.
bool same_rhythm(const Pattern& a, const Pattern& b) {
  if (a.every != b.every) return false;
  std::vector<size_t> both;
  std::set_intersection(a.at.begin(), a.at.end(), b.at.begin(), b.at.end(),
                        std::back_inserter(both));
  const size_t apart = a.at.size() + b.at.size() - 2 * both.size();
  return apart <= 1 + both.size() / 10;
}

GrowthPart part_of(Role role, const Growth& growth) {
  return {role, growth.site, growth.bytes_per_iteration, growth.allocations_per_iteration};
}

// May the line be part of what autograd saves of a forward pass?
bool from_forward(const LineSum& sum) {
  const auto state = sum.categories.find(Category::kOptimizerState);
  if (state != sum.categories.end() && state->second * 2 >= sum.total_bytes) return false;
  return !sum.backward && sum.factory_bytes * 2 < sum.total_bytes &&
         (sum.activation_bytes * 2 >= sum.total_bytes || sum.forward_bytes * 2 >= sum.total_bytes);
}

// Several tensors each time that only modules of PyTorch had in their hands: what holds them is the
// graph (or a hook).
bool lies_inside(const LineSum& sum, const Pattern& pattern) {
  const uint64_t each = pattern.at.empty() ? 0 : sum.inside / pattern.at.size();
  return each >= kInsideTensors || (each >= 2 && sum.modules.size() >= 2);
}

// Joins the lines if they are what autograd saves in a pass, and not a few outputs that are kept.
std::optional<Growth> graph_of(const Timeline& timeline, uint32_t process,
                               const std::vector<const GrowingLine*>& lines,
                               const GrowthRange& range) {
  std::vector<uint64_t> bytes(range.end_old), counts(range.end_old);
  size_t kinds = 0;
  bool inside = false;
  std::vector<std::pair<uint32_t, uint64_t>> stacks, in_modules;
  Growth graph;
  const LineSum* most = nullptr;
  for (const GrowingLine* line : lines) {
    const LineSum& sum = *line->sum;
    kinds += sum.sizes.size() + sum.stacks.size();
    inside |= lies_inside(sum, line->pattern);
    for (size_t k = 0; k < range.end_old; ++k) {
      bytes[k] += sum.bytes[k];
      counts[k] += sum.counts[k];
    }
    for (const auto& [stack, of_stack] : sum.stacks)
      (timeline.stacks()[stack].in_module ? in_modules : stacks).emplace_back(stack, of_stack);
    graph.iterations = std::max(graph.iterations, line->growth.iterations);
    graph.kept_bytes += sum.total_bytes;
    if (graph.events.size() < 8)
      graph.events.insert(graph.events.end(), sum.events.begin(), sum.events.end());
    if (!most || sum.total_bytes > most->total_bytes) most = &sum;
    graph.parts.push_back(part_of(Role::kForward, line->growth));
  }
  graph.every = lines.front()->growth.every;
  std::vector<uint64_t> bytes_old, counts_old;
  uint64_t all = 0;
  for (size_t k = range.first_old; k < range.end_old; ++k) {
    all += bytes[k];
    if (graph.every > 1 && bytes[k] == 0) continue;
    bytes_old.push_back(bytes[k]);
    counts_old.push_back(counts[k]);
  }
  const uint64_t tensors = median(counts_old);
  // It keeps much of what the forward pass makes.
  const bool few = tensors < kGraphTensors || kinds < kGraphKinds ||
                   (all * kGraphPart < range.forward_bytes && tensors < kSurelyGraph);
  if (few && !inside) return std::nullopt;
  graph.whole_graph = true;
  graph.category = Category::kActivation;
  graph.bytes_each = median(bytes_old);
  graph.allocations_per_iteration = tensors;
  // The line that calls the model, where modules are seen: what is made beside them comes from
  // elsewhere in the loop.
  if (in_modules.empty()) in_modules = stacks;
  graph.site = common_caller(timeline, in_modules);
  graph.trains_elsewhere = trains_from(timeline, process, graph.site.line);
  if (!graph.site.line.known()) graph.site.line = graph.site.user_line = most->site.line;
  return graph;
}

// Made before the graph in each iteration, and not larger than the graph: the inputs of the pass.
bool comes_before(const GrowingLine& line, const std::vector<uint32_t>& graph_begins) {
  size_t before = 0;
  for (const size_t k : line.pattern.at) before += line.sum->last_event[k] < graph_begins[k];
  return before * 10 >= line.pattern.at.size() * 9;
}

// Whether all of it was made by calls from that line of the program.
bool called_from(const Timeline& timeline, const LineSum& sum, const Place& line) {
  return line.known() && !sum.stacks.empty() &&
         std::all_of(sum.stacks.begin(), sum.stacks.end(), [&](const auto& stack) {
           return passes(timeline.record(), stack.first, line);
         });
}

void add_part(Role role, const Growth& part, Growth& whole) {
  whole.parts.push_back(part_of(role, part));
  whole.kept_bytes += part.kept_bytes;
  whole.bytes_each += part.bytes_each;
  whole.allocations_per_iteration += part.allocations_per_iteration;
}

// The graph with all that hangs on it. taken: by line.
std::optional<Growth> whole_graph(const Timeline& timeline, uint32_t process,
                                  const std::vector<GrowingLine>& lines, const GrowthRange& range,
                                  std::vector<bool>& taken) {
  std::map<uint32_t, std::vector<const GrowingLine*>> by_rhythm;
  std::map<uint32_t, uint64_t> bytes;
  for (const GrowingLine& line : lines) {
    if (!from_forward(*line.sum)) continue;
    by_rhythm[line.growth.every].push_back(&line);
    bytes[line.growth.every] += line.sum->total_bytes;
  }
  if (bytes.empty()) return std::nullopt;
  const auto largest = std::max_element(
      bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  const auto& forward = by_rhythm[largest->first];
  std::optional<Growth> graph = graph_of(timeline, process, forward, range);
  if (!graph) return std::nullopt;
  std::vector<uint32_t> begins(range.end_old + 1, UINT32_MAX);
  const GrowingLine* main = forward.front();
  for (const GrowingLine* line : forward) {
    taken[static_cast<size_t>(line - lines.data())] = true;
    for (size_t k = 0; k < range.end_old; ++k)
      begins[k] = std::min(begins[k], line->sum->first_event[k]);
    if (line->sum->total_bytes > main->sum->total_bytes) main = line;
  }
  const uint64_t saved = graph->bytes_each;
  for (size_t i = 0; i < lines.size(); ++i) {
    const GrowingLine& line = lines[i];
    if (taken[i] || !same_rhythm(line.pattern, main->pattern)) continue;
    if (line.sum->backward) {
      // What a backward pass made that can be gone through again (create_graph) hangs on the same
      // graph.
      graph->backward_bytes += line.growth.bytes_each;
      add_part(Role::kBackward, line.growth, *graph);
    } else if (line.growth.bytes_each <= saved &&
               (comes_before(line, begins) || called_from(timeline, *line.sum, graph->site.line))) {
      add_part(Role::kInput, line.growth, *graph);
    } else {
      continue;
    }
    taken[i] = true;
  }
  graph->bytes_per_iteration = graph->bytes_each / graph->every;
  return graph;
}

// Tensors that one function keeps in the same iterations, tensors that backward passes make in
// them, and a tensor with its gradient.
bool together(const GrowingLine& a, const GrowingLine& b) {
  if (!same_rhythm(a.pattern, b.pattern)) return false;
  if (a.sum->backward && b.sum->backward) return true;
  if (a.sum->backward != b.sum->backward)
    return a.growth.size_each && a.growth.size_each == b.growth.size_each &&
           a.growth.allocations_per_iteration == b.growth.allocations_per_iteration;
  const auto place = [](const LineSum& sum) -> const Place& {
    return sum.site.user_line.known() ? sum.site.user_line : sum.site.line;
  };
  const Place &one = place(*a.sum), &other = place(*b.sum);
  return one.known() && one.file == other.file && one.function == other.function;
}

}  // namespace

uint64_t median(std::vector<uint64_t> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

std::vector<Growth> join_lines(const Timeline& timeline, uint32_t process,
                               std::vector<GrowingLine> lines, const GrowthRange& range,
                               bool failed) {
  std::vector<Growth> out;
  std::stable_sort(lines.begin(), lines.end(), [](const GrowingLine& a, const GrowingLine& b) {
    return a.growth.bytes_per_iteration > b.growth.bytes_per_iteration;
  });
  std::vector<bool> taken(lines.size());
  if (auto graph = whole_graph(timeline, process, lines, range, taken))
    out.push_back(std::move(*graph));
  for (size_t i = 0; i < lines.size(); ++i) {
    if (!taken[i] && !failed && !lines[i].sum->backward && fills_a_cache(timeline, lines[i], range))
      taken[i] = true;
  }
  for (size_t i = 0; i < lines.size(); ++i) {
    if (taken[i]) continue;
    Growth growth = lines[i].growth;
    growth.may_be_filling = !growth.backward;
    for (size_t j = i + 1; j < lines.size(); ++j) {
      if (taken[j] || !together(lines[i], lines[j])) continue;
      taken[j] = true;
      if (lines[j].growth.bytes_per_iteration * kSmallPart < lines[i].growth.bytes_per_iteration) {
        growth.kept_bytes += lines[j].growth.kept_bytes;
        continue;
      }
      if (growth.parts.empty())
        growth.parts.push_back(part_of(growth.backward ? Role::kBackward : Role::kBeside, growth));
      add_part(lines[j].sum->backward ? Role::kBackward : Role::kBeside, lines[j].growth, growth);
      growth.size_each.reset();
      growth.idle_iterations = std::min(growth.idle_iterations, lines[j].growth.idle_iterations);
      // A line that is known says more than the name of an operator.
      if (!growth.site.line.known() && lines[j].sum->site.line.known())
        growth.site = lines[j].sum->site;
      // A tensor whose gradient is kept with it hangs on a graph.
      if (lines[i].sum->backward != lines[j].sum->backward)
        growth.with_gradient = true, growth.may_be_filling = false;
    }
    growth.bytes_per_iteration = growth.bytes_each / growth.every;
    out.push_back(std::move(growth));
  }
  for (Growth& growth : out)
    std::stable_sort(growth.parts.begin(), growth.parts.end(),
                     [](const GrowthPart& a, const GrowthPart& b) {
                       return a.bytes_per_iteration > b.bytes_per_iteration;
                     });
  return out;
}

}  // namespace tonnage::analysis
