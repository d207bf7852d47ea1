#include "recorder/observe/operator_observer.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "recorder/observe/allocator.h"
#include "recorder/observe/labels.h"
#include "recorder/observe/python_api.h"
#include "recorder/observe/stacks.h"
#include "recorder/values/engine.h"

namespace tonnage::recorder {
namespace {

using abi::EventKind;
using abi::Phase;

// --- Steps ---

std::atomic<bool> backward_since_step{false};
std::atomic<bool> step_pending{
    false};  // parameters were updated; the step ends when the next forward pass begins
std::atomic<bool> optimizer_scope_seen{false};
std::atomic<bool> training_began{false};

void end_step() {
  uint32_t number = recorder().steps.fetch_add(1) + 1;
  abi::MemoryEvent event;
  fill_context(&event);
  event.kind = EventKind::kStep;
  event.step = number - 1;
  event.value = number;
  bridge().emit(&event);
  record_counters();
  bridge().flush();
}

// --- Lines of the forward pass, for the backward pass ---

}  // namespace

// Autograd numbers the nodes of each forward thread; the backward pass names the number and the
// thread.
struct ForwardTable {
  static constexpr size_t kEntries = 1 << 16;
  struct Entry {
    std::atomic<int64_t> sequence{-1};
    std::atomic<uint32_t> stack{0}, module{0};
  };
  Entry entries[kEntries];
};

namespace {

struct ForwardTables {
  std::mutex mutex;
  std::unordered_map<uint64_t, std::unique_ptr<ForwardTable>> by_thread;

  ForwardTable* of(uint64_t thread, bool make) {
    std::lock_guard<std::mutex> lock(mutex);
    auto& table = by_thread[thread];
    if (!table && make && by_thread.size() <= 256) table = std::make_unique<ForwardTable>();
    return table.get();
  }
};

ForwardTables& forward_tables() {
  static ForwardTables* instance = new ForwardTables();
  return *instance;
}

void remember_forward(ThreadState& thread, int64_t sequence) {
  if (!thread.forward)
    thread.forward = forward_tables().of(at::RecordFunction::currentThreadId(), true);
  if (!thread.forward) return;
  if (thread.native_stack && thread.stack == 0 && recorder().settings.stacks)
    thread.stack = native_stack();
  auto& entry = thread.forward->entries[static_cast<size_t>(sequence) % ForwardTable::kEntries];
  entry.stack.store(thread.stack, std::memory_order_relaxed);
  entry.module.store(thread.module, std::memory_order_relaxed);
  entry.sequence.store(sequence, std::memory_order_release);
}

bool recall_forward(ThreadState& thread, uint64_t forward_thread, int64_t sequence) {
  if (sequence < 0) return false;
  if (thread.recalled_thread != forward_thread || !thread.recalled) {
    thread.recalled = forward_tables().of(forward_thread, false);
    thread.recalled_thread = forward_thread;
  }
  if (!thread.recalled) return false;
  // Views that are not observed have no line: the operator that follows uses what they made.
  constexpr int64_t kViews = 8;
  for (int64_t number = sequence; number <= sequence + kViews; number++) {
    auto& entry = thread.recalled->entries[static_cast<size_t>(number) % ForwardTable::kEntries];
    if (entry.sequence.load(std::memory_order_acquire) != number) continue;
    thread.stack = entry.stack.load(std::memory_order_relaxed);
    thread.module = entry.module.load(std::memory_order_relaxed);
    return true;
  }
  return false;
}

// --- Frames ---

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

OpFrame& push(ThreadState& thread, const at::RecordFunction& f, OpFrame::Kind kind) {
  thread.frames.emplace_back();
  OpFrame& frame = thread.frames.back();
  frame.function = &f;
  frame.kind = kind;
  frame.serial = thread.next_serial++;
  frame.outer_stack = thread.stack;
  frame.outer_module = thread.module;
  return frame;
}

void take_stack(ThreadState& thread) {
  if (!recorder().settings.stacks) return;
  uint32_t stack = python_stack(/*may_wait=*/true, &thread.depth);
  if (stack) {
    thread.stack = stack;
    thread.native_stack = false;
  } else if (thread.backward_depth == 0) {
    thread.stack = 0;
    thread.native_stack = !python_api().present;
  }
}

void emit_phase(ThreadState& thread) {
  Phase phase = current_phase(thread);
  if (static_cast<uint8_t>(phase) == thread.emitted_phase) return;
  thread.emitted_phase = static_cast<uint8_t>(phase);
  abi::MemoryEvent event;
  fill_context(&event);
  event.kind = EventKind::kPhase;
  event.value = static_cast<uint64_t>(phase);
  event.name = phase == Phase::kOptimizer || phase == Phase::kData ? thread.scope_name : 0;
  bridge().emit(&event);
}

// A closure that an optimizer's step calls (LBFGS, Lightning with every optimizer) runs with
// gradients: it is a forward pass.
bool in_optimizer(const ThreadState& thread) {
  return thread.optimizer_depth > 0 && !c10::GradMode::is_enabled();
}

// The parameter that a tensor is, or is a view of: a leaf that requires a gradient. Only leaves
// have the flag themselves; asking the tensor takes a lock where it is a view.
const at::Tensor* parameter_of(const at::Tensor& t) {
  if (!t.defined() || !t.is_cuda()) return nullptr;
  const at::Tensor* whole = &t;
  const torch::autograd::AutogradMeta* meta = torch::autograd::impl::get_autograd_meta(t);
  if (meta && meta->is_view_) {
    const auto* view = static_cast<const torch::autograd::DifferentiableViewMeta*>(meta);
    if (!view->has_bw_view()) return nullptr;
    whole = &view->get_backward_view().base_;
    meta = torch::autograd::impl::get_autograd_meta(*whole);
  }
  return meta && meta->requires_grad_ && !meta->grad_fn_ ? whole : nullptr;
}

// Parameters among the operator's inputs: they name the module, mark the beginning of training, and
// C++ optimizers' updates.
void look_at_parameters(ThreadState& thread, const OpInfo& info, const at::RecordFunction& f) {
  if (thread.backward_depth > 0 || in_optimizer(thread)) return;
  auto inputs = inputs_of(f, info);
  bool grad = c10::GradMode::is_enabled();
  bool found = false;
  auto look = [&](const at::Tensor& t, bool written) {
    const at::Tensor* parameter = parameter_of(t);
    if (!parameter) return;
    if (written) {
      if (!grad) parameter_updated(*parameter);
      if (!grad && !optimizer_scope_seen.load(std::memory_order_relaxed) &&
          backward_since_step.load(std::memory_order_relaxed))
        step_pending.store(true, std::memory_order_relaxed);
      return;
    }
    if (!grad) return;
    training_began.store(true, std::memory_order_relaxed);
    if (uint32_t module = module_of_parameter(thread, *parameter)) {
      thread.module = thread.parameter_module = module;
      thread.parameter_depth = thread.depth;
      found = true;
    }
  };
  constexpr size_t kLongestList = 64;
  for (size_t i = 0; i < inputs.size() && i < info.arguments(); i++) {
    const bool list = info.kinds[i] == ArgumentKind::kTensors;
    if (list && inputs[i].isList() && inputs[i].toListRef().size() > kLongestList) continue;
    if (list || info.kinds[i] == ArgumentKind::kTensor)
      for_each_tensor(info.kinds[i], inputs[i],
                      [&](const at::Tensor& t, int) { look(t, info.writes[i]); });
  }
  // A module's forward and its call take three frames; further out, the call is the module's
  // parent's, or nobody's.
  if (!found && thread.depth > 0 && thread.parameter_module != 0) {
    size_t levels =
        thread.parameter_depth > thread.depth ? (thread.parameter_depth - thread.depth + 1) / 3 : 0;
    thread.module =
        levels ? outer_module(thread.parameter_module, levels) : thread.parameter_module;
  }
}

// torch.func transforms, tracing and dispatch modes look at the call first; the real call comes
// after them.
bool under_transform() {
  constexpr c10::DispatchKeySet kTransforms(
      {c10::DispatchKey::Python, c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
       c10::DispatchKey::FuncTorchDynamicLayerBackMode, c10::DispatchKey::Functionalize,
       c10::DispatchKey::PreDispatch, c10::DispatchKey::Tracer, c10::DispatchKey::Fake});
  auto local = c10::impl::tls_local_dispatch_key_set();
  return (local.included_ - local.excluded_).has_any(kTransforms);
}

// .to(device) and .cuda() of host data: what is allocated inside is an input, or a parameter while
// the model is built.
bool copies_from_host(const OpInfo& info, const at::RecordFunction& f) {
  if (!info.moves) return false;
  auto inputs = inputs_of(f, info);
  if (inputs.size() == 0 || !inputs[0].isTensor()) return false;
  const at::Tensor& from = inputs[0].toTensor();
  return from.defined() && from.device().is_cpu() && from.dim() > 0;
}

// Whether all tensors of the call are as the test wants them, and there is one.
template <class Test>
bool all_tensors(const OpInfo& info, const at::RecordFunction& f, Test test) {
  bool some = false, fine = true;
  const auto inputs = inputs_of(f, info);
  for (size_t i = 0; i < inputs.size() && i < info.arguments() && fine; i++) {
    if (info.kinds[i] == ArgumentKind::kDevice) {
      fine = !inputs[i].isDevice() || inputs[i].toDevice().is_cuda();  // else a read by the host
      continue;
    }
    for_each_tensor(info.kinds[i], inputs[i], [&](const at::Tensor& t, int) {
      if (!t.defined() || !fine) return;
      some = true;
      fine = test(t);
    });
  }
  return some && fine;
}

bool on_host(const at::Tensor& t) { return t.device().is_cpu(); }
bool unknown_on_card(const at::Tensor& t) {
  return t.is_cuda() && plain_cuda(t) && !bridge().content_any(address_of(t), span_bytes(t));
}

// The inside of this call is passed by until it ends. Where only the recorder observes, PyTorch
// need not even ask: a call of the recorder costs it more to prepare than it takes.
void close_inside(ThreadState& thread, const at::RecordFunction& f) {
  thread.closed = &f;
  if (!only_observer(f)) return;
  at::enableRecordFunction(false);
  thread.quiet = true;
}

void reopen(ThreadState& thread) {
  thread.closed = nullptr;
  if (!thread.quiet) return;
  thread.quiet = false;
  at::enableRecordFunction(true);
}

// Where nothing known goes in, nothing known comes out of views and casts: what they call is passed
// by until they end. Its memory counts as the call's own, its kernels as accounted for.
void close(ThreadState& thread, OpFrame& frame, const at::RecordFunction& f) {
  if (under_transform() || !all_tensors(*frame.info, f, unknown_on_card)) return;
  frame.closed = true;
  frame.name = frame.info->inner_name_id;
  frame.first_sequence = at::sequence_number::peek();
  close_inside(thread, f);
  bridge().operator_depth_add(1);
  frame.depth_added = true;
}

// The lines of the autograd nodes that were made inside.
void remember_inside(ThreadState& thread, const OpFrame& frame) {
  if (thread.backward_depth > 0 || !c10::GradMode::is_enabled()) return;
  constexpr uint64_t kMost = 64;
  const uint64_t end = std::min(at::sequence_number::peek(), frame.first_sequence + kMost);
  for (uint64_t number = frame.first_sequence; number < end; number++)
    remember_forward(thread, static_cast<int64_t>(number));
}

void label_gradient(const at::Tensor& gradient) {
  if (gradient.defined() && plain_cuda(gradient) && gradient.numel() > 0)
    label(address_of(gradient), abi::Category::kGradient, 0);
}

// The first of these that an AccumulateGrad calls keeps the gradient or adds it; hooks after it may
// use it up at once.
void look_for_gradient(OpFrame& accumulation, const OpInfo& info, const at::RecordFunction& f) {
  if (!info.keeps_gradient) return;
  accumulation.gradient_expected = false;
  if (!info.makes_gradient)
    accumulation.accumulates = nullptr;  // nothing new to look at in the end
  const auto inputs = inputs_of(f, info);
  for (size_t i = 0; i < inputs.size() && i < info.arguments(); i++)
    for_each_tensor(info.kinds[i], inputs[i], [](const at::Tensor& t, int) { label_gradient(t); });
}

void operator_begins(ThreadState& thread, const at::RecordFunction& f, const OpInfo& info) {
  const bool outermost =
      thread.frames.empty() || thread.frames.back().kind != OpFrame::Kind::kOperator;
  OpFrame& frame = push(thread, f, OpFrame::Kind::kOperator);
  frame.info = &info;
  frame.name = info.name_id;
  if (outermost) {
    attach_python();
    if (step_pending.load(std::memory_order_relaxed) && c10::GradMode::is_enabled() &&
        thread.backward_depth == 0)
      finish_pending_step();
    take_stack(thread);
    look_at_parameters(thread, info, f);
    emit_phase(thread);
  }
  if (f.seqNr() >= 0 && thread.backward_depth == 0) remember_forward(thread, f.seqNr());
  frame.from_host = copies_from_host(info, f);
  if (info.closable) close(thread, frame, f);
  const bool collective = info.collective != Collective::kNone;
  if ((!info.followed() && !collective) || frame.closed) return;
  if (under_transform()) {
    frame.opaque = true;
    return;
  }
  if (collective) return before_collective(thread, frame);
  before_operator(thread, frame);
  if (frame.opaque) return;
  for (size_t i = thread.frames.size() - 1;
       i-- > 0 && thread.frames[i].kind == OpFrame::Kind::kOperator;)
    if (thread.frames[i].name == frame.name && !thread.frames[i].opaque)
      thread.frames[i].delegated = true;
}

// Interned, from a small cache by the name's end: the names of nodes differ there.
uint32_t node_name(ThreadState& thread, std::string_view name) {
  constexpr size_t kBytes = sizeof(uint64_t);
  uint64_t end = name.size();
  if (name.size() >= kBytes) std::memcpy(&end, name.data() + name.size() - kBytes, kBytes);
  auto& slot =
      thread.node_names[((end + name.size()) * 0x9e3779b97f4a7c15ull) >> (64 - kNodeNameBits)];
  if (slot.id == 0 || slot.text != name) {
    slot.text = name;
    slot.id = intern(name);
  }
  return slot.id;
}

// The engine tells of every node before it runs it. Its own scope for nodes (BACKWARD_FUNCTION) is
// not asked for: making the node's name and the list of its inputs once more takes longer than all
// that is done here.
constexpr std::string_view kEvaluates = "autograd::engine::evaluate_function: ";

void node_begins(ThreadState& thread, const at::RecordFunction& f, std::string_view name) {
  OpFrame& frame = push(thread, f, OpFrame::Kind::kBackward);
  frame.name = node_name(thread, name);
  thread.backward_depth++;
  backward_since_step.store(true, std::memory_order_relaxed);
  const std::shared_ptr<torch::autograd::Node> node = torch::autograd::get_current_node();
  if (node &&
      recall_forward(thread, node->thread_id(), static_cast<int64_t>(node->sequence_nr()))) {
    thread.node_stack = thread.stack;
    thread.node_module = thread.module;
  } else {  // a node without a line of its own (AccumulateGrad): the line that its gradient came from
    thread.stack = thread.node_stack;
    thread.module = thread.node_module;
  }
  if (name == "torch::autograd::AccumulateGrad") {
    frame.accumulates =
        static_cast<torch::autograd::AccumulateGrad*>(node.get());  // the name is its type's
    frame.gradient_expected = frame.accumulates != nullptr;
    // Hooks after it may use the gradient up before the node ends.
    if (frame.accumulates && (!node->post_hooks().empty() || node->tensor_post_acc_grad_hooks()))
      observe_detach();
  }
  emit_phase(thread);
}

void named_begins(ThreadState& thread, const at::RecordFunction& f) {
  std::string_view name = f.name();
  if (name == "detach") return;  // a view, whose operator tells of itself twice
  if (starts_with(name, kEvaluates)) return node_begins(thread, f, name.substr(kEvaluates.size()));
  OpFrame& frame = push(thread, f, OpFrame::Kind::kNamed);
  frame.name = intern(name);
  thread.named_depth++;
  take_stack(thread);
  if (f.seqNr() >= 0 && thread.backward_depth == 0) remember_forward(thread, f.seqNr());
}

void frame_ends(ThreadState& thread, OpFrame& frame, bool follow) {
  if (frame.closed) remember_inside(thread, frame);
  if (frame.kind == OpFrame::Kind::kBackward) {
    if (frame.accumulates && follow) label_gradient(frame.accumulates->variable.grad());
    thread.backward_depth--;
    thread.stack = frame.outer_stack;
    thread.module = frame.outer_module;
  } else if (frame.kind == OpFrame::Kind::kNamed) {
    thread.named_depth--;
    thread.stack = frame.outer_stack;
  } else {
    if (follow && frame.info->followed() && !frame.closed) {
      label_scratch(thread, frame);
      after_operator(thread, frame);
    }
    if (frame.collective && follow) after_collective(thread, frame);
    if (frame.depth_added) bridge().operator_depth_add(-1);
    if (frame.posted) bridge().clear_posted_read();
    if (frame.upload_policy) bridge().set_upload_policy(0);
    if (thread.frames.size() == 1) {
      thread.stack = 0;
      thread.native_stack = false;
    }
  }
}

// --- Callbacks ---

void count_exception() { recorder().counters.exceptions.fetch_add(1, std::memory_order_relaxed); }

// Nothing can happen inside a view: it needs no frame, but its node in the graph has a line.
void view_begins(ThreadState& thread, const at::RecordFunction& f, const OpInfo& info) {
  if (f.seqNr() < 0 || thread.backward_depth > 0) return;
  const bool outermost =
      thread.frames.empty() || thread.frames.back().kind != OpFrame::Kind::kOperator;
  if (outermost) {
    take_stack(thread);
    look_at_parameters(thread, info, f);
  }
  remember_forward(thread, f.seqNr());
  if (outermost && thread.frames.empty()) {
    thread.stack = 0;
    thread.native_stack = false;
  }
}

void function_begins(ThreadState& thread, const at::RecordFunction& f) {
  const OpInfo* info = find_operator(thread, f);
  if (!info) return named_begins(thread, f);
  if (!info->followed()) leave_out_outputs(f);
  if (info->host_only && all_tensors(*info, f, on_host)) {
    leave_out_outputs(f);
    if (info->special != Special::kScalarRead) close_inside(thread, f);
    return;
  }
  if (!thread.frames.empty() && thread.frames.back().gradient_expected)
    look_for_gradient(thread.frames.back(), *info, f);
  if (info->only_views && !info->closable) return view_begins(thread, f, *info);
  operator_begins(thread, f, *info);
}

// Frames end in reverse order; one whose end never came (it moved to another thread) is dropped
// with the frame below it.
void function_ends(ThreadState& thread, const at::RecordFunction& f) {
  if (thread.closed == &f) {
    reopen(thread);
    if (thread.frames.empty() || thread.frames.back().function != &f) return;
  }
  size_t at = thread.frames.size();
  while (at > 0 && thread.frames[at - 1].function != &f) at--;
  if (at == 0) return;
  while (thread.frames.size() >= at) {
    OpFrame& frame = thread.frames.back();
    try {
      frame_ends(thread, frame, frame.function == &f);
    } catch (...) {
      thread.busy = false;
      count_exception();
      if (frame.depth_added) bridge().operator_depth_add(-1);
    }
    thread.frames.pop_back();
  }
}

void emit_annotation(std::string_view name, bool ends) {
  abi::MemoryEvent event;
  fill_context(&event);
  event.kind = EventKind::kAnnotation;
  event.name = intern(name);
  event.value = ends;
  bridge().emit(&event);
}

void user_scope_begins(ThreadState& thread, std::string_view name) {
  if (starts_with(name, "Optimizer.")) {
    optimizer_scope_seen.store(true, std::memory_order_relaxed);
    thread.optimizer_depth++;
    size_t begin = name.find('#');
    thread.scope_name = begin == std::string_view::npos ? 0 : intern(name.substr(begin + 1));
  } else if (starts_with(name, "enumerate(DataLoader)")) {
    thread.data_depth++;
    thread.scope_name = intern(name);
  } else {
    return emit_annotation(name, false);
  }
  emit_phase(thread);
}

void user_scope_ends(ThreadState& thread, std::string_view name) {
  if (starts_with(name, "Optimizer.")) {
    if (thread.optimizer_depth > 0 && --thread.optimizer_depth == 0 &&
        starts_with(name, "Optimizer.step#"))
      note_optimizer_step(thread);
  } else if (starts_with(name, "enumerate(DataLoader)")) {
    if (thread.data_depth > 0) thread.data_depth--;
  } else {
    emit_annotation(name, true);
  }
}

std::unique_ptr<at::ObserverContext> scope_begins(const at::RecordFunction& f) {
  ThreadState* thread = thread_state();
  if (!thread || thread->busy) return nullptr;
  if (thread->closed) {
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
  if (!thread || thread->busy || (thread->closed && thread->closed != &f)) return;
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

Phase current_phase(const ThreadState& thread) {
  if (thread.backward_depth > 0) return Phase::kBackward;
  if (in_optimizer(thread)) return Phase::kOptimizer;
  if (thread.data_depth > 0) return Phase::kData;
  if (!training_began.load(std::memory_order_relaxed)) return Phase::kInit;
  if (c10::GradMode::is_enabled() || thread.named_depth > 0) return Phase::kForward;
  // Gradient clipping and hand-written or C++ optimizers have no scope: work without gradients
  // between backward and next forward.
  if (backward_since_step.load(std::memory_order_relaxed)) return Phase::kOptimizer;
  return Phase::kEval;
}

void fill_context(abi::MemoryEvent* event) {
  event->step = recorder().steps.load(std::memory_order_relaxed);
  ThreadState* thread = thread_state();
  if (!thread) return;
  event->phase = current_phase(*thread);
  event->module = thread->module;
  for (size_t i = thread->frames.size(); i-- > 0;) {
    const OpFrame& frame = thread->frames[i];
    if (frame.name == 0) continue;
    if (event->op == 0 || (frame.info && !frame.info->allocates_only)) event->op = frame.name;
    if (!frame.info || !frame.info->allocates_only) {
      event->op = frame.name;
      break;
    }
  }
  if (!recorder().settings.stacks) return;
  if (thread->frames.empty()) {
    event->stack = python_api().present ? python_stack(/*may_wait=*/false) : native_stack();
    return;
  }
  if (thread->stack == 0 && thread->native_stack) thread->stack = native_stack();
  event->stack = thread->stack;
}

void note_optimizer_step(ThreadState& thread) {
  if (!backward_since_step.load(std::memory_order_relaxed)) return;
  if (thread.backward_depth >
      0) {  // an optimizer per parameter, run inside the backward pass: all of them are one step
    step_pending.store(true, std::memory_order_relaxed);
    return;
  }
  step_pending.store(false, std::memory_order_relaxed);
  if (backward_since_step.exchange(false)) end_step();
}

void finish_pending_step() {
  if (step_pending.exchange(false) && backward_since_step.exchange(false)) end_step();
}

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
