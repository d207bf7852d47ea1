#include "analysis/steps.h"

#include <algorithm>
#include <map>
#include <unordered_map>

namespace tonnage::analysis {
namespace {

using record::Event;
using record::EventKind;

constexpr size_t kNoMark = SIZE_MAX;

bool is_allocator_change(EventKind kind) { return kind == EventKind::kAlloc || kind == EventKind::kFreeRequested; }

// Events after which a step has ended, by process: what the program's step events say.
std::map<uint32_t, std::vector<uint32_t>> told_ends(const trace::Record& record) {
  std::map<uint32_t, std::vector<uint32_t>> ends;
  for (size_t i = 0; i < record.events.size(); ++i) {
    if (record.events[i].kind == EventKind::kStep) ends[record.events[i].process].push_back(static_cast<uint32_t>(i));
  }
  return ends;
}

// Annotations: the profiler's own step marks if there are any, else the optimizers' steps. Of several optimizers the one whose
// steps end last in an iteration counts: the most frequent name, and of equals the last.
std::vector<uint32_t> annotated_ends(const trace::Record& record) {
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
  std::vector<uint32_t> profiler;
  std::map<uint32_t, std::vector<uint32_t>> optimizers;
  bool failed = false;  // out of memory since the last start: the error ended the annotation, not a step
  for (size_t i = 0; i < record.events.size(); ++i) {
    const Event& event = record.events[i];
    if (event.kind == EventKind::kOom) failed = true;
    if (event.kind != EventKind::kAnnotation) continue;
    if (event.value != 1) {
      failed = false;
      continue;
    }
    if (failed) continue;
    const int kind = kind_of(event.name);
    if (kind == 2) profiler.push_back(static_cast<uint32_t>(i));
    if (kind == 1) optimizers[event.name].push_back(static_cast<uint32_t>(i));
  }
  if (!profiler.empty()) return profiler;
  const std::vector<uint32_t>* best = nullptr;
  for (const auto& [name, ends] : optimizers) {
    if (best == nullptr || ends.size() > best->size() || (ends.size() == best->size() && ends.back() > best->back()))
      best = &ends;
  }
  return best != nullptr ? *best : std::vector<uint32_t>{};
}

// Whether most of what one period allocates is gone two periods later. It is so for training steps and batches, and not for the
// layers of one forward pass, which recur just as regularly.
bool periods_release(const trace::Record& record, const std::vector<uint32_t>& ends) {
  struct Live {
    size_t period;
    uint64_t bytes;
  };
  std::unordered_map<uint64_t, Live> live;
  uint64_t allocated = 0;
  size_t period = 0;
  for (size_t i = 0; i <= ends.back(); ++i) {
    while (period < ends.size() && i > ends[period]) ++period;
    const Event& event = record.events[i];
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
std::vector<uint32_t> optimizer_ends(const trace::Record& record, const Stacks& stacks) {
  std::vector<uint32_t> ends;
  size_t last_inside = kNoMark;
  for (size_t i = 0; i < record.events.size(); ++i) {
    const Event& event = record.events[i];
    if (!is_allocator_change(event.kind)) continue;
    if (stacks[event.stack].in_optimizer) {
      last_inside = i;
    } else if (last_inside != kNoMark && !stacks[event.stack].empty) {
      ends.push_back(static_cast<uint32_t>(last_inside));
      last_inside = kNoMark;
    }
  }
  if (last_inside != kNoMark) ends.push_back(static_cast<uint32_t>(last_inside));
  return ends;
}

// The same request from the same line recurs once per step: the most common number of recurrences is the number of steps, and
// the first such request of the step marks where it begins.
std::vector<uint32_t> periodic_ends(const trace::Record& record) {
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
    size_t operator()(const Key& key) const { return key.size * 0x9e3779b97f4a7c15ull ^ (uint64_t{key.stack} * 0xff51afd7ed558ccdull); }
  };
  std::unordered_map<Key, Seen, Hash> seen;
  for (size_t i = 0; i < record.events.size(); ++i) {
    const Event& event = record.events[i];
    if (event.kind != EventKind::kAlloc || event.stack == record::kNoId) continue;
    Seen& entry = seen[{event.size_bytes, event.stack}];
    if (entry.count++ == 0) entry.first = static_cast<uint32_t>(i);
  }
  std::map<uint32_t, uint32_t> kinds;  // recurrences -> kinds of requests that recur so often
  for (const auto& [key, entry] : seen) {
    if (entry.count >= 3) ++kinds[entry.count];
  }
  uint32_t steps = 0, most = 0, all = 0;
  for (const auto& [count, number] : kinds) {
    all += number;
    if (number > most) {
      most = number;
      steps = count;
    }
  }
  if (steps == 0 || most < 3 || most * 3 < all) return {};
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
    const Event& event = record.events[i];
    if (event.kind == EventKind::kAlloc && event.size_bytes == anchor->size && event.stack == anchor->stack)
      ends.push_back(static_cast<uint32_t>(i - 1));
  }
  if (ends.empty() || !periods_release(record, ends)) return {};
  return ends;
}

void add_steps(const trace::Record& record, uint32_t process, const std::vector<uint32_t>& ends, StepSource source,
               std::vector<Step>& steps) {
  uint32_t start = 0, number = 0;
  for (uint32_t end : ends) {
    Step step{process, ++number, start, end + 1, true, source};
    const uint64_t told = record.events[end].value;
    if (source == StepSource::kTold && told > 0 && told <= UINT32_MAX) number = step.number = static_cast<uint32_t>(told);
    steps.push_back(step);
    start = end + 1;
  }
  if (number == 0) return;
  for (size_t i = start; i < record.events.size(); ++i) {
    const Event& event = record.events[i];
    if (event.process != process || (event.kind != EventKind::kAlloc && event.kind != EventKind::kDeviceAlloc)) continue;
    steps.push_back({process, number + 1, start, static_cast<uint32_t>(record.events.size()), false, source});
    break;
  }
}

}  // namespace

std::vector<Step> find_steps(const trace::Record& record, const Stacks& stacks) {
  std::vector<Step> steps;
  if (auto told = told_ends(record); !told.empty()) {
    for (const auto& [process, ends] : told) add_steps(record, process, ends, StepSource::kTold, steps);
    return steps;
  }
  // Guessing is for snapshots: in Tonnage's own records a program without step events has no steps.
  if (record.kind != trace::Record::Kind::kSnapshot) return steps;
  StepSource source = StepSource::kAnnotation;
  std::vector<uint32_t> ends = annotated_ends(record);
  if (ends.empty()) {
    source = StepSource::kOptimizer;
    ends = optimizer_ends(record, stacks);
  }
  if (ends.empty()) {
    source = StepSource::kPeriod;
    ends = periodic_ends(record);
  }
  add_steps(record, 0, ends, source, steps);
  return steps;
}

const Step* step_at(const std::vector<Step>& steps, uint32_t process, uint64_t event) {
  auto it = std::upper_bound(steps.begin(), steps.end(), std::make_pair(process, event), [](const auto& key, const Step& step) {
    return key.first < step.process || (key.first == step.process && key.second < step.end_event);
  });
  return it != steps.end() && it->process == process && it->first_event <= event ? &*it : nullptr;
}

}  // namespace tonnage::analysis
