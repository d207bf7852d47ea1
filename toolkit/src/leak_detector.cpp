#include <algorithm>
#include <map>
#include <set>

#include "memory_trace.h"
#include "tonnage/torch/memory.h"
#include "tonnage/torch/memory_tables.h"

namespace tonnage {
namespace detail {

// Blocks that are alive, by the step that made them, and what places have left behind.
struct LeakState {
  struct Block {
    int64_t size_bytes = 0, step = 0;
    std::pair<uint32_t, uint32_t> place;  // scope and operator
  };
  struct Place {
    std::map<int64_t, std::pair<int64_t, int64_t>>
        left;  // by step: bytes and tensors, when the step after it had ended
  };
  std::unordered_map<uint64_t, Block> live;
  std::map<std::pair<uint32_t, uint32_t>, Place> places;
  int64_t steps = 0;
};

class LeakTrace : public MemoryTrace {
 public:
  using MemoryTrace::MemoryTrace;
  LeakState state;
};

}  // namespace detail

struct MemoryScope::Annotation {
  explicit Annotation(const std::string& name) : function(at::RecordScope::USER_SCOPE) {
    if (function.isActive()) function.before(name);
  }
  at::RecordFunction function;
};

MemoryScope::MemoryScope(const std::string& name)
    : annotation_(std::make_unique<Annotation>(name)) {
  detail::push_scope(name);
}

MemoryScope::~MemoryScope() { detail::pop_scope(); }

LeakDetector::LeakDetector(const LeakOptions& options) : options_(options) {
  TORCH_CHECK_VALUE(options.warmup_steps >= 0 && options.in_a_row >= 2 && options.least_bytes >= 1,
                    "LeakDetector: warmup_steps must not be negative, in_a_row be 2 or more, "
                    "least_bytes 1 or more");
  trace_ = detail::MemoryTrace::start<detail::LeakTrace>(options.device, nullptr, "LeakDetector");
}

LeakDetector::~LeakDetector() { trace_->stop(); }

std::vector<Leak> LeakDetector::step() {
  auto& trace = static_cast<detail::LeakTrace&>(*trace_);
  detail::LeakState& s = trace.state;
  for (const auto& e : trace.take_events()) {
    if (e.size_bytes > 0)
      s.live[e.address] = {e.size_bytes, s.steps, {e.scope, e.operator_name}};
    else
      s.live.erase(e.address);
  }
  // What the step before this one made and is still there.
  const int64_t judged = s.steps - 1;
  std::map<std::pair<uint32_t, uint32_t>, int64_t> alive_now;
  for (const auto& [address, block] : s.live) {
    if (block.step >= options_.warmup_steps) alive_now[block.place] += block.size_bytes;
    if (block.step == judged && judged >= options_.warmup_steps) {
      auto& [bytes, tensors] = s.places[block.place].left[judged];
      bytes += block.size_bytes;
      tensors++;
    }
  }
  s.steps++;
  std::vector<Leak> leaks;
  for (auto& [place, record] : s.places) {
    int64_t bytes = 0, tensors = 0, in_a_row = 0;
    for (int64_t step = judged; step > judged - options_.in_a_row; step--) {
      auto found = record.left.find(step);
      if (found == record.left.end() || found->second.first < options_.least_bytes) break;
      bytes += found->second.first;
      tensors += found->second.second;
      in_a_row++;
    }
    if (in_a_row < options_.in_a_row) continue;
    Leak leak;
    leak.scope = trace.name(place.first);
    leak.operator_name = trace.name(place.second);
    leak.bytes_per_step = bytes / in_a_row;
    leak.tensors_per_step = (tensors + in_a_row / 2) / in_a_row;
    leak.steps = static_cast<int64_t>(record.left.size());
    leak.total_bytes = alive_now[place];
    if (leak.total_bytes > 0) leaks.push_back(leak);
  }
  std::sort(leaks.begin(), leaks.end(),
            [](const Leak& a, const Leak& b) { return a.bytes_per_step > b.bytes_per_step; });
  return leaks;
}

std::string describe(const std::vector<Leak>& leaks) {
  std::string out;
  for (const Leak& l : leaks)
    out += "left behind in every step: " + format_bytes(l.bytes_per_step) + " in " +
           std::to_string(l.tensors_per_step) + (l.tensors_per_step == 1 ? " tensor" : " tensors") +
           " made by " + (l.operator_name.empty() ? "code outside of operators" : l.operator_name) +
           (l.scope.empty() ? "" : " in " + l.scope) + " (" + format_bytes(l.total_bytes) +
           " so far)\n";
  return out;
}

}  // namespace tonnage
