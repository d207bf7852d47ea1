#include "recorder/values/host_reads.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "recorder/observe/thread.h"
#include "recorder/state.h"
#include "recorder/values/assumed.h"
#include "recorder/values/content.h"
#include "recorder/values/device.h"
#include "recorder/values/plain_cpu.h"

namespace tonnage::recorder {
namespace {

using Values = c10::ArrayRef<const c10::IValue>;

// Larger tensors that are copied to the host are kept there, not looked at number by number; what
// is unknown in them is zero.
constexpr int64_t kMostRead = 16384;
// Real numbers from the host beyond this size are data and weights, which nothing that is computed
// reads: keeping them would only cost time.
constexpr int64_t kMostUploaded = 1 << 20;

const Frame* calling(const ThreadState& thread, OpRule rule) {
  for (size_t i = thread.frames.size(); i-- > 0;)
    if (thread.frames[i].info && thread.frames[i].info->rule == rule &&
        thread.frames[i].launches_accounted)
      return &thread.frames[i];
  return nullptr;
}

// The content is there while the read runs, and unknown again after it.
void answer_once(Frame& frame, const at::Tensor& scalar, const at::Scalar& value) {
  const at::Tensor one = at::empty({1}, host_options(scalar.scalar_type())).fill_(value);
  const auto size = static_cast<size_t>(scalar.element_size());
  bridge().content_set(address_of(scalar), one.const_data_ptr(), size);
  frame.values.set_note(AnsweredRead{address_of(scalar), size});
  note_unknown_read(address_of(scalar), size);
}

bool known(const at::Tensor& scalar) {
  char bytes[16];
  return scalar.element_size() <= static_cast<int64_t>(sizeof bytes) &&
         bridge().content_get(address_of(scalar), bytes, scalar.element_size());
}

// A copy from the device: unknown numbers in it get values that stay.
void begin_download(ThreadState& thread, const at::Tensor& from) {
  if (from.numel() == 0 || from.numel() > kMostRead || !device::plain(from)) return;
  PlainCpuScope scope(thread);
  const uint64_t address = address_of(from);
  if (load(from).defined()) {
    if (is_assumed(address)) note_unknown_read(address, span_bytes(from));
    return;
  }
  if (!c10::isFloatingType(from.scalar_type()))
    return;  // zeros, from the driver, which counts them
  assume_elements(from);
  note_unknown_read(address, span_bytes(from));
}

void begin_upload(ValueSlot& slot, const at::Tensor& to, const at::Tensor& from) {
  if (device::plain(to)) forget_assumed(address_of(to), span_bytes(to));
  if (c10::isIntegralType(from.scalar_type(), /*includeBool=*/true)) return;
  if (from.numel() <= kMostUploaded && !(from.requires_grad() && from.numel() > 1)) return;
  slot.upload_policy = true;
  bridge().set_upload_policy(-1);
}

}  // namespace

void begin_scalar_read(ThreadState& thread, Frame& frame, Values inputs) {
  if (inputs.size() == 0 || !inputs[0].isTensor()) return;
  const at::Tensor& self = inputs[0].toTensor();
  if (!self.defined() || !device::has(self) || !device::plain(self) || self.numel() != 1) return;
  if (known(self)) {
    if (is_assumed(address_of(self))) note_unknown_read(address_of(self), self.element_size());
    return;
  }
  if (c10::isFloatingType(self.scalar_type())) {
    assume_elements(self);
    note_unknown_read(address_of(self), self.element_size());
    return;
  }
  // repeat_interleave checks its counts, and reads their sum.
  const Frame* repeats = calling(thread, OpRule::kRepeatInterleave);
  const auto* sum = repeats ? repeats->values.note_as<ExpectedCount>() : nullptr;
  if (sum) answer_once(frame, self, self.scalar_type() == at::kBool ? int64_t{1} : sum->count);
}

bool is_drivers_copy(Values inputs) {
  if (inputs.size() < 2 || !inputs[0].isTensor() || !inputs[1].isTensor()) return false;
  const at::Tensor& to = inputs[0].toTensor();
  const at::Tensor& from = inputs[1].toTensor();
  if (!to.defined() || !from.defined()) return true;
  // Pieces of it that are kernels are copy_ calls inside.
  if (!device::has(to) || !device::has(from)) return true;
  return to.scalar_type() == from.scalar_type() && to.sizes() == from.sizes() &&
         to.strides() == from.strides() && to.is_non_overlapping_and_dense();
}

void begin_drivers_copy(ThreadState& thread, ValueSlot& slot, Values inputs) {
  const at::Tensor& to = inputs[0].toTensor();
  const at::Tensor& from = inputs[1].toTensor();
  if (!to.defined() || !from.defined()) return;
  const bool to_device = device::has(to), from_device = device::has(from);
  if (to_device && from_device) {
    if (device::plain(to) && device::plain(from))
      copy_assumed(address_of(to), address_of(from), span_bytes(to));
  } else if (from_device && to.device().is_cpu()) {
    if (recorder().settings.known_values) begin_download(thread, from);
  } else if (to_device && from.device().is_cpu()) {
    begin_upload(slot, to, from);
  }
}

}  // namespace tonnage::recorder
