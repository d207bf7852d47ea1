#include "analysis/timeline/failures.h"

#include <algorithm>
#include <map>
#include <unordered_set>

namespace tonnage::analysis {
namespace {

using abi::EventKind;
using abi::MemoryEvent;

struct Open {
  size_t index = 0;  // into the result
  uint32_t stack = abi::kNoId;
  bool freed_others = false;
  std::unordered_set<uint64_t> own;  // addresses that the call took in between
};

class Grouping {
 public:
  Grouping(const record::Record& record, const Stacks& stacks) : record_(record), stacks_(stacks) {}

  std::vector<OomAttempts> run() {
    for (uint32_t i = 0; i < record_.events.size(); ++i) {
      const MemoryEvent& event = record_.events[i];
      const std::pair<uint32_t, int> key{event.process, event.device};
      if (event.kind == EventKind::kOom) {
        out_of_memory(i, key);
      } else if (event.kind == EventKind::kDeviceOom) {
        out_.push_back({i, i});
      } else if (event.kind == EventKind::kFreeRequested) {
        if (const auto found = open_.find(key);
            found != open_.end() && found->second.own.erase(event.address) == 0)
          found->second.freed_others = true;
      } else if (event.kind == EventKind::kAlloc) {
        allocated(event, key);
      }
    }
    return std::move(out_);
  }

 private:
  using Key = std::pair<uint32_t, int>;

  void out_of_memory(uint32_t index, const Key& key) {
    const MemoryEvent& event = record_.events[index];
    if (!tries_others(event)) {
      open_.erase(key);
      out_.push_back({index, index});
      return;
    }
    if (const auto found = open_.find(key);
        found != open_.end() && !found->second.freed_others && found->second.stack == event.stack) {
      out_[found->second.index].last = index;
      ++out_[found->second.index].count;
      out_[found->second.index].overcome = false;
      return;
    }
    open_[key] = {out_.size(), event.stack, false, {}};
    out_.push_back({index, index});
  }

  // Convolutions try one algorithm after the other. In the backward pass Python's stack is empty
  // and the operator not known.
  bool tries_others(const MemoryEvent& event) const {
    const StackFacts& facts = stacks_[event.stack];
    return facts.empty || facts.family == OpFamily::kConvolution ||
           family_of(record_.string(event.op)) == OpFamily::kConvolution;
  }

  // The next events show whether an error was raised: an exception leaves the call and the modules
  // around it.
  void allocated(const MemoryEvent& event, const Key& key) {
    const auto found = open_.find(key);
    if (found == open_.end()) return;
    Open& open = found->second;
    const bool nameless = stacks_[open.stack].empty;
    if (!nameless && event.stack == open.stack && !open.freed_others) {
      open.own.insert(event.address);
      out_[open.index].overcome = true;  // until it is refused again
      return;
    }
    bool& overcome = out_[open.index].overcome;
    if (nameless) {
      overcome = stacks_[event.stack].empty || stacks_[event.stack].in_optimizer;
    } else if (!open.freed_others) {
      overcome = overcome || same_pass(open.stack, event.stack);
    }
    open_.erase(found);
  }

  // Whether both come from the same call of the outermost module, line by line.
  bool same_pass(uint32_t a, uint32_t b) const {
    if (a >= record_.stacks.size() || b >= record_.stacks.size()) return false;
    const auto& left = record_.stacks[a];
    const auto& right = record_.stacks[b];
    for (size_t depth = 0; depth < std::min(left.size(), right.size()); ++depth) {
      const abi::Frame& x = left[left.size() - 1 - depth];
      const abi::Frame& y = right[right.size() - 1 - depth];
      if (x.file != y.file || x.line != y.line || x.function != y.function) return false;
      const std::string_view name = bare_name(record_.string(x.function));
      if (name == "_call_impl") return true;
    }
    return false;
  }

  const record::Record& record_;
  const Stacks& stacks_;
  std::map<Key, Open> open_;
  std::vector<OomAttempts> out_;
};

}  // namespace

std::vector<OomAttempts> find_oom_attempts(const record::Record& record, const Stacks& stacks) {
  return Grouping(record, stacks).run();
}

}  // namespace tonnage::analysis
