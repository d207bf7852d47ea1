// The caching allocator of a CUDA device, with the checks that all users of it need.
#pragma once

#include <c10/core/Device.h>

#include "compat.h"

namespace tonnage {

// The device with its index. Error: not a CUDA device of this process; `who` is the public function
// that was called.
c10::Device checked_cuda_device(c10::Device device, const char* who);

// Null while nothing was allocated in this process yet.
compat::DeviceAllocator* device_allocator(c10::Device device);

}  // namespace tonnage
