#include "analysis/leak.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>

#include "analysis/categories.h"

namespace tonnage::analysis {
namespace {

using record::Event;
using record::EventKind;

constexpr size_t kMinIterations = 4;
constexpr uint64_t kMinBytesPerIteration = 64 << 10;
constexpr size_t kGraphTensors = 5;  // fewer tensors an iteration are not called a graph
constexpr size_t kGraphKinds = 6;    // nor are equal ones: different sizes and stacks

using LineKey = std::tuple<std::string, uint32_t, std::string>;

struct LineSum {
  std::vector<uint64_t> bytes, counts;  // by iteration
  std::map<uint64_t, uint64_t> sizes;   // requested size -> count, in the iterations that count
  std::map<uint32_t, uint64_t> stacks;  // stack -> bytes
  uint64_t activation_bytes = 0, total_bytes = 0;
  std::map<Category, uint64_t> categories;
  std::vector<uint64_t> events;
  Site site;
};

// The iteration that contains the event.
size_t iteration_of(const std::vector<Iteration>& iterations, uint32_t event) {
  const auto after = std::upper_bound(iterations.begin(), iterations.end(), event,
                                      [](uint32_t e, const Iteration& iteration) { return e < iteration.end_event; });
  if (after == iterations.end() || event < after->first_event) return SIZE_MAX;
  return static_cast<size_t>(after - iterations.begin());
}

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

  std::map<LineKey, LineSum> lines;
  for (const Allocation& a : timeline.allocations()) {
    if (a.device != device || a.process != process || a.before_history || !a.live_at(end_event)) continue;
    const size_t k = iteration_of(iterations, a.alloc_event);
    if (k == SIZE_MAX || k >= end_kept) continue;
    const Site site = timeline.stacks().site(timeline.record().events[a.alloc_event]);
    const Place& place = site.user_line.known() ? site.user_line : site.line;
    LineSum& sum = lines[{place.file, place.line, place.function}];
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
    if (k >= first_old && k < end_old) {
      ++sum.sizes[a.requested_bytes];
      sum.stacks[a.stack] += a.block_bytes;
      if (sum.events.size() < 8) sum.events.push_back(a.alloc_event);
    }
  }

  // Does the whole really grow?
  std::vector<uint64_t> after;
  for (const Iteration& iteration : iterations) after.push_back(allocated_at(timeline, device, iteration.end_event - 1));
  size_t rises = 0;
  for (size_t i = 1; i < after.size(); ++i) rises += after[i] > after[i - 1];
  if (rises * 10 < (after.size() - 1) * 7) return report;
  const uint64_t net_growth = after.back() > after.front() ? after.back() - after.front() : 0;

  std::vector<std::pair<uint32_t, uint64_t>> graph_stacks;
  std::map<LineKey, LineSum*> graph_lines;
  Growth graph;
  graph.whole_graph = true;
  graph.category = Category::kActivation;
  std::vector<uint64_t> graph_bytes(iterations.size()), graph_counts(iterations.size());
  size_t graph_kinds = 0;
  std::vector<std::pair<LineKey, Growth>> singles;
  for (auto& [key, sum] : lines) {
    size_t present = 0;
    std::vector<uint64_t> in_old, counts;
    for (size_t k = first_old; k < end_old; ++k) {
      present += sum.bytes[k] > 0;
      in_old.push_back(sum.bytes[k]);
      counts.push_back(sum.counts[k]);
    }
    if (present < 2 || present * 5 < old * 4) continue;
    Growth growth;
    growth.site = sum.site;
    growth.kept_bytes = sum.total_bytes;
    growth.bytes_per_iteration = median(in_old);
    growth.allocations_per_iteration = median(counts);
    growth.iterations = static_cast<uint32_t>(std::count_if(sum.bytes.begin(), sum.bytes.end(), [](uint64_t bytes) { return bytes > 0; }));
    growth.events = sum.events;
    if (sum.sizes.size() == 1) growth.size_each = sum.sizes.begin()->first;
    growth.category = std::max_element(sum.categories.begin(), sum.categories.end(), [](const auto& a, const auto& b) { return a.second < b.second; })->first;
    // Parts of a graph: activations, made inside modules or anywhere else, of several kinds.
    if (sum.activation_bytes * 2 >= sum.total_bytes) {
      graph_lines[key] = &sum;
      graph_kinds += sum.sizes.size() + sum.stacks.size();
      for (size_t k = 0; k < iterations.size(); ++k) {
        graph_bytes[k] += sum.bytes[k];
        graph_counts[k] += sum.counts[k];
      }
      for (const auto& [stack, bytes] : sum.stacks) graph_stacks.emplace_back(stack, bytes);
    }
    singles.emplace_back(key, std::move(growth));
  }
  const std::vector<uint64_t> graph_old(graph_bytes.begin() + first_old, graph_bytes.begin() + static_cast<ptrdiff_t>(end_old));
  const std::vector<uint64_t> graph_old_counts(graph_counts.begin() + first_old, graph_counts.begin() + static_cast<ptrdiff_t>(end_old));
  const bool is_graph = median(graph_old_counts) >= kGraphTensors && graph_kinds >= kGraphKinds;
  if (is_graph) {
    graph.bytes_per_iteration = median(graph_old);
    graph.allocations_per_iteration = median(graph_old_counts);
    graph.site = common_caller(timeline, graph_stacks);
    std::vector<std::pair<uint64_t, Place>> by_bytes;
    for (const auto& [key, sum] : graph_lines) {
      graph.kept_bytes += sum->total_bytes;
      if (graph.events.size() < 8) graph.events.insert(graph.events.end(), sum->events.begin(), sum->events.end());
      by_bytes.emplace_back(sum->total_bytes, sum->site.line);
    }
    std::stable_sort(by_bytes.begin(), by_bytes.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    for (size_t i = 0; i < by_bytes.size() && i < 4; ++i) graph.lines.push_back(by_bytes[i].second);
    graph.iterations = static_cast<uint32_t>(std::count_if(graph_bytes.begin(), graph_bytes.end(), [](uint64_t bytes) { return bytes > 0; }));
    report.growth.push_back(std::move(graph));
  }
  for (auto& [key, growth] : singles) {
    if (is_graph && graph_lines.count(key) != 0) continue;
    report.growth.push_back(std::move(growth));
  }
  std::erase_if(report.growth, [](const Growth& growth) { return growth.bytes_per_iteration < kMinBytesPerIteration; });
  std::stable_sort(report.growth.begin(), report.growth.end(), [](const Growth& a, const Growth& b) { return a.kept_bytes > b.kept_bytes; });
  for (const Growth& growth : report.growth) {
    report.bytes_per_iteration += growth.bytes_per_iteration;
    report.kept_bytes += growth.kept_bytes;
  }
  // Survivors that something else made room for are an exchange, not growth.
  if (net_growth * 2 < report.bytes_per_iteration * old) {
    report.growth.clear();
    report.bytes_per_iteration = report.kept_bytes = 0;
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
  // After the last step, or instead of steps: a loop.
  const uint32_t from = steps.iterations.empty() ? 0 : steps.iterations.back().end_event;
  const uint64_t to = failure ? *failure : events;
  IterationRange loop = loop_iterations(timeline, process, from, static_cast<uint32_t>(to));
  if (loop.iterations.empty()) return best;
  const uint64_t end = failure ? *failure : loop.iterations.back().end_event - 1;
  GrowthReport looped = growth_over(timeline, device, process, loop, end, failure.has_value());
  const bool better = looped.kept_bytes > best.kept_bytes || steps.iterations.empty();
  return better ? looped : best;
}

}  // namespace tonnage::analysis
