// Which allocations of a range of iterations are alive at its end, by the line that made them.
#include <algorithm>
#include <map>
#include <set>

#include "analysis/diagnosis/leak_lines.h"

namespace tonnage::analysis {
namespace {

using abi::MemoryEvent;

// Operators that create a tensor without inputs, or copy one: autograd saves it only if it is the
// input of another operator.
bool is_factory(const std::string& op) {
  for (const char* name : {"clone", "_to_copy", "zeros", "ones", "full", "empty", "empty_strided",
                           "rand", "randn", "randint", "arange", "eye", "zeros_like", "ones_like",
                           "full_like", "empty_like", "rand_like", "randn_like"}) {
    if (op.starts_with("aten::") && std::string_view(op).substr(6) == name) return true;
  }
  return false;
}

bool is_backward(const StackFacts& facts, Phase phase) {
  return facts.in_backward || phase == Phase::kBackward || (facts.empty && phase == Phase::kOther);
}

// Made between a module's input and output, where the program holds nothing: modules of PyTorch
// that call each other, and not the product that a head or a single layer returns.
bool inside_a_library(const StackFacts& facts) {
  return facts.in_module && !facts.in_forward && facts.family != OpFamily::kMatrix &&
         facts.family != OpFamily::kConvolution;
}

class SurvivorScan {
 public:
  SurvivorScan(const Timeline& timeline, const GrowthQuestion& question)
      : timeline_(timeline), record_(timeline.record()), question_(question) {}

  Survivors run() {
    find_states_held_twice();
    for (const Allocation& a : timeline_.allocations()) {
      if (a.device == question_.device && a.process == question_.process && !a.before_history)
        add(a);
    }
    std::erase_if(out_.lines, [](const auto& line) { return line.second.total_bytes == 0; });
    return std::move(out_);
  }

 private:
  struct Made {  // one allocation, and what is known of it
    const Allocation& a;
    const MemoryEvent& event;
    const StackFacts& facts;
    size_t iteration;
    bool backward, in_forward, survives;
  };

  void add(const Allocation& a) {
    const size_t k = iteration_of(question_.iterations, a.alloc_event);
    if (k == SIZE_MAX) return;
    const MemoryEvent& event = record_.events[a.alloc_event];
    const StackFacts& facts = timeline_.stacks()[a.stack];
    const bool backward = is_backward(facts, event.phase);
    const bool in_forward =
        (facts.in_module || event.phase == Phase::kForward || event.phase == Phase::kEval) &&
        !backward;
    if (in_forward && counts(k)) out_.forward_bytes += a.block_bytes;
    // An optimizer's state is made once for each parameter. Where there are several at once, the
    // old optimizers are kept.
    const bool again = a.category == Category::kOptimizerState && twice_.contains(a.name);
    if (!again && stays_by_design(timeline_, a)) return;
    const bool survives = k < question_.end_kept && a.live_at(question_.end_event);
    const Made made{a, event, facts, k, backward, in_forward, survives};
    LineSum* sum = line_of(made);
    if (!sum) return;
    ++sum->made[k];
    count_late(made, *sum);
    if (survives) add_survivor(made, *sum);
  }

  // Names of optimizer states of which several are alive at once ("layer.weight.exp_avg").
  void find_states_held_twice() {
    std::map<uint32_t, uint32_t> alive;
    for (const Allocation& a : timeline_.allocations())
      if (a.device == question_.device && a.process == question_.process &&
          a.category == Category::kOptimizerState && a.name != abi::kNoId &&
          a.live_at(question_.end_event))
        ++alive[a.name];
    for (const auto& [name, count] : alive)
      if (count > 1 && record_.string(name).find('.') != std::string::npos) twice_.insert(name);
  }

  // Within the iterations that count.
  bool counts(size_t k) const {
    return k >= question_.range.first_old && k < question_.range.end_old;
  }

  // Sites are texts: one for each stack, not for each allocation. Stacks that know nothing are told
  // apart by their operators. Null: such a one, which leaves nothing behind.
  LineSum* line_of(const Made& made) {
    if (made.facts.empty && !made.survives) return nullptr;
    if (made.facts.empty) return &new_line(made);
    LineSum*& known = line_of_stack_[{made.a.stack, made.backward}];
    if (!known) known = &new_line(made);
    return known;
  }

  LineSum& new_line(const Made& made) {
    const Site site = timeline_.stacks().site(made.event);
    LineSum& sum = out_.lines[{key_of(site), made.backward}];
    if (!sum.bytes.empty()) return sum;
    const size_t iterations = question_.iterations.size();
    sum.bytes.resize(iterations);
    sum.counts.resize(iterations);
    sum.made.resize(iterations);
    sum.first_event.resize(iterations, UINT32_MAX);
    sum.last_event.resize(iterations);
    sum.site = site;
    sum.backward = made.backward;
    return sum;
  }

  // Held beyond its own iteration, in the last two of them.
  void count_late(const Made& made, LineSum& sum) const {
    const size_t iterations = question_.iterations.size();
    const size_t freed_in = made.a.free_event == kNever
                                ? SIZE_MAX
                                : iteration_of(question_.iterations, made.a.free_event);
    if (freed_in == made.iteration) return;
    if (made.iteration + 2 >= iterations) ++sum.born_late;
    if (freed_in != SIZE_MAX && freed_in + 2 >= iterations) {
      ++sum.died_late;
      sum.youngest_died = std::max(sum.youngest_died, made.a.alloc_event);
    }
  }

  void add_survivor(const Made& made, LineSum& sum) const {
    const Allocation& a = made.a;
    const size_t k = made.iteration;
    sum.bytes[k] += a.block_bytes;
    ++sum.counts[k];
    sum.first_event[k] = std::min(sum.first_event[k], a.alloc_event);
    sum.last_event[k] = std::max(sum.last_event[k], a.alloc_event);
    sum.total_bytes += a.block_bytes;
    sum.categories[a.category] += a.block_bytes;
    if (a.category == Category::kActivation) sum.activation_bytes += a.block_bytes;
    if (made.in_forward || (made.facts.in_functional && !made.facts.in_backward))
      sum.forward_bytes += a.block_bytes;
    if (made.event.op != abi::kNoId && !made.facts.in_module && !made.facts.in_forward &&
        is_factory(record_.string(made.event.op)))
      sum.factory_bytes += a.block_bytes;
    if (!counts(k)) return;
    ++sum.sizes[a.requested_bytes];
    if (inside_a_library(made.facts)) {
      ++sum.inside;
      if (made.event.module != abi::kNoId) sum.modules.insert(made.event.module);
    }
    sum.stacks[a.stack] += a.block_bytes;
    if (sum.events.size() < 8) sum.events.push_back(a.alloc_event);
  }

  const Timeline& timeline_;
  const record::Record& record_;
  const GrowthQuestion& question_;
  Survivors out_;
  std::set<uint32_t> twice_;
  std::map<std::pair<uint32_t, bool>, LineSum*> line_of_stack_;
};

}  // namespace

Survivors survivors_of(const Timeline& timeline, const GrowthQuestion& question) {
  return SurvivorScan(timeline, question).run();
}

// These lines made tensors before the range, which were kept for a while and then freed. So they
// will be freed again (the results of a validation).
std::map<LineKey, uint64_t> released_before(const Timeline& timeline,
                                            const GrowthQuestion& question,
                                            const std::map<LineKey, uint64_t>& lines) {
  const uint32_t first_event = question.iterations.front().first_event;
  const auto last_event = static_cast<uint32_t>(question.end_event);
  std::map<LineKey, uint64_t> released;
  std::map<uint32_t, std::vector<const Allocation*>> by_stack;
  for (const Allocation& a : timeline.allocations()) {
    if (a.device != question.device || a.process != question.process || a.before_history) continue;
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

}  // namespace tonnage::analysis
