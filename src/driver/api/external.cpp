// Memory and semaphores of other interfaces (Vulkan, Direct3D, NvSci). A virtual card has no such
// interface, so no handle can be imported. A well-formed request gets the answer that a real driver
// gives for an unknown handle.
#include "driver/entry_points.h"
#include "driver/state.h"

namespace tonnage::driver {

CUresult cuImportExternalMemory(Context*, CUexternalMemory* out,
                                const CUDA_EXTERNAL_MEMORY_HANDLE_DESC* description) {
  if (!out || !description || description->size == 0 ||
      (description->flags & ~unsigned{CUDA_EXTERNAL_MEMORY_DEDICATED}))
    return CUDA_ERROR_INVALID_VALUE;
  switch (description->type) {
    case CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD:
    case CU_EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD: return CUDA_ERROR_INVALID_HANDLE;
    case CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_WIN32:
    case CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_WIN32_KMT:
    case CU_EXTERNAL_MEMORY_HANDLE_TYPE_D3D12_HEAP:
    case CU_EXTERNAL_MEMORY_HANDLE_TYPE_D3D12_RESOURCE:
    case CU_EXTERNAL_MEMORY_HANDLE_TYPE_D3D11_RESOURCE:
    case CU_EXTERNAL_MEMORY_HANDLE_TYPE_D3D11_RESOURCE_KMT:
    case CU_EXTERNAL_MEMORY_HANDLE_TYPE_NVSCIBUF: return CUDA_ERROR_NOT_SUPPORTED;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}
CUresult cuExternalMemoryGetMappedBuffer(Context*, CUdeviceptr* out, CUexternalMemory,
                                         const CUDA_EXTERNAL_MEMORY_BUFFER_DESC* description) {
  return out && description ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuExternalMemoryGetMappedMipmappedArray(
    Context*, CUmipmappedArray* out, CUexternalMemory,
    const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC* description) {
  return out && description ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuDestroyExternalMemory(Driver*, CUexternalMemory) { return CUDA_ERROR_INVALID_HANDLE; }

CUresult cuImportExternalSemaphore(Context*, CUexternalSemaphore* out,
                                   const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC* description) {
  if (!out || !description) return CUDA_ERROR_INVALID_VALUE;
  switch (description->type) {
    case CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD:
    case CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD: return CUDA_ERROR_INVALID_HANDLE;
    case CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_WIN32:
    case CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_WIN32_KMT:
    case CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_D3D12_FENCE:
    case CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_D3D11_FENCE:
    case CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_NVSCISYNC:
    case CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_D3D11_KEYED_MUTEX:
    case CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_D3D11_KEYED_MUTEX_KMT:
    case CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_WIN32:
      return CUDA_ERROR_NOT_SUPPORTED;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}
CUresult cuSignalExternalSemaphoresAsync(Context*, const CUexternalSemaphore* semaphores,
                                         const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS* params,
                                         unsigned int count, CUstream) {
  if (count == 0) return CUDA_SUCCESS;
  return semaphores && params ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuWaitExternalSemaphoresAsync(Context*, const CUexternalSemaphore* semaphores,
                                       const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS* params,
                                       unsigned int count, CUstream) {
  if (count == 0) return CUDA_SUCCESS;
  return semaphores && params ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuDestroyExternalSemaphore(Driver*, CUexternalSemaphore) {
  return CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace tonnage::driver
