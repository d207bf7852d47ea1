// Stream-ordered memory: pools and allocation from them.
//
// Work is done at once, so a free is complete as soon as it is asked for: with the reuse policies
// that are on by default a real driver can also use such memory again in any stream. Source: CUDA
// driver API manual, "Stream Ordered Memory Allocator".
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "driver/api/memory_pools.h"
#include "driver/entry_points.h"
#include "driver/graphs/graph.h"
#include "driver/recording.h"
#include "driver/reserved_ranges.h"
#include "driver/shared_block.h"
#include "gpu/memory_pool.h"

namespace tonnage::driver {
namespace {

struct Pool : gpu::MemoryPool {
  Pool(Device* of, const CUmemPoolProps& properties)
      : gpu::MemoryPool(of, of->addresses, properties.maxSize), device(of), props(properties) {}
  Device* device;
  CUmemPoolProps props;
  bool is_default = false, imported = false, destroyed = false;
  int reuse_follow_events = 1, reuse_opportunistic = 1, reuse_internal = 1;
  uint64_t release_threshold = 0;
  std::map<int, CUmemAccess_flags> access;  // of other devices
  SharedBlock* shared = nullptr;
  int fd = -1;
};

// Taken before memory_mutex and virtual_mutex; never with a GraphLock held inside.
struct Pools {
  std::mutex mutex;
  std::unordered_map<const void*, std::unique_ptr<Pool>> live;
};
Pools& pools() {
  static Pools* instance = new Pools;
  return *instance;
}

Pool* to_pool(CUmemoryPool handle) {
  const auto it = pools().live.find(handle);
  return it == pools().live.end() ? nullptr : it->second.get();
}
Pool* to_living_pool(CUmemoryPool handle) {
  Pool* pool = to_pool(handle);
  return pool && !pool->destroyed ? pool : nullptr;
}
CUmemoryPool to_handle(Pool* pool) { return reinterpret_cast<CUmemoryPool>(pool); }

Pool* add_pool(std::unique_ptr<Pool> pool) {
  Pool* result = pool.get();
  pools().live[result] = std::move(pool);
  return result;
}

Pool* default_pool(Device* device) {
  if (device->default_pool) return to_pool(device->default_pool);
  CUmemPoolProps props = {};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, device->index};
  auto pool = std::make_unique<Pool>(device, props);
  pool->is_default = true;
  Pool* made = add_pool(std::move(pool));
  device->default_pool = to_handle(made);
  if (!device->current_pool) device->current_pool = device->default_pool;
  return made;
}

Pool* current_pool(Device* device) {
  default_pool(device);
  return to_pool(device->current_pool);
}

void drop_if_done(Pool* pool) {
  if (!pool->destroyed || !pool->blocks.empty()) return;
  pool->trim(0);
  pool->close();
  if (pool->shared) drop_shared_block(pool->shared);
  if (pool->fd >= 0) close(pool->fd);
  pools().live.erase(pool);
}

CUresult supported(const Device* device) {
  return device->card->attributes[CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED]
             ? CUDA_SUCCESS
             : CUDA_ERROR_NOT_SUPPORTED;
}

// The device that a location names. Pools of host and managed memory are not there.
CUresult device_of(const CUmemLocation* location, CUmemAllocationType type, Device** out) {
  if (!location) return CUDA_ERROR_INVALID_VALUE;
  if (type == CU_MEM_ALLOCATION_TYPE_MANAGED) return CUDA_ERROR_NOT_SUPPORTED;
  if (type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (location->type == CU_MEM_LOCATION_TYPE_HOST ||
      location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA)
    return CUDA_ERROR_NOT_SUPPORTED;
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  *out = driver()->device(location->id);
  return *out ? supported(*out) : CUDA_ERROR_INVALID_DEVICE;
}

void know_allocation(uint64_t address, uint64_t bytes, Device* device, Pool* pool) {
  Allocation allocation;
  allocation.address = address;
  allocation.requested_bytes = bytes;
  allocation.kind = abi::DeviceMemoryKind::kPool;
  allocation.device = device;
  allocation.buffer_id = driver()->new_id();
  allocation.pool = to_handle(pool);
  add_allocation(allocation);
}

// Pool null: the current one of the stream's device.
CUresult allocate(CUdeviceptr* out, size_t bytes, CUmemoryPool handle, bool from_current,
                  Stream* stream) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (bytes == 0) {  // as a real driver: nothing, and no error
    *out = 0;
    return CUDA_SUCCESS;
  }
  Device* device = stream->context->device;
  if (const CUresult result = supported(device); result != CUDA_SUCCESS) return result;
  bool capturing = false;
  if (const CUresult result = capture_state(stream, &capturing); result != CUDA_SUCCESS)
    return result;
  CUmemPoolProps props;
  {
    std::lock_guard lock(pools().mutex);
    Pool* pool = from_current ? current_pool(device) : to_living_pool(handle);
    if (!pool || pool->imported) return CUDA_ERROR_INVALID_VALUE;
    props = pool->props;
    if (!capturing) {
      uint64_t address = pool->allocate(bytes);
      if (!address) {  // pools may hold what they do not need
        uint64_t given = 0;
        for (auto& [key, other] : pools().live)
          if (other->device == pool->device && !other->imported) given += other->trim(0);
        if (given) address = pool->allocate(bytes);
      }
      if (!address) {
        record_device_oom(pool->device->index, bytes, pool->device->free_bytes());
        return CUDA_ERROR_OUT_OF_MEMORY;
      }
      know_allocation(address, bytes, pool->device, pool);
      *out = address;
      return CUDA_SUCCESS;
    }
  }
  return capture_mem_alloc(stream, props, bytes, out);
}

// What travels between processes for one allocation (CUmemPoolPtrExportData).
struct PointerData {
  static constexpr uint32_t kMagic = 0x50504756;  // "VGPP"
  uint32_t magic;
  int32_t pid;
  uint64_t pool_id, address, bytes;
};
static_assert(sizeof(PointerData) <= sizeof(CUmemPoolPtrExportData));

}  // namespace

namespace {

CUresult release_block(CUdeviceptr address, bool wait) {
  Allocation allocation;
  std::lock_guard lock(pools().mutex);
  if (!find_allocation(address, &allocation) || allocation.address != address || !allocation.pool)
    return CUDA_ERROR_INVALID_VALUE;
  Pool* pool = to_pool(allocation.pool);
  if (!pool) return CUDA_ERROR_INVALID_VALUE;
  remove_allocation(address, &allocation);
  driver()->content.forget(address, allocation.requested_bytes);
  if (pool->imported) {
    release_range(address);
    pool->blocks.erase(address);
  } else {
    pool->release(address);
    if (wait) pool->trim(pool->release_threshold);
  }
  drop_if_done(pool);
  return CUDA_SUCCESS;
}

}  // namespace

// cuMemFree waits for the device. At that moment pools give back what they hold above their
// threshold.
CUresult free_pool_memory(CUdeviceptr address) { return release_block(address, true); }

void trim_pools_at_synchronise(Context* context) {
  Pools& all = pools();
  std::lock_guard lock(all.mutex);
  for (auto& [key, pool] : all.live) {
    if (pool->imported || (context && pool->device != context->device) ||
        pool->reserved <= pool->release_threshold)
      continue;
    pool->trim(pool->release_threshold);
  }
}

void release_unused_pool_memory(Device* device) {
  std::lock_guard lock(pools().mutex);
  for (auto& [key, pool] : pools().live)
    if (pool->device == device && !pool->imported) pool->trim(0);
}

// --- Allocation ---

CUresult cuMemAllocAsync(CUdeviceptr* out, size_t bytes, Stream* stream) {
  return allocate(out, bytes, nullptr, true, stream);
}
CUresult cuMemAllocFromPoolAsync(CUdeviceptr* out, size_t bytes, CUmemoryPool pool,
                                 Stream* stream) {
  return allocate(out, bytes, pool, false, stream);
}

CUresult cuMemFreeAsync(CUdeviceptr address, Stream* stream) {
  if (address == 0) return CUDA_SUCCESS;
  bool capturing = false;
  if (const CUresult result = capture_state(stream, &capturing); result != CUDA_SUCCESS)
    return result;
  if (capturing) return capture_mem_free(stream, address);
  if (free_graph_memory(address)) return CUDA_SUCCESS;
  return release_block(address, false);
}

// --- Pools ---

CUresult cuMemPoolCreate(Driver*, CUmemoryPool* out, const CUmemPoolProps* props) {
  if (!out || !props) return CUDA_ERROR_INVALID_VALUE;
  Device* device = nullptr;
  if (const CUresult result = device_of(&props->location, props->allocType, &device);
      result != CUDA_SUCCESS)
    return result;
  const unsigned types = props->handleTypes;
  if (types & (CU_MEM_HANDLE_TYPE_WIN32 | CU_MEM_HANDLE_TYPE_WIN32_KMT))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (types & CU_MEM_HANDLE_TYPE_FABRIC)
    return CUDA_ERROR_NOT_PERMITTED;  // as without an IMEX channel
  if (types & ~unsigned{CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR}) return CUDA_ERROR_INVALID_VALUE;
  auto pool = std::make_unique<Pool>(device, *props);
  std::lock_guard lock(pools().mutex);
  *out = to_handle(add_pool(std::move(pool)));
  return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(Driver*, CUmemoryPool handle) {
  std::lock_guard lock(pools().mutex);
  Pool* pool = to_living_pool(handle);
  if (!pool || pool->is_default) return CUDA_ERROR_INVALID_VALUE;
  if (pool->device->current_pool == handle)
    pool->device->current_pool = to_handle(default_pool(pool->device));
  pool->destroyed = true;
  drop_if_done(pool);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(Driver*, CUmemoryPool handle, size_t keep_bytes) {
  std::lock_guard lock(pools().mutex);
  Pool* pool = to_living_pool(handle);
  if (!pool || pool->imported) return CUDA_ERROR_INVALID_VALUE;
  pool->trim(keep_bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(Driver*, CUmemoryPool handle, CUmemPool_attribute attribute,
                               void* value) {
  std::lock_guard lock(pools().mutex);
  Pool* pool = to_living_pool(handle);
  if (!pool || !value || pool->imported) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      pool->reuse_follow_events = *static_cast<int*>(value) != 0;
      break;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      pool->reuse_opportunistic = *static_cast<int*>(value) != 0;
      break;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      pool->reuse_internal = *static_cast<int*>(value) != 0;
      break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      pool->release_threshold = *static_cast<cuuint64_t*>(value);
      break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      if (*static_cast<cuuint64_t*>(value) != 0) return CUDA_ERROR_INVALID_VALUE;
      pool->reserved_high = pool->reserved;
      break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      if (*static_cast<cuuint64_t*>(value) != 0) return CUDA_ERROR_INVALID_VALUE;
      pool->used_high = pool->used;
      break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAttribute(Driver*, CUmemoryPool handle, CUmemPool_attribute attribute,
                               void* value) {
  std::lock_guard lock(pools().mutex);
  const Pool* pool = to_living_pool(handle);
  if (!pool || !value) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      *static_cast<int*>(value) = pool->reuse_follow_events;
      break;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      *static_cast<int*>(value) = pool->reuse_opportunistic;
      break;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      *static_cast<int*>(value) = pool->reuse_internal;
      break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      *static_cast<cuuint64_t*>(value) = pool->release_threshold;
      break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      *static_cast<cuuint64_t*>(value) = pool->reserved;
      break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      *static_cast<cuuint64_t*>(value) = pool->reserved_high;
      break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *static_cast<cuuint64_t*>(value) = pool->used; break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *static_cast<cuuint64_t*>(value) = pool->used_high; break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAccess(Driver* state, CUmemoryPool handle, const CUmemAccessDesc* map,
                            size_t count) {
  std::lock_guard lock(pools().mutex);
  Pool* pool = to_living_pool(handle);
  if (!pool || (count && !map)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; i++) {
    const CUmemAccessDesc& wanted = map[i];
    if (wanted.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    Device* device = state->device(wanted.location.id);
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    if (wanted.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
        wanted.flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
      return CUDA_ERROR_INVALID_VALUE;
    // A device can always reach its own pool.
    if (device == pool->device && wanted.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE)
      return CUDA_ERROR_INVALID_VALUE;
    int can = device == pool->device;
    if (!can &&
        cuDeviceCanAccessPeer(state, &can, device->index, pool->device->index) == CUDA_SUCCESS &&
        !can)
      return CUDA_ERROR_INVALID_DEVICE;
  }
  for (size_t i = 0; i < count; i++) pool->access[map[i].location.id] = map[i].flags;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAccess(Driver* state, CUmemAccess_flags* flags, CUmemoryPool handle,
                            CUmemLocation* location) {
  std::lock_guard lock(pools().mutex);
  const Pool* pool = to_living_pool(handle);
  if (!pool || !flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE)
    return CUDA_ERROR_INVALID_VALUE;
  const Device* device = state->device(location->id);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  const auto it = pool->access.find(device->index);
  if (device == pool->device)
    *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  else
    *flags = it == pool->access.end() ? CU_MEM_ACCESS_FLAGS_PROT_NONE : it->second;
  return CUDA_SUCCESS;
}

// --- Which pool a device allocates from ---

CUresult cuMemGetDefaultMemPool(Driver*, CUmemoryPool* out, CUmemLocation* location,
                                CUmemAllocationType type) {
  Device* device = nullptr;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = device_of(location, type, &device); result != CUDA_SUCCESS)
    return result;
  std::lock_guard lock(pools().mutex);
  *out = to_handle(default_pool(device));
  return CUDA_SUCCESS;
}
CUresult cuMemGetMemPool(Driver*, CUmemoryPool* out, CUmemLocation* location,
                         CUmemAllocationType type) {
  Device* device = nullptr;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = device_of(location, type, &device); result != CUDA_SUCCESS)
    return result;
  std::lock_guard lock(pools().mutex);
  *out = to_handle(current_pool(device));
  return CUDA_SUCCESS;
}
CUresult cuMemSetMemPool(Driver*, CUmemLocation* location, CUmemAllocationType type,
                         CUmemoryPool handle) {
  Device* device = nullptr;
  if (const CUresult result = device_of(location, type, &device); result != CUDA_SUCCESS)
    return result;
  std::lock_guard lock(pools().mutex);
  const Pool* pool = to_living_pool(handle);
  if (!pool || pool->imported || pool->device != device) return CUDA_ERROR_INVALID_VALUE;
  default_pool(device);
  device->current_pool = handle;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetDefaultMemPool(Driver* state, CUmemoryPool* out, CUdevice device) {
  CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  return cuMemGetDefaultMemPool(state, out, &location, CU_MEM_ALLOCATION_TYPE_PINNED);
}
CUresult cuDeviceGetMemPool(Driver* state, CUmemoryPool* out, CUdevice device) {
  CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  return cuMemGetMemPool(state, out, &location, CU_MEM_ALLOCATION_TYPE_PINNED);
}
CUresult cuDeviceSetMemPool(Driver* state, CUdevice device, CUmemoryPool pool) {
  CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  return cuMemSetMemPool(state, &location, CU_MEM_ALLOCATION_TYPE_PINNED, pool);
}

// --- Sharing ---

CUresult cuMemPoolExportToShareableHandle(Driver* state, void* out, CUmemoryPool handle,
                                          CUmemAllocationHandleType type,
                                          unsigned long long flags) {
  std::lock_guard lock(pools().mutex);
  Pool* pool = to_living_pool(handle);
  if (!out || !pool || flags || pool->imported) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !(pool->props.handleTypes & type))
    return CUDA_ERROR_INVALID_VALUE;
  if (!pool->shared) {
    pool->shared = make_shared_block(SharedBlock::kPool, &pool->fd);
    if (!pool->shared) return CUDA_ERROR_OPERATING_SYSTEM;
    pool->shared->physical = pool->device->physical;
    pool->shared->id = state->new_id();
    pool->shared->pool_props = pool->props;
  }
  const int copy = fcntl(pool->fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *static_cast<int*>(out) = copy;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolImportFromShareableHandle(Driver*, CUmemoryPool* out, void* handle,
                                            CUmemAllocationHandleType type,
                                            unsigned long long flags) {
  if (!out || flags) return CUDA_ERROR_INVALID_VALUE;
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) return CUDA_ERROR_NOT_PERMITTED;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  SharedBlock* shared =
      open_shared_block(SharedBlock::kPool, static_cast<int>(reinterpret_cast<intptr_t>(handle)));
  if (!shared) return CUDA_ERROR_INVALID_VALUE;
  Device* device = device_at(shared->physical);
  if (!device) {
    drop_shared_block(shared);
    return CUDA_ERROR_INVALID_DEVICE;
  }
  auto pool = std::make_unique<Pool>(device, shared->pool_props);
  pool->shared = shared;
  pool->imported = true;
  pool->props.location.id = device->index;
  std::lock_guard lock(pools().mutex);
  *out = to_handle(add_pool(std::move(pool)));
  return CUDA_SUCCESS;
}

CUresult cuMemPoolExportPointer(Driver*, CUmemPoolPtrExportData* out, CUdeviceptr address) {
  Allocation allocation;
  if (!out || !find_allocation(address, &allocation) || allocation.address != address)
    return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(pools().mutex);
  const Pool* pool = to_living_pool(allocation.pool);
  if (!pool || pool->imported || !pool->shared) return CUDA_ERROR_INVALID_VALUE;
  const PointerData data = {PointerData::kMagic, getpid(), pool->shared->id, address,
                            allocation.requested_bytes};
  memset(out, 0, sizeof *out);
  memcpy(out->reserved, &data, sizeof data);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolImportPointer(Driver*, CUdeviceptr* out, CUmemoryPool handle,
                                CUmemPoolPtrExportData* share) {
  std::lock_guard lock(pools().mutex);
  Pool* pool = to_living_pool(handle);
  if (!out || !share || !pool || !pool->imported) return CUDA_ERROR_INVALID_VALUE;
  PointerData data;
  memcpy(&data, share->reserved, sizeof data);
  if (data.magic != PointerData::kMagic || data.pid != pool->shared->owner_pid ||
      data.pool_id != pool->shared->id || data.bytes == 0 || data.bytes > (1ull << 50))
    return CUDA_ERROR_INVALID_VALUE;
  const uint64_t address = reserve_range(gpu::round_up(data.bytes, gpu::kAllocationGranularity));
  if (!address) return CUDA_ERROR_OUT_OF_MEMORY;
  pool->blocks[address] = data.bytes;
  know_allocation(address, data.bytes, pool->device, pool);
  *out = address;
  return CUDA_SUCCESS;
}

}  // namespace tonnage::driver
