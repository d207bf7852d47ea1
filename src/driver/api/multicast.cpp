// Multicast objects (NVLink SHARP). The virtual cards answer
// CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED with 0, as one card without a switch does; libraries that
// ask first (NCCL) then use other algorithms.
#include "driver/entry_points.h"
#include "driver/state.h"

namespace tonnage::driver {

CUresult cuMulticastCreate(Driver*, CUmemGenericAllocationHandle* out,
                           const CUmulticastObjectProp* prop) {
  if (!out || !prop || prop->size == 0 || prop->flags) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuMulticastGetGranularity(Driver*, size_t* out, const CUmulticastObjectProp* prop,
                                   CUmulticastGranularity_flags option) {
  if (!out || !prop ||
      (option != CU_MULTICAST_GRANULARITY_MINIMUM &&
       option != CU_MULTICAST_GRANULARITY_RECOMMENDED))
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_ERROR_NOT_SUPPORTED;
}
// No object can be made, so every handle is a wrong one.
CUresult cuMulticastAddDevice(Driver* state, CUmemGenericAllocationHandle, CUdevice device) {
  return state->device(device) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuMulticastBindMem(Driver*, CUmemGenericAllocationHandle, size_t,
                            CUmemGenericAllocationHandle, size_t, size_t, unsigned long long) {
  return CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMulticastBindAddr(Driver*, CUmemGenericAllocationHandle, size_t, CUdeviceptr, size_t,
                             unsigned long long) {
  return CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMulticastUnbind(Driver* state, CUmemGenericAllocationHandle, CUdevice device, size_t,
                           size_t) {
  return state->device(device) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE;
}

}  // namespace tonnage::driver
