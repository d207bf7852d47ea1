#include "recorder/observe/phases.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <atomic>

#include "recorder/observe/context.h"
#include "recorder/observe/steps.h"
#include "recorder/observe/thread.h"
#include "recorder/state.h"

namespace tonnage::recorder {
namespace {

using abi::Phase;

std::atomic<bool> model_ran{false};

constexpr std::string_view kOptimizer = "Optimizer.";
constexpr std::string_view kOptimizerStep = "Optimizer.step#";
constexpr std::string_view kLoader = "enumerate(DataLoader)";

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

void emit_annotation(std::string_view name, bool ends) {
  abi::MemoryEvent event;
  fill_context(&event);
  event.kind = abi::EventKind::kAnnotation;
  event.name = intern(name);
  event.value = ends;
  bridge().emit(&event);
}

}  // namespace

bool in_backward(const ThreadState& thread) {
  constexpr int kNone = -1;
  return thread.phases.backward_depth > 0 ||
         (backward_since_step() && torch::autograd::get_current_graph_task_id() != kNone);
}

bool in_optimizer(const ThreadState& thread) {
  return thread.phases.optimizer_depth > 0 && !c10::GradMode::is_enabled();
}

void note_model_ran() {
  if (!model_ran.load(std::memory_order_relaxed)) model_ran.store(true, std::memory_order_relaxed);
}

Phase current_phase(const ThreadState& thread) {
  if (in_backward(thread)) return Phase::kBackward;
  if (in_optimizer(thread)) return Phase::kOptimizer;
  if (thread.phases.data_depth > 0) return Phase::kData;
  if (!model_ran.load(std::memory_order_relaxed)) return Phase::kInit;
  // Gradient clipping, and optimizers that are not torch.optim's, have no scope.
  if (update_runs()) return Phase::kOptimizer;
  const bool forward = c10::GradMode::is_enabled() || thread.phases.named_depth > 0;
  return forward ? Phase::kForward : Phase::kEval;
}

void emit_phase(ThreadState& thread) {
  const Phase phase = current_phase(thread);
  if (static_cast<uint8_t>(phase) == thread.phases.emitted) return;
  thread.phases.emitted = static_cast<uint8_t>(phase);
  abi::MemoryEvent event;
  fill_context(&event);
  event.kind = abi::EventKind::kPhase;
  event.value = static_cast<uint64_t>(phase);
  const bool named = phase == Phase::kOptimizer || phase == Phase::kData;
  event.name = named ? thread.phases.scope_name : 0;
  bridge().emit(&event);
}

void user_scope_begins(ThreadState& thread, std::string_view name) {
  if (starts_with(name, kOptimizer)) {
    note_optimizer_scope();
    thread.phases.optimizer_depth++;
    const size_t begin = name.find('#');
    thread.phases.scope_name = begin == std::string_view::npos ? 0 : intern(name.substr(begin + 1));
  } else if (starts_with(name, kLoader)) {
    thread.phases.data_depth++;
    thread.phases.scope_name = intern(name);
  } else {
    return emit_annotation(name, false);
  }
  emit_phase(thread);
}

void user_scope_ends(ThreadState& thread, std::string_view name) {
  PhaseState& phases = thread.phases;
  if (starts_with(name, kOptimizer)) {
    if (phases.optimizer_depth > 0 && --phases.optimizer_depth == 0 &&
        starts_with(name, kOptimizerStep))
      note_optimizer_step(thread);
  } else if (starts_with(name, kLoader)) {
    if (phases.data_depth > 0) phases.data_depth--;
  } else {
    emit_annotation(name, true);
  }
}

}  // namespace tonnage::recorder
