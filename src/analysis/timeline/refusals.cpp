// Refusals: who asked, and what became of it.
#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "analysis/timeline/failures.h"
#include "analysis/verdict.h"

namespace tonnage::analysis {
namespace {

using abi::EventKind;
using abi::MemoryEvent;
using abi::Phase;

constexpr std::pair<Asker, const char*> kAskerNames[] = {
    {Asker::kProgram, "program"},   {Asker::kPyTorch, "pytorch"},
    {Asker::kCublas, "cublas"},     {Asker::kCudnn, "cudnn"},
    {Asker::kCufft, "cufft"},       {Asker::kCusolver, "cusolver"},
    {Asker::kCusparse, "cusparse"}, {Asker::kNccl, "nccl"},
    {Asker::kCupy, "cupy"},         {Asker::kPool, "pool"},
    {Asker::kContext, "context"},   {Asker::kCode, "code"},
    {Asker::kStreams, "streams"},   {Asker::kLocalMemory, "local_memory"},
    {Asker::kGraph, "graph"},       {Asker::kOtherLibrary, "other_library"},
};

constexpr std::string_view kJaxPool = "jax_pool";

// How far a refusal's answer is looked for: no record makes this slow.
constexpr size_t kMostEventsAhead = 200'000;
constexpr size_t kMostEventsBack = 10'000;
constexpr int kMostTries = 4;  // of one request of PyTorch's

// What PyTorch's allocator does between a refusal and its next try: it gives back what it caches.
bool gives_back(EventKind kind) {
  return kind == EventKind::kDeviceFree || kind == EventKind::kSegmentFree ||
         kind == EventKind::kSegmentUnmap || kind == EventKind::kFreeCompleted ||
         kind == EventKind::kFreeRequested;
}

bool takes_memory(EventKind kind) {
  return kind == EventKind::kAlloc || kind == EventKind::kDeviceAlloc;
}

class Finder {
 public:
  Finder(const record::Record& record, const Stacks& stacks, const std::vector<Step>& steps)
      : record_(record), stacks_(stacks), steps_(steps) {}

  std::vector<Refusal> run() {
    note_processes();
    for (const OomAttempts& attempts : find_oom_attempts(record_, stacks_)) add(attempts);
    settle();
    return std::move(out_);
  }

 private:
  const MemoryEvent& event(uint32_t index) const { return record_.events[index]; }
  size_t end_of_look(uint32_t from) const {
    return std::min<size_t>(record_.events.size(), size_t{from} + kMostEventsAhead);
  }

  void note_processes() {
    for (uint32_t i = 0; i < record_.events.size(); ++i) {
      const MemoryEvent& e = record_.events[i];
      if (e.kind == EventKind::kSegmentAlloc || e.kind == EventKind::kSegmentMap ||
          e.kind == EventKind::kAlloc || e.kind == EventKind::kOom)
        with_allocator_.insert(e.process);
      if (takes_memory(e.kind)) last_taken_[e.process] = i;
    }
  }

  void add(const OomAttempts& attempts) {
    const MemoryEvent& first = event(attempts.first);
    Refusal refusal;
    refusal.events = attempts;
    refusal.process = first.process;
    refusal.device = first.device;
    if (first.kind == EventKind::kOom) {
      refusal.asker = Asker::kPyTorch;
      if (attempts.overcome) refusal.fate = Fate::kOtherWay;
      out_.push_back(std::move(refusal));
      return;
    }
    read_asker(first, refusal);
    const bool may_be_pytorchs =
        with_allocator_.count(first.process) != 0 &&
        (refusal.asker == Asker::kPyTorch || refusal.asker == Asker::kProgram);
    if (may_be_pytorchs) {
      const Next next = what_pytorch_did(attempts.last);
      if (next == Next::kPassedOn) return;  // its own error tells it
      if (next == Next::kServed) {
        refusal.asker = Asker::kPyTorch;
        refusal.fate = Fate::kRetried;
      } else if (refusal.asker == Asker::kProgram) {
        refusal.asker = library_of(family_of(record_.string(first.op)));
      }
    }
    if (refusal.fate != Fate::kRetried && served_after(attempts.last))
      refusal.fate = Fate::kRetried;
    if (is_told_already(refusal)) return;
    if (joins_last(refusal)) {
      Refusal& last = out_.back();
      last.events.last = attempts.last;
      ++last.events.count;
      last.fate = refusal.fate;
      return;
    }
    out_.push_back(std::move(refusal));
  }

  // The driver names the library that asked, or what it wanted the memory for itself.
  void read_asker(const MemoryEvent& refused, Refusal& refusal) const {
    const std::string& name = record_.string(refused.name);
    if (name.empty()) {
      refusal.asker = asker_of_context(refused);
      return;
    }
    for (const auto& [asker, text] : kAskerNames) {
      if (name == text) {
        refusal.asker = asker;
        return;
      }
    }
    refusal.asker = Asker::kOtherLibrary;
    refusal.library = name;
  }

  // Records in which the driver did not say it: the operator and the lines tell the library.
  Asker asker_of_context(const MemoryEvent& refused) const {
    const std::string& op = record_.string(refused.op);
    if (op.starts_with("c10d::")) return Asker::kNccl;
    if (refused.stack < record_.stacks.size()) {
      for (const abi::Frame& frame : record_.stacks[refused.stack]) {
        if (record_.string(frame.file).find("/cupy/") != std::string::npos) return Asker::kCupy;
      }
    }
    return Asker::kProgram;
  }
  static Asker library_of(OpFamily family) {
    switch (family) {
      case OpFamily::kMatrix: return Asker::kCublas;
      case OpFamily::kConvolution:
      case OpFamily::kRnn: return Asker::kCudnn;
      case OpFamily::kAttention:
      case OpFamily::kNone: break;
    }
    return Asker::kProgram;
  }

  enum class Next { kNothing, kServed, kPassedOn };
  // PyTorch frees its cache and asks again, and then is served or raises its error.
  Next what_pytorch_did(uint32_t refused) const {
    const MemoryEvent& asked = event(refused);
    bool taken = false;
    int refused_again = 0;
    for (size_t i = refused + 1; i < end_of_look(refused); ++i) {
      const MemoryEvent& e = record_.events[i];
      if (e.process != asked.process || e.thread != asked.thread) continue;
      if (e.kind == EventKind::kOom)
        return e.device == asked.device ? Next::kPassedOn : Next::kNothing;
      if (e.kind == EventKind::kDeviceAlloc) {
        taken = true;
        continue;
      }
      if (taken) {
        return e.kind == EventKind::kSegmentAlloc || e.kind == EventKind::kSegmentMap ||
                       e.kind == EventKind::kAlloc
                   ? Next::kServed
                   : Next::kNothing;
      }
      // A block of the cache did in the end.
      if (e.kind == EventKind::kAlloc && e.stack == asked.stack) return Next::kServed;
      if (e.kind == EventKind::kDeviceOom && ++refused_again < kMostTries) continue;
      if (!gives_back(e.kind)) return Next::kNothing;
    }
    return Next::kNothing;
  }

  // The same request from the same line, served with nothing between but frees: a library's own
  // retry.
  bool served_after(uint32_t refused) const {
    const MemoryEvent& asked = event(refused);
    for (size_t i = refused + 1; i < end_of_look(refused); ++i) {
      const MemoryEvent& e = record_.events[i];
      if (e.process != asked.process || e.thread != asked.thread) continue;
      if (e.kind == EventKind::kDeviceAlloc)
        return e.size_bytes == asked.size_bytes && e.stack == asked.stack &&
               e.device == asked.device;
      if (!gives_back(e.kind)) return false;
    }
    return false;
  }

  // JAX's error may come of what the driver refused to its allocator.
  bool is_told_already(const Refusal& refusal) const {
    if (refusal.library != kJaxPool || out_.empty()) return false;
    const Refusal& last = out_.back();
    return last.library == "jax" && last.process == refusal.process &&
           last.device == refusal.device && nothing_taken_between(last, refusal);
  }
  bool nothing_taken_between(const Refusal& before, const Refusal& now) const {
    for (uint32_t i = before.events.last + 1; i < now.events.first; ++i) {
      if (event(i).process == now.process && takes_memory(event(i).kind)) return false;
    }
    return true;
  }

  // A library that asks again from the same line, having taken nothing since.
  bool joins_last(const Refusal& refusal) const {
    if (out_.empty()) return false;
    const Refusal& last = out_.back();
    const MemoryEvent& before = event(last.events.last);
    const MemoryEvent& now = event(refusal.events.first);
    if (before.kind != EventKind::kDeviceOom || last.asker != refusal.asker ||
        last.library != refusal.library || last.device != refusal.device ||
        before.process != now.process || before.thread != now.thread || before.stack != now.stack ||
        before.size_bytes != now.size_bytes)
      return false;
    return nothing_taken_between(last, refusal);
  }

  // --- What became of it -------------------------------------------------------------------------

  // PyTorch and libraries tell a refusal of the host's as one of the card's: between the two, the
  // thread gave back at most.
  bool is_by_host(const Refusal& refusal) const {
    const MemoryEvent& told = event(refusal.events.last);
    size_t looked = 0;
    for (size_t i = refusal.events.last; i-- > 0 && looked < kMostEventsBack;) {
      const MemoryEvent& e = record_.events[i];
      if (e.process != told.process || e.thread != told.thread) continue;
      ++looked;
      if (e.kind == EventKind::kHostRefusal) return true;
      if (takes_memory(e.kind) || e.kind == EventKind::kStep || e.kind == EventKind::kOom)
        return false;
    }
    return false;
  }

  static bool is_standing(const Refusal& refusal) {
    return refusal.fate == Fate::kGotOver || refusal.fate == Fate::kEnded;
  }

  void settle() {
    std::map<uint32_t, Refusal*> last;  // by process
    for (Refusal& refusal : out_) {
      refusal.by_host = is_by_host(refusal);
      if (is_standing(refusal)) last[refusal.process] = &refusal;
    }
    bool any = false;
    for (auto& [process, refusal] : last) {
      if (!ended_by(*refusal)) continue;
      refusal->fate = Fate::kEnded;
      any = true;
    }
    // A child process whose error only its parent tells.
    const auto& errors = record_.end.errors;
    if (any || last.empty() || succeeded(record_.end) ||
        std::none_of(errors.begin(), errors.end(), [](const auto& error) { return error.memory; }))
      return;
    Refusal* latest = nullptr;
    for (auto& [process, refusal] : last) {
      if (latest == nullptr || refusal->events.last > latest->events.last) latest = refusal;
    }
    latest->fate = Fate::kEnded;
  }

  bool ended_by(const Refusal& refusal) const {
    const record::CommandEnd& end = record_.end;
    if (succeeded(end))
      return (in_a_pass(refusal) || refusal.asker == Asker::kContext) && !anything_after(refusal) &&
             !got_over_before(refusal);
    if (!end.known) return has_steps(refusal) ? !step_after(refusal) : !taken_after(refusal);
    const record::CommandError* error = error_of(refusal.process);
    if (error == nullptr) return !taken_after(refusal);
    return error->memory || same_line(*error, refusal);
  }

  // Without a context nothing can be done. In the middle of training: what came after it is not
  // done. Outside, a program that catches the error and exits with 0 asked to learn what there is.
  bool in_a_pass(const Refusal& refusal) const {
    const MemoryEvent& asked = event(refusal.events.last);
    const StackFacts& facts = stacks_[asked.stack];
    return asked.phase == Phase::kForward || asked.phase == Phase::kBackward ||
           asked.phase == Phase::kOptimizer || facts.in_module || facts.in_backward ||
           facts.in_optimizer;
  }
  // The process, or another of the command, went on to use the device.
  bool anything_after(const Refusal& refusal) const {
    return std::any_of(last_taken_.begin(), last_taken_.end(),
                       [&](const auto& entry) { return entry.second > refusal.events.last; }) ||
           step_after(refusal);
  }
  bool taken_after(const Refusal& refusal) const {
    const auto found = last_taken_.find(refusal.process);
    return found != last_taken_.end() && found->second > refusal.events.last;
  }
  bool has_steps(const Refusal& refusal) const {
    return std::any_of(steps_.begin(), steps_.end(), [&](const Step& step) {
      return step.process == refusal.process && step.complete;
    });
  }
  bool step_after(const Refusal& refusal) const {
    return std::any_of(steps_.begin(), steps_.end(), [&](const Step& step) {
      return step.process == refusal.process && step.complete &&
             step.first_event > refusal.events.last;
    });
  }
  // The program caught the same before and went on: this one was caught too.
  bool got_over_before(const Refusal& refusal) const {
    const MemoryEvent& asked = event(refusal.events.first);
    return std::any_of(out_.begin(), out_.end(), [&](const Refusal& earlier) {
      return &earlier != &refusal && is_standing(earlier) && earlier.process == refusal.process &&
             earlier.asker == refusal.asker && event(earlier.events.first).stack == asked.stack;
    });
  }

  const record::CommandError* error_of(uint32_t process) const {
    if (process >= record_.processes.size()) return nullptr;
    for (const record::CommandError& error : record_.end.errors) {
      if (error.pid == record_.processes[process].pid) return &error;
    }
    return nullptr;
  }

  // A library's error seldom says that memory was missing, but it comes from where it was refused.
  bool same_line(const record::CommandError& error, const Refusal& refusal) const {
    const Place line = stacks_.user_line(event(refusal.events.last).stack);
    return line.known() && line.line == error.line && line.file == error.file;
  }

  const record::Record& record_;
  const Stacks& stacks_;
  const std::vector<Step>& steps_;
  std::set<uint32_t> with_allocator_;
  std::map<uint32_t, uint32_t> last_taken_;  // by process: index of its last allocation
  std::vector<Refusal> out_;
};

}  // namespace

std::vector<Refusal> find_refusals(const record::Record& record, const Stacks& stacks,
                                   const std::vector<Step>& steps) {
  return Finder(record, stacks, steps).run();
}

std::vector<HostRefusals> find_host_refusals(const record::Record& record,
                                             const std::vector<Refusal>& refusals) {
  std::vector<HostRefusals> out;
  std::map<uint32_t, uint32_t> last_taken;  // by process
  const auto& events = record.events;
  for (uint32_t i = 0; i < events.size(); ++i) {
    if (takes_memory(events[i].kind)) last_taken[events[i].process] = i;
    if (events[i].kind != EventKind::kHostRefusal) continue;
    if (!out.empty()) {
      HostRefusals& last = out.back();
      const MemoryEvent& before = events[last.last];
      const auto taken = last_taken.find(before.process);
      const bool nothing_since = taken == last_taken.end() || taken->second < last.last;
      if (before.process == events[i].process && before.thread == events[i].thread &&
          before.stack == events[i].stack && before.name == events[i].name && nothing_since) {
        last.last = i;
        ++last.count;
        continue;
      }
    }
    out.push_back({i, i});
  }
  const record::CommandEnd& end = record.end;
  const bool failed = end.known && !succeeded(end) && !stopped_as_asked(end);
  for (HostRefusals& one : out) {
    const uint32_t process = events[one.last].process;
    const auto taken = last_taken.find(process);
    const bool was_last = taken == last_taken.end() || taken->second < one.last;
    const bool told = std::any_of(refusals.begin(), refusals.end(), [&](const Refusal& refusal) {
      return refusal.by_host && refusal.fate == Fate::kEnded && refusal.process == process;
    });
    one.ended = was_last && (failed || told);
  }
  return out;
}

const char* asker_name(Asker asker) {
  for (const auto& [value, name] : kAskerNames) {
    if (value == asker) return name;
  }
  return "program";
}

const char* fate_name(Fate fate) {
  switch (fate) {
    case Fate::kRetried: return "retried";
    case Fate::kOtherWay: return "other_way";
    case Fate::kGotOver: return "got_over";
    case Fate::kEnded: break;
  }
  return "ended";
}

}  // namespace tonnage::analysis
