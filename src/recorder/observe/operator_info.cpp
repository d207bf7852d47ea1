#include "recorder/observe/operator_info.h"

#include <ATen/core/enum_tag.h>

#include <initializer_list>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "recorder/state.h"
#include "recorder/values/device.h"

namespace tonnage::recorder {
namespace {

using Names = std::unordered_set<std::string_view>;

OpRule rule_of(std::string_view name) {
  static const auto& table = *new std::unordered_map<std::string_view, OpRule>{
      {"aten::copy_", OpRule::kCopy},
      {"aten::_local_scalar_dense", OpRule::kScalarRead},
      {"aten::nonzero", OpRule::kNonzero},
      {"aten::_unique", OpRule::kUnique},
      {"aten::_unique2", OpRule::kUnique},
      {"aten::unique_consecutive", OpRule::kUniqueConsecutive},
      {"aten::unique_dim", OpRule::kUniqueDim},
      {"aten::unique_dim_consecutive", OpRule::kUniqueDim},
      {"aten::_coalesce", OpRule::kCoalesce},
      {"torchvision::nms", OpRule::kNms},
      {"aten::repeat_interleave", OpRule::kRepeatInterleave},
      {"aten::equal", OpRule::kEqual},
      {"aten::all", OpRule::kAll},
      {"aten::any", OpRule::kAny},
      {"aten::topk", OpRule::kTopk},
      {"aten::argmax", OpRule::kChoice},
      {"aten::multinomial", OpRule::kChoice},
      {"aten::gt", OpRule::kCompare},
      {"aten::ge", OpRule::kCompare},
      {"aten::lt", OpRule::kCompare},
      {"aten::le", OpRule::kCompare},
      {"aten::eq", OpRule::kCompare},
      {"aten::ne", OpRule::kCompare},
      {"aten::min", OpRule::kStatistic},
      {"aten::max", OpRule::kStatistic},
      {"aten::amin", OpRule::kStatistic},
      {"aten::amax", OpRule::kStatistic},
      {"aten::aminmax", OpRule::kStatistic},
      {"aten::mean", OpRule::kStatistic},
      {"aten::median", OpRule::kStatistic},
      {"aten::nanmedian", OpRule::kStatistic},
      {"aten::quantile", OpRule::kStatistic},
      {"aten::nanquantile", OpRule::kStatistic},
      {"aten::kthvalue", OpRule::kStatistic},
      {"aten::sort", OpRule::kStatistic},
      {"aten::std", OpRule::kStatistic},
      {"aten::var", OpRule::kStatistic},
      {"aten::std_mean", OpRule::kStatistic},
      {"aten::var_mean", OpRule::kStatistic},
      {"aten::_amp_foreach_non_finite_check_and_unscale_", OpRule::kFoundInf},
      {"aten::fill_", OpRule::kFill},
      {"aten::arange", OpRule::kRange},
  };
  auto found = table.find(name);
  return found == table.end() ? OpRule::kNone : found->second;
}

// In-place operators that overwrite their first argument without reading it.
bool overwrites_first(std::string_view name) {
  static const Names& names = *new Names{
      "aten::fill_",         "aten::zero_",   "aten::copy_",       "aten::random_",
      "aten::uniform_",      "aten::normal_", "aten::bernoulli_",  "aten::exponential_",
      "aten::geometric_",    "aten::cauchy_", "aten::log_normal_", "aten::_foreach_zero_",
      "aten::_foreach_copy_"};
  return names.count(name) != 0;
}

// Operators that only move elements: the result for known elements does not depend on unknown ones.
bool only_moves(std::string_view name) {
  static const Names& names = *new Names{
      "aten::where",       "aten::cat",         "aten::masked_fill_",     "aten::masked_scatter_",
      "aten::index_fill_", "aten::index_copy_", "aten::_index_put_impl_", "aten::scatter_"};
  return names.count(name) != 0;
}

bool allocates_only(std::string_view name) {
  static const Names& names = *new Names{"aten::empty",
                                         "aten::empty_strided",
                                         "aten::empty_like",
                                         "aten::new_empty",
                                         "aten::set_",
                                         "aten::new_empty_strided",
                                         "aten::resize_",
                                         "aten::resize_as_",
                                         "aten::record_stream",
                                         "aten::pin_memory",
                                         "aten::_efficientzerotensor",
                                         "aten::empty_permuted"};
  return names.count(name) != 0;
}

bool only_views(std::string_view name) {
  static const Names& names = *new Names{
      "aten::as_strided", "aten::view",      "aten::_unsafe_view", "aten::_reshape_alias",
      "aten::t",          "aten::transpose", "aten::permute",      "aten::expand",
      "aten::detach",     "aten::alias",     "aten::unsqueeze",    "aten::squeeze",
      "aten::select",     "aten::slice",     "aten::narrow",       "aten::split",
      "aten::unbind",     "aten::view_as"};
  return names.count(name) != 0;
}

bool multiplies(std::string_view name) {
  static const Names& names =
      *new Names{"aten::matmul", "aten::mm",      "aten::addmm", "aten::bmm",
                 "aten::einsum", "aten::baddbmm", "aten::index", "aten::index_select"};
  return names.count(name) != 0;
}

// Attention masks are made with these.
bool makes_masks(std::string_view name) {
  static const Names& names =
      *new Names{"aten::triu",        "aten::tril",       "aten::masked_fill", "aten::masked_fill_",
                 "aten::where",       "aten::eq",         "aten::ne",          "aten::lt",
                 "aten::le",          "aten::gt",         "aten::ge",          "aten::_to_copy",
                 "aten::copy_",       "aten::clone",      "aten::cat",         "aten::stack",
                 "aten::repeat",      "aten::neg",        "aten::add",         "aten::sub",
                 "aten::rsub",        "aten::mul",        "aten::minimum",     "aten::maximum",
                 "aten::logical_and", "aten::logical_or", "aten::logical_not", "aten::triu_",
                 "aten::tril_"};
  return names.count(name) != 0;
}

// Operators that make neighbour lists: differences and distances of positions, periodic boxes,
// bounds, selection of positions by index. (Operators that make masks have the same limit.)
const Names& distance_operators() {
  static const Names& names = *new Names{"aten::_cdist_forward",
                                         "aten::_pdist_forward",
                                         "aten::linalg_vector_norm",
                                         "aten::norm",
                                         "aten::pow",
                                         "aten::square",
                                         "aten::sqrt",
                                         "aten::sum",
                                         "aten::abs",
                                         "aten::div",
                                         "aten::round",
                                         "aten::floor",
                                         "aten::ceil",
                                         "aten::trunc",
                                         "aten::frac",
                                         "aten::remainder",
                                         "aten::fmod",
                                         "aten::clamp",
                                         "aten::clamp_min",
                                         "aten::clamp_max",
                                         "aten::hypot",
                                         "aten::amin",
                                         "aten::amax",
                                         "aten::min",
                                         "aten::max",
                                         "aten::mm",
                                         "aten::bmm",
                                         "aten::addmm",
                                         "aten::baddbmm",
                                         "aten::index",
                                         "aten::index_select",
                                         "aten::gather",
                                         "aten::take",
                                         "aten::roll",
                                         "aten::flip",
                                         "aten::sort",
                                         "aten::topk",
                                         "aten::diag_embed",
                                         "aten::reciprocal",
                                         "aten::rsqrt",
                                         "aten::pow_",
                                         "aten::square_",
                                         "aten::sqrt_",
                                         "aten::abs_",
                                         "aten::div_",
                                         "aten::round_",
                                         "aten::floor_",
                                         "aten::neg_",
                                         "aten::add_",
                                         "aten::sub_",
                                         "aten::mul_",
                                         "aten::clamp_",
                                         "aten::clamp_min_",
                                         "aten::clamp_max_",
                                         "aten::remainder_",
                                         "aten::fill_diagonal_",
                                         "aten::index_fill_",
                                         "aten::_index_put_impl_",
                                         "aten::index_copy_",
                                         "aten::addcmul",
                                         "aten::isfinite",
                                         "aten::isnan",
                                         "aten::bitwise_and",
                                         "aten::bitwise_or"};
  return names;
}

Reach reach_of(std::string_view name) {
  if (distance_operators().count(name)) return Reach::kPositions;
  return makes_masks(name) ? Reach::kMasks : Reach::kSmall;
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

bool has_device_kernel(const OpInfo& info) {
  const std::string& name = info.name;
  if (info.rule == OpRule::kCoalesce)
    return info.handle.hasKernelForDispatchKey(device::sparse_kernel_key());
  // zero_ calls fill_, which does the work.
  if (name == "aten::zero_") return false;
  // copy_ is registered for all devices at once, but it is a leaf: no other operators do its work.
  if (name == "aten::copy_") return true;
  const bool ours = name.rfind("aten::", 0) == 0 || info.rule != OpRule::kNone;
  return ours && info.handle.hasKernelForDispatchKey(device::kernel_key());
}

void describe_by_name(OpInfo& info) {
  const std::string_view name = info.name;
  info.allocates_only = allocates_only(name);
  info.only_views = only_views(name);
  info.moves = name == "aten::to" || name == "aten::_to_copy";
  info.quiet = name == "aten::to" || name == "aten::split";
  info.keeps_gradient = name == "aten::detach" || name == "aten::clone" || name == "aten::add" ||
                        name == "aten::add_";
  info.makes_gradient = name == "aten::clone" || name == "aten::add";
  info.reach = reach_of(name);
  info.host_only = info.rule == OpRule::kScalarRead || name.substr(0, 15) == "aten::_foreach_";
  info.inner_name_id = name == "aten::to" ? intern("aten::_to_copy") : info.name_id;
  info.makes_alike = name.size() > 5 && name.substr(name.size() - 5) == "_like";
  info.multiplies = multiplies(name);
  info.appends = name == "aten::cat" || name == "aten::index_copy_" || name == "aten::copy_" ||
                 name == "aten::_index_put_impl_" || name == "aten::index_put_" ||
                 name == "aten::scatter_";
}

// Whether it says which elements are taken, and not what they are.
bool chooses(const std::string& argument) {
  return argument == "index" || argument == "indices" || argument == "mask" ||
         argument == "condition";
}

void note_by_name(OpInfo& info, const std::string& argument, int place, bool write) {
  if (argument == "generator") info.generator_argument = place;
  if (argument == "weight" && info.kinds.back() == ArgumentKind::kTensor && !write)
    info.weight_argument = place;
  if (argument == "running_mean" || argument == "running_var") info.hidden_writes.push_back(place);
}

void describe_arguments(OpInfo& info, const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  const bool moves_elements = only_moves(info.name);
  const bool first_overwritten = overwrites_first(info.name);
  info.any_may_be_unknown = moves_elements;
  for (size_t i = 0; i < arguments.size(); i++) {
    const auto& argument = arguments[i];
    const std::string& name = argument.name();
    const bool write = argument.alias_info() && argument.alias_info()->isWrite();
    info.kinds.push_back(kind_of(*argument.type()));
    info.writes.push_back(write);
    info.takes_tensors |=
        info.kinds.back() != ArgumentKind::kOther && info.kinds.back() != ArgumentKind::kDevice;
    info.write_only.push_back(write && (argument.is_out() || (first_overwritten && i == 0)));
    info.any_writes |= write;
    info.may_be_unknown.push_back(moves_elements && !chooses(name));
    note_by_name(info, name, static_cast<int>(i), write);
  }
}

void describe_results(OpInfo& info, const c10::FunctionSchema& schema) {
  for (const auto& result : schema.returns()) {
    info.result_kinds.push_back(kind_of(*result.type()));
    const bool alias = result.alias_info() != nullptr;
    const bool write = alias && result.alias_info()->isWrite();
    info.result_is_argument.push_back(write);
    if (alias && !write) info.is_view = true;
  }
}

}  // namespace

std::unique_ptr<OpInfo> describe_operator(c10::OperatorHandle handle) {
  const c10::FunctionSchema& schema = handle.schema();
  auto info = std::make_unique<OpInfo>(handle);
  info->name = schema.name();
  info->name_id = intern(info->name);
  info->rule = rule_of(info->name);
  info->collective = collective_of(info->name);
  info->has_device_kernel = has_device_kernel(*info);
  info->random = handle.hasTag(at::Tag::nondeterministic_seeded);
  describe_by_name(*info);
  describe_arguments(*info, schema);
  describe_results(*info, schema);
  return info;
}

}  // namespace tonnage::recorder
