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

// Card memory behind addresses that the driver has already.
void charge(Device* device, uint64_t bytes, std::string_view name) {
  driver()->account.charge_always(device->physical, bytes);
  device->code_bytes.fetch_add(bytes);
  record_module_load(device->index, bytes, name);
}

// Takes `bytes` of the card for the driver itself. The card is never refused: what does not fit
// shows as no memory left.
uint64_t take(Device* device, uint64_t bytes, std::string_view name) {
  Driver* state = driver();
  const uint64_t size = gpu::round_up(bytes, gpu::kAllocationGranularity);
  uint64_t address = 0;
  {
    std::lock_guard lock(state->memory_mutex);
    address = device->addresses->allocate(size);
  }
  charge(device, size, name);
  return address;
}

// The driver's own block for a device, with local memory, printf's buffer and so on, moves as a
// whole when it grows: the addresses after it show where it was. The cost to the card is charged
// apart. Under Driver::memory_mutex.
void move_heap(Device* device, uint64_t bytes) {
  if (device->heap_region == 0) return;
  device->heap_region = device->addresses->move(device->heap_region, bytes);
  device->heap_bytes = bytes;
}

// `bytes` from a heap; the heap's address.
uint64_t grow(Device* device, Heap* heap, uint64_t bytes, std::string_view name) {
  if (heap->cursor + bytes > heap->end) {
    const uint64_t size = gpu::round_up(bytes, gpu::kAllocationGranularity);
    heap->cursor = take(device, size, name);
    heap->end = heap->cursor + size;
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
    allocation.address =
        grow(device, &all.devices[device].data,
             gpu::round_up(bytes ? bytes : 1, image::kVariableUnitBytes), "module variables");
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

static void add(Device* device, Quantity* quantity, uint64_t bytes, std::string_view name) {
  quantity->used += bytes;
  const uint64_t granules =
      gpu::round_up(quantity->used, gpu::kAllocationGranularity) / gpu::kAllocationGranularity;
  if (granules <= quantity->granules) return;
  charge(device, (granules - quantity->granules) * gpu::kAllocationGranularity, name);
  quantity->granules = granules;
}

static void take_stream_state(Device* device, DeviceMemory& memory) {
  if (memory.idle_states > 0)
    memory.idle_states--;
  else
    add(device, &memory.stream_states, kStreamStateBytes, "streams");
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

void charge_graph(Device* device, GraphFootprint* footprint) {
  DriverMemory& all = driver_memory();
  std::lock_guard lock(all.mutex);
  DeviceMemory& memory = all.devices[device];
  for (uint64_t i = 0; i < footprint->branches; i++) {
    take_stream_state(device, memory);
    if (memory.idle_branch_bytes == 0 && memory.idle_queues > 0) {
      memory.idle_queues--;
      memory.idle_branch_bytes = kStreamBytes;
    }
    if (memory.idle_branch_bytes > 0)
      memory.idle_branch_bytes -= kBranchBytes;
    else
      grow(device, &memory.streams, kBranchBytes, "graphs");
  }
  if (const uint64_t bytes = piece_bytes(*footprint)) {
    auto& pools = memory.node_pools;
    size_t pool = 0;
    while (pool < pools.size() && pools[pool] < bytes) pool++;
    if (pool == pools.size()) {
      pools.push_back(gpu::round_up(bytes, gpu::kAllocationGranularity));
      charge(device, pools.back(), "graphs");
    }
    pools[pool] -= bytes;
    footprint->pool = static_cast<int>(pool);
  }
  add(device, &memory.large_nodes, footprint->large_kernels * kLargeNodeBytes, "graphs");
  add(device, &memory.node_lists, list_bytes(*footprint), "graphs");
}

void refund_graph(Device* device, const GraphFootprint& footprint) {
  DriverMemory& all = driver_memory();
  std::lock_guard lock(all.mutex);
  DeviceMemory& memory = all.devices[device];
  memory.idle_states += footprint.branches;
  memory.idle_branch_bytes += footprint.branches * kBranchBytes;
  if (footprint.pool >= 0)
    memory.node_pools[static_cast<size_t>(footprint.pool)] += piece_bytes(footprint);
  memory.large_nodes.used -= footprint.large_kernels * kLargeNodeBytes;
  memory.node_lists.used -= list_bytes(footprint);
}

void charge_stream(Device* device) {
  DriverMemory& all = driver_memory();
  std::lock_guard lock(all.mutex);
  DeviceMemory& memory = all.devices[device];
  take_stream_state(device, memory);
  if (memory.idle_queues > 0) {
    memory.idle_queues--;
    return;
  }
  memory.made_streams++;
  // Seen with two devices: the room for one stream is gone where another device has a context too.
  if (memory.made_streams == 1 && all.contexts == 1) return;
  grow(device, &memory.streams, kStreamBytes, "streams");
}

void refund_stream(Device* device) {
  DriverMemory& all = driver_memory();
  std::lock_guard lock(all.mutex);
  all.devices[device].idle_states++;
  all.devices[device].idle_queues++;
}

// Whether this is the first time on the device.
static bool first_on(std::atomic<uint32_t>* devices, const Device* device) {
  const uint32_t bit = 1u << device->index;
  return !(devices->load(std::memory_order_relaxed) & bit) && !(devices->fetch_or(bit) & bit);
}

// A module's variables and constants come to the card with its first kernel: seen on an H200, where
// the first such module takes a granule, and those after it share it. To be called without the lock
// of the driver's own memory, which this takes.
static void place_variables(Module* module, Device* device) {
  for (const image::GlobalInfo& global : module->image->globals()) {
    CUdeviceptr address = 0;
    size_t bytes = 0;
    find_variable(module, device, std::string(global.name).c_str(), &address, &bytes);
  }
}

void make_resident(Function* function, Device* device) {
  if (!first_on(&function->resident, device)) return;
  Module* module = function->module;
  const bool first_of_module = first_on(&module->has_come, device);
  if (first_of_module) place_variables(module, device);
  DriverMemory& all = driver_memory();
  std::lock_guard lock(all.mutex);
  DeviceMemory& memory = all.devices[device];
  const image::CodeInfo* code = module->image->code();
  if (code && (code->uses_printf || code->uses_assert) && !memory.has_printf) {
    memory.has_printf = true;
    {
      std::lock_guard memory_lock(driver()->memory_mutex);
      move_heap(device, device->heap_bytes + kHeapForPrintf);
    }
    charge(device, image::kPrintfBytes, "device-side printf");
  }
  if (code && code->uses_assert && !memory.has_assert) {
    memory.has_assert = true;
    charge(device, image::kAssertBytes, "device-side assertions");
    if (const uint64_t chunk = memory.code.take(image::kAssertCodeBytes))
      take(device, chunk, "device-side assertions");
  }
  if (code && code->uses_malloc && !memory.has_malloc) {
    memory.has_malloc = true;
    charge(device, image::kMallocBytes, "device-side malloc");
  }
  if (const uint64_t bytes = code && first_of_module ? image::resident_function_bytes(*code) : 0)
    if (const uint64_t chunk = memory.code.take(bytes)) take(device, chunk, "device functions");
  if (const uint64_t chunk = memory.code.take(image::resident_code_bytes(*function->info)))
    take(device, chunk, function->name);
}

void prepare_launch(Function* function, Device* device) {
  make_resident(function, device);
  if (!first_on(&function->launched, device)) return;
  const image::KernelInfo& info = *function->info;
  DriverMemory& all = driver_memory();
  std::lock_guard lock(all.mutex);
  DeviceMemory& memory = all.devices[device];
  // More local memory per thread than ever before: the card sets it aside for all threads that can
  // run at once.
  if (info.local_bytes > memory.local_bytes_per_thread) {
    const int32_t* limits = device->card->attributes;
    const uint64_t threads =
        static_cast<uint64_t>(limits[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT]) *
        static_cast<uint64_t>(limits[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR]);
    const auto whole = [&](uint64_t bytes) {
      return gpu::round_up(bytes * threads, gpu::kAllocationGranularity);
    };
    const uint64_t more = whole(info.local_bytes) - whole(memory.local_bytes_per_thread);
    memory.local_bytes_per_thread = info.local_bytes;
    {
      std::lock_guard memory_lock(driver()->memory_mutex);
      move_heap(device, device->heap_bytes + more);
    }
    charge(device, more, "local memory");
  }
  if (info.calls_reporter && !memory.has_report_buffer) {
    memory.has_report_buffer = true;
    std::lock_guard memory_lock(driver()->memory_mutex);
    device->addresses->allocate(
        gpu::round_up(image::kReportBufferBytes, gpu::kAllocationGranularity));
  }
  if (info.calls_malloc && !memory.has_malloc_heap) {
    memory.has_malloc_heap = true;
    charge(device, image::kMallocHeapBytes, "device-side malloc");
  }
}

void prepare_remote_domain(Device* device) {
  DriverMemory& all = driver_memory();
  std::lock_guard lock(all.mutex);
  if (!std::exchange(all.devices[device].has_remote_domain, true))
    charge(device, gpu::kAllocationGranularity, "remote memory domain");
}

}  // namespace tonnage::driver
