#include "recorder/values/formulas.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <optional>
#include <vector>

#include "recorder/state.h"
#include "recorder/values/assumed.h"
#include "recorder/values/content.h"
#include "recorder/values/device.h"
#include "recorder/values/plain_cpu.h"

namespace tonnage::recorder {
namespace {

// The value as an element of the type, in the low bytes; nothing where the type is not one of these.
std::optional<uint64_t> element_bits(at::ScalarType type, const at::Scalar& value) {
  uint64_t bits = 0;
  const auto put = [&](auto element) { std::memcpy(&bits, &element, sizeof element); };
  switch (type) {
    case at::kFloat: put(value.to<float>()); break;
    case at::kDouble: put(value.to<double>()); break;
    case at::kHalf: put(value.to<at::Half>()); break;
    case at::kBFloat16: put(value.to<at::BFloat16>()); break;
    case at::kLong: put(value.to<int64_t>()); break;
    case at::kInt: put(value.to<int32_t>()); break;
    case at::kShort: put(value.to<int16_t>()); break;
    case at::kChar: put(value.to<int8_t>()); break;
    case at::kByte: put(value.to<uint8_t>()); break;
    case at::kBool: put(value.to<bool>()); break;
    default: return std::nullopt;
  }
  return bits;
}

// A pattern costs nothing however large the tensor is.
std::unique_ptr<PendingFormula> fill_formula(c10::ArrayRef<const c10::IValue> inputs) {
  if (inputs.size() != 2 || !inputs[0].isTensor() || !inputs[1].isScalar()) return nullptr;
  const at::Tensor& device = inputs[0].toTensor();
  if (!device.is_non_overlapping_and_dense() || device.numel() == 0) return nullptr;
  std::optional<uint64_t> bits;
  try {
    bits = element_bits(device.scalar_type(), inputs[1].toScalar());
  } catch (...) {  // the value does not fit: the operator itself will say so
  }
  if (!bits) return nullptr;
  auto width = static_cast<unsigned>(device.element_size());
  if (width == 8 && *bits == 0) width = 1;
  if (width == 8 && (*bits >> 32) == (*bits & 0xffffffff)) width = 4;
  if (width > 4) return nullptr;
  auto formula = std::make_unique<PendingFormula>();
  *formula = {device, static_cast<uint32_t>(*bits), width, 0, 0};
  return formula;
}

// arange(start, end, step, out) of whole numbers.
std::unique_ptr<PendingFormula> range_formula(c10::ArrayRef<const c10::IValue> inputs) {
  if (inputs.size() != 4 || !inputs[0].isInt() || !inputs[1].isInt() || !inputs[2].isInt() ||
      !inputs[3].isTensor())
    return nullptr;
  const at::Tensor& device = inputs[3].toTensor();
  if (device.scalar_type() != at::kLong && device.scalar_type() != at::kInt) return nullptr;
  auto formula = std::make_unique<PendingFormula>();
  *formula = {device, 0, 0, inputs[0].toInt(), inputs[2].toInt()};
  return formula;
}

template <class Element>
void store_range_of(ThreadState& thread, const PendingFormula& range) {
  const at::Tensor& device = range.target;
  std::vector<Element> elements(static_cast<size_t>(device.numel()));
  uint64_t value = static_cast<uint64_t>(range.start);
  for (Element& element : elements) {
    element = static_cast<Element>(static_cast<int64_t>(value));
    value += static_cast<uint64_t>(range.step);
  }
  const size_t n = elements.size() * sizeof(Element);
  if (device.is_contiguous()) {
    forget_assumed(address_of(device), n);
    return bridge().content_set(address_of(device), elements.data(), n);
  }
  PlainCpuScope scope(thread);
  at::Tensor host = at::empty(device.sizes(), host_options(device.scalar_type()));
  std::memcpy(host.mutable_data_ptr(), elements.data(), n);
  store(device, host);
}

void store_range(ThreadState& thread, const PendingFormula& range) {
  if (!small_enough(range.target)) return forget(range.target);  // it has its size now
  if (range.target.scalar_type() == at::kLong)
    store_range_of<int64_t>(thread, range);
  else
    store_range_of<int32_t>(thread, range);
}

}  // namespace

std::unique_ptr<PendingFormula> formula_of(const OpInfo& info,
                                           c10::ArrayRef<const c10::IValue> inputs) {
  if (info.rule == OpRule::kFill) return fill_formula(inputs);
  return info.rule == OpRule::kRange ? range_formula(inputs) : nullptr;
}

void store_formula(ThreadState& thread, const PendingFormula& formula) {
  const at::Tensor& device = formula.target;
  if (device.numel() == 0) return;
  if (device::capturing()) return forget(device);
  if (formula.width == 0) {
    store_range(thread, formula);
  } else {
    forget_assumed(address_of(device), span_bytes(device));
    bridge().content_fill(address_of(device), formula.pattern, formula.width, span_bytes(device));
  }
  recorder().counters.computed.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace tonnage::recorder
