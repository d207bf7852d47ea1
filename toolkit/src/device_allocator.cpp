#include "device_allocator.h"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace tonnage {

c10::Device checked_cuda_device(c10::Device device, const char* who) {
  TORCH_CHECK(device.is_cuda(), who, ": ", device,
              " is not a CUDA device; give torch::kCUDA or torch::Device(torch::kCUDA, index)");
  TORCH_CHECK(at::globalContext().hasCUDA(), who,
              ": this libtorch has no CUDA, or there is no CUDA device");
  const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  const c10::DeviceIndex count = guard.deviceCount();
  TORCH_CHECK(count > 0, who, ": there is no CUDA device");
  if (!device.has_index()) return guard.getDevice();
  TORCH_CHECK(device.index() < count, who, ": there is no ", device,
              ", only cuda:0 to cuda:", count - 1);
  return device;
}

compat::DeviceAllocator* device_allocator(c10::Device device) {
  compat::DeviceAllocator* allocator = compat::device_allocator(device.type());
  return allocator->initialized() ? allocator : nullptr;
}

}  // namespace tonnage
