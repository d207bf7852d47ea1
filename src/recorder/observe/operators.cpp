#include "recorder/observe/operators.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/dispatch/OperatorEntry.h>
#include <torch/version.h>

#include <atomic>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <variant>

#include "recorder/observe/thread.h"

namespace tonnage::recorder {
namespace {

// Private members are reached by name in an explicit instantiation, which C++ allows. Only in
// releases of PyTorch that are known to have them.
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR <= 11
constexpr bool kKnownLayout = true;
template <class Tag, auto Member>
struct MemberOf {
  friend constexpr auto member(Tag) { return Member; }
};
#define TONNAGE_REACH(Tag, Member)     \
  struct Tag {                         \
    friend constexpr auto member(Tag); \
  };                                   \
  template struct MemberOf<Tag, &Member>
TONNAGE_REACH(StepCallbacks, at::RecordFunction::step_callbacks_);
TONNAGE_REACH(NameOrSchema, at::RecordFunction::fn_);
TONNAGE_REACH(OperatorOfHandle, c10::OperatorHandle::operatorDef_);
TONNAGE_REACH(IsObserved, c10::impl::OperatorEntry::is_observed_);
#undef TONNAGE_REACH

// The schema of the operator that was called; null if it is not an operator.
const c10::FunctionSchema* schema_of(const at::RecordFunction& function) {
  const auto* schema =
      std::get_if<at::RecordFunction::schema_ref_t>(&(function.*member(NameOrSchema())));
  return schema ? &schema->get() : nullptr;
}
at::StepCallbacks& step_callbacks(const at::RecordFunction& function) {
  return const_cast<at::RecordFunction&>(function).*member(StepCallbacks());
}
void set_observed(const c10::OperatorHandle& handle, bool observed) {
  // The dispatcher reads it at every call.
  std::atomic_ref<bool>(
      const_cast<bool&>((handle.*member(OperatorOfHandle()))->op.*member(IsObserved())))
      .store(observed, std::memory_order_relaxed);
}
#else
constexpr bool kKnownLayout = false;
const void* schema_of(const at::RecordFunction& function) {
  return function.operator_name() ? function.name() : nullptr;
}
at::StepCallbacks& step_callbacks(const at::RecordFunction&) { std::terminate(); }
void set_observed(const c10::OperatorHandle&, bool) {}
#endif

// Not those whose gradient is more than a view (slice, select, expand; view, whose gradient may
// have to be copied): their nodes have lines of their own.
constexpr struct {
  const char *name, *overload;
} kPlainViews[] = {
    {"aten::as_strided", ""}, {"aten::t", ""},           {"aten::transpose", "int"},
    {"aten::permute", ""},    {"aten::unsqueeze", ""},   {"aten::squeeze", ""},
    {"aten::squeeze", "dim"}, {"aten::squeeze", "dims"}, {"aten::alias", ""},
    {"aten::detach", ""},     {"aten::reshape", ""},     {"aten::flatten", "using_ints"},
    {"aten::item", ""},
};

constexpr std::string_view kDetach = "aten::detach";

// Whether plain views, or detach, are not observed now. Once they are observed again, they stay so.
std::atomic<bool> views_left_out{false}, detach_left_out{false};

void observe(std::string_view one, bool observed) {
  for (const auto& view : kPlainViews)
    if (one.empty() || one == view.name)
      if (auto handle = c10::Dispatcher::singleton().findSchema({view.name, view.overload}))
        set_observed(*handle, observed);
}

// Descriptions by the address of the operator's schema (of its name where the schema cannot be
// reached). It stays while the operator is registered; when one is taken away, its address may
// become another's.
struct Table {
  std::mutex mutex;
  std::unordered_map<const void*, std::unique_ptr<OpInfo>> by_schema;
  std::vector<std::unique_ptr<OpInfo>> replaced;  // frames may still point at them
  uint64_t age = 0;                               // the removals that the map has seen
  std::atomic<uint64_t> removals{1};
  std::optional<c10::RegistrationHandleRAII> listening;
};

Table& table() {
  static Table* instance = new Table();
  return *instance;
}

class Removals : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  void onOperatorDeregistered(const c10::OperatorHandle&) override {
    table().removals.fetch_add(1, std::memory_order_release);
  }
};

}  // namespace

c10::ArrayRef<const c10::IValue> inputs_of(const at::RecordFunction& function, const OpInfo& info) {
  auto all = function.inputs();
  return all.size() > info.arguments() ? all.slice(all.size() - info.arguments()) : all;
}

c10::ArrayRef<const c10::IValue> outputs_of(const at::RecordFunction& function,
                                            const OpInfo& info) {
  c10::ArrayRef<const c10::IValue> all(function.outputs().data(), function.outputs().size());
  size_t results = info.result_is_argument.size();
  return all.size() > results ? all.slice(all.size() - results) : all;
}

void leave_out_outputs(const at::RecordFunction& function) {
  if constexpr (kKnownLayout) {
    // The record function is a local variable of the dispatcher, which asks for the flag after the
    // start callbacks have run.
    at::StepCallbacks& callbacks = step_callbacks(function);
    if (callbacks.callbacks_.size() == 1) callbacks.needs_outputs_ = false;
  }
}

bool only_observer(const at::RecordFunction& function) {
  if constexpr (kKnownLayout) return step_callbacks(function).callbacks_.size() == 1;
  return false;
}

void leave_out_plain_views() {
  if (!kKnownLayout) return;
  observe({}, false);
  views_left_out = detach_left_out = true;
}
void observe_plain_views() {
  if (views_left_out.load(std::memory_order_relaxed) && views_left_out.exchange(false))
    observe({}, true);
}
void observe_detach() {
  if (detach_left_out.load(std::memory_order_relaxed) && detach_left_out.exchange(false))
    observe(kDetach, true);
}

void watch_operators() {
  table().listening.emplace(
      c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Removals>()));
}

const OpInfo* find_operator(ThreadState& thread, const at::RecordFunction& function) {
  const void* schema = schema_of(function);
  if (!schema) return nullptr;
  const uint64_t removals = table().removals.load(std::memory_order_acquire);
  auto& slot =
      thread.caches.operators[(reinterpret_cast<uintptr_t>(schema) >> 4) % LookupCaches::kOperators];
  if (slot.schema == schema && slot.age == removals) return slot.info;
  std::lock_guard<std::mutex> lock(table().mutex);
  if (table().age != removals) {
    for (auto& entry : table().by_schema) table().replaced.push_back(std::move(entry.second));
    table().by_schema.clear();
    table().age = removals;
  }
  auto& entry = table().by_schema[schema];
  if (!entry) {
    auto handle = c10::Dispatcher::singleton().findSchema(*function.operator_name());
    if (!handle) return nullptr;
    entry = describe_operator(*handle);
  }
  slot = {schema, entry.get(), removals};
  return entry.get();
}

}  // namespace tonnage::recorder
