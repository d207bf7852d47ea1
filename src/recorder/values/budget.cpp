#include "recorder/values/budget.h"

#include <ATen/core/Tensor.h>

#include <string_view>

namespace tonnage::recorder {
namespace {

constexpr uint64_t kStartNs = 500'000'000;  // what a program may take at once
constexpr uint64_t kPerOperatorNs = 1'000;  // a tenth of what PyTorch takes to call one
constexpr size_t kMostKinds = 4096;

uint64_t elements_of(const std::vector<ArgumentKind>& kinds,
                     c10::ArrayRef<const c10::IValue> values) {
  uint64_t n = 0;
  for (size_t i = 0; i < values.size() && i < kinds.size(); i++)
    for_each_tensor(kinds[i], values[i], [&](const at::Tensor& t, int) {
      if (t.defined()) n += static_cast<uint64_t>(t.numel());
    });
  return n;
}

bool is_product(std::string_view name) {
  return name == "aten::mm" || name == "aten::bmm" || name == "aten::addmm" ||
         name == "aten::baddbmm" || name == "aten::_cdist_forward" ||
         name == "aten::_pdist_forward";
}

// The inner dimension of a product: the last one of its first matrix.
uint64_t inner_size(std::string_view name, c10::ArrayRef<const c10::IValue> inputs) {
  const size_t first = name == "aten::addmm" || name == "aten::baddbmm" ? 1 : 0;
  if (first >= inputs.size() || !inputs[first].isTensor()) return 1;
  const at::Tensor& matrix = inputs[first].toTensor();
  return matrix.defined() && matrix.dim() > 0 ? static_cast<uint64_t>(matrix.size(-1)) : 1;
}

}  // namespace

bool ComputeBudget::admits(uint64_t operators, uint64_t kind, uint64_t cost_ns) {
  if (admitted_.count(kind) == 0) {
    if (spent_ns_ + cost_ns > kStartNs + operators * kPerOperatorNs) return false;
    if (admitted_.size() >= kMostKinds) return false;
    admitted_.insert(kind);
  }
  spent_ns_ += cost_ns;
  return true;
}

uint64_t estimate_cost_ns(const OpInfo& info, c10::ArrayRef<const c10::IValue> inputs,
                          c10::ArrayRef<const c10::IValue> outputs) {
  const uint64_t read = elements_of(info.kinds, inputs);
  const uint64_t written = elements_of(info.result_kinds, outputs);
  const std::string_view name = info.name;
  // Nanoseconds for an element, on one core of an ordinary machine.
  if (is_product(name)) return read + written * (1 + inner_size(name, inputs) / 4);
  if (name == "aten::sort" || name == "aten::topk") return 50 * read;
  return read + written;
}

}  // namespace tonnage::recorder
