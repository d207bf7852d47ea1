#include "analysis/timeline/steps.h"

#include <algorithm>
#include <map>
#include <unordered_map>

namespace tonnage::analysis {
namespace {

using abi::EventKind;
using abi::MemoryEvent;

constexpr size_t kNoMark = SIZE_MAX;

bool is_allocator_change(EventKind kind) {
  return kind == EventKind::kAlloc || kind == EventKind::kFreeRequested;
}

// Events after which a step has ended, by process: what the program's step events say.
std::map<uint32_t, std::vector<uint32_t>> told_ends(const record::Record& record) {
  std::map<uint32_t, std::vector<uint32_t>> ends;
  for (size_t i = 0; i < record.events.size(); ++i) {
    if (record.events[i].kind == EventKind::kStep)
      ends[record.events[i].process].push_back(static_cast<uint32_t>(i));
  }
  return ends;
}

// With several optimizers: the steps of the most frequent one end the iteration; among equals,
// those that end last. Steps that follow each other without other work in between (two optimizers
// for the parameters of one model) are one.
struct OptimizerSteps {
  std::map<std::string, std::vector<uint32_t>> by_name;

  std::vector<uint32_t> choose() const {
    const std::vector<uint32_t>* best = nullptr;
    for (const auto& [name, ends] : by_name) {
      if (best == nullptr || ends.size() > best->size() ||
          (ends.size() == best->size() && ends.back() > best->back()))
        best = &ends;
    }
    return best != nullptr ? *best : std::vector<uint32_t>{};
  }
};

// The user's line that called an optimizer's step, if allocator events inside the step show it.
std::string caller_of(const Stacks& stacks, uint32_t stack) {
  const Place place = stacks.user_line(stack);
  return place.known() ? place.file + ":" + std::to_string(place.line) : "";
}

// Annotations: the profiler's own step marks if there are any, else the optimizers' steps.
std::vector<uint32_t> annotated_ends(const record::Record& record, const Stacks& stacks) {
  std::unordered_map<uint32_t, int> kinds;  // string id -> 0 other, 1 optimizer, 2 profiler step
  auto kind_of = [&](uint32_t name) {
    auto [it, made] = kinds.try_emplace(name, 0);
    if (made) {
      const std::string& text = record.string(name);
      if (text.starts_with("ProfilerStep#")) it->second = 2;
      if (text.starts_with("Optimizer.step#")) it->second = 1;
    }
    return it->second;
  };
  struct End {
    uint32_t event = 0, name = 0;
    std::string caller;
  };
  std::vector<uint32_t> profiler;
  std::vector<End> ends;
  std::map<uint32_t, std::map<std::string, uint32_t>> callers;  // by name
  bool failed =
      false;  // out of memory since the last start: the error ended the annotation, not a step
  bool work_since = true;
  std::string caller;
  for (size_t i = 0; i < record.events.size(); ++i) {
    const MemoryEvent& event = record.events[i];
    if (event.kind == EventKind::kOom) failed = true;
    if (is_allocator_change(event.kind)) {
      if (!stacks[event.stack].in_optimizer) {
        work_since |= event.kind == EventKind::kAlloc;
      } else if (caller.empty()) {
        caller = caller_of(stacks, event.stack);
      }
    }
    if (event.kind != EventKind::kAnnotation) continue;
    const int kind = kind_of(event.name);
    if (event.value != 1) {
      failed = false;
      if (kind == 1) caller.clear();
      continue;
    }
    if (failed) continue;
    if (kind == 2) profiler.push_back(static_cast<uint32_t>(i));
    if (kind != 1) continue;
    if (!work_since && !ends.empty() && ends.back().name != event.name) {
      ends.back() = {static_cast<uint32_t>(i), event.name, caller};
    } else {
      ends.push_back({static_cast<uint32_t>(i), event.name, caller});
    }
    if (!caller.empty()) ++callers[event.name][caller];
    work_since = false;
  }
  if (!profiler.empty()) return profiler;
  OptimizerSteps steps;
  std::map<uint32_t, uint32_t> all, with_line;  // by name
  for (const End& end : ends) {
    ++all[end.name];
    with_line[end.name] += !end.caller.empty();
  }
  for (const End& end : ends) {
    // Two optimizers of one class are told apart by the lines that call them, where nearly every
    // step has its line.
    const bool by_line =
        callers[end.name].size() >= 2 && with_line[end.name] * 10 >= all[end.name] * 9;
    if (by_line && end.caller.empty()) continue;
    std::string name = record.string(end.name);
    if (by_line) name.append(1, ' ').append(end.caller);
    steps.by_name[std::move(name)].push_back(end.event);
  }
  return steps.choose();
}

// Whether most of what one period allocates is gone two periods later. It is so for training steps
// and batches, and not for the layers of one forward pass, which recur just as regularly.
bool periods_release(const record::Record& record, const std::vector<uint32_t>& ends) {
  struct Live {
    size_t period;
    uint64_t bytes;
  };
  std::unordered_map<uint64_t, Live> live;
  uint64_t allocated = 0;
  size_t period = 0;
  for (size_t i = 0; i <= ends.back(); ++i) {
    while (period < ends.size() && i > ends[period]) ++period;
    const MemoryEvent& event = record.events[i];
    const uint64_t key = event.address ^ (uint64_t{event.device} << 56);
    if (event.kind == EventKind::kAlloc) {
      live[key] = {period, event.size_bytes};
      if (period + 1 < ends.size()) allocated += event.size_bytes / 1024;
    } else if (event.kind == EventKind::kFreeRequested) {
      live.erase(key);
    }
  }
  uint64_t kept = 0;
  for (const auto& [address, entry] : live) {
    if (entry.period + 1 < ends.size()) kept += entry.bytes / 1024;
  }
  return kept * 2 < allocated;
}

// A step ends where the allocator's events leave torch/optim.
std::vector<uint32_t> optimizer_ends(const record::Record& record, const Stacks& stacks) {
  OptimizerSteps steps;
  size_t last_inside = kNoMark;
  std::string caller;
  const auto end = [&] {
    if (last_inside == kNoMark) return;
    steps.by_name[caller].push_back(static_cast<uint32_t>(last_inside));
    last_inside = kNoMark;
  };
  for (size_t i = 0; i < record.events.size(); ++i) {
    const MemoryEvent& event = record.events[i];
    if (!is_allocator_change(event.kind)) continue;
    if (stacks[event.stack].in_optimizer) {
      last_inside = i;
      caller = caller_of(stacks, event.stack);
    } else if (!stacks[event.stack].empty) {
      end();
    }
  }
  end();
  return steps.choose();
}

// Whether nearly all periods have a backward pass.
bool periods_go_back(const record::Record& record, const Stacks& stacks, uint32_t first,
                     const std::vector<uint32_t>& ends) {
  size_t with = 0, at = first;
  for (const uint32_t end : ends) {
    bool backward = false;
    for (; at <= end; ++at) {
      const MemoryEvent& event = record.events[at];
      if (event.kind == EventKind::kAlloc)
        backward |= stacks[event.stack].empty || stacks[event.stack].in_backward ||
                    stacks[event.stack].starts_backward;
    }
    with += backward;
  }
  return with * 5 >= ends.size() * 4;
}

// The same request from the same line recurs once per step: the most common number of recurrences
// is the number of steps, and the first such request of the step marks where it begins.
std::vector<uint32_t> periodic_ends(const record::Record& record, const Stacks& stacks) {
  struct Seen {
    uint32_t count = 0;
    uint32_t first = 0;
  };
  struct Key {
    uint64_t size;
    uint32_t stack;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    size_t operator()(const Key& key) const {
      return key.size * 0x9e3779b97f4a7c15ull ^ (uint64_t{key.stack} * 0xff51afd7ed558ccdull);
    }
  };
  std::unordered_map<Key, Seen, Hash> seen;
  for (size_t i = 0; i < record.events.size(); ++i) {
    const MemoryEvent& event = record.events[i];
    if (event.kind != EventKind::kAlloc || event.stack == abi::kNoId) continue;
    Seen& entry = seen[{event.size_bytes, event.stack}];
    if (entry.count++ == 0) entry.first = static_cast<uint32_t>(i);
  }
  std::map<uint32_t, uint32_t> kinds;  // recurrences -> kinds of requests that recur so often
  for (const auto& [key, entry] : seen) {
    if (entry.count >= 3) ++kinds[entry.count];
  }
  uint32_t most = 0, all = 0;
  for (const auto& [count, number] : kinds) {
    all += number;
    most = std::max(most, number);
  }
  if (most < 3) return {};
  // Some requests repeat several times in a step (a loop over layers or time steps, two equal
  // tensors of a line), so their count is a multiple. The number of steps is the smallest count
  // that many requests have.
  uint32_t steps = 0, multiples = 0;
  for (const auto& [count, number] : kinds) {
    if (steps == 0 && number >= 3 && number * 4 >= most) steps = count;
    if (steps != 0 && count % steps == 0) multiples += number;
  }
  if (steps == 0 || multiples * 3 < all) return {};
  const Key* anchor = nullptr;
  uint32_t first = UINT32_MAX;
  for (const auto& [key, entry] : seen) {
    if (entry.count == steps && entry.first < first) {
      first = entry.first;
      anchor = &key;
    }
  }
  std::vector<uint32_t> ends;
  for (size_t i = first + 1; i < record.events.size(); ++i) {
    const MemoryEvent& event = record.events[i];
    if (event.kind == EventKind::kAlloc && event.size_bytes == anchor->size &&
        event.stack == anchor->stack)
      ends.push_back(static_cast<uint32_t>(i - 1));
  }
  // Layers of one model recur as well, inside its call; a step begins outside of it, or has a
  // backward pass.
  const StackFacts& place = stacks[anchor->stack];
  if ((place.in_module || place.in_forward) && !periods_go_back(record, stacks, first, ends))
    return {};
  if (ends.empty() || !periods_release(record, ends)) return {};
  return ends;
}

void add_steps(const record::Record& record, uint32_t process, const std::vector<uint32_t>& ends,
               StepSource source, std::vector<Step>& steps) {
  uint32_t start = 0, number = 0;
  for (uint32_t end : ends) {
    Step step{process, ++number, start, end + 1, true, source};
    const uint64_t told = record.events[end].value;
    if (source == StepSource::kTold && told > 0 && told <= UINT32_MAX)
      number = step.number = static_cast<uint32_t>(told);
    steps.push_back(step);
    start = end + 1;
  }
  if (number == 0) return;
  for (size_t i = start; i < record.events.size(); ++i) {
    const MemoryEvent& event = record.events[i];
    if (event.process != process ||
        (event.kind != EventKind::kAlloc && event.kind != EventKind::kDeviceAlloc))
      continue;
    steps.push_back(
        {process, number + 1, start, static_cast<uint32_t>(record.events.size()), false, source});
    break;
  }
}

}  // namespace

std::vector<Step> find_steps(const record::Record& record, const Stacks& stacks) {
  std::vector<Step> steps;
  if (auto told = told_ends(record); !told.empty()) {
    for (const auto& [process, ends] : told)
      add_steps(record, process, ends, StepSource::kTold, steps);
    return steps;
  }
  // Guessing is for snapshots: in Tonnage's own records a program without step events has no steps.
  if (record.kind != record::Record::Kind::kSnapshot) return steps;
  StepSource source = StepSource::kAnnotation;
  std::vector<uint32_t> ends = annotated_ends(record, stacks);
  if (ends.empty()) {
    source = StepSource::kOptimizer;
    ends = optimizer_ends(record, stacks);
  }
  if (ends.empty()) {
    source = StepSource::kPeriod;
    ends = periodic_ends(record, stacks);
  }
  add_steps(record, 0, ends, source, steps);
  return steps;
}

const Step* step_at(const std::vector<Step>& steps, uint32_t process, uint64_t event) {
  auto it = std::upper_bound(steps.begin(), steps.end(), std::make_pair(process, event),
                             [](const auto& key, const Step& step) {
                               return key.first < step.process ||
                                      (key.first == step.process && key.second < step.end_event);
                             });
  return it != steps.end() && it->process == process && it->first_event <= event ? &*it : nullptr;
}

}  // namespace tonnage::analysis
