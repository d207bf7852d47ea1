#include "ambient_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <mutex>
#include <set>

namespace tonnage {
namespace {

::torch::Tensor state_of(const at::Generator& generator) {
  at::Generator handle = generator;
  std::lock_guard<std::mutex> lock(handle.mutex());
  return handle.get_state();
}

void set_state(const at::Generator& generator, const ::torch::Tensor& state) {
  at::Generator handle = generator;
  std::lock_guard<std::mutex> lock(handle.mutex());
  handle.set_state(state);
}

std::set<c10::DeviceIndex> cuda_devices(const std::vector<::torch::Tensor>& tensors) {
  std::set<c10::DeviceIndex> devices;
  for (const auto& t : tensors)
    if (t.defined() && t.is_cuda()) devices.insert(t.device().index());
  if (!devices.empty() || !at::globalContext().hasCUDA()) return devices;
  const c10::DeviceIndex current = c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice().index();
  if (at::detail::getCUDAHooks().hasPrimaryContext(current)) devices.insert(current);
  return devices;
}

AmbientState::Autocast autocast_of(c10::DeviceType type) {
  return {type, at::autocast::is_autocast_enabled(type), at::autocast::get_autocast_dtype(type)};
}

void set_autocast(const AmbientState& state) {
  for (const auto& a : state.autocast) {
    at::autocast::set_autocast_enabled(a.device_type, a.enabled);
    at::autocast::set_autocast_dtype(a.device_type, a.dtype);
  }
  at::autocast::set_autocast_cache_enabled(state.autocast_cache);
}

}  // namespace

AmbientState AmbientState::capture(const std::vector<::torch::Tensor>& tensors, bool with_random) {
  AmbientState out;
  out.autocast = {autocast_of(c10::kCPU), autocast_of(c10::kCUDA)};
  out.autocast_cache = at::autocast::is_autocast_cache_enabled();
  if (!with_random) return out;
  const at::Generator& cpu = at::detail::getDefaultCPUGenerator();
  out.random.push_back({cpu, state_of(cpu)});
  for (c10::DeviceIndex index : cuda_devices(tensors)) {
    const at::Generator& cuda =
        at::globalContext().defaultGenerator(c10::Device(c10::kCUDA, index));
    out.random.push_back({cuda, state_of(cuda)});
  }
  return out;
}

AmbientStateGuard::AmbientStateGuard(const AmbientState& state) {
  before_ = AmbientState::capture({}, false);
  for (const auto& r : state.random) before_.random.push_back({r.generator, state_of(r.generator)});
  for (const auto& r : state.random) set_state(r.generator, r.state);
  set_autocast(state);
  at::autocast::increment_nesting();
}

AmbientStateGuard::~AmbientStateGuard() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  set_autocast(before_);
  for (const auto& r : before_.random) set_state(r.generator, r.state);
}

}  // namespace tonnage
