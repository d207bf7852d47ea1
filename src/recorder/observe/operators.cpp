#include "recorder/observe/operators.h"

#include <ATen/core/enum_tag.h>
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

#include "recorder/state.h"

namespace tonnage::recorder {
namespace {

bool in(std::string_view name, std::initializer_list<std::string_view> names) {
  for (auto n : names)
    if (n == name) return true;
  return false;
}

Special special_of(std::string_view name) {
  static const std::unordered_map<std::string_view, Special> table = {
      {"aten::copy_", Special::kCopy},
      {"aten::_local_scalar_dense", Special::kScalarRead},
      {"aten::nonzero", Special::kNonzero},
      {"aten::_unique", Special::kUnique},
      {"aten::_unique2", Special::kUnique},
      {"aten::unique_consecutive", Special::kUniqueConsecutive},
      {"aten::unique_dim", Special::kUniqueDim},
      {"aten::unique_dim_consecutive", Special::kUniqueDim},
      {"aten::_coalesce", Special::kCoalesce},
      {"torchvision::nms", Special::kNms},
      {"aten::repeat_interleave", Special::kRepeatInterleave},
      {"aten::all", Special::kAll},
      {"aten::any", Special::kAny},
      {"aten::equal", Special::kEqual},
      {"aten::fill_", Special::kFill},
      {"aten::arange", Special::kRange},
      {"aten::topk", Special::kTopk},
      {"aten::argmax", Special::kChoice},
      {"aten::multinomial", Special::kChoice},
      {"aten::gt", Special::kCompare},
      {"aten::ge", Special::kCompare},
      {"aten::lt", Special::kCompare},
      {"aten::le", Special::kCompare},
      {"aten::eq", Special::kCompare},
      {"aten::ne", Special::kCompare},
      {"aten::_amp_foreach_non_finite_check_and_unscale_", Special::kFoundInf},
  };
  auto found = table.find(name);
  return found == table.end() ? Special::kNone : found->second;
}

bool acts_after(Special special) {
  return special == Special::kAll || special == Special::kAny || special == Special::kTopk ||
         special == Special::kChoice || special == Special::kCompare;
}
bool acts_before(Special special) {
  return special != Special::kNone && special != Special::kCopy && special != Special::kFill &&
         special != Special::kRange && special != Special::kAll;
}

// In-place operators that overwrite their first argument without reading it.
bool overwrites_first(std::string_view name) {
  return in(name,
            {"aten::fill_", "aten::zero_", "aten::copy_", "aten::random_", "aten::uniform_",
             "aten::normal_", "aten::bernoulli_", "aten::exponential_", "aten::geometric_",
             "aten::cauchy_", "aten::log_normal_", "aten::_foreach_zero_", "aten::_foreach_copy_"});
}

ArgumentKind kind_of(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType: return ArgumentKind::kTensor;
    case c10::TypeKind::DeviceObjType: return ArgumentKind::kDevice;
    case c10::TypeKind::OptionalType:
      return kind_of(*type.expectRef<c10::OptionalType>().getElementType());
    case c10::TypeKind::ListType: {
      const c10::Type& element = *type.expectRef<c10::ListType>().getElementType();
      if (element.kind() == c10::TypeKind::TensorType) return ArgumentKind::kTensors;
      return kind_of(element) == ArgumentKind::kTensor ? ArgumentKind::kOptionalTensors
                                                       : ArgumentKind::kOther;
    }
    default: return ArgumentKind::kOther;
  }
}

// Operators that only put elements in their places: what they do to known ones does not depend on
// the unknown ones.
bool only_moves(std::string_view name) {
  return in(name,
            {"aten::where", "aten::cat", "aten::masked_fill_", "aten::masked_scatter_",
             "aten::index_fill_", "aten::index_copy_", "aten::_index_put_impl_", "aten::scatter_"});
}

std::unique_ptr<OpInfo> describe(c10::OperatorHandle handle) {
  const c10::FunctionSchema& schema = handle.schema();
  auto info = std::make_unique<OpInfo>(handle);
  info->name = schema.name();
  info->name_id = intern(info->name);
  std::string_view name = info->name;
  info->special = special_of(name);
  info->collective = collective_of(name);
  info->before_call = acts_before(info->special);
  info->after_call = acts_after(info->special);
  bool ours = name.rfind("aten::", 0) == 0 || info->special != Special::kNone;
  // copy_ is registered for all devices at once, but it is a leaf: its work is not done by other
  // operators.
  info->has_cuda_kernel =
      ours && (handle.hasKernelForDispatchKey(c10::DispatchKey::CUDA) || name == "aten::copy_");
  if (info->special == Special::kCoalesce)
    info->has_cuda_kernel = handle.hasKernelForDispatchKey(c10::DispatchKey::SparseCUDA);
  // zero_ calls fill_, which does the work.
  if (name == "aten::zero_") info->has_cuda_kernel = false;
  info->allocates_only =
      in(name, {"aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty",
                "aten::new_empty_strided", "aten::resize_", "aten::resize_as_", "aten::set_",
                "aten::record_stream", "aten::pin_memory", "aten::_efficientzerotensor",
                "aten::empty_permuted"});
  info->only_views =
      in(name, {"aten::as_strided", "aten::view", "aten::_unsafe_view", "aten::_reshape_alias",
                "aten::t", "aten::transpose", "aten::permute", "aten::expand", "aten::detach",
                "aten::alias", "aten::unsqueeze", "aten::squeeze", "aten::select", "aten::slice",
                "aten::narrow", "aten::split", "aten::unbind", "aten::view_as"});
  info->moves = in(name, {"aten::to", "aten::_to_copy"});
  info->closable = in(name, {"aten::to", "aten::split"});
  info->keeps_gradient = in(name, {"aten::detach", "aten::clone", "aten::add", "aten::add_"});
  info->makes_gradient = in(name, {"aten::clone", "aten::add"});
  info->shapes_masks =
      in(name, {"aten::triu",        "aten::tril",       "aten::masked_fill", "aten::masked_fill_",
                "aten::where",       "aten::eq",         "aten::ne",          "aten::lt",
                "aten::le",          "aten::gt",         "aten::ge",          "aten::_to_copy",
                "aten::copy_",       "aten::clone",      "aten::cat",         "aten::stack",
                "aten::repeat",      "aten::neg",        "aten::add",         "aten::sub",
                "aten::rsub",        "aten::mul",        "aten::minimum",     "aten::maximum",
                "aten::logical_and", "aten::logical_or", "aten::logical_not", "aten::triu_",
                "aten::tril_"});
  const bool moves_elements = only_moves(name);
  info->host_only = name == "aten::_local_scalar_dense" || name.substr(0, 15) == "aten::_foreach_";
  info->inner_name_id = name == "aten::to" ? intern("aten::_to_copy") : info->name_id;
  info->random = handle.hasTag(at::Tag::nondeterministic_seeded);
  const auto& arguments = schema.arguments();
  bool first_overwritten = overwrites_first(name);
  for (size_t i = 0; i < arguments.size(); i++) {
    const auto& argument = arguments[i];
    bool write = argument.alias_info() && argument.alias_info()->isWrite();
    info->kinds.push_back(kind_of(*argument.type()));
    info->writes.push_back(write);
    info->write_only.push_back(write && (argument.is_out() || (first_overwritten && i == 0)));
    info->any_writes |= write;
    info->any_may_be_unknown |= moves_elements;
    info->may_be_unknown.push_back(moves_elements &&
                                   !in(argument.name(), {"index", "indices", "mask", "condition"}));
    if (argument.name() == "generator") info->generator_argument = static_cast<int>(i);
    if (argument.name() == "running_mean" || argument.name() == "running_var")
      info->hidden_writes.push_back(static_cast<int>(i));
  }
  for (const auto& result : schema.returns()) {
    info->result_kinds.push_back(kind_of(*result.type()));
    bool alias = result.alias_info() != nullptr;
    bool write = alias && result.alias_info()->isWrite();
    info->result_is_argument.push_back(write);
    if (alias && !write) info->is_view = true;
  }
  return info;
}

// Private members are reached where they are known to be there: an explicit instantiation may name
// them.
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR <= 11
constexpr bool kKnownLayout = true;
template <class Tag, auto Member>
struct Reach {
  friend constexpr auto member(Tag) { return Member; }
};
#define TONNAGE_REACH(Tag, Member)     \
  struct Tag {                         \
    friend constexpr auto member(Tag); \
  };                                   \
  template struct Reach<Tag, &Member>
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

// Whether plain views, or detach, are left out now: both are taken back once and for all.
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
  auto& slot = thread.operators[(reinterpret_cast<uintptr_t>(schema) >> 4) % kOperatorSlots];
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
    entry = describe(*handle);
  }
  slot = {schema, entry.get(), removals};
  return entry.get();
}

}  // namespace tonnage::recorder
