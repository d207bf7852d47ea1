#include "recorder/values/statistics.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <string_view>

#include "recorder/state.h"
#include "recorder/values/assumed.h"
#include "recorder/values/content.h"
#include "recorder/values/device.h"

namespace tonnage::recorder {
namespace {

// Larger results are not read one by one; sorted tensors excepted.
constexpr int64_t kMostResults = 4096;

const c10::IValue* argument(const OpInfo& info, c10::ArrayRef<const c10::IValue> inputs,
                            std::string_view name) {
  const auto& arguments = info.handle.schema().arguments();
  for (size_t i = 0; i < arguments.size() && i < inputs.size(); i++)
    if (arguments[i].name() == name) return &inputs[i];
  return nullptr;
}

int64_t int_argument(const OpInfo& info, c10::ArrayRef<const c10::IValue> inputs,
                     std::string_view name, int64_t otherwise) {
  const c10::IValue* value = argument(info, inputs, name);
  return value && value->isInt() ? value->toInt() : otherwise;
}

bool bool_argument(const OpInfo& info, c10::ArrayRef<const c10::IValue> inputs,
                   std::string_view name, bool otherwise) {
  const c10::IValue* value = argument(info, inputs, name);
  return value && value->isBool() ? value->toBool() : otherwise;
}

// False if they are not known.
bool read_quantiles(const c10::IValue& q, PendingStatistic& out) {
  if (q.isDouble()) {
    out.quantiles = {static_cast<float>(q.toDouble())};
    return true;
  }
  if (!q.isTensor()) return false;
  const at::Tensor& t = q.toTensor();
  if (!t.defined() || t.numel() > kMostResults) return false;
  at::Tensor known = device::has(t) ? (device::plain(t) ? load(t) : at::Tensor()) : t;
  if (!known.defined() || !known.device().is_cpu()) return false;
  known = known.to(at::kFloat).contiguous();
  const auto* values = known.const_data_ptr<float>();
  out.quantiles.assign(values, values + known.numel());
  out.list_of_quantiles = t.dim() > 0;
  return true;
}

bool unknown_reals(const at::Tensor& t) {
  return t.defined() && t.numel() > 0 && device::has(t) && device::plain(t) &&
         c10::isFloatingType(t.scalar_type()) &&
         !bridge().content_any(address_of(t), t.element_size());
}

void keep(const at::Tensor& result, Statistic statistic) {
  if (!result.defined() || result.numel() == 0 || !device::has(result) || !device::plain(result) ||
      !result.is_contiguous() || !c10::isFloatingType(result.scalar_type()))
    return;
  if (result.numel() > kMostResults && statistic.steps == 0) return;
  statistic.base = address_of(result);
  statistic.item = result.element_size();
  keep_statistic(statistic.base, result.nbytes(), std::move(statistic));
}

Statistic at_position(const std::shared_ptr<LazyNumber>& mean, float position) {
  Statistic s;
  s.mean = mean;
  s.positions = {position};
  return s;
}

Statistic of_kind(const std::shared_ptr<LazyNumber>& mean, Statistic::Kind kind) {
  Statistic s;
  s.mean = mean;
  s.kind = kind;
  return s;
}

// Numbers in order along a dimension of which `shown` are shown of `size`.
Statistic in_order(const std::shared_ptr<LazyNumber>& mean, const PendingStatistic& pending,
                   const at::Tensor& result) {
  Statistic s;
  s.mean = mean;
  if (result.dim() == 0) return at_position(mean, 0.5f);
  const int64_t shown = result.size(pending.dim);
  s.steps = shown;
  for (int64_t d = pending.dim + 1; d < result.dim(); d++) s.stride *= result.size(d);
  const float reach = pending.size > 1
                          ? static_cast<float>(shown - 1) / static_cast<float>(pending.size - 1)
                          : 0.0f;
  s.first = pending.descending ? 1.0f : 0.0f;
  s.last = pending.descending ? 1.0f - reach : reach;
  return s;
}

Statistic quantiles(const std::shared_ptr<LazyNumber>& mean, const PendingStatistic& pending,
                    const at::Tensor& result) {
  Statistic s;
  s.mean = mean;
  s.positions = pending.quantiles;
  const auto count = static_cast<int64_t>(pending.quantiles.size());
  if (pending.list_of_quantiles && count > 0)
    s.stride = std::max<int64_t>(result.numel() / count, 1);
  return s;
}

// What the first result of the operator is.
Statistic first_result(const OpInfo& info, const PendingStatistic& pending,
                       const std::shared_ptr<LazyNumber>& mean, const at::Tensor& result) {
  const std::string_view name = std::string_view(info.name).substr(sizeof "aten::" - 1);
  if (name == "min" || name == "amin" || name == "aminmax") return at_position(mean, 0);
  if (name == "max" || name == "amax") return at_position(mean, 1);
  if (name == "quantile" || name == "nanquantile") return quantiles(mean, pending, result);
  if (name == "sort" || name == "topk") return in_order(mean, pending, result);
  if (name == "std" || name == "std_mean") return of_kind(mean, Statistic::Kind::kDeviation);
  if (name == "var" || name == "var_mean") return of_kind(mean, Statistic::Kind::kVariance);
  if (name != "kthvalue") return at_position(mean, 0.5f);  // mean, median
  const int64_t last = std::max<int64_t>(pending.size - 1, 1);
  return at_position(mean, static_cast<float>(pending.k - 1) / static_cast<float>(last));
}

bool is_of_unknown_reals(const OpInfo& info, c10::ArrayRef<const c10::IValue> inputs) {
  if (inputs.size() == 0 || !inputs[0].isTensor() || !unknown_reals(inputs[0].toTensor()))
    return false;
  // max(a, b) is of two tensors.
  const bool of_two = inputs.size() > 1 && inputs[1].isTensor();
  return !of_two || !(info.is("aten::max") || info.is("aten::min"));
}

}  // namespace

std::unique_ptr<PendingStatistic> begin_statistic(const OpInfo& info,
                                                  c10::ArrayRef<const c10::IValue> inputs) {
  if (!is_of_unknown_reals(info, inputs)) return nullptr;
  const at::Tensor& self = inputs[0].toTensor();
  const c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  auto pending = std::make_unique<PendingStatistic>();
  pending->storage = reinterpret_cast<uint64_t>(impl->storage().data());
  pending->version =
      impl->version_counter().enabled() ? impl->version_counter().current_version() : 0;
  const c10::IValue* q = argument(info, inputs, "q");
  if (q && !read_quantiles(*q, *pending)) return nullptr;
  pending->dim = int_argument(info, inputs, "dim", -1);
  if (pending->dim < 0) pending->dim += self.dim();
  const bool along_dim = pending->dim >= 0 && pending->dim < self.dim();
  pending->size = along_dim ? self.size(pending->dim) : self.numel();
  pending->k = int_argument(info, inputs, "k", 1);
  pending->descending = info.is("aten::topk") ? bool_argument(info, inputs, "largest", true)
                                              : bool_argument(info, inputs, "descending", false);
  return pending;
}

void end_statistic(const OpInfo& info, const PendingStatistic& pending,
                   c10::ArrayRef<const c10::IValue> outputs) {
  const auto result = [&](size_t i) {
    return i < outputs.size() && outputs[i].isTensor() ? outputs[i].toTensor() : at::Tensor();
  };
  const at::Tensor first = result(0), second = result(1);
  if (!first.defined()) return;
  const bool small = first.numel() <= kMostResults;
  if (!small && !info.is("aten::sort")) return;
  const auto mean = mean_of(pending.storage, pending.version);
  keep(first, first_result(info, pending, mean, first));
  if (info.is("aten::aminmax")) keep(second, at_position(mean, 1));
  if (info.is("aten::std_mean") || info.is("aten::var_mean")) keep(second, at_position(mean, 0.5f));
}

}  // namespace tonnage::recorder
