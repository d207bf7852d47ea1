// The pass-through driver: a libcuda.so.1 in front of a real one. Everything is forwarded
// (forward.S, generated); what takes or gives back memory is also written into the record, and with
// TONNAGE_PASS_LOG every query and its answer into a text file.
//
// It serves two ends: `tonnage run --real` reports on a real GPU as on a virtual one, and what a
// real card answers can be compared, query by query, with what the virtual one says.
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "driver/api.h"
#include "driver/bridge.h"
#include "driver/recorder_loader.h"
#include "driver/recording.h"
#include "driver/session_map.h"
#include "gpu/address_space.h"
#include "passthrough/nvml_memory.h"
#include "passthrough/overhead.h"

#define PASS_API extern "C" __attribute__((visibility("default"))) CUresult CUDAAPI
#define REAL(name, ...) \
  extern "C" __attribute__((visibility("hidden"))) CUresult CUDAAPI real_##name(__VA_ARGS__)

extern "C" {
extern __attribute__((visibility("hidden"))) void* pass_real_functions[];
extern __attribute__((visibility("hidden"))) const char* const pass_names[];
}

namespace tonnage::driver {

namespace abi = tonnage::abi;
namespace gpu = tonnage::gpu;

namespace {

using abi::DeviceMemoryKind;

// What this process holds of a device, and what the driver took besides.
struct DeviceMemory {
  passthrough::Overhead overhead;
  uint64_t block_bytes = 0;      // without pools
  bool has_other_pools = false;  // whose unused memory is in no figure
};

struct Pass {
  bool recording = false;  // in a session of ours
  FILE* log = nullptr;
  std::mutex mutex;
  std::unordered_set<std::string> logged;  // queries are written once each
  std::unordered_map<void*, void*> ours;   // real function -> the entry here
  std::unordered_map<const void*, std::string> kernel_names;
  struct Block {
    int device;
    uint64_t bytes;
    DeviceMemoryKind kind;
    int holders = 1;  // of a physical handle: references and mappings
  };
  std::unordered_map<uint64_t, Block> blocks;     // by address or physical handle
  std::map<uint64_t, uint64_t> mapped;            // address -> physical handle
  std::unordered_map<int, DeviceMemory> devices;  // by device
};
Pass& pass() {
  static Pass& instance = *new Pass;  // the host's threads may outlive static destruction
  return instance;
}

__attribute__((format(printf, 1, 2))) void log_once(const char* format, ...) {
  Pass& p = pass();
  if (!p.log) return;
  char line[2048];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  std::lock_guard lock(p.mutex);
  if (p.logged.size() < 1000000 && p.logged.insert(line).second)
    fprintf(p.log, "%s\n", line), fflush(p.log);
}

__attribute__((constructor)) void open_real_driver() {
  Pass& p = pass();
  const char* path = getenv("TONNAGE_REAL_CUDA");
  void* real = dlopen(path && *path ? path : "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
                      RTLD_NOW | RTLD_LOCAL);
  if (!real) return;  // every call then answers CUDA_ERROR_NOT_FOUND
  Dl_info here{};
  dladdr(reinterpret_cast<void*>(&open_real_driver), &here);
  void* self = dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  for (int i = 0; pass_names[i]; i++) {
    void* function = dlsym(real, pass_names[i]);
    if (!function) continue;
    pass_real_functions[i] = function;
    if (void* entry = self ? dlsym(self, pass_names[i]) : nullptr) p.ours.emplace(function, entry);
  }
  if (const char* log = getenv("TONNAGE_PASS_LOG")) {
    const std::string name = std::string(log) + "." + std::to_string(getpid());
    p.log = fopen(name.c_str(), "we");
  }
}

void* translated(void* function) {
  const auto entry = pass().ours.find(function);
  return entry == pass().ours.end() ? function : entry->second;
}

}  // namespace

}  // namespace tonnage::driver

using namespace tonnage::driver;
using tonnage::abi::DeviceMemoryKind;

REAL(cuInit, unsigned);
REAL(cuCtxGetDevice, CUdevice*);
REAL(cuMemGetInfo_v2, size_t*, size_t*);
REAL(cuDeviceGetUuid_v2, CUuuid*, CUdevice);
REAL(cuDeviceGetDefaultMemPool, CUmemoryPool*, CUdevice);
REAL(cuMemPoolGetAttribute, CUmemoryPool, CUmemPool_attribute, void*);
REAL(cuCtxPushCurrent_v2, CUcontext);
REAL(cuCtxPopCurrent_v2, CUcontext*);

namespace {

int current_device() {
  CUdevice device = 0;
  return real_cuCtxGetDevice(&device) == CUDA_SUCCESS ? device : 0;
}

// Memory in use on the current context's device, by all processes.
bool in_use_now(uint64_t* bytes) {
  size_t free_bytes = 0, total = 0;
  if (real_cuMemGetInfo_v2(&free_bytes, &total) != CUDA_SUCCESS) return false;
  *bytes = total - free_bytes;
  return true;
}

uint64_t default_pool_bytes(int device) {
  CUmemoryPool pool = nullptr;
  cuuint64_t bytes = 0;
  const bool known = real_cuDeviceGetDefaultMemPool(&pool, device) == CUDA_SUCCESS &&
                     real_cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
                                                &bytes) == CUDA_SUCCESS;
  return known ? bytes : 0;
}

// Code, streams and local memory that have come since the last time.
void measure_growth(int device) {
  uint64_t in_use = 0;
  if (device != current_device() || !in_use_now(&in_use)) return;
  const uint64_t in_pool = default_pool_bytes(device);
  uint64_t more = 0;
  {
    std::lock_guard lock(pass().mutex);
    DeviceMemory& memory = pass().devices[device];
    if (!memory.has_other_pools) more = memory.overhead.grew(in_use, memory.block_bytes + in_pool);
  }
  if (more)
    record_driver_memory(device, more, abi::DriverMemory::kCode, "measured", /*modelled=*/false);
}

void took(CUresult result, uint64_t address, uint64_t bytes, DeviceMemoryKind kind, int device) {
  if (!pass().recording) return;
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    measure_growth(device);
    size_t free_bytes = 0, total = 0;
    real_cuMemGetInfo_v2(&free_bytes, &total);
    record_device_oom(device, bytes, free_bytes);
  }
  if (result != CUDA_SUCCESS || !address) return;
  {
    std::lock_guard lock(pass().mutex);
    pass().blocks[address] = {device, bytes, kind};
    if (kind != DeviceMemoryKind::kPool) pass().devices[device].block_bytes += bytes;
  }
  measure_growth(device);  // first: it came before
  record_device_alloc(device, address, bytes, kind);
}

void forget_block(uint64_t address) {
  Pass::Block block{};
  {
    std::lock_guard lock(pass().mutex);
    const auto known = pass().blocks.find(address);
    if (known == pass().blocks.end() || --known->second.holders > 0) return;
    block = known->second;
    pass().blocks.erase(known);
    if (block.kind != DeviceMemoryKind::kPool)
      pass().devices[block.device].block_bytes -= block.bytes;
  }
  record_device_free(block.device, address, block.bytes, block.kind);
}

uint64_t round_to_granularity(size_t bytes) {
  return gpu::round_up(bytes, gpu::kAllocationGranularity);
}
void gave_back(CUresult result, uint64_t address) {
  if (pass().recording && result == CUDA_SUCCESS && address) forget_block(address);
}

std::string kernel_name(const void* handle) {
  std::lock_guard lock(pass().mutex);
  const auto known = pass().kernel_names.find(handle);
  return known == pass().kernel_names.end() ? "?" : known->second;
}
void name_kernel(const void* handle, std::string name) {
  if (!pass().log) return;
  std::lock_guard lock(pass().mutex);
  pass().kernel_names[handle] = std::move(name);
}

// The session's devices are those that `tonnage run` saw; this process may see others of them.
std::vector<int> places_in(const abi::Session& session) {
  std::vector<int> places;
  CUuuid uuid{};
  while (places.size() < abi::kMaxDevices &&
         real_cuDeviceGetUuid_v2(&uuid, static_cast<CUdevice>(places.size())) == CUDA_SUCCESS) {
    auto place = static_cast<int>(places.size());
    for (int i = 0; i < session.device_count; i++)
      if (memcmp(session.devices[i].uuid, uuid.bytes, sizeof uuid.bytes) == 0) place = i;
    places.push_back(place);
  }
  return places;
}

}  // namespace

PASS_API cuInit(unsigned flags) {
  const CUresult result = real_cuInit(flags);
  static std::once_flag once;
  if (result == CUDA_SUCCESS)
    std::call_once(once, [] {
      abi::Session* session = map_session(getenv("TONNAGE_SESSION"));
      if (!session) return;
      pass().recording = true;
      start_bridge(session, /*content=*/nullptr, /*at_step=*/nullptr);
      start_recording(*session, places_in(*session));
      load_recorder();
    });
  return result;
}

REAL(cuGetProcAddress_v2, const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
PASS_API cuGetProcAddress_v2(const char* symbol, void** function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  const CUresult result = real_cuGetProcAddress_v2(symbol, function, version, flags, status);
  log_once("proc %s %d %llu rc %d", symbol, version, static_cast<unsigned long long>(flags),
           result);
  if (result == CUDA_SUCCESS && function && *function) *function = translated(*function);
  return result;
}
REAL(cuGetProcAddress, const char*, void**, int, cuuint64_t);
PASS_API cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags) {
  const CUresult result = real_cuGetProcAddress(symbol, function, version, flags);
  log_once("proc %s %d %llu rc %d", symbol, version, static_cast<unsigned long long>(flags),
           result);
  if (result == CUDA_SUCCESS && function && *function) *function = translated(*function);
  return result;
}
REAL(cuGetExportTable, const void**, const CUuuid*);
PASS_API cuGetExportTable(const void** table, const CUuuid* id) {
  if (table && id && memcmp(id->bytes, abi::kBridgeUuid, 16) == 0) {
    *table = bridge();
    return CUDA_SUCCESS;
  }
  const CUresult result = real_cuGetExportTable(table, id);
  const auto* bytes = reinterpret_cast<const unsigned char*>(id->bytes);
  log_once("table %02x%02x%02x%02x... rc %d", bytes[0], bytes[1], bytes[2], bytes[3], result);
  return result;
}

// --- Contexts ---

static std::optional<uint64_t> nvml_used(CUdevice device) {
  CUuuid uuid{};
  if (real_cuDeviceGetUuid_v2(&uuid, device) != CUDA_SUCCESS) return std::nullopt;
  return tonnage::passthrough::nvml_used_bytes(uuid.bytes);
}

static bool is_first_context(CUdevice device) {
  static std::mutex& mutex = *new std::mutex;
  static std::unordered_set<int>& seen = *new std::unordered_set<int>;
  std::lock_guard lock(mutex);
  return seen.insert(device).second;
}

// Contexts take memory that nothing else accounts for: what the device lost while one was made.
REAL(cuDevicePrimaryCtxRetain, CUcontext*, CUdevice);
PASS_API cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  const bool first = pass().recording && is_first_context(device);
  const std::optional<uint64_t> before = first ? nvml_used(device) : std::nullopt;
  const CUresult result = real_cuDevicePrimaryCtxRetain(context, device);
  if (!first) return result;
  if (result == CUDA_ERROR_OUT_OF_MEMORY) record_device_oom(device, 0, 0, "context");
  // Free memory can only be asked with a context.
  if (result != CUDA_SUCCESS || real_cuCtxPushCurrent_v2(*context) != CUDA_SUCCESS) return result;
  if (uint64_t in_use = 0; in_use_now(&in_use)) {
    const std::optional<uint64_t> after = nvml_used(device);
    uint64_t bytes = 0;
    {
      std::lock_guard lock(pass().mutex);
      bytes = pass().devices[device].overhead.context_made(before, after, in_use);
    }
    record_context(device, bytes, /*modelled=*/false);
    if (!before || !after)
      record_message("NVML is not there: the context's memory has what other processes hold in it",
                     false);
  }
  CUcontext popped = nullptr;
  real_cuCtxPopCurrent_v2(&popped);
  return result;
}

// --- Memory ---

REAL(cuMemAlloc_v2, CUdeviceptr*, size_t);
PASS_API cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  const CUresult result = real_cuMemAlloc_v2(address, bytes);
  took(result, result == CUDA_SUCCESS ? *address : 0, round_to_granularity(bytes),
       DeviceMemoryKind::kPlain, current_device());
  return result;
}
REAL(cuMemAllocPitch_v2, CUdeviceptr*, size_t*, size_t, size_t, unsigned);
PASS_API cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width, size_t height,
                            unsigned element) {
  const CUresult result = real_cuMemAllocPitch_v2(address, pitch, width, height, element);
  if (result == CUDA_SUCCESS)
    took(result, *address, round_to_granularity(*pitch * height), DeviceMemoryKind::kPitched,
         current_device());
  return result;
}
REAL(cuMemFree_v2, CUdeviceptr);
PASS_API cuMemFree_v2(CUdeviceptr address) {
  const CUresult result = real_cuMemFree_v2(address);
  gave_back(result, address);
  return result;
}
REAL(cuMemAllocManaged, CUdeviceptr*, size_t, unsigned);
PASS_API cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned flags) {
  const CUresult result = real_cuMemAllocManaged(address, bytes, flags);
  if (result == CUDA_SUCCESS && pass().recording)
    record_host_alloc(*address, bytes, DeviceMemoryKind::kManaged);
  return result;
}
REAL(cuMemAllocAsync, CUdeviceptr*, size_t, CUstream);
PASS_API cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
  const CUresult result = real_cuMemAllocAsync(address, bytes, stream);
  took(result, result == CUDA_SUCCESS ? *address : 0, bytes, DeviceMemoryKind::kPool,
       current_device());
  return result;
}
REAL(cuMemAllocFromPoolAsync, CUdeviceptr*, size_t, CUmemoryPool, CUstream);
PASS_API cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool,
                                 CUstream stream) {
  const CUresult result = real_cuMemAllocFromPoolAsync(address, bytes, pool, stream);
  CUmemoryPool by_default = nullptr;
  if (pass().recording &&
      (real_cuDeviceGetDefaultMemPool(&by_default, current_device()) != CUDA_SUCCESS ||
       by_default != pool)) {
    std::lock_guard lock(pass().mutex);
    pass().devices[current_device()].has_other_pools = true;
  }
  took(result, result == CUDA_SUCCESS ? *address : 0, bytes, DeviceMemoryKind::kPool,
       current_device());
  return result;
}
REAL(cuMemFreeAsync, CUdeviceptr, CUstream);
PASS_API cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  const CUresult result = real_cuMemFreeAsync(address, stream);
  gave_back(result, address);
  return result;
}
REAL(cuMemCreate, CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*,
     unsigned long long);
PASS_API cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                     const CUmemAllocationProp* properties, unsigned long long flags) {
  const CUresult result = real_cuMemCreate(handle, bytes, properties, flags);
  const bool on_device = properties && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  if (on_device)
    took(result, result == CUDA_SUCCESS ? *handle : 0, bytes, DeviceMemoryKind::kVirtual,
         properties->location.id);
  return result;
}
REAL(cuMemRelease, CUmemGenericAllocationHandle);
PASS_API cuMemRelease(CUmemGenericAllocationHandle handle) {
  const CUresult result = real_cuMemRelease(handle);
  gave_back(result, handle);
  return result;
}
// Physical memory is there as long as somebody holds its handle or has it mapped.
static void hold_block(uint64_t handle) {
  std::lock_guard lock(pass().mutex);
  const auto known = pass().blocks.find(handle);
  if (known != pass().blocks.end()) known->second.holders++;
}
REAL(cuMemRetainAllocationHandle, CUmemGenericAllocationHandle*, void*);
PASS_API cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  const CUresult result = real_cuMemRetainAllocationHandle(handle, address);
  if (pass().recording && result == CUDA_SUCCESS) hold_block(*handle);
  return result;
}
REAL(cuMemMap, CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
PASS_API cuMemMap(CUdeviceptr address, size_t size, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  const CUresult result = real_cuMemMap(address, size, offset, handle, flags);
  if (pass().recording && result == CUDA_SUCCESS) {
    hold_block(handle);
    std::lock_guard lock(pass().mutex);
    pass().mapped[address] = handle;
  }
  return result;
}
REAL(cuMemUnmap, CUdeviceptr, size_t);
PASS_API cuMemUnmap(CUdeviceptr address, size_t size) {
  const CUresult result = real_cuMemUnmap(address, size);
  if (!pass().recording || result != CUDA_SUCCESS) return result;
  std::vector<uint64_t> handles;
  {
    std::lock_guard lock(pass().mutex);
    auto& mapped = pass().mapped;
    for (auto at = mapped.lower_bound(address); at != mapped.end() && at->first < address + size;) {
      handles.push_back(at->second);
      at = mapped.erase(at);
    }
  }
  for (const uint64_t handle : handles) forget_block(handle);
  return result;
}
REAL(cuMemHostAlloc, void**, size_t, unsigned);
PASS_API cuMemHostAlloc(void** pointer, size_t bytes, unsigned flags) {
  const CUresult result = real_cuMemHostAlloc(pointer, bytes, flags);
  if (result == CUDA_SUCCESS && pass().recording)
    record_host_alloc(reinterpret_cast<uint64_t>(*pointer), bytes, DeviceMemoryKind::kHostPinned);
  return result;
}
REAL(cuMemAllocHost_v2, void**, size_t);
PASS_API cuMemAllocHost_v2(void** pointer, size_t bytes) {
  const CUresult result = real_cuMemAllocHost_v2(pointer, bytes);
  if (result == CUDA_SUCCESS && pass().recording)
    record_host_alloc(reinterpret_cast<uint64_t>(*pointer), bytes, DeviceMemoryKind::kHostPinned);
  return result;
}

// --- Queries: what libraries ask and what the card answers ---

REAL(cuDeviceGetAttribute, int*, CUdevice_attribute, CUdevice);
PASS_API cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  const CUresult result = real_cuDeviceGetAttribute(value, attribute, device);
  if (value) log_once("attr %d = %d rc %d", attribute, *value, result);
  return result;
}
REAL(cuCtxGetLimit, size_t*, CUlimit);
PASS_API cuCtxGetLimit(size_t* value, CUlimit limit) {
  const CUresult result = real_cuCtxGetLimit(value, limit);
  if (value) log_once("limit %d = %zu rc %d", limit, *value, result);
  return result;
}
REAL(cuLibraryGetKernel, CUkernel*, CUlibrary, const char*);
PASS_API cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  const CUresult result = real_cuLibraryGetKernel(kernel, library, name);
  if (result == CUDA_SUCCESS) name_kernel(*kernel, name);
  return result;
}
REAL(cuModuleGetFunction, CUfunction*, CUmodule, const char*);
PASS_API cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  const CUresult result = real_cuModuleGetFunction(function, module, name);
  if (result == CUDA_SUCCESS) name_kernel(*function, name);
  return result;
}
REAL(cuKernelGetFunction, CUfunction*, CUkernel);
PASS_API cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  const CUresult result = real_cuKernelGetFunction(function, kernel);
  if (result == CUDA_SUCCESS && pass().log) name_kernel(*function, kernel_name(kernel));
  return result;
}
REAL(cuFuncGetAttribute, int*, CUfunction_attribute, CUfunction);
PASS_API cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  const CUresult result = real_cuFuncGetAttribute(value, attribute, function);
  if (pass().log && value)
    log_once("fattr %d = %d rc %d %s", attribute, *value, result, kernel_name(function).c_str());
  return result;
}
REAL(cuKernelGetAttribute, int*, CUfunction_attribute, CUkernel, CUdevice);
PASS_API cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel,
                              CUdevice device) {
  const CUresult result = real_cuKernelGetAttribute(value, attribute, kernel, device);
  if (pass().log && value)
    log_once("kattr %d = %d rc %d %s", attribute, *value, result, kernel_name(kernel).c_str());
  return result;
}
REAL(cuOccupancyMaxActiveBlocksPerMultiprocessor, int*, CUfunction, int, size_t);
PASS_API cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int threads,
                                                     size_t shared) {
  const CUresult result =
      real_cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared);
  if (pass().log && blocks)
    log_once("occ %d = block %d smem %zu rc %d %s", *blocks, threads, shared, result,
             kernel_name(function).c_str());
  return result;
}
REAL(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, int*, CUfunction, int, size_t, unsigned);
PASS_API cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction function,
                                                              int threads, size_t shared,
                                                              unsigned flags) {
  const CUresult result = real_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
      blocks, function, threads, shared, flags);
  if (pass().log && blocks)
    log_once("occf %d = block %d smem %zu flags %u rc %d %s", *blocks, threads, shared, flags,
             result, kernel_name(function).c_str());
  return result;
}
REAL(cuOccupancyAvailableDynamicSMemPerBlock, size_t*, CUfunction, int, int);
PASS_API cuOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, CUfunction function, int blocks,
                                                 int threads) {
  const CUresult result =
      real_cuOccupancyAvailableDynamicSMemPerBlock(bytes, function, blocks, threads);
  if (pass().log && bytes)
    log_once("occsmem %zu = blocks %d size %d rc %d %s", *bytes, blocks, threads, result,
             kernel_name(function).c_str());
  return result;
}
REAL(cuOccupancyMaxActiveClusters, int*, CUfunction, const CUlaunchConfig*);
PASS_API cuOccupancyMaxActiveClusters(int* clusters, CUfunction function,
                                      const CUlaunchConfig* config) {
  const CUresult result = real_cuOccupancyMaxActiveClusters(clusters, function, config);
  if (!pass().log || !clusters || !config) return result;
  unsigned size = 0;
  for (unsigned i = 0; i < config->numAttrs; i++)
    if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
      size = config->attrs[i].value.clusterDim.x * config->attrs[i].value.clusterDim.y *
             config->attrs[i].value.clusterDim.z;
  log_once("occcl %d = block %u smem %u cluster %u rc %d %s", *clusters, config->blockDimX,
           config->sharedMemBytes, size, result, kernel_name(function).c_str());
  return result;
}
