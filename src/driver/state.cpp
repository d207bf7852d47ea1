#include "driver/state.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "abi/session_locks.h"
#include "driver/bridge.h"
#include "driver/host_layout.h"
#include "driver/recorder_loader.h"
#include "driver/recording.h"
#include "driver/session_map.h"

namespace tonnage::driver {
namespace {

std::mutex g_initialise_mutex;

// "GPU-" and the UUID in the usual grouping; a prefix of it is enough, as in CUDA_VISIBLE_DEVICES.
std::string uuid_text(const abi::CardDesc& card) {
  static const char* digits = "0123456789abcdef";
  std::string out = card.is_mig ? "MIG-" : "GPU-";
  for (int i = 0; i < 16; i++) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    out += digits[card.uuid[i] >> 4];
    out += digits[card.uuid[i] & 15];
  }
  return out;
}

// The physical indices that CUDA_VISIBLE_DEVICES leaves visible, in its order: entries after an
// invalid one are ignored.
std::vector<int> visible_devices(const abi::Session& session) {
  std::vector<int> all;
  for (int i = 0; i < session.device_count; i++) all.push_back(i);
  const char* text = getenv("CUDA_VISIBLE_DEVICES");
  if (!text) return all;
  std::vector<int> out;
  std::string entries = text;
  size_t at = 0;
  while (at <= entries.size()) {
    size_t comma = entries.find(',', at);
    if (comma == std::string::npos) comma = entries.size();
    std::string entry = entries.substr(at, comma - at);
    at = comma + 1;
    while (!entry.empty() && entry.front() == ' ') entry.erase(0, 1);
    while (!entry.empty() && entry.back() == ' ') entry.pop_back();
    int found = -1;
    char* end = nullptr;
    const long number = strtol(entry.c_str(), &end, 10);
    if (!entry.empty() && *end == 0) {
      if (number >= 0 && number < session.device_count) found = static_cast<int>(number);
    } else if (entry.size() > 4) {
      for (int i = 0; i < session.device_count && found < 0; i++)
        if (uuid_text(session.devices[i]).rfind(entry, 0) == 0) found = i;
    }
    bool repeated = false;
    for (int other : out) repeated |= other == found;
    if (found < 0 || repeated) break;
    out.push_back(found);
  }
  return out;
}

void record_kernel_counts() {
  const Driver* state = driver();
  if (!state) return;
  for (const auto& device : state->devices)
    record_kernel_count(device->index, device->launches.load());
}

abi::SessionLocks& session_locks() {
  static abi::SessionLocks& locks = *new abi::SessionLocks;
  return locks;
}

class SessionWatch : public gpu::ProcessWatch {
 public:
  bool hold_slot(int slot) override { return session_locks().hold(slot); }
  bool slot_lives(int slot, int32_t pid) override { return session_locks().slot_lives(slot, pid); }
  void lock() override { session_locks().lock_ledger(); }
  void unlock() override { session_locks().unlock_ledger(); }
  void tell_gone(uint64_t identity) override { record_process_gone(identity); }
};

void in_forked_child() {
  Driver* state = g_driver.load(std::memory_order_relaxed);
  if (!state) return;
  // As a real driver: a child of a process that initialised CUDA cannot use it.
  state->forked.store(true, std::memory_order_relaxed);
  state->ledger.forget_slot();
  session_locks().close();
  stop_recording_in_child();
  start_bridge(state->session, /*content=*/nullptr, /*at_step=*/nullptr);
}

}  // namespace

CUresult initialise() {
  if (driver()) return CUDA_SUCCESS;
  std::lock_guard lock(g_initialise_mutex);
  Driver* existing = g_driver.load(std::memory_order_acquire);
  if (existing) return existing->forked.load() ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS;
  // For tests of the pass-through driver: this driver then plays the real one. It has the card of
  // another session, and the pass-through driver records.
  const char* stand_in = getenv("TONNAGE_STAND_IN_SESSION");
  const char* session_path = stand_in ? stand_in : getenv("TONNAGE_SESSION");
  abi::Session* session = map_session(session_path);
  if (!session) return CUDA_ERROR_NO_DEVICE;
  const std::vector<int> visible = visible_devices(*session);
  if (visible.empty()) return CUDA_ERROR_NO_DEVICE;
  auto state = std::make_unique<Driver>();
  if (!session_locks().open(session_path)) return CUDA_ERROR_OPERATING_SYSTEM;
  // First: what the ledger finds out about others is recorded.
  if (!stand_in) start_recording(*session, visible);
  if (!state->ledger.attach(session, new SessionWatch, getpid()))
    return CUDA_ERROR_OPERATING_SYSTEM;
  if (!stand_in) record_slot(state->ledger.identity());
  state->session = session;
  state->pid = getpid();
  for (int physical : visible) {
    state->devices.push_back(std::make_unique<Device>(static_cast<int>(state->devices.size()),
                                                      physical, &session->devices[physical],
                                                      &state->addresses));
  }
  pthread_atfork(nullptr, nullptr, in_forked_child);
  if (!stand_in) {
    start_bridge(session, &state->content, record_kernel_counts);
    atexit(record_kernel_counts);
  }
  g_driver.store(state.release(), std::memory_order_release);
  lay_out_host_at_init();
  load_recorder();
  return CUDA_SUCCESS;
}

// --- Devices ---

namespace {

uint64_t threads_of(const abi::CardDesc& card) {
  return static_cast<uint64_t>(card.attributes[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT]) *
         static_cast<uint64_t>(card.attributes[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR]);
}

}  // namespace

Device::Device(int index_in_process, int index_in_session, const abi::CardDesc* description,
               gpu::AddressSpace* address_space)
    : index(index_in_process),
      physical(index_in_session),
      card(description),
      addresses(address_space),
      small_memory(this, address_space),
      footprint(this, address_space, threads_of(*description)),
      graph_memory(this, address_space) {}

// --- Handles ---

Context* to_context(CUcontext handle) {
  auto* context = reinterpret_cast<Context*>(handle);
  return context && context->magic == kContextMagic ? context : nullptr;
}
CUcontext to_handle(Context* context) { return reinterpret_cast<CUcontext>(context); }
CUstream to_handle(Stream* stream) { return reinterpret_cast<CUstream>(stream); }

Event* to_event(CUevent handle) {
  auto* event = reinterpret_cast<Event*>(handle);
  return event && event->magic == kEventMagic ? event : nullptr;
}

Stream* to_stream(CUstream handle, Context* context) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY)
    return context ? &context->legacy_stream : nullptr;
  if (handle == CU_STREAM_PER_THREAD) {
    // One per thread and context; kept for the life of the thread's context.
    // (Without a destructor, as all of a thread's state here: exit handlers of other libraries
    // still use it.)
    thread_local auto* own = new std::unordered_map<Context*, Stream*>;
    Stream*& stream = (*own)[context];
    if (!stream) {
      stream = new Stream;
      stream->context = context;
      stream->id = driver()->new_id();
      stream->flags = CU_STREAM_NON_BLOCKING;
    }
    return stream;
  }
  auto* stream = reinterpret_cast<Stream*>(handle);
  return stream->magic == kStreamMagic ? stream : nullptr;
}

// --- Device memory ---

bool Device::try_charge(uint64_t bytes) { return driver()->ledger.charge(physical, bytes); }

bool Device::charge(uint64_t bytes, const char* asker) {
  if (try_charge(bytes)) return true;
  // Managed memory gives way.
  if (driver()->managed.make_room(this, bytes) && try_charge(bytes)) return true;
  record_device_oom(index, bytes, free_bytes(), asker);
  return false;
}

void Device::refund(uint64_t bytes) { driver()->ledger.refund(physical, bytes); }

uint64_t Device::free_bytes() { return driver()->ledger.free(physical); }

void Device::tell_of_alloc(uint64_t address, uint64_t bytes, abi::DeviceMemoryKind kind) {
  record_device_alloc(index, address, bytes, kind);
}

void Device::tell_of_free(uint64_t address, uint64_t bytes, abi::DeviceMemoryKind kind) {
  record_device_free(index, address, bytes, kind);
}

namespace {

// Who is refused, as the record names it.
const char* asker_for(abi::DriverMemory what) {
  switch (what) {
    case abi::DriverMemory::kLocalMemory: return "local_memory";
    case abi::DriverMemory::kStreams: return "streams";
    case abi::DriverMemory::kGraphs: return "graph";
    default: return "code";
  }
}

}  // namespace

bool Device::charge_driver(uint64_t bytes, abi::DriverMemory what, std::string_view name) {
  if (!charge(bytes, asker_for(what))) return false;
  driver_bytes.fetch_add(bytes);
  record_driver_memory(index, bytes, what, name);
  return true;
}

CUresult allocate_device_memory(Device* device, Context* context, uint64_t bytes,
                                abi::DeviceMemoryKind kind, CUdeviceptr* out) {
  Driver* state = driver();
  *out = 0;
  load_recorder();
  if (bytes == 0 || bytes > (1ull << 50))
    return bytes ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
  const uint64_t accounted = gpu::round_up(bytes, gpu::kAllocationGranularity);
  if (!device->charge(accounted)) return CUDA_ERROR_OUT_OF_MEMORY;
  Allocation allocation;
  {
    std::lock_guard lock(state->memory_mutex);
    allocation.address = device->addresses->allocate(accounted);
    if (allocation.address) {
      allocation.requested_bytes = bytes;
      allocation.accounted_bytes = accounted;
      allocation.kind = kind;
      allocation.context = context;
      allocation.device = device;
      allocation.buffer_id = state->new_id();
      state->allocations.emplace(allocation.address, allocation);
    }
  }
  if (!allocation.address) {
    device->refund(accounted);
    record_host_refusal(accounted);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *out = allocation.address;
  record_device_alloc(device->index, allocation.address, accounted, kind);
  return CUDA_SUCCESS;
}

CUresult free_device_memory(CUdeviceptr address) {
  Driver* state = driver();
  Allocation allocation;
  {
    std::lock_guard lock(state->memory_mutex);
    auto it = state->allocations.find(address);
    if (it == state->allocations.end() || !it->second.device || it->second.owned_elsewhere)
      return CUDA_ERROR_INVALID_VALUE;
    allocation = it->second;
    state->allocations.erase(it);
  }
  // Told before anybody, here or in another process, can have the memory or the address.
  state->content.forget(address, std::max(allocation.requested_bytes, allocation.accounted_bytes));
  record_device_free(allocation.device->index, address, allocation.accounted_bytes,
                     allocation.kind);
  if (allocation.accounted_bytes && !allocation.host) {
    std::lock_guard lock(state->memory_mutex);
    allocation.device->addresses->release(address);
  }
  if (allocation.accounted_bytes) allocation.device->refund(allocation.accounted_bytes);
  return CUDA_SUCCESS;
}

bool find_allocation(uint64_t address, Allocation* out) {
  Driver* state = driver();
  std::lock_guard lock(state->memory_mutex);
  auto it = state->allocations.upper_bound(address);
  if (it == state->allocations.begin()) return false;
  --it;
  if (address >= it->first + std::max<uint64_t>(it->second.requested_bytes, 1)) return false;
  *out = it->second;
  return true;
}

void add_allocation(const Allocation& allocation) {
  Driver* state = driver();
  std::lock_guard lock(state->memory_mutex);
  state->allocations[allocation.address] = allocation;
}

bool remove_allocation(uint64_t address, Allocation* out) {
  Driver* state = driver();
  std::lock_guard lock(state->memory_mutex);
  auto it = state->allocations.find(address);
  if (it == state->allocations.end()) return false;
  *out = it->second;
  state->allocations.erase(it);
  return true;
}

}  // namespace tonnage::driver
