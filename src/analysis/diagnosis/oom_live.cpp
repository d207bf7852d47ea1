// What is alive at the failure.
#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "analysis/diagnosis/oom_parts.h"

namespace tonnage::analysis {
namespace {

using abi::MemoryEvent;
using record::Record;

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

constexpr size_t kMostLines = 10;
constexpr uint32_t kMinRepeats = 3, kMaxPerLayer = 4;

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
    // At most as many of one size from one line as there are parameters of that size. More would be
    // samples of the same size.
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

// Without the operators' names, autocast's copies are found by number and size: half of a
// parameter's size, as many as there are parameters of that size, and nearly everything that the
// pass has made so far.
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

class LiveReader {
 public:
  LiveReader(const Timeline& timeline, OomFacts& facts)
      : timeline_(timeline), record_(timeline.record()), facts_(facts) {
    timeline.for_each_live(facts.failure.device, facts.event, [&](const Allocation& a) {
      if (a.process == facts.process) live_.push_back(&a);
    });
  }

  void run() {
    for (const Allocation* a : live_) read(*a);
    count_casts();
    facts_.mechanisms = find_mechanisms(timeline_, live_);
    facts_.static_bytes = facts_.of(Category::kParameter) + facts_.of(Category::kBuffer) +
                          facts_.of(Category::kGradient) + facts_.of(Category::kOptimizerState);
    if (facts_.copies_bytes == 0 && facts_.phase == Phase::kForward)
      read_copies_by_size(timeline_, live_, facts_);
    read_logits(timeline_, live_, facts_);
    read_weight_copies(timeline_, live_, facts_);
    find_layers();
    facts_.top_activations = largest_of(activations_);
    facts_.top_lines = largest_of(lines_);
  }

 private:
  using Key = std::tuple<std::string, uint32_t, std::string>;
  using Lines = std::map<Key, LineBytes>;
  using Known = std::unordered_map<uint32_t, bool>;  // by stack

  template <class Compute>
  static bool cached(Known& known, uint32_t stack, Compute&& compute) {
    auto [entry, is_new] = known.try_emplace(stack, false);
    if (is_new) entry->second = compute();
    return entry->second;
  }

  static void add(const Allocation& a, const Site& site, Lines& to) {
    LineBytes& entry = to[{site.line.file, site.line.line, site.line.function}];
    if (entry.count++ == 0) entry.site = site;
    entry.bytes += a.requested_bytes;
  }

  static std::vector<LineBytes> largest_of(const Lines& lines) {
    std::vector<LineBytes> out;
    for (const auto& [key, entry] : lines) out.push_back(entry);
    std::stable_sort(out.begin(), out.end(),
                     [](const LineBytes& a, const LineBytes& b) { return a.bytes > b.bytes; });
    if (out.size() > kMostLines) out.resize(kMostLines);
    return out;
  }

  void read(const Allocation& a) {
    const MemoryEvent* event = a.before_history || a.alloc_event >= record_.events.size()
                                   ? nullptr
                                   : &record_.events[a.alloc_event];
    facts_.by_category[static_cast<size_t>(a.category)] += a.requested_bytes;
    facts_.held_bytes += a.block_bytes;
    if (a.category == Category::kParameter) parameter_sizes_.insert(a.requested_bytes);
    const Site site = event ? timeline_.stacks().site(*event)
                            : timeline_.stacks().site(a.stack, abi::kNoId, abi::kNoId);
    add(a, site, lines_);
    if (a.category == Category::kActivation) read_activation(a, site);
    if (!event) return;
    read_earlier_failure(a);
    read_optimizer(a);
    read_cast(a, *event);
  }

  // Made for the pass of an attempt that had failed before.
  void read_earlier_failure(const Allocation& a) {
    const bool made_for_a_pass = a.category == Category::kActivation ||
                                 a.category == Category::kTemporary ||
                                 a.category == Category::kInput;
    if (!facts_.earlier_failure || a.alloc_event >= *facts_.earlier_failure || !made_for_a_pass)
      return;
    facts_.kept_by_failure_bytes += a.requested_bytes;
    ++facts_.kept_by_failure_count;
  }

  void read_activation(const Allocation& a, const Site& site) {
    add(a, site, activations_);
    ++groups_[{a.stack, a.requested_bytes}];
    if (!cached(checkpoints_, a.stack,
                [&] { return stack_in(record_, a.stack, "torch/utils/checkpoint.py"); }))
      return;
    facts_.checkpointed_bytes += a.requested_bytes;
    facts_.checkpoint_seen = true;
  }

  void read_optimizer(const Allocation& a) {
    if (!timeline_.stacks()[a.stack].in_optimizer || a.category == Category::kOptimizerState)
      return;
    facts_.optimizer_temporary_bytes += a.requested_bytes;
    facts_.foreach_copies |= cached(foreach_, a.stack, [&] {
      const auto& frames = record_.stacks[a.stack];
      return std::any_of(frames.begin(), frames.end(), [&](const auto& f) {
        return contains(record_.string(f.function), "_multi_tensor_");
      });
    });
  }

  // A move to the device is no conversion, and a conversion outside of a pass is the program's own.
  void read_cast(const Allocation& a, const MemoryEvent& event) {
    const StackFacts& stack = timeline_.stacks()[a.stack];
    const bool moved = stack.converts_module || a.category == Category::kParameter ||
                       a.category == Category::kBuffer || a.category == Category::kInput;
    const bool in_pass = event.phase == Phase::kForward || event.phase == Phase::kBackward ||
                         event.phase == Phase::kEval || stack.in_module || stack.in_functional ||
                         stack.in_backward;
    if (!in_pass || event.op == abi::kNoId || facts_.phase == Phase::kOptimizer || moved) return;
    const std::string& op = record_.string(event.op);
    if (op != "aten::_to_copy" && op != "aten::to") return;
    facts_.autocast_seen = true;
    casts_.push_back(&a);
  }

  // Casts of activations are activations; those of parameters' sizes are kept beside them.
  void count_casts() {
    for (const Allocation* cast : casts_) {
      const uint64_t size = cast->requested_bytes;
      const bool of_parameter = parameter_sizes_.count(size * 2) ||
                                parameter_sizes_.count(size / 2) || parameter_sizes_.count(size);
      if (of_parameter) facts_.copies_bytes += size;
    }
  }

  // Repeated layers: the number of repetitions that accounts for the most bytes.
  void find_layers() {
    struct Repeated {
      uint64_t bytes = 0;                  // of one repetition
      std::map<uint64_t, uint64_t> sizes;  // size -> how many
    };
    std::map<uint64_t, Repeated> by_count;
    for (const auto& [key, count] : groups_) {
      if (count < kMinRepeats) continue;
      by_count[count].bytes += key.second;
      ++by_count[count].sizes[key.second];
    }
    uint64_t most = 0;
    for (const auto& [count, entry] : by_count) {
      // Counts that differ by one belong to the same layers, if some are not finished. Twice the
      // count means two tensors for each layer.
      uint64_t block = 0;
      std::map<uint64_t, uint64_t> sizes;
      for (const auto& [other, other_entry] : by_count) {
        for (uint64_t times = 1; times <= kMaxPerLayer; ++times) {
          if (other + 1 < count * times || other > count * times) continue;
          block += other_entry.bytes * times;
          for (const auto& [size, number] : other_entry.sizes) sizes[size] += number * times;
          break;
        }
      }
      if (block * count <= most) continue;
      most = block * count;
      facts_.blocks = count;
      facts_.block_bytes = block;
      // What passes from layer to layer is the size that most tensors have.
      facts_.block_boundary_bytes =
          std::max_element(sizes.begin(), sizes.end(), [](const auto& a, const auto& b) {
            return a.second < b.second;
          })->first;
    }
  }

  const Timeline& timeline_;
  const Record& record_;
  OomFacts& facts_;
  std::vector<const Allocation*> live_, casts_;
  Lines lines_, activations_;
  std::map<std::pair<uint32_t, uint64_t>, uint64_t> groups_;  // (stack, size) -> count
  std::unordered_set<uint64_t> parameter_sizes_;
  Known checkpoints_, foreach_;
};

}  // namespace

void read_live(const Timeline& timeline, OomFacts& facts) { LiveReader(timeline, facts).run(); }

}  // namespace tonnage::analysis
