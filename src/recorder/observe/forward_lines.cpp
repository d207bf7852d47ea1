#include "recorder/observe/forward_lines.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "recorder/observe/lines.h"
#include "recorder/observe/thread.h"

namespace tonnage::recorder {

struct ForwardTable {
  static constexpr size_t kEntries = 1 << 16;
  struct Entry {
    std::atomic<int64_t> sequence{-1};
    std::atomic<uint32_t> stack{0}, module{0};
  };
  Entry entries[kEntries];

  Entry& at(int64_t sequence) { return entries[static_cast<size_t>(sequence) % kEntries]; }
};

namespace {

struct ForwardTables {
  static constexpr size_t kMostThreads = 256;
  std::mutex mutex;
  std::unordered_map<uint64_t, std::unique_ptr<ForwardTable>> by_thread;

  ForwardTable* find(uint64_t thread, bool make) {
    std::lock_guard<std::mutex> lock(mutex);
    auto& table = by_thread[thread];
    if (!table && make && by_thread.size() <= kMostThreads)
      table = std::make_unique<ForwardTable>();
    return table.get();
  }
};

ForwardTables& forward_tables() {
  static ForwardTables* instance = new ForwardTables();
  return *instance;
}

bool find_line(ThreadState& thread, uint64_t forward_thread, int64_t sequence) {
  if (sequence < 0) return false;
  ForwardState& forward = thread.forward;
  if (forward.recalled_thread != forward_thread || !forward.recalled) {
    forward.recalled = forward_tables().find(forward_thread, false);
    forward.recalled_thread = forward_thread;
  }
  if (!forward.recalled) return false;
  // Views that are not observed have no line: the operator that follows uses what they made.
  constexpr int64_t kViews = 8;
  for (int64_t number = sequence; number <= sequence + kViews; number++) {
    auto& entry = forward.recalled->at(number);
    if (entry.sequence.load(std::memory_order_acquire) != number) continue;
    thread.lines.stack = entry.stack.load(std::memory_order_relaxed);
    thread.lines.module = entry.module.load(std::memory_order_relaxed);
    return true;
  }
  return false;
}

}  // namespace

void remember_forward(ThreadState& thread, int64_t sequence) {
  ForwardState& forward = thread.forward;
  if (!forward.own)
    forward.own = forward_tables().find(at::RecordFunction::currentThreadId(), true);
  if (!forward.own) return;
  take_native_stack(thread);
  auto& entry = forward.own->at(sequence);
  entry.stack.store(thread.lines.stack, std::memory_order_relaxed);
  entry.module.store(thread.lines.module, std::memory_order_relaxed);
  entry.sequence.store(sequence, std::memory_order_release);
}

void remember_forward_since(ThreadState& thread, uint64_t first) {
  if (thread.phases.backward_depth > 0 || !c10::GradMode::is_enabled()) return;
  constexpr uint64_t kMost = 64;
  const uint64_t end = std::min(at::sequence_number::peek(), first + kMost);
  for (uint64_t number = first; number < end; number++)
    remember_forward(thread, static_cast<int64_t>(number));
}

void recall_forward(ThreadState& thread, const torch::autograd::Node* node) {
  ForwardState& forward = thread.forward;
  if (node && find_line(thread, node->thread_id(), static_cast<int64_t>(node->sequence_nr()))) {
    forward.node_stack = thread.lines.stack;
    forward.node_module = thread.lines.module;
  } else {
    thread.lines.stack = forward.node_stack;
    thread.lines.module = forward.node_module;
  }
}

}  // namespace tonnage::recorder
