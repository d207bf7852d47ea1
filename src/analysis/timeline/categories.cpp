#include "analysis/timeline/categories.h"

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "analysis/timeline/failures.h"

namespace tonnage::analysis {
namespace {

using abi::EventKind;
using abi::MemoryEvent;

// cuBLAS workspaces that PyTorch keeps per handle and stream: ":4096:2:16:8", and 32 MiB on Hopper
// and later.
constexpr uint64_t kCublasWorkspace = 8'519'680;
constexpr uint64_t kCublasWorkspaceHopper = 33'554'432;

bool changes_allocations(EventKind kind) {
  return kind == EventKind::kAlloc || kind == EventKind::kFreeRequested;
}

struct Guess {
  Category category = Category::kUnknown;
  int confidence = 0;
};

// Sorted event numbers at which something happened, by process.
using Marks = std::unordered_map<uint32_t, std::vector<uint32_t>>;

bool any_between(const Marks& marks, uint32_t process, uint32_t after, uint32_t before) {
  auto found = marks.find(process);
  if (found == marks.end()) return false;
  auto it = std::upper_bound(found->second.begin(), found->second.end(), after);
  return it != found->second.end() && *it < before;
}

// Alike allocations: made by the same operator, in the same module, from the same line, of the same
// size.
struct SiteKey {
  uint64_t size = 0;
  uint32_t stack = 0, op = 0, module = 0;
  Phase phase = Phase::kOther;
  bool operator==(const SiteKey&) const = default;
};
struct SiteHash {
  size_t operator()(const SiteKey& key) const {
    uint64_t h = key.size * 0x9e3779b97f4a7c15ull;
    h = (h ^ key.stack) * 0xff51afd7ed558ccdull;
    h = (h ^ key.op) * 0xc4ceb9fe1a85ec53ull;
    return (h ^ key.module ^ static_cast<uint64_t>(key.phase) << 32) * 0x9e3779b97f4a7c15ull >> 7;
  }
};

class Inference {
 public:
  explicit Inference(Timeline& timeline)
      : timeline_(timeline), record_(timeline.record()), stacks_(timeline.stacks()) {}

  void run() {
    read_phases();
    collect_parameter_sizes();
    collect_workspaces();
    for (const Allocation& a : timeline_.allocations()) {
      if (!a.before_history && has_key(a)) made_alike_[key_of(a)].push_back(a.alloc_event);
    }
    std::vector<uint32_t>
        open;  // the end of their life is not known: out of memory, or the record ends
    std::vector<uint32_t> others;
    auto& allocations = timeline_.allocations();
    for (uint32_t i = 0; i < allocations.size(); ++i) {
      Allocation& a = allocations[i];
      if (a.source == CategorySource::kTold) {
        votes_[key_of(a)][static_cast<size_t>(a.category)] += 1;
        continue;
      }
      (end_known(a) ? others : open).push_back(i);
    }
    for (uint32_t i : others) {
      Allocation& a = allocations[i];
      set(a, guess_from_life(a));
      if (a.category != Category::kUnknown) votes_[key_of(a)][static_cast<size_t>(a.category)] += 1;
    }
    makes_state_ = std::any_of(allocations.begin(), allocations.end(),
                               [&](const Allocation& a) { return facts(a).makes_state; });
    for (uint32_t i : open) ++open_alike_[key_of(allocations[i])];
    for (uint32_t i : open) set(allocations[i], guess_open(allocations[i]));
    // Alike allocations share what is known of any of them.
    for (uint32_t i : others) {
      Allocation& a = allocations[i];
      if (a.category == Category::kUnknown) set(a, guess_from_votes(a));
    }
    guess_old_parameters();
  }

 private:
  void read_phases() {
    const auto& events = record_.events;
    phases_.resize(events.size());
    phase_runs_.resize(events.size());
    op_runs_.resize(events.size());
    struct Thread {
      uint32_t op = 0, module = 0, stack = 0, run = 0;
    };
    struct Process {
      Phase phase = Phase::kOther;
      uint32_t run = 0;
      bool seen_forward = false;
    };
    std::unordered_map<uint64_t, Thread> threads;
    std::unordered_map<uint32_t, Process> processes;
    uint32_t runs = 0;
    for (uint32_t i = 0; i < events.size(); ++i) {
      const MemoryEvent& event = events[i];
      if (event.kind == EventKind::kStep) optimizer_[event.process].push_back(i);
      if (!changes_allocations(event.kind)) continue;
      Process& process = processes[event.process];
      const Phase phase = phase_of(record_, stacks_, event, process.seen_forward);
      if (phase == Phase::kForward) process.seen_forward = true;
      if (phase != process.phase) {
        process.phase = phase;
        ++process.run;
      }
      phases_[i] = phase;
      phase_runs_[i] = process.run;
      if (phase == Phase::kBackward) mark(backward_, event.process, i);
      if (phase == Phase::kForward) mark(forward_, event.process, i);
      if (phase == Phase::kOptimizer) mark(optimizer_, event.process, i);
      Thread& thread = threads[uint64_t{event.process} << 32 | event.thread];
      const uint32_t stack = event.op == abi::kNoId ? event.stack : abi::kNoId;
      if (event.op != thread.op || event.module != thread.module || stack != thread.stack) {
        thread.op = event.op;
        thread.module = event.module;
        thread.stack = stack;
        thread.run = ++runs;
      }
      op_runs_[i] = event.op == abi::kNoId && event.stack == abi::kNoId ? 0 : thread.run;
    }
    for (const OomAttempts& attempts : find_oom_attempts(record_, stacks_)) {
      if (!attempts.overcome && events[attempts.last].kind == EventKind::kOom)
        out_of_memory_[events[attempts.last].process].push_back(attempts.last);
    }
    for (const Step& step : timeline_.steps()) {
      if (step.complete && step.source != StepSource::kTold)
        optimizer_[step.process].push_back(step.end_event - 1);
    }
    for (auto& [process, marks] : optimizer_) std::sort(marks.begin(), marks.end());
  }

  static void mark(Marks& marks, uint32_t process, uint32_t event) {
    marks[process].push_back(event);
  }

  void collect_parameter_sizes() {
    for (const Allocation& a : timeline_.allocations()) {
      if (a.source == CategorySource::kTold) {
        if (a.category == Category::kParameter) parameter_sizes_.insert(a.requested_bytes);
      } else if (a.free_event == kNever && (facts(a).converts_module || facts(a).builds_module)) {
        parameter_sizes_.insert(a.requested_bytes);
      }
    }
  }

  // Older than the history and never freed, of the size of a gradient: the parameter that it
  // belongs to. Not more of one size than there were gradients of it at a time: the rest are
  // activations or samples that happen to be as large.
  void guess_old_parameters() {
    auto& allocations = timeline_.allocations();
    std::map<uint32_t, std::vector<std::pair<uint64_t, int>>> changes;  // by event: size, +1 or -1
    for (const Allocation& a : allocations) {
      if (a.category != Category::kGradient || a.before_history) continue;
      changes[a.alloc_event].emplace_back(a.requested_bytes, 1);
      if (a.free_event != kNever) changes[a.free_event].emplace_back(a.requested_bytes, -1);
    }
    std::unordered_map<uint64_t, std::pair<int, int>> gradients;  // size -> now, most
    for (const auto& [at, here] : changes) {
      for (const auto& [size, change] : here) {
        auto& [now, most] = gradients[size];
        most = std::max(most, now += change);
      }
    }
    for (Allocation& a : allocations) {
      if (!a.before_history || a.free_event != kNever || a.category != Category::kUnknown) continue;
      const auto found = gradients.find(a.requested_bytes);
      if (found != gradients.end() && found->second.second-- > 0)
        set(a, {Category::kParameter, 60});
    }
  }

  const MemoryEvent& event(const Allocation& a) const {
    static const MemoryEvent none;
    return a.before_history || record_.events.empty() ? none : record_.events[a.alloc_event];
  }
  const StackFacts& facts(const Allocation& a) const { return stacks_[a.stack]; }
  Phase phase(const Allocation& a) const {
    return a.before_history ? Phase::kOther : phases_[a.alloc_event];
  }

  SiteKey key_of(const Allocation& a) const {
    const MemoryEvent& e = event(a);
    return {a.requested_bytes, a.stack, e.op, e.module, phase(a)};
  }

  // An error ends lives early, and so does the end of the record: what was alive then tells nothing
  // by its end.
  bool end_known(const Allocation& a) const {
    if (a.free_event == kNever || a.before_history ||
        record_.events[a.free_event].kind == EventKind::kProcessEnd)
      return false;
    return !any_between(out_of_memory_, a.process, a.alloc_event, a.free_event);
  }

  void set(Allocation& a, Guess guess) {
    a.category = guess.category;
    a.confidence_percent = static_cast<uint8_t>(guess.confidence);
    a.source =
        guess.category == Category::kUnknown ? CategorySource::kNone : CategorySource::kInferred;
  }

  OpFamily family(const Allocation& a) {
    const MemoryEvent& e = event(a);
    if (e.op == abi::kNoId) return facts(a).family;
    auto [it, made] = families_.try_emplace(e.op, OpFamily::kNone);
    if (made) it->second = family_of(record_.string(e.op));
    return it->second;
  }

  bool looks_like_workspace(const Allocation& a) {
    const bool plausible = family(a) == OpFamily::kMatrix || family(a) == OpFamily::kAttention ||
                           (event(a).op == abi::kNoId && facts(a).empty);
    if (a.requested_bytes == kCublasWorkspace) return plausible || facts(a).in_module;
    return a.requested_bytes == kCublasWorkspaceHopper && plausible;
  }

  // cuBLAS keeps one workspace per handle (a thread has one) and stream, and never frees it. 32 MiB
  // is a size that tensors have too: more of them on one stream than a program with a backward
  // thread has handles are such tensors.
  void collect_workspaces() {
    constexpr uint32_t kHandles = 2;  // the program's thread and the one of the backward pass
    std::unordered_map<uint64_t, uint32_t> seen;
    for (const Allocation& a : timeline_.allocations()) {
      if (a.source == CategorySource::kTold || !looks_like_workspace(a)) continue;
      const uint64_t stream = a.before_history ? 0 : event(a).stream;
      uint32_t& count = seen[(stream * 64 + a.process) * 64 + a.device];
      const bool stays =
          a.free_event == kNever || record_.events[a.free_event].kind == EventKind::kProcessEnd;
      if (stays && (a.requested_bytes == kCublasWorkspace || count++ < kHandles))
        workspaces_.insert(&a - timeline_.allocations().data());
    }
  }
  bool library_workspace(const Allocation& a) const {
    return workspaces_.count(&a - timeline_.allocations().data()) != 0;
  }

  bool has_key(const Allocation& a) const { return event(a).op != abi::kNoId || !facts(a).empty; }

  // Scratch is gone before its place makes the next but one; what outlives that, in a loop over
  // layers or batches, is kept for something.
  bool outlives_its_like(const Allocation& a) const {
    constexpr ptrdiff_t kOverlapping = 3;
    const auto found = made_alike_.find(key_of(a));
    if (found == made_alike_.end()) return false;
    const auto& made = found->second;
    const auto end = std::lower_bound(made.begin(), made.end(), a.free_event);
    return end - std::upper_bound(made.begin(), made.end(), a.alloc_event) >= kOverlapping;
  }

  Guess guess_from_life(const Allocation& a) {
    const MemoryEvent& e = event(a);
    const Phase born = phase(a), died = phases_[a.free_event];
    const bool same_phase = phase_runs_[a.alloc_event] == phase_runs_[a.free_event];
    if ((e.flags & abi::kEventHostSource) != 0 && born != Phase::kOptimizer)
      return {Category::kInput, 90};
    if (facts(a).makes_buckets) return {Category::kGradient, 90};
    if (op_runs_[a.alloc_event] != 0 && op_runs_[a.alloc_event] == op_runs_[a.free_event]) {
      return family(a) != OpFamily::kNone ? Guess{Category::kWorkspace, 85}
                                          : Guess{Category::kTemporary, 90};
    }
    const bool outlived_optimizer = any_between(optimizer_, a.process, a.alloc_event, a.free_event);
    if (facts(a).converts_module && any_between(forward_, a.process, a.alloc_event, a.free_event))
      return {Category::kParameter, 75};
    if (library_workspace(a) && outlived_optimizer) return {Category::kWorkspace, 75};
    switch (born) {
      case Phase::kOptimizer:
        if (same_phase) return {Category::kTemporary, 90};
        return outlived_optimizer && facts(a).makes_state ? Guess{Category::kOptimizerState, 95}
                                                          : Guess{Category::kOptimizerState, 75};
      case Phase::kBackward:
        // Recomputed; without the call from autograd the line is only that of the forward pass,
        // which a record tells for gradients.
        if (facts(a).in_module && facts(a).in_backward && died == Phase::kBackward)
          return {Category::kActivation, 70};
        if (same_phase) return {Category::kTemporary, 80};
        if (!outlived_optimizer) return {Category::kTemporary, 60};
        return {
            Category::kGradient,
            parameter_sizes_.empty() || parameter_sizes_.count(a.requested_bytes) != 0 ? 85 : 60};
      case Phase::kForward:
      case Phase::kEval:
        if (died == Phase::kBackward) return {Category::kActivation, 90};
        if (facts(a).in_module && outlives_its_like(a)) return {Category::kActivation, 60};
        if (same_phase) return {Category::kTemporary, 80};
        if (any_between(backward_, a.process, a.alloc_event, a.free_event))
          return {Category::kActivation, 65};
        return {Category::kTemporary, 50};
      default: break;
    }
    if (died == Phase::kBackward) return {Category::kActivation, 75};
    if (facts(a).only_user && outlived_optimizer &&
        any_between(forward_, a.process, a.alloc_event, a.free_event) &&
        any_between(backward_, a.process, a.alloc_event, a.free_event))
      return {Category::kInput, 50};
    // Outside the passes a phase may last for the whole program: only what was gone at once is
    // scratch.
    constexpr uint32_t kAtOnceEvents = 32;
    if (same_phase && a.free_event - a.alloc_event <= kAtOnceEvents)
      return {Category::kTemporary, 60};
    return {};
  }

  Guess guess_from_votes(const Allocation& a) const {
    if (a.before_history || (event(a).op == abi::kNoId && facts(a).empty)) return {};
    auto found = votes_.find(key_of(a));
    if (found == votes_.end()) return {};
    const auto& votes = found->second;
    const auto most = std::max_element(votes.begin(), votes.end());
    uint64_t all = 0;
    for (uint32_t vote : votes) all += vote;
    if (*most * 3 < all * 2) return {};
    return {static_cast<Category>(most - votes.begin()), 70};
  }

  Guess guess_open(const Allocation& a) {
    if (a.before_history) {
      if (facts(a).converts_module || facts(a).builds_module) return {Category::kParameter, 70};
      if (facts(a).in_optimizer) return {Category::kOptimizerState, 80};
      return {};
    }
    const uint32_t end =
        a.free_event == kNever ? static_cast<uint32_t>(record_.events.size()) : a.free_event;
    const bool outlived_optimizer = any_between(optimizer_, a.process, a.alloc_event, end);
    const StackFacts& stack = facts(a);
    if (stack.makes_state) return {Category::kOptimizerState, 95};
    if (stack.makes_buckets) return {Category::kGradient, 90};
    if (stack.converts_module || stack.builds_module) return {Category::kParameter, 80};
    if (library_workspace(a)) return {Category::kWorkspace, 75};
    if ((event(a).flags & abi::kEventHostSource) != 0)
      return {Category::kInput, phase(a) == Phase::kInit ? 50 : 85};
    const bool is_parameter_size = parameter_sizes_.count(a.requested_bytes) != 0;
    if (phase(a) == Phase::kBackward && outlived_optimizer)
      return {Category::kGradient, parameter_sizes_.empty() || is_parameter_size ? 85 : 60};
    if (phase(a) == Phase::kBackward && is_parameter_size) return {Category::kGradient, 65};
    if (Guess same = guess_from_votes(a); same.category != Category::kUnknown) {
      // Scratch is short-lived: where many of its kind were alive at the end, they are something
      // else from the same line.
      const bool scratch =
          same.category == Category::kTemporary || same.category == Category::kWorkspace;
      const SiteKey key = key_of(a);
      if (!scratch || open_alike_[key] * 2 <= votes_[key][static_cast<size_t>(same.category)])
        return same;
    }
    switch (phase(a)) {
      case Phase::kOptimizer:
        // Where the function that makes the state is seen, what step() makes besides is scratch.
        if (makes_state_) return {Category::kTemporary, 70};
        return {Category::kOptimizerState, outlived_optimizer ? 80 : 60};
      case Phase::kBackward: return {Category::kTemporary, 40};
      case Phase::kForward:
        // Alive when the program stopped in this very step: what the backward pass would have
        // needed. In an older step it is a graph that someone keeps, or a result.
        return {Category::kActivation, outlived_optimizer ? 50 : 70};
      case Phase::kEval: return {Category::kActivation, 50};
      default: return {};
    }
  }

  Timeline& timeline_;
  const record::Record& record_;
  const Stacks& stacks_;
  std::vector<Phase> phases_;         // by event
  std::vector<uint32_t> phase_runs_;  // number of the process's stretch of one phase
  std::vector<uint32_t> op_runs_;  // number of the thread's stretch of one operator; 0: no operator
  bool makes_state_ = false;       // the function in which an optimizer makes its state was seen
  Marks backward_, forward_, optimizer_, out_of_memory_;
  std::unordered_set<uint64_t> parameter_sizes_;
  std::unordered_set<ptrdiff_t> workspaces_;  // indices into the allocations
  std::unordered_map<uint32_t, OpFamily> families_;
  std::unordered_map<SiteKey, std::array<uint32_t, 13>, SiteHash> votes_;
  std::unordered_map<SiteKey, uint32_t, SiteHash> open_alike_;
  std::unordered_map<SiteKey, std::vector<uint32_t>, SiteHash>
      made_alike_;  // alloc events, in order
};

}  // namespace

Phase phase_of(const record::Record& record, const Stacks& stacks, const MemoryEvent& event,
               bool seen_forward) {
  if (event.phase != Phase::kOther) return event.phase;
  const StackFacts& facts = stacks[event.stack];
  if (facts.in_optimizer) return Phase::kOptimizer;
  if (facts.in_backward || facts.starts_backward) return Phase::kBackward;
  if (record.kind != record::Record::Kind::kSnapshot) return Phase::kOther;
  if (facts.in_module || facts.in_functional) return Phase::kForward;
  if (facts.converts_module || facts.builds_module) return Phase::kInit;
  return facts.empty && seen_forward ? Phase::kBackward : Phase::kOther;
}

void infer_categories(Timeline& timeline) { Inference(timeline).run(); }

}  // namespace tonnage::analysis
