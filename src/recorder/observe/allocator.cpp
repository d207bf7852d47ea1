#include "recorder/observe/allocator.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <string>
#include <utility>

#include "recorder/observe/context.h"
#include "recorder/observe/labels.h"
#include "recorder/observe/operators.h"
#include "recorder/observe/thread.h"
#include "recorder/state.h"
#include "recorder/values/device.h"

namespace tonnage::recorder {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;
using abi::EventKind;

std::atomic<bool> attached{false};  // or tried in vain
std::atomic<bool> traced{false};    // the allocator tells of its blocks

const Frame* innermost_leaf(const ThreadState& thread) {
  for (size_t i = thread.frames.size(); i-- > 0;)
    if (thread.frames[i].info && thread.frames[i].info->followed()) return &thread.frames[i];
  return nullptr;
}

void remember_alloc(ThreadState& thread, uint64_t address) {
  const Frame* leaf = innermost_leaf(thread);
  if (!leaf) return;
  AllocationState& state = thread.allocations;
  state.recent[state.next++ % AllocationState::kRecent] = {address, leaf->serial,
                                                           leaf == &thread.frames.back()};
}

// Memory that an operator allocates and frees before it ends: its workspace.
void label_if_scratch(ThreadState& thread, uint64_t address) {
  for (AllocationState::Recent& recent : thread.allocations.recent) {
    if (recent.address != address) continue;
    bool running = false;
    for (const Frame& frame : thread.frames) running |= frame.serial == recent.serial;
    if (running && recent.direct) label(address, abi::Category::kWorkspace, 0);
    recent.address = 0;
    return;
  }
}

void copy_context(const abi::MemoryEvent& from, abi::MemoryEvent* to) {
  to->step = from.step;
  to->phase = from.phase;
  to->module = from.module;
  to->op = from.op;
  to->stack = from.stack;
}

EventKind kind_of(allocator::TraceEntry::Action action) {
  using Action = allocator::TraceEntry::Action;
  switch (action) {
    case Action::ALLOC: return EventKind::kAlloc;
    case Action::FREE_REQUESTED: return EventKind::kFreeRequested;
    case Action::FREE_COMPLETED: return EventKind::kFreeCompleted;
    case Action::SEGMENT_ALLOC: return EventKind::kSegmentAlloc;
    case Action::SEGMENT_FREE: return EventKind::kSegmentFree;
    case Action::SEGMENT_MAP: return EventKind::kSegmentMap;
    case Action::SEGMENT_UNMAP: return EventKind::kSegmentUnmap;
    case Action::SNAPSHOT: return EventKind::kSnapshot;
    case Action::OOM: return EventKind::kOom;
    default: return EventKind::kNone;
  }
}

// Most frees are completed within the call that requests them: they have its context.
void add_context(ThreadState* thread, abi::MemoryEvent& event) {
  const bool completes = event.kind == EventKind::kFreeCompleted && thread &&
                         thread->allocations.last_free.address == event.address;
  if (completes)
    copy_context(thread->allocations.last_free, &event);
  else
    fill_context(&event);
  if (!thread) return;
  if (event.kind == EventKind::kFreeRequested) thread->allocations.last_free = event;
  if (event.kind == EventKind::kFreeCompleted) thread->allocations.last_free.address = 0;
}

void record_alloc(ThreadState* thread, abi::MemoryEvent& event) {
  if (thread)
    for (const Frame& frame : thread->frames)
      if (frame.from_host) event.flags |= abi::kEventHostSource;
  bridge().emit(&event);
  if (thread) remember_alloc(*thread, event.address);
}

void record(ThreadState* thread, const allocator::TraceEntry& entry) {
  abi::MemoryEvent event;
  event.kind = kind_of(entry.action_);
  if (event.kind == EventKind::kNone) return;
  event.device = static_cast<uint8_t>(entry.device_ < 0 ? 0 : entry.device_);
  event.address = static_cast<uint64_t>(entry.addr_);
  event.size_bytes = static_cast<uint64_t>(entry.size_);
  event.stream = reinterpret_cast<uint64_t>(entry.stream_);
  if (event.kind == EventKind::kOom) std::swap(event.value, event.address);  // bytes that were free
  if (event.kind == EventKind::kFreeRequested) {
    if (thread) label_if_scratch(*thread, event.address);
    address_freed(event.address, event.size_bytes);
  }
  add_context(thread, event);
  if (event.kind == EventKind::kAlloc) return record_alloc(thread, event);
  bridge().emit(&event);
  if (event.kind == EventKind::kOom) bridge().flush();
}

// Runs under the allocator's lock: takes no GIL, allocates nothing on the device.
void on_trace(const allocator::TraceEntry& entry) noexcept {
  try {
    record(thread_state(), entry);
  } catch (...) {
    count_exception();
  }
}

}  // namespace

void attach_allocator() {
  if (attached.load(std::memory_order_relaxed)) return;
  auto* current = allocator::get();
  if (!current || !current->initialized() || attached.exchange(true)) return;
  try {
    current->attachAllocatorTraceTracker(&on_trace);
    traced = true;
  } catch (const std::exception&) {
    message("The allocator \"" + current->name() +
                "\" does not tell of its tensors: device memory is followed, by line and operator",
            false);
  }
}

void label_scratch(ThreadState& thread, Frame& frame) {
  for (AllocationState::Recent& recent : thread.allocations.recent) {
    if (recent.address == 0 || recent.serial != frame.serial) continue;
    uint64_t address = recent.address;
    recent.address = 0;
    if (!recent.direct) continue;
    auto outputs = outputs_of(*frame.function, *frame.info);
    if (outputs.empty() && !frame.info->result_is_argument.empty()) continue;  // it failed
    bool result = false;
    auto check = [&](const at::Tensor& t) {
      if (t.defined() && device::plain(t))
        result |= reinterpret_cast<uint64_t>(t.unsafeGetTensorImpl()->storage().data()) == address;
      else if (t.defined() && device::has(t))
        result = true;  // sparse, quantised, wrapped: what it owns is not looked into
    };
    for (size_t i = 0; i < outputs.size(); i++)
      for_each_tensor(frame.info->result_kinds[i], outputs[i],
                      [&](const at::Tensor& t, int) { check(t); });
    if (!result) label(address, abi::Category::kWorkspace, 0);
  }
}

void record_counters() {
  auto* current = allocator::get();
  if (!attached.load(std::memory_order_relaxed) || !current || !current->initialized()) return;
  constexpr size_t kAll =
      0;  // StatType::AGGREGATE; the enumeration moved between namespaces, its first value did not
  int devices = static_cast<int>(bridge().session ? bridge().session->device_count : 1);
  for (int device = 0; device < devices; device++) {
    try {
      auto stats = current->getDeviceStats(static_cast<c10::DeviceIndex>(device));
      // Of an allocator that does not tell of its tensors, what it counts is all that is known.
      if (!traced.load(std::memory_order_relaxed) && stats.reserved_bytes[kAll].peak == 0) continue;
      auto emit = [&](const char* name, int64_t value) {
        abi::MemoryEvent event;
        event.kind = EventKind::kCounter;
        event.device = static_cast<uint8_t>(device);
        event.value = static_cast<uint64_t>(value);
        event.step = recorder().steps.load(std::memory_order_relaxed);
        event.name = bridge().intern_string(name, std::char_traits<char>::length(name));
        bridge().emit(&event);
      };
      emit("allocated_bytes.all.peak", stats.allocated_bytes[kAll].peak);
      emit("reserved_bytes.all.peak", stats.reserved_bytes[kAll].peak);
      emit("allocated_bytes.all.current", stats.allocated_bytes[kAll].current);
      emit("reserved_bytes.all.current", stats.reserved_bytes[kAll].current);
      emit("num_alloc_retries", stats.num_alloc_retries);
      emit("num_ooms", stats.num_ooms);
    } catch (...) {
      return;  // fewer devices than the session has (CUDA_VISIBLE_DEVICES)
    }
  }
}

}  // namespace tonnage::recorder
