// Memory: cuMemAlloc and similar functions, host memory, managed memory, and attributes of
// pointers.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "driver/api/memory.h"
#include "driver/api/memory_pools.h"
#include "driver/entry_points.h"
#include "driver/graphs/graph.h"
#include "driver/recorder_loader.h"
#include "driver/recording.h"
#include "driver/state.h"

namespace tonnage::driver {
namespace {

using abi::DeviceMemoryKind;

void* take_pinned(const Device* device, size_t bytes) {
  auto* memory = reinterpret_cast<void*>(driver()->pinned.allocate(device->index, bytes));
  if (memory && bytes <= gpu::PinnedMemory::kLargestShared) memset(memory, 0, bytes);
  return memory;
}

// Which of the host's limits it was.
void tell_of_host_refusal(size_t bytes, DeviceMemoryKind kind) {
  if (kind == DeviceMemoryKind::kHostPinned && !driver()->pages.has_room(bytes))
    record_pinned_refusal(bytes, RegionPages::limit());
  else
    record_host_refusal(bytes);
}

CUresult allocate_small(Context* context, size_t bytes, CUdeviceptr* out) {
  load_recorder();
  Allocation allocation;
  bool made_block = false;
  allocation.address = context->device->small_memory.allocate(context, bytes, &made_block);
  if (!allocation.address) return CUDA_ERROR_OUT_OF_MEMORY;
  if (made_block) driver()->new_id();  // a block is a buffer of its own
  allocation.requested_bytes = bytes;
  allocation.context = context;
  allocation.device = context->device;
  allocation.buffer_id = driver()->new_id();
  add_allocation(allocation);
  *out = allocation.address;
  return CUDA_SUCCESS;
}

CUresult free_small(const Allocation& allocation) {
  Allocation removed;
  if (!remove_allocation(allocation.address, &removed)) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t bytes = removed.requested_bytes;
  driver()->content.forget(removed.address, gpu::SmallMemory::taken(bytes));
  return removed.device->small_memory.release(removed.address, bytes) ? CUDA_SUCCESS
                                                                      : CUDA_ERROR_INVALID_VALUE;
}

// Host memory that the device can access. It is real memory, because the host uses it.
CUresult allocate_host(Context* context, size_t bytes, unsigned flags, DeviceMemoryKind kind,
                       void** out) {
  const size_t size = gpu::round_up(bytes, 4096);
  if (size < bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  void* memory = nullptr;
  if (kind == DeviceMemoryKind::kHostPinned) {
    memory = take_pinned(context->device, bytes);
  } else {
    memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) memory = nullptr;
  }
  if (!memory) {
    tell_of_host_refusal(bytes, kind);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Allocation allocation;
  allocation.address = reinterpret_cast<uint64_t>(memory);
  allocation.requested_bytes = bytes;
  allocation.accounted_bytes = 0;
  allocation.kind = kind;
  allocation.context = context;
  allocation.device = kind == DeviceMemoryKind::kManaged ? context->device : nullptr;
  allocation.buffer_id = driver()->new_id();
  allocation.host_flags = flags;
  allocation.host = memory;
  add_allocation(allocation);
  record_host_alloc(allocation.address, bytes, kind);
  if (kind == DeviceMemoryKind::kManaged) driver()->managed.add(allocation.address, bytes);
  *out = memory;
  return CUDA_SUCCESS;
}

void free_host(const Allocation& allocation) {
  if (allocation.kind == DeviceMemoryKind::kManaged) driver()->managed.remove(allocation.address);
  record_host_free(allocation.address, allocation.requested_bytes, allocation.kind);
  if (allocation.kind == DeviceMemoryKind::kHostPinned)
    driver()->pinned.release(allocation.address);
  else if (allocation.kind != DeviceMemoryKind::kHostRegistered)
    munmap(allocation.host, gpu::round_up(allocation.requested_bytes, 4096));
}

CUmemorytype memory_type(const Allocation& allocation) {
  return allocation.kind == DeviceMemoryKind::kHostPinned ||
                 allocation.kind == DeviceMemoryKind::kHostRegistered
             ? CU_MEMORYTYPE_HOST
             : CU_MEMORYTYPE_DEVICE;
}

}  // namespace

CUresult free_allocation(Allocation allocation) {
  switch (allocation.kind) {
    case DeviceMemoryKind::kManaged:
    case DeviceMemoryKind::kHostPinned:
    case DeviceMemoryKind::kHostRegistered:
      if (remove_allocation(allocation.address, &allocation)) free_host(allocation);
      return CUDA_SUCCESS;
    case DeviceMemoryKind::kPool: return free_pool_memory(allocation.address);
    case DeviceMemoryKind::kPlain:
      if (allocation.accounted_bytes == 0) return free_small(allocation);
      break;
    default: break;
  }
  return free_device_memory(allocation.address);
}

CUresult cuMemGetInfo_v2(Context* context, size_t* free_bytes, size_t* total_bytes) {
  Driver* state = driver();
  if (free_bytes) *free_bytes = state->ledger.free(context->device->physical);
  if (total_bytes) *total_bytes = state->ledger.total(context->device->physical);
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(Context* context, CUdeviceptr* out, size_t bytes) {
  if (!out || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = capture_unsafe(); result != CUDA_SUCCESS) return result;
  if (bytes < gpu::kSmallLimit) return allocate_small(context, bytes, out);
  return allocate_device_memory(context->device, context, bytes, DeviceMemoryKind::kPlain, out);
}

CUresult cuMemAllocPitch_v2(Context* context, CUdeviceptr* out, size_t* pitch, size_t width,
                            size_t height, unsigned int element_bytes) {
  if (!out || !pitch || width == 0 || height == 0) return CUDA_ERROR_INVALID_VALUE;
  if (element_bytes != 4 && element_bytes != 8 && element_bytes != 16)
    return CUDA_ERROR_INVALID_VALUE;
  *pitch = gpu::round_up(width, 512);
  return cuMemAlloc_v2(context, out, *pitch * height);
}

CUresult cuMemFree_v2(Driver* state, CUdeviceptr address) {
  if (address == 0) return CUDA_SUCCESS;
  if (const CUresult result = capture_unsafe(); result != CUDA_SUCCESS) return result;
  Allocation allocation;
  {
    std::lock_guard lock(state->memory_mutex);
    const auto it = state->allocations.find(address);
    if (it != state->allocations.end()) allocation = it->second;
  }
  if (free_graph_memory(address)) return CUDA_SUCCESS;
  if (!allocation.address || allocation.owned_elsewhere) return CUDA_ERROR_INVALID_VALUE;
  switch (allocation.kind) {
    case DeviceMemoryKind::kHostPinned:
    case DeviceMemoryKind::kHostRegistered:
    case DeviceMemoryKind::kIpc:
    case DeviceMemoryKind::kVirtual: return CUDA_ERROR_INVALID_VALUE;
    default: return free_allocation(allocation);
  }
}

CUresult cuMemGetAddressRange_v2(Driver*, CUdeviceptr* base, size_t* size, CUdeviceptr address) {
  Allocation allocation;
  if (!find_allocation(address, &allocation)) return CUDA_ERROR_NOT_FOUND;
  if (base) *base = allocation.address;
  if (size) *size = allocation.requested_bytes;
  return CUDA_SUCCESS;
}

// --- Host and managed memory ---

CUresult cuMemHostAlloc(Context* context, void** out, size_t bytes, unsigned int flags) {
  if (!out || (flags & ~7u)) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = capture_unsafe(); result != CUDA_SUCCESS) return result;
  if (bytes == 0) {
    *out = nullptr;
    return CUDA_SUCCESS;
  }
  return allocate_host(context, bytes, flags, DeviceMemoryKind::kHostPinned, out);
}
CUresult cuMemAllocHost_v2(Context* context, void** out, size_t bytes) {
  return cuMemHostAlloc(context, out, bytes, CU_MEMHOSTALLOC_PORTABLE);
}

CUresult cuMemFreeHost(Driver*, void* pointer) {
  if (!pointer) return CUDA_SUCCESS;
  Allocation allocation;
  if (!find_allocation(reinterpret_cast<uint64_t>(pointer), &allocation) ||
      allocation.host != pointer || allocation.kind != DeviceMemoryKind::kHostPinned)
    return CUDA_ERROR_INVALID_VALUE;
  if (remove_allocation(allocation.address, &allocation)) free_host(allocation);
  return CUDA_SUCCESS;
}

CUresult cuMemHostRegister_v2(Context* context, void* pointer, size_t bytes, unsigned int flags) {
  if (!pointer || bytes == 0 || (flags & ~15u)) return CUDA_ERROR_INVALID_VALUE;
  Allocation allocation;
  if (find_allocation(reinterpret_cast<uint64_t>(pointer), &allocation))
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  allocation = Allocation();
  allocation.address = reinterpret_cast<uint64_t>(pointer);
  allocation.requested_bytes = bytes;
  allocation.kind = DeviceMemoryKind::kHostRegistered;
  allocation.context = context;
  allocation.buffer_id = driver()->new_id();
  allocation.host_flags = flags;
  allocation.host = pointer;
  add_allocation(allocation);
  record_host_alloc(allocation.address, bytes, allocation.kind);
  return CUDA_SUCCESS;
}
CUresult cuMemHostRegister(Context* context, void* pointer, size_t bytes, unsigned int flags) {
  return cuMemHostRegister_v2(context, pointer, bytes, flags);
}

CUresult cuMemHostUnregister(Driver*, void* pointer) {
  Allocation allocation;
  if (!find_allocation(reinterpret_cast<uint64_t>(pointer), &allocation) ||
      allocation.host != pointer || allocation.kind != DeviceMemoryKind::kHostRegistered)
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  if (remove_allocation(allocation.address, &allocation)) free_host(allocation);
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer_v2(Driver*, CUdeviceptr* out, void* pointer,
                                      unsigned int flags) {
  if (!out || flags) return CUDA_ERROR_INVALID_VALUE;
  Allocation allocation;
  if (!find_allocation(reinterpret_cast<uint64_t>(pointer), &allocation) || !allocation.host)
    return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUdeviceptr>(pointer);
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(Driver*, unsigned int* flags, void* pointer) {
  Allocation allocation;
  if (!flags || !find_allocation(reinterpret_cast<uint64_t>(pointer), &allocation) ||
      !allocation.host)
    return CUDA_ERROR_INVALID_VALUE;
  *flags = allocation.host_flags | CU_MEMHOSTALLOC_DEVICEMAP;
  return CUDA_SUCCESS;
}

CUresult cuMemAllocManaged(Context* context, CUdeviceptr* out, size_t bytes, unsigned int flags) {
  if (!out || bytes == 0 ||
      (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST &&
       flags != CU_MEM_ATTACH_SINGLE))
    return CUDA_ERROR_INVALID_VALUE;
  if (!context->device->card->attributes[CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY])
    return CUDA_ERROR_NOT_SUPPORTED;
  void* memory = nullptr;
  const CUresult result = allocate_host(context, bytes, flags, DeviceMemoryKind::kManaged, &memory);
  *out = reinterpret_cast<CUdeviceptr>(memory);
  return result;
}

namespace {

// Where the program wants managed memory to be; null card: on the host.
CUresult find_place(Driver* state, CUdevice device, Device** card) {
  *card = nullptr;
  if (device == CU_DEVICE_CPU) return CUDA_SUCCESS;
  *card = state->device(device);
  return *card ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUdevice device_of(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : CU_DEVICE_CPU;
}

}  // namespace

CUresult cuMemPrefetchAsync(Driver* state, CUdeviceptr address, size_t bytes, CUdevice device,
                            CUstream) {
  Device* card = nullptr;
  if (const CUresult result = find_place(state, device, &card); result != CUDA_SUCCESS)
    return result;
  Allocation allocation;
  if (!find_allocation(address, &allocation)) return CUDA_ERROR_INVALID_VALUE;
  state->managed.prefetch(address, bytes, card, device);
  return CUDA_SUCCESS;
}
CUresult cuMemPrefetchAsync_v2(Driver* state, CUdeviceptr address, size_t bytes,
                               CUmemLocation location, unsigned int, CUstream stream) {
  return cuMemPrefetchAsync(state, address, bytes, device_of(location), stream);
}
CUresult cuMemAdvise(Driver* state, CUdeviceptr address, size_t, CUmem_advise advice,
                     CUdevice device) {
  Allocation allocation;
  if (!find_allocation(address, &allocation)) return CUDA_ERROR_INVALID_VALUE;
  Device* card = nullptr;
  if (advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION) {
    if (const CUresult result = find_place(state, device, &card); result != CUDA_SUCCESS)
      return result;
    state->managed.prefer(address, device);
  } else if (advice == CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION) {
    state->managed.prefer(address, gpu::ManagedMemory::kNowhere);
  }
  return CUDA_SUCCESS;
}
CUresult cuMemAdvise_v2(Driver* state, CUdeviceptr address, size_t bytes, CUmem_advise advice,
                        CUmemLocation location) {
  return cuMemAdvise(state, address, bytes, advice, device_of(location));
}
CUresult cuMemRangeGetAttribute(Driver* state, void* data, size_t data_bytes,
                                CUmem_range_attribute attribute, CUdeviceptr address, size_t) {
  Allocation allocation;
  if (!data || !find_allocation(address, &allocation) ||
      allocation.kind != DeviceMemoryKind::kManaged)
    return CUDA_ERROR_INVALID_VALUE;
  memset(data, 0, data_bytes);
  if (data_bytes < sizeof(int)) return CUDA_SUCCESS;
  if (attribute == CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION)
    *static_cast<int*>(data) = state->managed.preferred(address);
  if (attribute == CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION)
    *static_cast<int*>(data) = state->managed.last_prefetched(address);
  return CUDA_SUCCESS;
}

// --- What a pointer is ---

namespace {

// One attribute of a known allocation; false: unknown attribute.
bool write_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr pointer,
                     const Allocation& allocation) {
  const bool on_device = memory_type(allocation) == CU_MEMORYTYPE_DEVICE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *static_cast<CUcontext*>(data) = to_handle(allocation.context);
      return true;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(data) = memory_type(allocation);
      return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      *static_cast<CUdeviceptr*>(data) = pointer;
      return true;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      *static_cast<void**>(data) = allocation.host ? reinterpret_cast<void*>(pointer) : nullptr;
      return true;  // (cuPointerGetAttribute alone refuses it for device memory)
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      memset(data, 0, sizeof(CUDA_POINTER_ATTRIBUTE_P2P_TOKENS));
      return true;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: *static_cast<unsigned*>(data) = 0; return true;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      *static_cast<unsigned long long*>(data) = allocation.buffer_id;
      return true;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      *static_cast<unsigned*>(data) = allocation.kind == DeviceMemoryKind::kManaged;
      return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(data) = allocation.device    ? allocation.device->index
                                 : allocation.context ? allocation.context->device->index
                                                      : 0;
      return true;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      *static_cast<unsigned*>(data) = on_device && allocation.kind == DeviceMemoryKind::kPlain;
      return true;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<CUdeviceptr*>(data) = allocation.address;
      return true;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<size_t*>(data) = allocation.requested_bytes;
      return true;
    case CU_POINTER_ATTRIBUTE_MAPPED: *static_cast<unsigned*>(data) = 1; return true;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      *static_cast<unsigned long long*>(data) = 0;
      return true;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      *static_cast<unsigned*>(data) = on_device;
      return true;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      *static_cast<unsigned*>(data) = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
      return true;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      *static_cast<CUmemoryPool*>(data) = allocation.pool;
      return true;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      *static_cast<size_t*>(data) = allocation.requested_bytes;
      return true;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      *static_cast<CUdeviceptr*>(data) = allocation.address;
      return true;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      *static_cast<unsigned long long*>(data) = allocation.buffer_id;
      return true;
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      *static_cast<unsigned*>(data) = 0;
      return true;
    default: return false;
  }
}

// How cuPointerGetAttributes answers for memory that the driver does not know: zeros, and -2 for
// the device.
void write_unknown(void* data, CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE: *static_cast<unsigned*>(data) = 0; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *static_cast<int*>(data) = -2; break;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      memset(data, 0, sizeof(CUDA_POINTER_ATTRIBUTE_P2P_TOKENS));
      break;
    default: memset(data, 0, 8); break;
  }
}

}  // namespace

CUresult cuPointerGetAttribute(Driver*, void* data, CUpointer_attribute attribute,
                               CUdeviceptr pointer) {
  if (!data) return CUDA_ERROR_INVALID_VALUE;
  Allocation allocation;
  if (!find_allocation(pointer, &allocation)) return CUDA_ERROR_INVALID_VALUE;
  if (attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER && !allocation.host)
    return CUDA_ERROR_INVALID_VALUE;
  return write_attribute(data, attribute, pointer, allocation) ? CUDA_SUCCESS
                                                               : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuPointerGetAttributes(Driver*, unsigned int count, CUpointer_attribute* attributes,
                                void** data, CUdeviceptr pointer) {
  if (!attributes || !data) return CUDA_ERROR_INVALID_VALUE;
  Allocation allocation;
  const bool known = find_allocation(pointer, &allocation);
  for (unsigned i = 0; i < count; i++) {
    if (!known)
      write_unknown(data[i], attributes[i]);
    else if (!write_attribute(data[i], attributes[i], pointer, allocation))
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(Driver*, const void* value, CUpointer_attribute attribute,
                               CUdeviceptr pointer) {
  Allocation allocation;
  if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS ||
      !find_allocation(pointer, &allocation))
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

}  // namespace tonnage::driver
