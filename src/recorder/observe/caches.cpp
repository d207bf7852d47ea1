#include "recorder/observe/caches.h"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include "recorder/observe/labels.h"
#include "recorder/observe/operators.h"
#include "recorder/observe/phases.h"
#include "recorder/observe/thread.h"
#include "recorder/state.h"
#include "recorder/values/content.h"
#include "recorder/values/device.h"

namespace tonnage::recorder {
namespace {

// Batch, heads, tokens, size of a head; or batch, tokens, heads, size.
constexpr int64_t kDimensions = 4;

bool may_be_cache(const at::Tensor& t) {
  return t.defined() && device::has(t) && device::plain(t) && t.dim() == kDimensions &&
         c10::isFloatingType(t.scalar_type()) && t.numel() > 0;
}

// Whether `part` can be some tokens of `whole`: the shapes differ only in the dimension of tokens.
bool appended_to(const at::Tensor& whole, const at::Tensor& part, int64_t dim) {
  if (!may_be_cache(whole) || !may_be_cache(part)) return false;
  if (dim != 2 && !(dim == 1 && part.size(dim) == 1)) return false;
  for (int64_t d = 0; d < kDimensions; d++)
    if (d != dim && whole.size(d) != part.size(d)) return false;
  return whole.size(dim) > part.size(dim);
}

void label_cache(const at::Tensor& t) {
  label(reinterpret_cast<uint64_t>(t.unsafeGetTensorImpl()->storage().data()),
        abi::Category::kKeyValueCache, 0);
}

int64_t dimension(const c10::IValue& value) {
  if (!value.isInt()) return -1;
  return value.toInt() < 0 ? value.toInt() + kDimensions : value.toInt();
}

// cat([old, new], dim)
bool grows_by_cat(c10::ArrayRef<const c10::IValue> inputs) {
  if (inputs.size() < 2 || !inputs[0].isList()) return false;
  const auto list = inputs[0].toListRef();
  return list.size() == 2 && list[0].isTensor() && list[1].isTensor() &&
         appended_to(list[0].toTensor(), list[1].toTensor(), dimension(inputs[1]));
}

// A slice of one token of a larger block: `slice` is a view of whole batches and heads.
bool is_slice_of_tokens(const at::Tensor& slice) {
  if (!may_be_cache(slice) || slice.unsafeGetTensorImpl()->storage().nbytes() <= slice.nbytes() ||
      slice.size(0) == 0)
    return false;
  for (int64_t dim : {1, 2}) {
    if (slice.size(dim) != 1) continue;
    int64_t expected = 1;  // strides, if only this dimension is cut
    bool others_dense = true;
    for (int64_t d = kDimensions - 1; d > dim; d--) {
      others_dense &= slice.size(d) == 1 || slice.stride(d) == expected;
      expected *= slice.size(d);
    }
    if (others_dense && slice.stride(dim) == expected) return true;
  }
  return false;
}

bool writes_tokens(const OpInfo& info, c10::ArrayRef<const c10::IValue> inputs) {
  if (inputs.size() < 2 || !inputs[0].isTensor()) return false;
  const at::Tensor& whole = inputs[0].toTensor();
  if (info.name == "aten::index_copy_")
    return inputs.size() >= 4 && inputs[3].isTensor() &&
           appended_to(whole, inputs[3].toTensor(), dimension(inputs[1]));
  if (info.name == "aten::index_put_")  // cache[:, :, positions] = new
    return inputs.size() >= 3 && inputs[2].isTensor() &&
           appended_to(whole, inputs[2].toTensor(), 2);
  return info.name == "aten::copy_" && inputs[1].isTensor() && is_slice_of_tokens(whole) &&
         may_be_cache(inputs[1].toTensor());
}

}  // namespace

void look_for_cache(ThreadState& thread, const OpInfo& info, const at::RecordFunction& function) {
  if (c10::GradMode::is_enabled() || current_phase(thread) != abi::Phase::kEval) return;
  const auto inputs = inputs_of(function, info);
  if (info.name == "aten::cat") {
    // The old one is a cache too, though the first of them was made by the model itself.
    if (grows_by_cat(inputs)) {
      label_cache(inputs[0].toListRef()[0].toTensor());
      thread.frames.back().grows_cache = true;
    }
  } else if (writes_tokens(info, inputs)) {
    label_cache(inputs[0].toTensor());
  }
}

void label_new_cache(const OpInfo& info, const at::RecordFunction& function) {
  const auto outputs = outputs_of(function, info);
  if (outputs.size() == 1 && outputs[0].isTensor() && may_be_cache(outputs[0].toTensor()))
    label_cache(outputs[0].toTensor());
}

}  // namespace tonnage::recorder
