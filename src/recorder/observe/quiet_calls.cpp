#include "recorder/observe/quiet_calls.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "recorder/observe/operators.h"
#include "recorder/observe/thread.h"
#include "recorder/state.h"
#include "recorder/values/content.h"
#include "recorder/values/device.h"

namespace tonnage::recorder {
namespace {

// Whether all tensors of the call are as the test wants them, and there is one.
template <class Test>
bool all_tensors(const OpInfo& info, const at::RecordFunction& f, Test test) {
  bool some = false, fine = true;
  const auto inputs = inputs_of(f, info);
  for (size_t i = 0; i < inputs.size() && i < info.arguments() && fine; i++) {
    if (info.kinds[i] == ArgumentKind::kDevice) {
      fine = !inputs[i].isDevice() || device::is(inputs[i].toDevice());  // else a read by the host
      continue;
    }
    for_each_tensor(info.kinds[i], inputs[i], [&](const at::Tensor& t, int) {
      if (!t.defined() || !fine) return;
      some = true;
      fine = test(t);
    });
  }
  return some && fine;
}

}  // namespace

void make_quiet(ThreadState& thread, const at::RecordFunction& function) {
  thread.quiet.call = &function;
  // If only the recorder observes, PyTorch does not even call it: to prepare that call takes longer
  // than the operator.
  if (!only_observer(function)) return;
  at::enableRecordFunction(false);
  thread.quiet.callbacks_off = true;
}

void end_quiet(ThreadState& thread) {
  thread.quiet.call = nullptr;
  if (!thread.quiet.callbacks_off) return;
  thread.quiet.callbacks_off = false;
  at::enableRecordFunction(true);
}

void make_quiet_if_unknown(ThreadState& thread, Frame& frame, const at::RecordFunction& function) {
  const auto unknown = [](const at::Tensor& t) {
    return device::has(t) && device::plain(t) &&
           !bridge().content_any(address_of(t), span_bytes(t));
  };
  if (under_transform() || !all_tensors(*frame.info, function, unknown)) return;
  frame.quiet = {true, at::sequence_number::peek()};
  frame.name = frame.info->inner_name_id;
  make_quiet(thread, function);
  bridge().operator_depth_add(1);
  frame.launches_accounted = true;
}

bool concerns_host_only(const OpInfo& info, const at::RecordFunction& function) {
  return all_tensors(info, function,
                     [](const at::Tensor& t) { return t.device().is_cpu() && !device::has(t); });
}

bool under_transform() {
  constexpr c10::DispatchKeySet kTransforms(
      {c10::DispatchKey::Python, c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
       c10::DispatchKey::FuncTorchDynamicLayerBackMode, c10::DispatchKey::Functionalize,
       c10::DispatchKey::PreDispatch, c10::DispatchKey::Tracer, c10::DispatchKey::Fake});
  const auto local = c10::impl::tls_local_dispatch_key_set();
  return (local.included_ - local.excluded_).has_any(kTransforms);
}

}  // namespace tonnage::recorder
