#include "recorder/values/data_dependent.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/unique_dim.h>

#include <climits>

#include "recorder/observe/context.h"
#include "recorder/observe/thread.h"
#include "recorder/state.h"
#include "recorder/values/content.h"
#include "recorder/values/device.h"
#include "recorder/values/engine.h"

namespace tonnage::recorder {
namespace {

using Values = c10::ArrayRef<const c10::IValue>;

void post_count(Frame& frame, int64_t count) {
  bridge().post_read(count);
  frame.values.count_posted = true;
}

int64_t assume_count(const Frame& frame, int64_t bound) {
  const double share = recorder().settings.assume_selected;
  int64_t taken = bound;
  if (share >= 0 && share < 1)
    taken = static_cast<int64_t>(static_cast<double>(bound) * share + 0.5);
  note_assumed_size(frame.info->name_id, taken, bound);
  return taken;
}

const at::Tensor* tensor_at(Values inputs, size_t i) {
  if (i >= inputs.size() || !inputs[i].isTensor() || !inputs[i].toTensor().defined())
    return nullptr;
  return &inputs[i].toTensor();
}

int64_t dimension_at(Values inputs, size_t i, const at::Tensor& self) {
  const int64_t dim = inputs[i].toInt();
  return dim < 0 ? dim + self.dim() : dim;
}

int64_t size_of_result(const Frame& frame, size_t i, int64_t dim) {
  const at::Tensor& t = frame.values.pending->results.at(i).toTensor();
  return dim < 0 ? t.numel() : t.size(dim);
}

// nonzero counts in pieces of 2^30 elements where 32 bits do not index the whole tensor.
int64_t packed_count(int64_t count, int64_t elements) {
  if (elements < INT_MAX) return count;
  const int64_t first = count * (int64_t{1} << 30) / elements;
  return ((count - first) << 32) | (first & 0xffffffff);
}

// Inside an operator whose result is known, the count of that operator is used: the mask that
// nonzero gets there comes from kernels.
int64_t expected_count(const ThreadState& thread) {
  int64_t count = -1;
  for (const Frame& frame : thread.frames)
    if (const auto* expected = frame.values.note_as<ExpectedCount>()) count = expected->count;
  return count;
}

void begin_nonzero(const ThreadState& thread, Frame& frame, Values inputs) {
  const at::Tensor* self = tensor_at(inputs, 0);
  if (!self || self->numel() == 0) return;
  int64_t count = expected_count(thread);
  if (count >= 0)
    drop_pending(frame);
  else if (compute_now(frame))
    count = size_of_result(frame, 0, 0);
  else
    count = assume_count(frame, self->numel());
  post_count(frame, packed_count(count, self->numel()));
}

int64_t optional_dimension_at(Values inputs, size_t i, const at::Tensor& self) {
  return inputs.size() > i && inputs[i].isInt() ? dimension_at(inputs, i, self) : -1;
}

void begin_unique(Frame& frame, Values inputs) {
  const at::Tensor* self = tensor_at(inputs, 0);
  if (!self || self->numel() == 0) return;
  const bool consecutive = frame.info->rule == OpRule::kUniqueConsecutive;
  const int64_t dim = consecutive ? optional_dimension_at(inputs, 3, *self) : -1;
  // The CUDA code sorts whether asked to or not.
  if (!consecutive && frame.values.pending && frame.values.pending->inputs.size() > 1)
    frame.values.pending->inputs[1] = true;
  // Of booleans it reads how many are true.
  const bool counts_true = self->scalar_type() == at::kBool && !consecutive;
  if (compute_now(frame)) {
    const auto& arguments = frame.values.pending->arguments;
    post_count(frame, counts_true ? at::count_nonzero(arguments[0].toTensor()).item<int64_t>()
                                  : size_of_result(frame, 0, dim));
  } else if (counts_true) {
    const bool both = assume_count(frame, self->numel() > 1 ? 2 : 1) > 1;
    post_count(frame, both ? self->numel() / 2 : 0);
  } else {
    post_count(frame, assume_count(frame, dim >= 0 ? self->size(dim) : self->numel()));
  }
}

void begin_unique_dim(Frame& frame, Values inputs) {
  const at::Tensor* self = tensor_at(inputs, 0);
  if (!self || self->numel() == 0 || inputs.size() < 2 || !inputs[1].isInt()) return;
  const int64_t dim = dimension_at(inputs, 1, *self);
  post_count(frame, compute_now(frame) ? size_of_result(frame, 0, dim)
                                       : assume_count(frame, self->size(dim)));
}

void begin_repeat_interleave(Frame& frame, Values inputs) {
  if (frame.values.pending) return;
  if (const at::Tensor* repeats = tensor_at(inputs, 0))
    frame.values.set_note(ExpectedCount{assume_count(frame, repeats->numel())});
}

}  // namespace

void note_assumed_size(uint32_t operator_name, int64_t taken, int64_t bound) {
  abi::MemoryEvent event;
  event.kind = abi::EventKind::kAssumedSize;
  event.value = static_cast<uint64_t>(taken);
  event.size_bytes = static_cast<uint64_t>(bound);
  event.name = operator_name;
  fill_context(&event);
  bridge().emit(&event);
}

void begin_data_dependent(ThreadState& thread, Frame& frame, Values inputs) {
  switch (frame.info->rule) {
    case OpRule::kNonzero: return begin_nonzero(thread, frame, inputs);
    case OpRule::kUnique:
    case OpRule::kUniqueConsecutive: return begin_unique(frame, inputs);
    case OpRule::kUniqueDim: return begin_unique_dim(frame, inputs);
    case OpRule::kRepeatInterleave: return begin_repeat_interleave(frame, inputs);
    case OpRule::kNms:
      if (compute_now(frame)) frame.values.set_note(ExpectedCount{size_of_result(frame, 0, 0)});
      return;
    case OpRule::kEqual:
      if (compute_now(frame))
        frame.values.set_note(KnownEqual{frame.values.pending->results.at(0).toBool()});
      return;
    default: return;
  }
}

void begin_coalesce(Frame& frame, Values inputs) {
  const at::Tensor* self = tensor_at(inputs, 0);
  if (!self || !self->is_sparse() || !device::is(self->device())) return;
  const at::Tensor indices = self->_indices();
  if (!device::plain(indices) || indices.size(1) < 2) return;
  const at::Tensor known = load(indices);
  if (!known.defined()) return post_count(frame, assume_count(frame, indices.size(1)));
  // In the order in which coalesce sorts them.
  const at::Tensor unique = std::get<0>(at::unique_dim(known, 1));
  frame.values.set_note(CoalescedIndices{unique});
  post_count(frame, unique.size(1));
}

void end_coalesce(Frame& frame, Values outputs) {
  const at::Tensor* result = tensor_at(outputs, 0);
  if (outputs.size() != 1 || !result || !result->is_sparse()) return;
  const at::Tensor& known = frame.values.note_as<CoalescedIndices>()->indices;
  const at::Tensor indices = result->_indices();
  if (device::plain(indices) && indices.sizes() == known.sizes()) store(indices, known);
}

}  // namespace tonnage::recorder
