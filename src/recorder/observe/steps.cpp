#include "recorder/observe/steps.h"

#include <atomic>

#include "abi/event.h"
#include "recorder/observe/allocator.h"
#include "recorder/observe/context.h"
#include "recorder/observe/thread.h"
#include "recorder/state.h"

namespace tonnage::recorder {
namespace {

enum class Pending : int { kNo, kUntilGradientsAreOn, kUntilForward };

std::atomic<bool> backward_ran{false};  // since the last step
std::atomic<bool> optimizer_scope_seen{false};
std::atomic<bool> updating{false};
std::atomic<Pending> pending{Pending::kNo};

void end_step() {
  const uint32_t number = recorder().steps.fetch_add(1) + 1;
  abi::MemoryEvent event;
  fill_context(&event);
  event.kind = abi::EventKind::kStep;
  event.step = number - 1;
  event.value = number;
  bridge().emit(&event);
  record_counters();
  bridge().flush();
}

}  // namespace

void note_backward() { backward_ran.store(true, std::memory_order_relaxed); }
bool backward_since_step() { return backward_ran.load(std::memory_order_relaxed); }

void note_optimizer_scope() { optimizer_scope_seen.store(true, std::memory_order_relaxed); }

void note_optimizer_step(ThreadState& thread) {
  if (!backward_since_step()) return;
  if (thread.phases.backward_depth > 0) {
    // An optimizer per parameter, run inside the backward pass: all of them are one step.
    pending.store(Pending::kUntilGradientsAreOn, std::memory_order_relaxed);
    return;
  }
  pending.store(Pending::kNo, std::memory_order_relaxed);
  note_update_over();
  if (backward_ran.exchange(false)) end_step();
}

void note_update() { updating.store(true, std::memory_order_relaxed); }
bool update_runs() { return updating.load(std::memory_order_relaxed); }
void note_update_over() {
  if (update_runs()) updating.store(false, std::memory_order_relaxed);
}

void note_new_data() {
  if (recorder().steps.load(std::memory_order_relaxed) > 0) note_update_over();
}

void note_parameter_written(bool gradients_enabled) {
  note_update();
  if (optimizer_scope_seen.load(std::memory_order_relaxed)) return;
  pending.store(gradients_enabled ? Pending::kUntilForward : Pending::kUntilGradientsAreOn,
                std::memory_order_relaxed);
}

void finish_pending_step(bool forward_began) {
  Pending now = pending.load(std::memory_order_relaxed);
  if (now == Pending::kNo || (now == Pending::kUntilForward && !forward_began)) return;
  if (!pending.compare_exchange_strong(now, Pending::kNo)) return;
  note_update_over();
  if (backward_ran.exchange(false)) end_step();
}

}  // namespace tonnage::recorder
