#include "analysis/diagnosis/leak_lines.h"

#include <algorithm>
#include <unordered_map>

namespace tonnage::analysis {
namespace {

using abi::EventKind;
using abi::MemoryEvent;

constexpr size_t kMinForTrend = 6;  // iterations
constexpr size_t kKeptEvents = 8;   // of the allocations, as evidence

// What a line holds at the end of each iteration.
struct Held {
  std::vector<int64_t> change;  // by iteration: bytes, as differences
  uint64_t at_end_bytes = 0;    // of the record
  Site site;
  Category category = Category::kUnknown;
  std::vector<uint64_t> events;
  bool in_generation = false;

  std::vector<uint64_t> bytes() const {
    std::vector<uint64_t> out;
    int64_t now = 0;
    for (size_t k = 0; k + 1 < change.size(); ++k)
      out.push_back(static_cast<uint64_t>(std::max<int64_t>(now += change[k], 0)));
    return out;
  }
};

// Do most places make tensors of the same size in both iterations? If the samples themselves grow,
// what an iteration holds at its end (its loss, its batch) grows with them.
bool same_shapes(const Timeline& timeline, int device, uint32_t process, const Iteration& a,
                 const Iteration& b) {
  const auto sizes_of = [&](const Iteration& iteration) {
    std::map<uint32_t, uint64_t> sizes;
    for (uint32_t i = iteration.first_event;
         i < iteration.end_event && i < timeline.record().events.size(); ++i) {
      const MemoryEvent& event = timeline.record().events[i];
      if (event.kind != EventKind::kAlloc || event.process != process || event.device != device ||
          event.stack == abi::kNoId)
        continue;
      uint64_t& largest = sizes[event.stack];
      largest = std::max(largest, event.size_bytes);
    }
    return sizes;
  };
  const auto before = sizes_of(a), after = sizes_of(b);
  size_t both = 0, same = 0;
  for (const auto& [stack, size] : after) {
    const auto found = before.find(stack);
    if (found == before.end() || size < (4u << 10)) continue;
    ++both;
    same += found->second == size;
  }
  return both > 0 && same * 2 >= both;
}

std::map<LineKey, Held> held_by_line(const Timeline& timeline, int device, uint32_t process,
                                     const std::vector<Iteration>& iterations, uint64_t end_event) {
  const record::Record& record = timeline.record();
  uint64_t last_event =
      0;  // the last at which the process asked for memory: what follows is its end
  for (const Allocation& a : timeline.allocations()) {
    if (a.process == process && !a.before_history) last_event = a.alloc_event;
  }
  std::map<LineKey, Held> lines;
  std::unordered_map<uint32_t, Held*>
      line_of_stack;  // sites are texts: one for each stack, not for each allocation
  std::map<uint32_t, uint64_t> at_end_bytes;  // by stack
  for (const Allocation& a : timeline.allocations()) {
    if (a.device != device || a.process != process || a.before_history ||
        stays_by_design(timeline, a))
      continue;
    if (a.category == Category::kGradient || timeline.stacks()[a.stack].empty) continue;
    if (a.live_at(last_event)) at_end_bytes[a.stack] += a.requested_bytes;
    const size_t from = iteration_of(iterations, a.alloc_event);
    if (from == SIZE_MAX) continue;
    const size_t freed_in =
        a.free_event == kNever
            ? SIZE_MAX
            : iteration_of(iterations, a.free_event);  // not held at the end of this one
    const size_t until = std::min(freed_in, iterations.size());
    if (until <= from) continue;
    Held*& line = line_of_stack[a.stack];
    if (!line) {
      const Site site = timeline.stacks().site(record.events[a.alloc_event]);
      line = &lines[key_of(site)];
      if (line->change.empty()) {
        line->change.resize(iterations.size() + 1);
        line->site = site;
        line->category = a.category;
        line->in_generation = generates(record, a.stack);
      }
    }
    line->change[from] += static_cast<int64_t>(a.requested_bytes);
    line->change[until] -= static_cast<int64_t>(a.requested_bytes);
    if (a.live_at(end_event) && line->events.size() < kKeptEvents)
      line->events.push_back(a.alloc_event);
  }
  for (const auto& [stack, bytes] : at_end_bytes) {
    const auto found = lines.find(key_of(timeline.stacks().site(stack, abi::kNoId, abi::kNoId)));
    if (found != lines.end()) found->second.at_end_bytes += bytes;
  }
  return lines;
}

}  // namespace

bool generates(const record::Record& record, uint32_t stack) {
  for (const abi::Frame& frame : record.stacks[stack]) {
    const std::string& function = record.string(frame.function);
    for (const char* name : {"generate", "decode", "sample"}) {
      if (function.find(name) != std::string::npos) return true;
    }
  }
  return false;
}

LineKey key_of(const Site& site) {
  const Place& place = site.user_line.known() ? site.user_line : site.line;
  return {place.file, place.line, place.function};
}

size_t iteration_of(const std::vector<Iteration>& iterations, uint32_t event) {
  const auto after = std::upper_bound(
      iterations.begin(), iterations.end(), event,
      [](uint32_t e, const Iteration& iteration) { return e < iteration.end_event; });
  if (after == iterations.end() || event < after->first_event) return SIZE_MAX;
  return static_cast<size_t>(after - iterations.begin());
}

bool stays_by_design(const Timeline& timeline, const Allocation& a) {
  const StackFacts& facts = timeline.stacks()[a.stack];
  if (facts.makes_state || facts.converts_module || facts.builds_module) return true;
  if (a.category == Category::kWorkspace) return true;
  if (a.source != CategorySource::kTold) return false;
  // Autograd tells of any leaf that gets a gradient: an input of a gradient penalty has no name, a
  // parameter has one.
  return (a.category == Category::kParameter && a.name != abi::kNoId) ||
         a.category == Category::kBuffer || a.category == Category::kKeyValueCache ||
         a.category == Category::kOptimizerState;
}

std::vector<Growth> find_replaced(const Timeline& timeline, int device, uint32_t process,
                                  const std::vector<Iteration>& iterations, uint64_t end_event,
                                  bool failed, const std::map<LineKey, uint64_t>& left_behind) {
  std::vector<Growth> out;
  if (iterations.size() < kMinForTrend) return out;
  const size_t first = 1, last = iterations.size() - 1;  // the first one warms up
  for (const auto& [key, held] : held_by_line(timeline, device, process, iterations, end_event)) {
    const std::vector<uint64_t> bytes = held.bytes();
    size_t rises = 0, falls = 0;
    for (size_t k = first + 1; k <= last; ++k) {
      rises += bytes[k] > bytes[k - 1];
      falls += bytes[k] < bytes[k - 1];
    }
    if (falls > 0 || rises * 5 < (last - first) * 4 || bytes[last] <= bytes[first]) continue;
    const uint64_t grown = bytes[last] - bytes[first];
    const auto survivors = left_behind.find(key);
    if (survivors != left_behind.end() && survivors->second * 2 > grown) continue;
    if (grown / (last - first) < kMinBytesPerIteration) continue;
    if (!same_shapes(timeline, device, process, iterations[first], iterations[last])) continue;
    // The keys and values of one generation grow by design, and what is gone at the end was no leak.
    if (!failed && (held.in_generation || held.at_end_bytes * 2 < grown)) continue;
    Growth growth;
    growth.site = held.site;
    growth.category = held.category;
    growth.replaced = true;
    growth.may_be_filling = true;
    growth.kept_bytes = bytes[last];
    growth.bytes_per_iteration = grown / (last - first);
    growth.allocations_per_iteration = 1;
    growth.iterations = static_cast<uint32_t>(rises + 1);
    growth.events = held.events;
    out.push_back(std::move(growth));
  }
  return out;
}

}  // namespace tonnage::analysis
