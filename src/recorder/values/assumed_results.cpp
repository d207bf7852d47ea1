#include "recorder/values/assumed_results.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/movedim.h>
#include <ATen/ops/remainder.h>

#include <optional>
#include <string>
#include <vector>

#include "recorder/observe/thread.h"
#include "recorder/state.h"
#include "recorder/values/assumed.h"
#include "recorder/values/content.h"
#include "recorder/values/data_dependent.h"
#include "recorder/values/device.h"
#include "recorder/values/statistics.h"

namespace tonnage::recorder {
namespace {

using Values = c10::ArrayRef<const c10::IValue>;

// For several numbers (as many as a batch has, not as many as a layer has), the result of any() of
// their comparison is kept.
constexpr int64_t kMostCompared = 4096;
constexpr int64_t kMostIndices = 1 << 20;

bool plain(const at::Tensor& t) { return t.defined() && device::has(t) && device::plain(t); }

at::Tensor only_tensor(Values outputs) {
  return outputs.size() == 1 && outputs[0].isTensor() ? outputs[0].toTensor() : at::Tensor();
}

bool is_one_bool(const at::Tensor& t) {
  return plain(t) && t.numel() == 1 && t.scalar_type() == at::kBool;
}

// --- all, any ---

// all() of unknown data is true: checks are assumed to pass. Inside equal() it is the result of
// equal().
void assume_all(const ThreadState& thread, Values outputs) {
  const at::Tensor result = only_tensor(outputs);
  if (!plain(result) || result.numel() != 1) return;
  for (size_t i = thread.frames.size(); i-- > 0;) {
    const auto* known = thread.frames[i].values.note_as<KnownEqual>();
    if (!known) continue;
    store(result,
          at::empty(result.sizes(), host_options(result.scalar_type())).fill_(known->equal));
    return;
  }
  assume_bool(result, true);
}

// any() of a comparison that was judged below.
void assume_any(const Frame& frame, Values outputs) {
  const auto* of = frame.values.note_as<ReadAddress>();
  const at::Tensor result = only_tensor(outputs);
  if (!of || !is_one_bool(result)) return;
  if (const auto any = any_of(of->address)) assume_bool(result, *any);
}

// --- Comparisons ---

bool holds(const std::string& name, double left, double right) {
  if (name == "aten::gt") return left > right;
  if (name == "aten::ge") return left >= right;
  if (name == "aten::lt") return left < right;
  if (name == "aten::le") return left <= right;
  return name == "aten::eq" ? left == right : left != right;
}

bool unknown_number(const c10::IValue& value) {
  if (!value.isTensor()) return false;
  const at::Tensor& t = value.toTensor();
  return plain(t) && t.numel() == 1 && c10::isFloatingType(t.scalar_type()) && !load(t).defined();
}

// The numbers of one side, as doubles; undefined: unknown.
at::Tensor numbers(const c10::IValue& value) {
  if (value.isScalar() && !value.toScalar().isComplex())
    return at::empty({1}, host_options(at::kDouble)).fill_(value.toScalar());
  if (!value.isTensor()) return {};
  const at::Tensor& t = value.toTensor();
  if (!t.defined() || t.is_complex() || t.numel() > kMostCompared) return {};
  const at::Tensor known = device::has(t) ? (device::plain(t) ? load(t) : at::Tensor()) : t;
  return known.defined() && known.device().is_cpu() ? known.to(at::kDouble).contiguous()
                                                    : at::Tensor();
}

// An unknown number that is compared gets a value, which stays. If the other side is below zero, so
// is the value (a slope, for example).
void assume_compared(const c10::IValue& side, const c10::IValue& other) {
  if (!unknown_number(side)) return;
  const at::Tensor bound = numbers(other);
  const bool negative =
      bound.defined() && bound.numel() == 1 && bound.const_data_ptr<double>()[0] < 0;
  assume_elements(side.toTensor(), negative);
}

// Whether any of several unknown numbers, taken as 1, or as -1 beside negative ones, compares so
// with the known ones of the other side. Two unknown numbers count as different.
bool any_holds(const std::string& name, const at::Tensor& left, const at::Tensor& right,
               bool same) {
  if (!left.defined() && !right.defined()) return same ? holds(name, 1, 1) : name == "aten::ne";
  const at::Tensor& known = left.defined() ? left : right;
  const auto* values = known.const_data_ptr<double>();
  for (int64_t i = 0; i < known.numel(); i++) {
    const double value = values[i], unknown = value < 0 ? -1 : 1;
    if (left.defined() ? holds(name, value, unknown) : holds(name, unknown, value)) return true;
  }
  return false;
}

bool may_be_assumed(const at::Tensor& result) {
  return plain(result) && result.numel() > 0 && result.numel() <= kMostCompared &&
         result.scalar_type() == at::kBool && !device::capturing();
}

void assume_comparison(const Frame& frame, Values outputs) {
  const auto* arguments = frame.values.note_as<KeptArguments>();
  const at::Tensor result = only_tensor(outputs);
  if (!arguments || arguments->values.size() < 2 || !arguments->values[0].isTensor() ||
      !may_be_assumed(result))
    return;
  const c10::IValue &first = arguments->values[0], &second = arguments->values[1];
  if (result.numel() == 1) {
    assume_compared(first, second);
    assume_compared(second, first);
  }
  const at::Tensor left = numbers(first), right = numbers(second);
  const std::string& name = frame.info->name;
  if (left.defined() && right.defined()) {
    if (left.numel() != 1 || right.numel() != 1) return;  // the operator's own business
    return assume_bool(
        result, holds(name, left.const_data_ptr<double>()[0], right.const_data_ptr<double>()[0]));
  }
  const bool same = second.isTensor() && first.toTensor().is_same(second.toTensor());
  const bool any = any_holds(name, left, right, same);
  if (result.numel() > 1) return keep_any(address_of(result), any);
  assume_bool(result, any);
}

// --- Choices ---

bool takes_indices(const at::Tensor& t) {
  return plain(t) && t.scalar_type() == at::kLong && t.numel() > 0 && t.numel() <= kMostIndices;
}

// Which experts, proposals or tokens the unknown scores choose is not known. Each row chooses k
// different ones; they are spread evenly.
void assume_topk(const Frame& frame, Values outputs) {
  const auto* choice = frame.values.note_as<TopkChoice>();
  if (!choice || outputs.size() != 2 || !outputs[1].isTensor()) return;
  const at::Tensor& indices = outputs[1].toTensor();
  if (!takes_indices(indices) || indices.dim() == 0 || choice->size <= 0) return;
  std::vector<int64_t> shape = indices.sizes().vec();
  const int64_t k = shape[static_cast<size_t>(choice->dim)];
  if (k >= choice->size) return;
  shape.erase(shape.begin() + choice->dim);
  shape.push_back(k);
  const at::Tensor dealt =
      at::remainder(at::arange(indices.numel(), host_options(at::kLong)), choice->size).view(shape);
  store(indices, at::movedim(dealt, -1, choice->dim).contiguous());
  note_assumed_size(frame.info->name_id, k, choice->size);
}

// From how many one index a row is chosen; 0 if that is not known.
int64_t choices(const std::string& name, const std::vector<c10::IValue>& arguments) {
  if (arguments.size() < 2 || !arguments[0].isTensor()) return 0;
  const at::Tensor& self = arguments[0].toTensor();
  if (!self.defined() || self.dim() == 0) return 0;
  if (name != "aten::argmax") return self.size(self.dim() - 1);
  if (!arguments[1].isInt()) return self.numel();
  const int64_t dim = arguments[1].toInt();
  return self.size(dim < 0 ? dim + self.dim() : dim);
}

// One index for each row (argmax or a random choice): spread evenly, beginning in the middle,
// because the first and the last index often have a special meaning (padding, end of text).
void assume_choice(const Frame& frame, Values outputs) {
  const auto* arguments = frame.values.note_as<KeptArguments>();
  const at::Tensor indices = only_tensor(outputs);
  if (!arguments || !takes_indices(indices)) return;
  const int64_t n = choices(frame.info->name, arguments->values);
  if (n <= 0) return;
  store(indices,
        at::remainder(at::arange(n / 2, n / 2 + indices.numel(), host_options(at::kLong)), n)
            .view(indices.sizes()));
  note_assumed_size(frame.info->name_id, 1, n);
}

void begin_topk(Frame& frame, Values inputs) {
  const at::Tensor& self = inputs[0].toTensor();
  if (self.dim() == 0 || inputs.size() < 3 || !inputs[2].isInt()) return;
  const int64_t given = inputs[2].toInt(), dim = given < 0 ? given + self.dim() : given;
  frame.values.set_note(TopkChoice{self.size(dim), dim});
  frame.values.statistic = begin_statistic(*frame.info, inputs);
}

// Unknown gradients count as finite: found_inf keeps its value.
void begin_found_inf(Values inputs) {
  if (!inputs[0].isTensorList()) return;
  for (const at::Tensor& t : inputs[0].toTensorList())
    if (plain(t)) forget(t);
}

}  // namespace

void begin_assuming(Frame& frame, Values inputs) {
  if (inputs.size() == 0) return;
  const bool tensor = inputs[0].isTensor() && inputs[0].toTensor().defined();
  switch (frame.info->rule) {
    case OpRule::kTopk:
      if (tensor) begin_topk(frame, inputs);
      return;
    case OpRule::kCompare:
      if (!tensor || inputs[0].toTensor().numel() > kMostCompared) return;
      [[fallthrough]];
    case OpRule::kChoice:
      frame.values.set_note(KeptArguments{std::vector<c10::IValue>(inputs.begin(), inputs.end())});
      return;
    case OpRule::kAny:
      if (tensor && plain(inputs[0].toTensor()))
        frame.values.set_note(ReadAddress{address_of(inputs[0].toTensor())});
      return;
    case OpRule::kFoundInf:
      if (!frame.values.pending) begin_found_inf(inputs);
      return;
    default: return;
  }
}

void end_assuming(ThreadState& thread, Frame& frame, Values outputs) {
  switch (frame.info->rule) {
    case OpRule::kAll: return assume_all(thread, outputs);
    case OpRule::kAny: return assume_any(frame, outputs);
    case OpRule::kTopk: return assume_topk(frame, outputs);
    case OpRule::kChoice: return assume_choice(frame, outputs);
    case OpRule::kCompare: return assume_comparison(frame, outputs);
    default: return;
  }
}

}  // namespace tonnage::recorder
