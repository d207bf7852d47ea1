#include "recorder/observe/operator_observer.h"

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>

#include <cstring>
#include <memory>
#include <string_view>

#include "recorder/observe/allocator.h"
#include "recorder/observe/caches.h"
#include "recorder/observe/forward_lines.h"
#include "recorder/observe/gradients.h"
#include "recorder/observe/labels.h"
#include "recorder/observe/lines.h"
#include "recorder/observe/operators.h"
#include "recorder/observe/parameters.h"
#include "recorder/observe/phases.h"
#include "recorder/observe/quiet_calls.h"
#include "recorder/observe/steps.h"
#include "recorder/observe/thread.h"
#include "recorder/state.h"
#include "recorder/values/collectives.h"
#include "recorder/values/device.h"
#include "recorder/values/engine.h"

namespace tonnage::recorder {
namespace {

Frame& push(ThreadState& thread, const at::RecordFunction& f, Frame::Kind kind) {
  thread.frames.emplace_back();
  Frame& frame = thread.frames.back();
  frame.function = &f;
  frame.kind = kind;
  frame.serial = thread.next_serial++;
  frame.outer_stack = thread.lines.stack;
  frame.outer_module = thread.lines.module;
  return frame;
}

// --- Operators ---

// .to(device) and .cuda() of host data: what is allocated inside is an input, or a parameter while
// the model is built.
bool copies_from_host(const OpInfo& info, const at::RecordFunction& f) {
  if (!info.moves) return false;
  const auto inputs = inputs_of(f, info);
  if (inputs.size() == 0 || !inputs[0].isTensor()) return false;
  const at::Tensor& from = inputs[0].toTensor();
  return from.defined() && from.device().is_cpu() && !device::has(from) && from.dim() > 0;
}

// An operator that no other has called.
void outermost_begins(ThreadState& thread, const OpInfo& info, const at::RecordFunction& f) {
  attach_python();
  if (c10::GradMode::is_enabled() && thread.phases.backward_depth == 0)
    finish_pending_step(/*forward_began=*/false);
  take_stack(thread);
  look_at_parameters(thread, info, f);
  if (thread.frames.back().from_host || !info.takes_tensors) note_new_data();
  emit_phase(thread);
}

// A view calls nothing that is observed, so it needs no frame. But its node in the graph has a
// line.
void view_begins(ThreadState& thread, const at::RecordFunction& f, const OpInfo& info) {
  if (f.seqNr() < 0 || thread.phases.backward_depth > 0) return;
  const bool outermost = !thread.in_operator();
  if (outermost) {
    take_stack(thread);
    look_at_parameters(thread, info, f);
  }
  remember_forward(thread, f.seqNr());
  if (outermost && thread.frames.empty()) drop_stack(thread);
}

void operator_begins(ThreadState& thread, const at::RecordFunction& f, const OpInfo& info) {
  const bool outermost = !thread.in_operator();
  Frame& frame = push(thread, f, Frame::Kind::kOperator);
  frame.info = &info;
  frame.name = info.name_id;
  frame.from_host = copies_from_host(info, f);
  if (outermost) outermost_begins(thread, info, f);
  if (f.seqNr() >= 0 && thread.phases.backward_depth == 0) remember_forward(thread, f.seqNr());
  if (info.quiet) make_quiet_if_unknown(thread, frame, f);
  if (frame.quiet.on) return;
  if (info.appends) look_for_cache(thread, info, f);
  if (under_transform()) return;
  if (info.collective != Collective::kNone) return before_collective(thread, frame);
  if (info.needs_results()) begin_values(thread, frame);
}

void operator_ends(ThreadState& thread, Frame& frame, bool seen_to_end) {
  if (frame.quiet.on) {
    remember_forward_since(thread, frame.quiet.first_sequence);
  } else if (seen_to_end && frame.info->needs_results()) {
    label_scratch(thread, frame);
    if (frame.grows_cache) label_new_cache(*frame.info, *frame.function);
    end_values(thread, frame);
  }
  if (seen_to_end && frame.values.collective) after_collective(frame);
  if (frame.launches_accounted) bridge().operator_depth_add(-1);
  frame.launches_accounted = false;
  drop_values(frame);
  if (thread.frames.size() == 1) drop_stack(thread);
}

// --- Nodes of the backward pass, and functions with a name of their own ---

// Interned, from a small cache by the name's end: the names of nodes differ there.
uint32_t node_name(ThreadState& thread, std::string_view name) {
  constexpr size_t kBytes = sizeof(uint64_t);
  uint64_t end = name.size();
  if (name.size() >= kBytes) std::memcpy(&end, name.data() + name.size() - kBytes, kBytes);
  auto& slot = thread.caches.node_names[((end + name.size()) * 0x9e3779b97f4a7c15ull) >>
                                        (64 - LookupCaches::kNodeNameBits)];
  if (slot.id == 0 || slot.text != name) {
    slot.text = name;
    slot.id = intern(name);
  }
  return slot.id;
}

// The engine reports every node before it runs it. Its own scope for nodes (BACKWARD_FUNCTION) is
// not used: for it, PyTorch makes the node's name and the list of its inputs again, which takes
// longer than everything that is done here.
constexpr std::string_view kEvaluates = "autograd::engine::evaluate_function: ";

void node_begins(ThreadState& thread, const at::RecordFunction& f, std::string_view name) {
  Frame& frame = push(thread, f, Frame::Kind::kBackward);
  frame.name = node_name(thread, name);
  thread.phases.backward_depth++;
  note_backward();
  note_update_over();
  const std::shared_ptr<torch::autograd::Node> node = torch::autograd::get_current_node();
  recall_forward(thread, node.get());
  if (name == "torch::autograd::AccumulateGrad") watch_accumulation(frame, node.get());
  emit_phase(thread);
}

void node_ends(ThreadState& thread, Frame& frame, bool seen_to_end) {
  if (seen_to_end) label_accumulated(frame);
  thread.phases.backward_depth--;
  thread.lines.stack = frame.outer_stack;
  thread.lines.module = frame.outer_module;
}

void named_begins(ThreadState& thread, const at::RecordFunction& f) {
  const std::string_view name = f.name();
  if (name == "detach") return;  // a view, whose operator tells of itself twice
  if (name.substr(0, kEvaluates.size()) == kEvaluates)
    return node_begins(thread, f, name.substr(kEvaluates.size()));
  Frame& frame = push(thread, f, Frame::Kind::kNamed);
  frame.name = intern(name);
  thread.phases.named_depth++;
  take_stack(thread);
  if (f.seqNr() >= 0 && thread.phases.backward_depth == 0) remember_forward(thread, f.seqNr());
}

void named_ends(ThreadState& thread, Frame& frame) {
  thread.phases.named_depth--;
  thread.lines.stack = frame.outer_stack;
}

// --- Callbacks ---

void function_begins(ThreadState& thread, const at::RecordFunction& f) {
  const OpInfo* info = find_operator(thread, f);
  if (!info) return named_begins(thread, f);
  // The result of a scalar read is not used here, and PyTorch before 2.8 cannot box large unsigned
  // numbers.
  if (!info->needs_results() || info->rule == OpRule::kScalarRead) leave_out_outputs(f);
  if (info->host_only && concerns_host_only(*info, f)) {
    leave_out_outputs(f);
    if (info->rule != OpRule::kScalarRead) make_quiet(thread, f);
    return;
  }
  if (!thread.frames.empty() && thread.frames.back().gradient.expected)
    look_for_gradient(thread.frames.back(), *info, f);
  if (info->only_views && !info->quiet) return view_begins(thread, f, *info);
  operator_begins(thread, f, *info);
}

void frame_ends(ThreadState& thread, Frame& frame, bool seen_to_end) {
  switch (frame.kind) {
    case Frame::Kind::kOperator: return operator_ends(thread, frame, seen_to_end);
    case Frame::Kind::kNamed: return named_ends(thread, frame);
    case Frame::Kind::kBackward: return node_ends(thread, frame, seen_to_end);
  }
}

// Frames end in reverse order. A frame whose end was not seen (it moved to another thread) is
// removed together with the frame below it.
void function_ends(ThreadState& thread, const at::RecordFunction& f) {
  if (thread.quiet.call == &f) {
    end_quiet(thread);
    if (thread.frames.empty() || thread.frames.back().function != &f) return;
  }
  size_t at = thread.frames.size();
  while (at > 0 && thread.frames[at - 1].function != &f) at--;
  if (at == 0) return;
  while (thread.frames.size() >= at) {
    Frame& frame = thread.frames.back();
    try {
      frame_ends(thread, frame, frame.function == &f);
    } catch (...) {
      thread.busy = false;
      count_exception();
      if (frame.launches_accounted) bridge().operator_depth_add(-1);
    }
    thread.frames.pop_back();
  }
}

std::unique_ptr<at::ObserverContext> scope_begins(const at::RecordFunction& f) {
  ThreadState* thread = thread_state();
  if (!thread || thread->busy) return nullptr;
  if (thread->quiet.call) {
    leave_out_outputs(f);
    return nullptr;
  }
  try {
    if (!only_observer(f)) observe_plain_views();
    if (f.scope() == at::RecordScope::FUNCTION)
      function_begins(*thread, f);
    else
      user_scope_begins(*thread, f.name());
  } catch (...) {
    thread->busy = false;
    count_exception();
  }
  return nullptr;
}

void scope_ends(const at::RecordFunction& f, at::ObserverContext*) {
  ThreadState* thread = thread_state();
  if (!thread || thread->busy || (thread->quiet.call && thread->quiet.call != &f)) return;
  try {
    if (f.scope() == at::RecordScope::USER_SCOPE)
      user_scope_ends(*thread, f.name());
    else
      function_ends(*thread, f);
  } catch (...) {
    count_exception();
  }
}

}  // namespace

void observe_operators() {
  watch_operators();
  leave_out_plain_views();
  // One for all scopes: PyTorch copies the list of callbacks whenever a thread's state changes, as
  // at every backward node.
  at::addGlobalCallback(at::RecordFunctionCallback(&scope_begins, &scope_ends)
                            .needsInputs(true)
                            .needsOutputs(true)
                            .scopes({at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE}));
}

}  // namespace tonnage::recorder
