// Virtual memory management: reservations, physical memory, mappings.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "driver/api/memory_pools.h"
#include "driver/entry_points.h"
#include "driver/recorder_loader.h"
#include "driver/recording.h"
#include "driver/reserved_ranges.h"
#include "driver/shared_block.h"

namespace tonnage::driver {
namespace {

// Memory of cuMemCreate.
struct Physical {
  uint64_t handle = 0;
  Device* device = nullptr;
  CUmemAllocationProp prop = {};
  uint64_t bytes = 0;
  int references = 1;  // of the host
  int mappings = 0;
  bool imported = false;  // another process has it on its account
  SharedBlock* shared = nullptr;
  int fd = -1;
};

struct Mapping {
  uint64_t bytes = 0;
  Physical* physical = nullptr;
  std::map<int, CUmemAccess_flags> access;  // by device index
};

// `mutex` guards reservations, mappings and physical memory; it is taken before memory_mutex.
struct Tables {
  std::mutex mutex;
  std::map<uint64_t, uint64_t> reservations;  // cuMemAddressReserve's: address, bytes
  std::map<uint64_t, Mapping> mappings;
  std::unordered_map<uint64_t, std::unique_ptr<Physical>> physical;
};
Tables& tables() {
  static Tables* instance = new Tables;
  return *instance;
}

// The mapping that contains `address`, or null.
std::pair<const uint64_t, Mapping>* mapping_at(uint64_t address) {
  auto& mappings = tables().mappings;
  auto it = mappings.upper_bound(address);
  if (it == mappings.begin()) return nullptr;
  --it;
  return address < it->first + it->second.bytes ? &*it : nullptr;
}

bool inside_reservation(uint64_t address, uint64_t bytes) {
  const auto& reservations = tables().reservations;
  auto it = reservations.upper_bound(address);
  if (it == reservations.begin()) return false;
  --it;
  return address + bytes >= address && address + bytes <= it->first + it->second;
}

// Every mapping in [address, address + bytes), if they fill it without a gap; empty if not.
std::vector<uint64_t> mappings_of(uint64_t address, uint64_t bytes) {
  std::vector<uint64_t> found;
  uint64_t at = address;
  while (at < address + bytes) {
    const auto* mapping = mapping_at(at);
    if (!mapping) return {};
    found.push_back(mapping->first);
    at = mapping->first + mapping->second.bytes;
  }
  return found;
}

CUresult check_prop(const CUmemAllocationProp* prop, Device** device) {
  if (!prop) return CUDA_ERROR_INVALID_VALUE;
  if (prop->type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  switch (prop->location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE: break;
    // Not supported: the host would have to read such memory at the device address. Libraries use
    // shared memory instead.
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: return CUDA_ERROR_NOT_SUPPORTED;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  *device = driver()->device(prop->location.id);
  if (!*device) return CUDA_ERROR_INVALID_DEVICE;
  if (!(*device)->card->attributes[CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED])
    return CUDA_ERROR_NOT_SUPPORTED;
  const unsigned types = prop->requestedHandleTypes;
  if (types & (CU_MEM_HANDLE_TYPE_WIN32 | CU_MEM_HANDLE_TYPE_WIN32_KMT))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (types & ~unsigned{CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC})
    return CUDA_ERROR_INVALID_VALUE;
  // As on a machine without an IMEX channel.
  if (types & CU_MEM_HANDLE_TYPE_FABRIC) return CUDA_ERROR_NOT_PERMITTED;
  return CUDA_SUCCESS;
}

std::mutex& virtual_mutex() { return tables().mutex; }

Physical* to_physical(CUmemGenericAllocationHandle handle) {
  const auto it = tables().physical.find(handle);
  return it == tables().physical.end() ? nullptr : it->second.get();
}

Physical* add_physical(Physical physical) {
  physical.handle = driver()->new_id();
  auto owned = std::make_unique<Physical>(std::move(physical));
  Physical* result = owned.get();
  tables().physical[result->handle] = std::move(owned);
  return result;
}

void drop_physical_if_unused(Physical* physical) {
  if (physical->references > 0 || physical->mappings > 0) return;
  if (!physical->imported)
    record_device_free(physical->device->index, physical->handle, physical->bytes,
                       abi::DeviceMemoryKind::kVirtual);
  if (physical->shared)
    drop_shared_block(physical->shared);
  else
    physical->device->refund(physical->bytes);
  if (physical->fd >= 0) close(physical->fd);
  tables().physical.erase(physical->handle);
}

}  // namespace

// --- Addresses ---

CUresult cuMemAddressReserve(Driver*, CUdeviceptr* out, size_t size, size_t alignment, CUdeviceptr,
                             unsigned long long flags) {
  // The wanted address is a hint that may be ignored.
  if (!out || size == 0 || size % gpu::kAllocationGranularity || flags ||
      (alignment & (alignment - 1)))
    return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(virtual_mutex());
  const uint64_t address = reserve_range(size, alignment);
  if (!address) return CUDA_ERROR_OUT_OF_MEMORY;
  tables().reservations[address] = size;
  *out = address;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(Driver*, CUdeviceptr address, size_t size) {
  std::lock_guard lock(virtual_mutex());
  const auto it = tables().reservations.find(address);
  if (it == tables().reservations.end() || it->second != size) return CUDA_ERROR_INVALID_VALUE;
  const auto mapped = tables().mappings.lower_bound(address);
  if (mapped != tables().mappings.end() && mapped->first < address + size)
    return CUDA_ERROR_INVALID_VALUE;
  tables().reservations.erase(it);
  release_range(address);
  return CUDA_SUCCESS;
}

// --- Physical memory ---

CUresult cuMemGetAllocationGranularity(Driver*, size_t* out, const CUmemAllocationProp* prop,
                                       CUmemAllocationGranularity_flags option) {
  if (!out || !prop ||
      (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
       option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
    return CUDA_ERROR_INVALID_VALUE;
  // The same for every property, sensible or not (measured).
  *out = gpu::kAllocationGranularity;
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(Driver*, CUmemGenericAllocationHandle* out, size_t size,
                     const CUmemAllocationProp* prop, unsigned long long flags) {
  if (!out || size == 0 || size % gpu::kAllocationGranularity || flags)
    return CUDA_ERROR_INVALID_VALUE;
  load_recorder();
  Physical physical;
  if (const CUresult result = check_prop(prop, &physical.device); result != CUDA_SUCCESS)
    return result;
  if (size > (1ull << 50)) return CUDA_ERROR_OUT_OF_MEMORY;
  if (physical.device->free_bytes() < size) release_unused_pool_memory(physical.device);
  if (!physical.device->charge(size)) return CUDA_ERROR_OUT_OF_MEMORY;
  physical.prop = *prop;
  physical.bytes = size;
  std::lock_guard lock(virtual_mutex());
  const Physical* added = add_physical(std::move(physical));
  *out = added->handle;
  // Such memory has no address of its own: the record identifies it by its handle.
  record_device_alloc(added->device->index, added->handle, size,
                      tonnage::abi::DeviceMemoryKind::kVirtual);
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(Driver*, CUmemGenericAllocationHandle handle) {
  std::lock_guard lock(virtual_mutex());
  Physical* physical = to_physical(handle);
  if (!physical || physical->references == 0) return CUDA_ERROR_INVALID_VALUE;
  physical->references--;
  drop_physical_if_unused(physical);
  return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(Driver*, CUmemGenericAllocationHandle* out, void* address) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(virtual_mutex());
  const auto* mapping = mapping_at(reinterpret_cast<uint64_t>(address));
  if (!mapping) return CUDA_ERROR_INVALID_VALUE;
  mapping->second.physical->references++;
  *out = mapping->second.physical->handle;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(Driver*, CUmemAllocationProp* out,
                                                CUmemGenericAllocationHandle handle) {
  std::lock_guard lock(virtual_mutex());
  const Physical* physical = to_physical(handle);
  if (!out || !physical) return CUDA_ERROR_INVALID_VALUE;
  *out = physical->prop;
  return CUDA_SUCCESS;
}

// --- Mappings ---

CUresult cuMemMap(Driver* state, CUdeviceptr address, size_t size, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  if (address == 0 || size == 0 || address % gpu::kAllocationGranularity ||
      size % gpu::kAllocationGranularity || offset % gpu::kAllocationGranularity || flags)
    return CUDA_ERROR_INVALID_VALUE;
  Allocation allocation;
  {
    std::lock_guard lock(virtual_mutex());
    Physical* physical = to_physical(handle);
    if (!physical || physical->references == 0) return CUDA_ERROR_INVALID_VALUE;
    if (!inside_reservation(address, size)) return CUDA_ERROR_INVALID_VALUE;
    if (offset != 0 || size != physical->bytes)
      return CUDA_ERROR_NOT_SUPPORTED;  // memory is mapped whole
    auto& mappings = tables().mappings;
    const auto next = mappings.lower_bound(address);
    if (mapping_at(address) || (next != mappings.end() && next->first < address + size))
      return CUDA_ERROR_INVALID_VALUE;
    Mapping& mapping = mappings[address];
    mapping.bytes = size;
    mapping.physical = physical;
    physical->mappings++;
    allocation.address = address;
    allocation.requested_bytes = size;
    allocation.kind = tonnage::abi::DeviceMemoryKind::kVirtual;
    allocation.device = physical->device;
    allocation.buffer_id = state->new_id();
    allocation.owned_elsewhere = true;
    add_allocation(allocation);
  }
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(Driver* state, CUdeviceptr address, size_t size) {
  if (address == 0 || size == 0 || address % gpu::kAllocationGranularity ||
      size % gpu::kAllocationGranularity || address + size < address)
    return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(virtual_mutex());
  if (!inside_reservation(address, size)) return CUDA_ERROR_INVALID_VALUE;
  // Gaps do not matter, but a mapping goes whole or not at all.
  if (const auto* first = mapping_at(address); first && first->first < address)
    return CUDA_ERROR_INVALID_VALUE;
  std::vector<uint64_t> found;
  auto& mappings = tables().mappings;
  for (auto it = mappings.lower_bound(address); it != mappings.end() && it->first < address + size;
       ++it) {
    if (it->first + it->second.bytes > address + size) return CUDA_ERROR_INVALID_VALUE;
    found.push_back(it->first);
  }
  for (uint64_t at : found) {
    Allocation removed;
    remove_allocation(at, &removed);
    Physical* physical = mappings[at].physical;
    mappings.erase(at);
    physical->mappings--;
    drop_physical_if_unused(physical);
  }
  state->content.forget(address, size);
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(Driver* state, CUdeviceptr address, size_t size,
                        const CUmemAccessDesc* descriptions, size_t count) {
  if (address == 0 || size == 0 || address % gpu::kAllocationGranularity ||
      size % gpu::kAllocationGranularity || address + size < address || !descriptions || count == 0)
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; i++) {
    const CUmemAccessDesc& wanted = descriptions[i];
    if (wanted.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
        wanted.flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
        wanted.flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
      return CUDA_ERROR_INVALID_VALUE;
    if (wanted.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    if (!state->device(wanted.location.id)) return CUDA_ERROR_INVALID_DEVICE;
  }
  std::lock_guard lock(virtual_mutex());
  const std::vector<uint64_t> found = mappings_of(address, size);
  if (found.empty()) return CUDA_ERROR_INVALID_VALUE;
  for (uint64_t at : found)
    for (size_t i = 0; i < count; i++)
      tables().mappings[at].access[descriptions[i].location.id] = descriptions[i].flags;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAccess(Driver* state, unsigned long long* flags, const CUmemLocation* location,
                        CUdeviceptr address) {
  if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE)
    return CUDA_ERROR_INVALID_VALUE;
  if (!state->device(location->id)) return CUDA_ERROR_INVALID_DEVICE;
  std::lock_guard lock(virtual_mutex());
  const auto* mapping = mapping_at(address);
  if (!mapping) return CUDA_ERROR_INVALID_VALUE;
  const auto it = mapping->second.access.find(location->id);
  *flags = it == mapping->second.access.end() ? CU_MEM_ACCESS_FLAGS_PROT_NONE : it->second;
  return CUDA_SUCCESS;
}

// --- Sharing ---

CUresult cuMemExportToShareableHandle(Driver*, void* out, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  if (!out || flags) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(virtual_mutex());
  Physical* physical = to_physical(handle);
  if (!physical || physical->references == 0) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
      !(physical->prop.requestedHandleTypes & type))
    return CUDA_ERROR_INVALID_VALUE;
  if (physical->fd < 0) {
    physical->shared = make_shared_block(SharedBlock::kMemory, &physical->fd);
    if (!physical->shared) return CUDA_ERROR_OPERATING_SYSTEM;
    physical->shared->physical = physical->device->physical;
    physical->shared->size_bytes = physical->bytes;
    physical->shared->id = physical->handle;
    physical->shared->prop = physical->prop;
  }
  const int copy = fcntl(physical->fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *static_cast<int*>(out) = copy;
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(Driver*, CUmemGenericAllocationHandle* out, void* os_handle,
                                        CUmemAllocationHandleType type) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) return CUDA_ERROR_NOT_PERMITTED;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  const int fd = static_cast<int>(reinterpret_cast<intptr_t>(os_handle));
  Physical physical;
  physical.shared = open_shared_block(SharedBlock::kMemory, fd);
  if (!physical.shared) return CUDA_ERROR_INVALID_VALUE;
  physical.imported = true;
  physical.bytes = physical.shared->size_bytes;
  physical.device = device_at(physical.shared->physical);
  if (!physical.device) {
    drop_shared_block(physical.shared);
    return CUDA_ERROR_INVALID_DEVICE;
  }
  physical.prop = physical.shared->prop;
  physical.prop.location.id = physical.device->index;
  physical.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  std::lock_guard lock(virtual_mutex());
  *out = add_physical(std::move(physical))->handle;
  return CUDA_SUCCESS;
}

CUresult cuMemGetHandleForAddressRange(Driver*, void* out, CUdeviceptr address, size_t size,
                                       CUmemRangeHandleType type, unsigned long long) {
  Allocation allocation;
  if (!out || size == 0 || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD ||
      !find_allocation(address, &allocation))
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_ERROR_NOT_SUPPORTED;  // there is no kernel driver that could make a dma-buf
}

}  // namespace tonnage::driver
