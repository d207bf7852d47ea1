#include "driver/footprint.h"

#include <map>
#include <utility>
#include <vector>

#include "driver/api/module.h"
#include "driver/host_layout.h"
#include "driver/recording.h"
#include "image/resident.h"

namespace tonnage::driver {
namespace {

constexpr uint64_t kStreamBytes =
    512ull << 10;  // four streams share a granule; a context has room for one
// Each stream also takes this from a pool in which a context has used seven such pieces: of the 131
// streams that PyTorch and NCCL make on an H200, the 36th, one of the 70s or 80s, and the 122nd
// took a granule.
constexpr uint64_t kStreamStateBytes = 48ull << 10;
constexpr uint64_t kStreamStateUsed = 7 * kStreamStateBytes;
// Executable graphs share both pools with streams: every branch takes a piece of the state pool and
// this of the queues' pool.
constexpr uint64_t kBranchBytes = 64ull << 10;
// Their nodes: those of one graph lie together in one piece of a pool, but for kernels with many
// parameters, which have pieces of their own elsewhere. A context has used some of the first
// granule of either. A list of the nodes is in a third pool.
constexpr uint64_t kNodeBytes = 1816, kMediumNodeBytes = 2880, kLargeNodeBytes = 8192,
                   kNodesHeaderBytes = 8;
constexpr uint64_t kNodesUsed = 53'000, kLargeNodesUsed = 256ull << 10;
constexpr uint64_t kListEntryBytes = 512;
constexpr uint64_t kDefaultStack = 1024;  // bytes of local memory per thread that every context has

constexpr uint64_t kHeapOfContext =
    414ull << 20;  // the driver's own block: addresses that it has in a new context
constexpr uint64_t kHeapForPrintf = 92ull << 20;  // and more when code that can print has come

// Memory without device addresses of its own, taken by granules and never given back.
struct Quantity {
  uint64_t used = 0, granules = 1;
};
// A heap of the driver's own: grows by whole granules, gives nothing back.
struct Heap {
  uint64_t cursor = 0, end = 0;
};
struct DeviceMemory {
  image::ChunkPool code{image::kFirstCodeChunkFree};
  Heap data, streams;
  std::vector<uint64_t> node_pools{gpu::kAllocationGranularity - kNodesUsed};  // bytes left in each
  Quantity stream_states{kStreamStateUsed, 1}, large_nodes{kLargeNodesUsed, 1}, node_lists;
  // What destroyed streams and graphs leave, used again: a queue's place can become several
  // branches'.
  uint64_t idle_states = 0, idle_queues = 0, idle_branch_bytes = 0;
  uint64_t made_streams = 0;  // places of streams, the one that every context has included
  bool has_printf = false, has_assert = false, has_malloc = false, has_report_buffer = false,
       has_malloc_heap = false;
  bool prepared = false, has_remote_domain = false;
  uint64_t local_bytes_per_thread = kDefaultStack;
};
struct DriverMemory {
  std::mutex mutex;
  std::map<Device*, DeviceMemory> devices;
  int contexts = 0;  // devices that have one
};
DriverMemory& driver_memory() {
  static DriverMemory& all = *new DriverMemory;
  return all;
}

// Who is refused, as the record names it.
constexpr const char *kForCode = "code", *kForStreams = "streams", *kForGraphs = "graph",
                     *kForLocalMemory = "local_memory";

// Card memory behind addresses that the driver has already. False: the card is full; the record has
// it, and the call that needed the memory fails as a real driver's.
bool charge(Device* device, uint64_t bytes, std::string_view name, const char* asker) {
  if (!charge_device(device, bytes, asker)) return false;
  device->code_bytes.fetch_add(bytes);
  record_module_load(device->index, bytes, name);
  return true;
}

// Takes `bytes` of the card for the driver itself; the address, 0 if there is no room.
uint64_t take(Device* device, uint64_t bytes, std::string_view name, const char* asker) {
  Driver* state = driver();
  const uint64_t size = gpu::round_up(bytes, gpu::kAllocationGranularity);
  if (!charge(device, size, name, asker)) return 0;
  std::lock_guard lock(state->memory_mutex);
  return device->addresses->allocate(size);
}

// The driver's own block for a device, with local memory, printf's buffer and so on, moves as a
// whole when it grows: the addresses after it show where it was. The cost to the card is charged
// apart. Under Driver::memory_mutex.
void move_heap(Device* device, uint64_t bytes) {
  if (device->heap_region == 0) return;
  device->heap_region = device->addresses->move(device->heap_region, bytes);
  device->heap_bytes = bytes;
}

// `bytes` from a heap; the heap's address, 0 if there is no room.
uint64_t grow(Device* device, Heap* heap, uint64_t bytes, std::string_view name,
              const char* asker) {
  if (heap->cursor + bytes > heap->end) {
    const uint64_t size = gpu::round_up(bytes, gpu::kAllocationGranularity);
    const uint64_t address = take(device, size, name, asker);
    if (!address) return 0;
    heap->cursor = address;
    heap->end = address + size;
  }
  const uint64_t address = heap->cursor;
  heap->cursor += bytes;
  return address;
}

}  // namespace

void prepare_context_memory(Device* device) {
  DriverMemory& all = driver_memory();
  std::lock_guard lock(all.mutex);
  DeviceMemory& memory = all.devices[device];
  if (memory.prepared) return;
  memory.prepared = true;
  const bool first = ++all.contexts == 1;
  std::lock_guard memory_lock(driver()->memory_mutex);
  lay_out_host_at_context(first ? &driver()->high_regions : nullptr);
  if (!first) device->addresses->prepare_further_context();
  device->heap_region = device->addresses->prepare_context();
  device->heap_bytes = kHeapOfContext;
}

CUresult place_variable(Context* context, Device* device, size_t bytes, CUdeviceptr* out) {
  Driver* state = driver();
  DriverMemory& all = driver_memory();
  Allocation allocation;
  {
    std::lock_guard lock(all.mutex);
    allocation.address = grow(device, &all.devices[device].data,
                              gpu::round_up(bytes ? bytes : 1, image::kVariableUnitBytes),
                              "module variables", kForCode);
  }
  if (!allocation.address) return CUDA_ERROR_OUT_OF_MEMORY;
  allocation.requested_bytes = bytes;
  allocation.kind = abi::DeviceMemoryKind::kModuleData;
  allocation.context = context;
  allocation.device = device;
  allocation.buffer_id = state->new_id();
  allocation.owned_elsewhere = true;
  add_allocation(allocation);
  *out = allocation.address;
  return CUDA_SUCCESS;
}

void release_variable(Device*, CUdeviceptr address) {
  Allocation allocation;
  if (remove_allocation(address, &allocation))
    driver()->content.forget(address, allocation.requested_bytes);
}

static bool add(Device* device, Quantity* quantity, uint64_t bytes, std::string_view name,
                const char* asker) {
  const uint64_t granules = gpu::round_up(quantity->used + bytes, gpu::kAllocationGranularity) /
                            gpu::kAllocationGranularity;
  if (granules > quantity->granules) {
    if (!charge(device, (granules - quantity->granules) * gpu::kAllocationGranularity, name, asker))
      return false;
    quantity->granules = granules;
  }
  quantity->used += bytes;
  return true;
}

static bool take_stream_state(Device* device, DeviceMemory& memory, std::string_view name,
                              const char* asker) {
  if (memory.idle_states == 0)
    return add(device, &memory.stream_states, kStreamStateBytes, name, asker);
  memory.idle_states--;
  return true;
}

static uint64_t piece_bytes(const GraphFootprint& f) {
  const uint64_t nodes =
      (f.small_kernels + f.copies) * kNodeBytes + f.medium_kernels * kMediumNodeBytes;
  return nodes ? nodes + kNodesHeaderBytes : 0;
}
static uint64_t list_bytes(const GraphFootprint& f) {
  const uint64_t nodes = f.small_kernels + f.medium_kernels + f.large_kernels + f.copies;
  return nodes ? (nodes + 1) * kListEntryBytes : 0;
}

// One chain of nodes: a piece of the state pool and one of the queues'.
static bool take_branch(Device* device, DeviceMemory& memory) {
  if (!take_stream_state(device, memory, "streams", kForGraphs)) return false;
  if (memory.idle_branch_bytes == 0 && memory.idle_queues > 0) {
    memory.idle_queues--;
    memory.idle_branch_bytes = kStreamBytes;
  }
  if (memory.idle_branch_bytes > 0) {
    memory.idle_branch_bytes -= kBranchBytes;
    return true;
  }
  if (grow(device, &memory.streams, kBranchBytes, "graphs", kForGraphs)) return true;
  memory.idle_states++;
  return false;
}

// A piece for a graph's nodes; the number of its pool, -1 if there is no room.
static int take_node_piece(Device* device, DeviceMemory& memory, uint64_t bytes) {
  auto& pools = memory.node_pools;
  size_t pool = 0;
  while (pool < pools.size() && pools[pool] < bytes) pool++;
  if (pool == pools.size()) {
    const uint64_t size = gpu::round_up(bytes, gpu::kAllocationGranularity);
    if (!charge(device, size, "graphs", kForGraphs)) return -1;
    pools.push_back(size);
  }
  pools[pool] -= bytes;
  return static_cast<int>(pool);
}

static void give_back_branches(DeviceMemory& memory, uint64_t branches) {
  memory.idle_states += branches;
  memory.idle_branch_bytes += branches * kBranchBytes;
}

static CUresult charge_graph_locked(Device* device, DeviceMemory& memory,
                                    GraphFootprint* footprint) {
  uint64_t branches = 0;
  while (branches < footprint->branches && take_branch(device, memory)) branches++;
  const uint64_t piece = piece_bytes(*footprint);
  const bool has_branches = branches == footprint->branches;
  if (has_branches && piece) footprint->pool = take_node_piece(device, memory, piece);
  const bool has_piece = has_branches && (!piece || footprint->pool >= 0);
  const uint64_t large = footprint->large_kernels * kLargeNodeBytes;
  const bool has_large = has_piece && add(device, &memory.large_nodes, large, "graphs", kForGraphs);
  if (has_large && add(device, &memory.node_lists, list_bytes(*footprint), "graphs", kForGraphs))
    return CUDA_SUCCESS;
  if (has_large) memory.large_nodes.used -= large;
  if (footprint->pool >= 0) memory.node_pools[static_cast<size_t>(footprint->pool)] += piece;
  footprint->pool = -1;
  give_back_branches(memory, branches);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult charge_graph(Device* device, GraphFootprint* footprint) {
  DriverMemory& all = driver_memory();
  std::lock_guard lock(all.mutex);
  return charge_graph_locked(device, all.devices[device], footprint);
}

void refund_graph(Device* device, const GraphFootprint& footprint) {
  DriverMemory& all = driver_memory();
  std::lock_guard lock(all.mutex);
  DeviceMemory& memory = all.devices[device];
  give_back_branches(memory, footprint.branches);
  if (footprint.pool >= 0)
    memory.node_pools[static_cast<size_t>(footprint.pool)] += piece_bytes(footprint);
  memory.large_nodes.used -= footprint.large_kernels * kLargeNodeBytes;
  memory.node_lists.used -= list_bytes(footprint);
}

CUresult charge_stream(Device* device) {
  DriverMemory& all = driver_memory();
  std::lock_guard lock(all.mutex);
  DeviceMemory& memory = all.devices[device];
  if (!take_stream_state(device, memory, "streams", kForStreams)) return CUDA_ERROR_OUT_OF_MEMORY;
  if (memory.idle_queues > 0) {
    memory.idle_queues--;
    return CUDA_SUCCESS;
  }
  // Seen with two devices: the room for one stream is gone where another device has a context too.
  const bool has_room = memory.made_streams == 0 && all.contexts == 1;
  if (!has_room && !grow(device, &memory.streams, kStreamBytes, "streams", kForStreams)) {
    memory.idle_states++;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  memory.made_streams++;
  return CUDA_SUCCESS;
}

void refund_stream(Device* device) {
  DriverMemory& all = driver_memory();
  std::lock_guard lock(all.mutex);
  all.devices[device].idle_states++;
  all.devices[device].idle_queues++;
}

static uint32_t bit_of(const Device* device) { return 1u << device->index; }
static bool is_on(const std::atomic<uint32_t>& devices, const Device* device) {
  return devices.load(std::memory_order_acquire) & bit_of(device);
}
static void set_on(std::atomic<uint32_t>* devices, const Device* device) {
  devices->fetch_or(bit_of(device), std::memory_order_release);
}

// A module's variables and constants come to the card with its first kernel: seen on an H200, where
// the first such module takes a granule, and those after it share it. To be called without the lock
// of the driver's own memory, which this takes.
static CUresult place_variables(Module* module, Device* device) {
  for (const image::GlobalInfo& global : module->image->globals()) {
    CUdeviceptr address = 0;
    size_t bytes = 0;
    const CUresult result =
        find_variable(module, device, std::string(global.name).c_str(), &address, &bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) return result;
  }
  return CUDA_SUCCESS;
}

// Machine code from the pool of it.
static bool take_code(Device* device, DeviceMemory& memory, uint64_t bytes, std::string_view name) {
  const uint64_t chunk = memory.code.take(bytes);
  if (!chunk || take(device, chunk, name, kForCode)) return true;
  memory.code.drop_last();
  return false;
}

// Takes `bytes` once, and says in *has that it has them.
static bool charge_once(Device* device, bool* has, uint64_t bytes, std::string_view name) {
  if (!*has) *has = charge(device, bytes, name, kForCode);
  return *has;
}

// What a module's code needs besides itself, once per context.
static bool take_runtime_of(const image::CodeInfo& code, Device* device, DeviceMemory& memory) {
  if ((code.uses_printf || code.uses_assert) && !memory.has_printf) {
    if (!charge_once(device, &memory.has_printf, image::kPrintfBytes, "device-side printf"))
      return false;
    std::lock_guard memory_lock(driver()->memory_mutex);
    move_heap(device, device->heap_bytes + kHeapForPrintf);
  }
  if (code.uses_assert && !memory.has_assert) {
    if (!charge_once(device, &memory.has_assert, image::kAssertBytes, "device-side assertions"))
      return false;
    if (!take_code(device, memory, image::kAssertCodeBytes, "device-side assertions")) return false;
  }
  return !code.uses_malloc ||
         charge_once(device, &memory.has_malloc, image::kMallocBytes, "device-side malloc");
}

CUresult make_resident(Function* function, Device* device) {
  if (is_on(function->resident, device)) return CUDA_SUCCESS;
  Module* module = function->module;
  if (!is_on(module->has_come, device))
    if (const CUresult result = place_variables(module, device); result != CUDA_SUCCESS)
      return result;
  DriverMemory& all = driver_memory();
  std::lock_guard lock(all.mutex);
  if (is_on(function->resident, device)) return CUDA_SUCCESS;
  DeviceMemory& memory = all.devices[device];
  const image::CodeInfo* code = module->image->code();
  if (code && !take_runtime_of(*code, device, memory)) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!is_on(module->has_come, device)) {
    if (const uint64_t bytes = code ? image::resident_function_bytes(*code) : 0)
      if (!take_code(device, memory, bytes, "device functions")) return CUDA_ERROR_OUT_OF_MEMORY;
    set_on(&module->has_come, device);
  }
  if (!take_code(device, memory, image::resident_code_bytes(*function->info), function->name))
    return CUDA_ERROR_OUT_OF_MEMORY;
  set_on(&function->resident, device);
  return CUDA_SUCCESS;
}

// More local memory per thread than ever before: the card sets it aside for all threads that can
// run at once.
static bool take_local_memory(const image::KernelInfo& info, Device* device, DeviceMemory& memory) {
  if (info.local_bytes <= memory.local_bytes_per_thread) return true;
  const int32_t* limits = device->card->attributes;
  const uint64_t threads =
      static_cast<uint64_t>(limits[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT]) *
      static_cast<uint64_t>(limits[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR]);
  const auto whole = [&](uint64_t bytes) {
    return gpu::round_up(bytes * threads, gpu::kAllocationGranularity);
  };
  const uint64_t more = whole(info.local_bytes) - whole(memory.local_bytes_per_thread);
  if (!charge(device, more, "local memory", kForLocalMemory)) return false;
  memory.local_bytes_per_thread = info.local_bytes;
  std::lock_guard memory_lock(driver()->memory_mutex);
  move_heap(device, device->heap_bytes + more);
  return true;
}

CUresult prepare_launch(Function* function, Device* device) {
  if (const CUresult result = make_resident(function, device); result != CUDA_SUCCESS)
    return result;
  if (is_on(function->launched, device)) return CUDA_SUCCESS;
  const image::KernelInfo& info = *function->info;
  DriverMemory& all = driver_memory();
  std::lock_guard lock(all.mutex);
  if (is_on(function->launched, device)) return CUDA_SUCCESS;
  DeviceMemory& memory = all.devices[device];
  if (!take_local_memory(info, device, memory)) return CUDA_ERROR_OUT_OF_MEMORY;
  if (info.calls_reporter && !memory.has_report_buffer) {
    memory.has_report_buffer = true;
    std::lock_guard memory_lock(driver()->memory_mutex);
    device->addresses->allocate(
        gpu::round_up(image::kReportBufferBytes, gpu::kAllocationGranularity));
  }
  if (info.calls_malloc &&
      !charge_once(device, &memory.has_malloc_heap, image::kMallocHeapBytes, "device-side malloc"))
    return CUDA_ERROR_OUT_OF_MEMORY;
  set_on(&function->launched, device);
  return CUDA_SUCCESS;
}

CUresult prepare_remote_domain(Device* device) {
  DriverMemory& all = driver_memory();
  std::lock_guard lock(all.mutex);
  return charge_once(device, &all.devices[device].has_remote_domain, gpu::kAllocationGranularity,
                     "remote memory domain")
             ? CUDA_SUCCESS
             : CUDA_ERROR_OUT_OF_MEMORY;
}

}  // namespace tonnage::driver
