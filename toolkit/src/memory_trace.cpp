#include "memory_trace.h"

#include <c10/util/ThreadLocalDebugInfo.h>

#include <string_view>

namespace tonnage::detail {
namespace {

struct Frame {
  uint32_t operator_name = 0;
  bool backward = false;
};

// Of the thread; frames belong to whatever trace is on.
struct ThreadFrames {
  std::vector<Frame> frames;
  uint32_t module = 0;
};

thread_local ThreadFrames here;
thread_local std::vector<std::string> scopes;

MemoryTrace* active_trace() {
  return dynamic_cast<MemoryTrace*>(
      c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE));
}

}  // namespace

struct TraceCallbacks {
  static std::unique_ptr<at::ObserverContext> begins(const at::RecordFunction& function) {
    if (MemoryTrace* trace = active_trace()) trace->operator_begins(function);
    return nullptr;
  }
  static void ends(const at::RecordFunction&, at::ObserverContext*) {
    if (!here.frames.empty()) here.frames.pop_back();
  }
};

MemoryTrace::MemoryTrace(c10::DeviceType device, const ::torch::nn::Module* model)
    : ProfilerStateBase(::torch::profiler::impl::ProfilerConfig(
          ::torch::profiler::impl::ProfilerState::Disabled)),
      device_(device) {
  if (!model) return;
  for (const auto& module : model->named_modules("", /*include_self=*/true)) {
    modules_.push_back(module.key());
    for (const auto& parameter : module.value()->named_parameters(/*recurse=*/false))
      module_of_.emplace(parameter.value().unsafeGetTensorImpl(),
                         static_cast<uint32_t>(modules_.size()));
  }
}

void MemoryTrace::check_free(const char* who) {
  TORCH_CHECK(
      !c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE), who,
      ": a profiler, or another MemoryTables or LeakDetector, is on on this thread; stop it first");
}

void MemoryTrace::begin(std::shared_ptr<MemoryTrace> self) {
  guard_.emplace(c10::DebugInfoKind::PROFILER_STATE, std::move(self));
  here = {};
  callback_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&TraceCallbacks::begins, &TraceCallbacks::ends)
          .needsInputs(true)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

void MemoryTrace::stop() {
  if (!guard_) return;
  at::removeCallback(callback_);
  guard_.reset();
  here = {};
}

uint32_t MemoryTrace::intern(const std::string& text) {
  auto [found, made] = ids_.emplace(text, static_cast<uint32_t>(names_.size()));
  if (made) names_.push_back(text);
  return found->second;
}

void MemoryTrace::operator_begins(const at::RecordFunction& function) {
  std::lock_guard<std::mutex> lock(mutex_);
  // The engine's own frame around a node is the outermost of a backward pass; it is named after the
  // node.
  static constexpr std::string_view kNode = "autograd::engine::evaluate_function: ";
  std::string_view name = function.name();
  const bool is_node = name.substr(0, kNode.size()) == kNode;
  if (is_node) name.remove_prefix(kNode.size());
  Frame frame;
  frame.operator_name = intern(std::string(name));
  frame.backward = is_node || function.scope() == at::RecordScope::BACKWARD_FUNCTION ||
                   (!here.frames.empty() && here.frames.back().backward);
  if (function.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    auto found = module_at_.find(function.seqNr());
    if (found != module_at_.end()) here.module = found->second;
  } else if (!frame.backward && !module_of_.empty()) {
    for (const c10::IValue& input : function.inputs())
      if (input.isTensor()) {
        const at::Tensor& tensor = input.toTensor();
        // A parameter may come in as a view: weight.t() of a linear layer.
        auto found = module_of_.find(tensor.defined() && tensor.is_view()
                                         ? tensor._base().unsafeGetTensorImpl()
                                         : tensor.unsafeGetTensorImpl());
        if (found != module_of_.end()) here.module = found->second;
      }
    if (function.seqNr() >= 0) module_at_[function.seqNr()] = here.module;
  }
  if (here.frames.empty()) calls_[frame.operator_name]++;
  here.frames.push_back(frame);
}

void MemoryTrace::reportMemoryUsage(void* address, int64_t size_bytes, size_t, size_t,
                                    c10::Device device) {
  if (device.type() != device_ || size_bytes == 0) return;
  TraceEvent event;
  event.address = reinterpret_cast<uint64_t>(address);
  event.size_bytes = size_bytes;
  std::lock_guard<std::mutex> lock(mutex_);
  if (size_bytes > 0) {
    if (!here.frames.empty()) {
      event.operator_name = here.frames.front().operator_name;
      event.backward = here.frames.front().backward;
    }
    event.module = here.module;
    event.scope = intern(current_scope());
  }
  events_.push_back(event);
}

std::vector<TraceEvent> MemoryTrace::events() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return events_;
}

std::vector<TraceEvent> MemoryTrace::take_events() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(events_, {});
}

std::unordered_map<uint32_t, int64_t> MemoryTrace::calls() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return calls_;
}

std::string MemoryTrace::name(uint32_t id) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return names_[id];
}

std::string current_scope() {
  std::string out;
  for (const auto& s : scopes) out += out.empty() ? s : "/" + s;
  return out;
}

void push_scope(const std::string& name) { scopes.push_back(name); }
void pop_scope() { scopes.pop_back(); }

}  // namespace tonnage::detail
