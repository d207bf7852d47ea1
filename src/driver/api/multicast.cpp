// Multicast objects (NVLink SHARP). The virtual cards answer
// CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED with 0, as one card without a switch does; libraries that
// ask first (NCCL) then use other algorithms.
#include "driver/state.h"

using namespace tonnage::driver;

VGPU_API cuMulticastCreate(CUmemGenericAllocationHandle* out, const CUmulticastObjectProp* prop) {
  VGPU_DRIVER(state);
  (void)state;
  if (!out || !prop || prop->size == 0 || prop->flags) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_ERROR_NOT_SUPPORTED;
}
VGPU_API cuMulticastGetGranularity(size_t* out, const CUmulticastObjectProp* prop,
                                   CUmulticastGranularity_flags option) {
  VGPU_DRIVER(state);
  (void)state;
  if (!out || !prop ||
      (option != CU_MULTICAST_GRANULARITY_MINIMUM &&
       option != CU_MULTICAST_GRANULARITY_RECOMMENDED))
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_ERROR_NOT_SUPPORTED;
}
// No object can be made, so every handle is a wrong one.
VGPU_API cuMulticastAddDevice(CUmemGenericAllocationHandle, CUdevice device) {
  VGPU_DRIVER(state);
  return state->device(device) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE;
}
VGPU_API cuMulticastBindMem(CUmemGenericAllocationHandle, size_t, CUmemGenericAllocationHandle,
                            size_t, size_t, unsigned long long) {
  VGPU_DRIVER(state);
  (void)state;
  return CUDA_ERROR_INVALID_VALUE;
}
VGPU_API cuMulticastBindAddr(CUmemGenericAllocationHandle, size_t, CUdeviceptr, size_t,
                             unsigned long long) {
  VGPU_DRIVER(state);
  (void)state;
  return CUDA_ERROR_INVALID_VALUE;
}
VGPU_API cuMulticastUnbind(CUmemGenericAllocationHandle, CUdevice device, size_t, size_t) {
  VGPU_DRIVER(state);
  return state->device(device) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE;
}
