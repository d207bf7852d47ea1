// What the virtual driver keeps: devices, contexts, streams, events, allocations.
//
// Everything hangs on the one Driver, which is made at the first cuInit and never destroyed
// (threads of the host process may outlive static destructors). Locks, in the order in which they
// may be taken together:
//   Driver::objects_mutex (handles) -> Driver::memory_mutex (allocations, addresses) ->
//   ShadowMemory's own.
// Handles given to the host are pointers to these objects; each starts with a magic number so that
// a stray one is refused.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "abi/event.h"
#include "abi/session.h"
#include "driver/api.h"
#include "driver/host_regions.h"
#include "gpu/address_space.h"
#include "gpu/card_memory.h"
#include "gpu/footprint.h"
#include "gpu/graph_memory.h"
#include "gpu/ledger.h"
#include "gpu/managed_memory.h"
#include "gpu/pinned_memory.h"
#include "gpu/shadow_memory.h"
#include "gpu/small_memory.h"

namespace tonnage::cards {}
namespace tonnage::image {}

namespace tonnage::driver {

// For the C entry points, which stand outside every namespace.
namespace abi = tonnage::abi;
namespace cards = tonnage::cards;
namespace gpu = tonnage::gpu;
namespace image = tonnage::image;

struct Context;
class Device;
struct Graph;
struct CaptureSession;

// Virtual ranges and modules' variables lie low, away from where the kernel places other mappings.
inline constexpr uint64_t kLowRegions = 0x300000000;

inline constexpr uint32_t kContextMagic = 0x78744356, kStreamMagic = 0x72745356,
                          kEventMagic = 0x76654556;

// One visible device, and what the virtual card behind it keeps for this process.
class Device : public gpu::CardMemory {
 public:
  Device(int index_in_process, int index_in_session, const abi::CardDesc* description,
         gpu::AddressSpace* address_space);

  bool charge(uint64_t bytes) override { return charge(bytes, ""); }
  // `asker`: what the driver wants it for itself ("context", "code" …); "": the program's request.
  bool charge(uint64_t bytes, const char* asker);
  bool try_charge(uint64_t bytes) override;
  void refund(uint64_t bytes) override;
  uint64_t free_bytes() override;
  uint64_t total_bytes() const override { return card->total_bytes; }
  void tell_of_alloc(uint64_t address, uint64_t bytes, abi::DeviceMemoryKind kind) override;
  void tell_of_free(uint64_t address, uint64_t bytes, abi::DeviceMemoryKind kind) override;
  bool charge_driver(uint64_t bytes, abi::DriverMemory what, std::string_view name) override;

  const int index;
  const int physical;  // in the session: CUDA_VISIBLE_DEVICES may reorder and hide
  const abi::CardDesc* const card;
  gpu::AddressSpace* const addresses;  // the process's: all devices take from one
  gpu::SmallMemory small_memory;
  gpu::Footprint footprint;
  gpu::GraphMemory graph_memory;  // GraphLock
  Context* primary =
      nullptr;  // objects_mutex; made once, kept; not alive until retained, nor after a reset
  unsigned primary_flags = 0;
  int primary_refs = 0;
  CUmemoryPool default_pool = nullptr, current_pool = nullptr;  // memory_pools.cpp, on first use
  std::atomic<uint64_t> launches{0};
  std::atomic<uint64_t> driver_bytes{0};  // modelled memory of the driver itself, but the context's
};

struct Stream {
  uint32_t magic = kStreamMagic;
  Context* context = nullptr;
  unsigned flags = 0;
  int priority = 0;
  uint64_t id = 0;
  std::atomic<uint64_t> ticks{0};  // virtual time: work units queued so far
  std::atomic<CaptureSession*> capture{
      nullptr};  // not null: recording into a graph (graph_capture.cpp)
};

struct Event {
  uint32_t magic = kEventMagic;
  Context* context = nullptr;
  unsigned flags = 0;
  std::atomic<uint64_t> ticks{0};
  std::atomic<bool> recorded{false};
  CaptureSession* capture =
      nullptr;  // recorded inside a capture: what cuStreamWaitEvent joins (graph_capture.cpp)
  std::vector<struct GraphNode*> capture_nodes;
};

struct Context {
  uint32_t magic = kContextMagic;
  Device* device = nullptr;
  unsigned flags = 0;
  unsigned api_version = 0;
  uint64_t id = 0;
  bool primary = false;
  bool charged = false;  // its modelled bytes are in the ledger
  std::atomic<bool> alive{true};
  std::map<int, size_t> limits;  // set by cuCtxSetLimit
  CUfunc_cache cache_config = CU_FUNC_CACHE_PREFER_NONE;
  CUsharedconfig shared_config = CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE;
  Stream legacy_stream;                        // handles 0 and CU_STREAM_LEGACY
  std::unordered_set<Stream*> streams;         // objects_mutex
  std::unordered_set<Event*> events;           // objects_mutex
  std::unordered_set<Context*> peers;          // access enabled from this context to those
  std::unordered_set<struct Module*> modules;  // objects_mutex; unloaded with the context
};

// A range of device or host memory that the driver knows.
struct Allocation {
  uint64_t address = 0;
  uint64_t requested_bytes = 0;
  uint64_t accounted_bytes =
      0;  // what it takes from the card (0: part of a shared block, host memory, reservation)
  abi::DeviceMemoryKind kind = abi::DeviceMemoryKind::kPlain;
  Context* context = nullptr;
  Device* device = nullptr;  // null: host memory
  uint64_t buffer_id = 0;
  unsigned host_flags = 0;
  void* host = nullptr;          // host address, if the host can touch it
  CUmemoryPool pool = nullptr;   // stream-ordered
  bool owned_elsewhere = false;  // freed by its owner (module data, graph), not by cuMemFree
};

struct Driver {
  abi::Session* session = nullptr;
  std::vector<std::unique_ptr<Device>> devices;  // visible ones, in order
  gpu::Ledger ledger;
  gpu::ShadowMemory content;

  std::mutex objects_mutex;
  std::mutex memory_mutex;
  HostRegions high_regions, low_regions{kLowRegions};
  gpu::AddressSpace addresses{&high_regions, &low_regions};  // of all devices, as a real driver's
  RegionPages pages;
  gpu::PinnedMemory pinned{&addresses, &pages};
  gpu::ManagedMemory managed;
  std::map<uint64_t, Allocation> allocations;  // memory_mutex; by address
  std::atomic<uint64_t> next_id{1};            // contexts, streams, buffers
  pid_t pid = 0;  // the process that initialised; a forked child may not go on
  std::atomic<bool> forked{false};

  uint64_t new_id() { return next_id.fetch_add(1, std::memory_order_relaxed); }
  bool is_device_address(uint64_t address) const { return HostRegions::contains(address); }
  Device* device(CUdevice index) const {
    return index >= 0 && static_cast<size_t>(index) < devices.size()
               ? devices[static_cast<size_t>(index)].get()
               : nullptr;
  }
};

// Null before cuInit has succeeded; never destroyed.
inline std::atomic<Driver*> g_driver{nullptr};
// The driver after cuInit succeeded in this process, else null; null too in a forked child.
inline Driver* driver() {
  Driver* state = g_driver.load(std::memory_order_acquire);
  return state && !state->forked.load(std::memory_order_relaxed) ? state : nullptr;
}
// cuInit's work; CUDA_ERROR_NO_DEVICE outside a session or when CUDA_VISIBLE_DEVICES hides all.
CUresult initialise();

// The device's primary context, whether it is alive or not.
Context* primary_context_object(Driver* state, Device* device);
// Ends what the runtime keeps with a context (export_tables/export_tables.cpp), calling its
// destructors.
void drop_context_storage(CUcontext context);

Context* current_context();             // top of this thread's stack; null if none
Context* to_context(CUcontext handle);  // null if it is not a context
CUcontext to_handle(Context* context);

// A stream handle as the API takes it: null and CU_STREAM_LEGACY mean the context's legacy stream,
// CU_STREAM_PER_THREAD one of the thread's own. Null if the handle is invalid.
Stream* to_stream(CUstream handle, Context* context);
CUstream to_handle(Stream* stream);
Event* to_event(CUevent handle);

// --- Device memory ---
// All take memory_mutex themselves.

// Takes `bytes` (rounded up to the allocation granularity) from the card and the address space.
// OUT_OF_MEMORY when it does not fit.
CUresult allocate_device_memory(Device* device, Context* context, uint64_t bytes,
                                abi::DeviceMemoryKind kind, CUdeviceptr* out);
CUresult free_device_memory(CUdeviceptr address);
// The allocation that contains `address`; false if there is none.
bool find_allocation(uint64_t address, Allocation* out);
void add_allocation(const Allocation& allocation);
bool remove_allocation(uint64_t address, Allocation* out);
// Virtual time (gpu/clock.h).
inline void advance(Stream* stream, uint64_t ticks = 1) {
  stream->ticks.fetch_add(ticks, std::memory_order_relaxed);
}

}  // namespace tonnage::driver
