// Memory and semaphores of other interfaces (Vulkan, Direct3D, NvSci). A virtual card has no other
// interface, so no handle that could be imported exists: what is well-formed is answered as a real
// driver answers a handle that it does not know.
#include "driver/state.h"

using namespace tonnage::driver;

VGPU_API cuImportExternalMemory(CUexternalMemory* out,
                                const CUDA_EXTERNAL_MEMORY_HANDLE_DESC* description) {
  VGPU_CONTEXT(context);
  (void)context;
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
VGPU_API cuExternalMemoryGetMappedBuffer(CUdeviceptr* out, CUexternalMemory,
                                         const CUDA_EXTERNAL_MEMORY_BUFFER_DESC* description) {
  VGPU_CONTEXT(context);
  (void)context;
  return out && description ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
}
VGPU_API cuExternalMemoryGetMappedMipmappedArray(
    CUmipmappedArray* out, CUexternalMemory,
    const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC* description) {
  VGPU_CONTEXT(context);
  (void)context;
  return out && description ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
}
VGPU_API cuDestroyExternalMemory(CUexternalMemory) {
  VGPU_DRIVER(state);
  (void)state;
  return CUDA_ERROR_INVALID_HANDLE;
}

VGPU_API cuImportExternalSemaphore(CUexternalSemaphore* out,
                                   const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC* description) {
  VGPU_CONTEXT(context);
  (void)context;
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
VGPU_API cuSignalExternalSemaphoresAsync(const CUexternalSemaphore* semaphores,
                                         const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS* params,
                                         unsigned int count, CUstream) {
  VGPU_CONTEXT(context);
  (void)context;
  if (count == 0) return CUDA_SUCCESS;
  return semaphores && params ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
}
VGPU_API cuWaitExternalSemaphoresAsync(const CUexternalSemaphore* semaphores,
                                       const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS* params,
                                       unsigned int count, CUstream) {
  VGPU_CONTEXT(context);
  (void)context;
  if (count == 0) return CUDA_SUCCESS;
  return semaphores && params ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
}
VGPU_API cuDestroyExternalSemaphore(CUexternalSemaphore) {
  VGPU_DRIVER(state);
  (void)state;
  return CUDA_ERROR_INVALID_HANDLE;
}
