// Memory and events opened from other processes of the session, and access between devices.
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "driver/entry_points.h"
#include "driver/graphs/graph.h"
#include "driver/recording.h"
#include "driver/reserved_ranges.h"
#include "driver/shared_block.h"

namespace tonnage::driver {
namespace {

// What a 64-byte handle holds.
struct MemoryTicket {
  static constexpr uint32_t kMagic = 0x4d495654;  // "TVIM"
  uint32_t magic;
  int32_t pid;
  uint64_t session_start_ns;
  int32_t physical;
  int32_t reserved;
  uint64_t address, bytes,
      buffer_id;  // the buffer's number: a new allocation at the same address has another handle
};
struct EventTicket {
  static constexpr uint32_t kMagic = 0x45495654;  // "TVIE"
  uint32_t magic;
  int32_t pid;
  uint64_t session_start_ns;
  uint64_t event;
};
static_assert(sizeof(MemoryTicket) <= sizeof(CUipcMemHandle) &&
              sizeof(EventTicket) <= sizeof(CUipcEventHandle));

struct Opened {
  uint64_t address = 0;
  Context* context = nullptr;
  MemoryTicket ticket = {};
  int references = 0;
};
struct Table {
  std::mutex mutex;  // before memory_mutex
  std::vector<Opened> opened;
};
Table& table() {
  static Table* instance = new Table;
  return *instance;
}

bool process_lives(int32_t pid) { return pid > 0 && (kill(pid, 0) == 0 || errno == EPERM); }

// Consumer cards cannot access each other's memory. The cards that can are those that also support
// GPUDirect RDMA.
bool reaches_peers(const Device* device) {
  return !device->card->is_mig &&
         device->card->attributes[CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED] != 0;
}

bool peers(const Device* a, const Device* b) {
  return a->physical != b->physical && reaches_peers(a) && reaches_peers(b) &&
         a->card->cc_major == b->card->cc_major;
}

// Atomics are native over NVLink, which the cards with HBM (a bus of 4096 bits and more) have; over
// PCIe they are not.
bool native_atomics(const Device* a, const Device* b) {
  const auto wide = [](const Device* device) {
    return device->card->attributes[CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH] >= 4096;
  };
  return peers(a, b) && wide(a) && wide(b);
}

}  // namespace

CUresult cuIpcGetMemHandle(Context*, CUipcMemHandle* out, CUdeviceptr address) {
  Allocation allocation;
  if (!out || !find_allocation(address, &allocation)) return CUDA_ERROR_INVALID_VALUE;
  // Only memory of cuMemAlloc; the others have ways of their own.
  if (!allocation.device || allocation.host || allocation.owned_elsewhere ||
      (allocation.kind != tonnage::abi::DeviceMemoryKind::kPlain &&
       allocation.kind != tonnage::abi::DeviceMemoryKind::kPitched))
    return CUDA_ERROR_INVALID_VALUE;
  const MemoryTicket ticket = {MemoryTicket::kMagic,
                               getpid(),
                               driver()->session->start_ns,
                               allocation.device->physical,
                               0,
                               allocation.address,
                               allocation.requested_bytes,
                               allocation.buffer_id};
  memset(out, 0, sizeof *out);
  memcpy(out->reserved, &ticket, sizeof ticket);
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(Context* context, CUdeviceptr* out, CUipcMemHandle handle,
                               unsigned int flags) {
  if (!out || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
  MemoryTicket ticket;
  memcpy(&ticket, handle.reserved, sizeof ticket);
  if (ticket.magic != MemoryTicket::kMagic ||
      ticket.session_start_ns != driver()->session->start_ns || ticket.bytes == 0 ||
      ticket.bytes > (1ull << 50))
    return CUDA_ERROR_INVALID_VALUE;
  if (ticket.pid == getpid())
    return CUDA_ERROR_INVALID_CONTEXT;  // a process cannot open its own memory
  if (!process_lives(ticket.pid)) return CUDA_ERROR_INVALID_VALUE;
  Device* owner = device_at(ticket.physical);
  if (!owner) return CUDA_ERROR_INVALID_DEVICE;
  if (owner != context->device && !peers(owner, context->device))
    return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  std::lock_guard lock(table().mutex);
  for (Opened& opened : table().opened) {
    if (opened.context != context || memcmp(&opened.ticket, &ticket, sizeof ticket) != 0) continue;
    opened.references++;
    *out = opened.address;
    return CUDA_SUCCESS;
  }
  const uint64_t address = reserve_range(gpu::round_up(ticket.bytes, gpu::kAllocationGranularity));
  if (!address) return CUDA_ERROR_OUT_OF_MEMORY;
  Allocation allocation;
  allocation.address = address;
  allocation.requested_bytes = ticket.bytes;
  allocation.kind = tonnage::abi::DeviceMemoryKind::kIpc;
  allocation.context = context;
  allocation.device = owner;
  allocation.buffer_id = driver()->new_id();
  allocation.owned_elsewhere = true;
  add_allocation(allocation);
  table().opened.push_back({address, context, ticket, 1});
  record_device_alloc(owner->index, address, 0, allocation.kind);
  *out = address;
  return CUDA_SUCCESS;
}
CUresult cuIpcOpenMemHandle(Context* context, CUdeviceptr* out, CUipcMemHandle handle,
                            unsigned int flags) {
  return cuIpcOpenMemHandle_v2(context, out, handle, flags);
}

CUresult cuIpcCloseMemHandle(Driver* state, CUdeviceptr address) {
  std::lock_guard lock(table().mutex);
  auto& opened = table().opened;
  for (size_t i = 0; i < opened.size(); i++) {
    if (opened[i].address != address) continue;
    if (--opened[i].references > 0) return CUDA_SUCCESS;
    const uint64_t bytes = opened[i].ticket.bytes;
    Allocation removed;
    if (remove_allocation(address, &removed))
      record_device_free(removed.device->index, address, 0, removed.kind);
    state->content.forget(address, bytes);
    release_range(address);
    opened.erase(opened.begin() + static_cast<long>(i));
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuIpcGetEventHandle(Driver* state, CUipcEventHandle* out, CUevent handle) {
  if (!out || !handle) return CUDA_ERROR_INVALID_VALUE;
  Event* event = to_event(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if (!(event->flags & CU_EVENT_INTERPROCESS)) return CUDA_ERROR_INVALID_HANDLE;
  const EventTicket ticket = {EventTicket::kMagic, getpid(), state->session->start_ns,
                              reinterpret_cast<uint64_t>(event)};
  memset(out, 0, sizeof *out);
  memcpy(out->reserved, &ticket, sizeof ticket);
  return CUDA_SUCCESS;
}

// The opened event is complete: in every process, work is done at once.
CUresult cuIpcOpenEventHandle(Context* context, CUevent* out, CUipcEventHandle handle) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  EventTicket ticket;
  memcpy(&ticket, handle.reserved, sizeof ticket);
  if (ticket.magic != EventTicket::kMagic || ticket.session_start_ns != driver()->session->start_ns)
    return CUDA_ERROR_INVALID_VALUE;
  if (ticket.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
  if (!process_lives(ticket.pid)) return CUDA_ERROR_INVALID_VALUE;
  auto* event = new Event;
  event->context = context;
  event->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
  std::lock_guard lock(driver()->objects_mutex);
  context->events.insert(event);
  *out = reinterpret_cast<CUevent>(event);
  return CUDA_SUCCESS;
}

// --- Access between devices ---

CUresult cuDeviceCanAccessPeer(Driver* state, int* out, CUdevice handle, CUdevice peer_handle) {
  const Device *device = state->device(handle), *peer = state->device(peer_handle);
  if (!device || !peer) return CUDA_ERROR_INVALID_DEVICE;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = peers(device, peer);
  return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(Context* context, CUcontext handle, unsigned int flags) {
  Context* peer = to_context(handle);
  if (!peer || peer == context || !peer->alive.load()) return CUDA_ERROR_INVALID_CONTEXT;
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  if (!peers(context->device, peer->device)) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  std::lock_guard lock(driver()->objects_mutex);
  return context->peers.insert(peer).second ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

CUresult cuCtxDisablePeerAccess(Context* context, CUcontext handle) {
  Context* peer = to_context(handle);
  if (!peer) return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard lock(driver()->objects_mutex);
  return context->peers.erase(peer) ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}

CUresult cuDeviceGetP2PAttribute(Driver* state, int* value, CUdevice_P2PAttribute attribute,
                                 CUdevice from_handle, CUdevice to_handle) {
  const Device *from = state->device(from_handle), *to = state->device(to_handle);
  if (!from || !to || from == to) return CUDA_ERROR_INVALID_DEVICE;
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  const bool can = peers(from, to);
  switch (attribute) {
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK: *value = 0; break;  // all links are alike
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED: *value = can; break;
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED: *value = native_atomics(from, to); break;
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED: *value = can; break;
    case CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED: *value = 0; break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAtomicCapabilities(Driver* state, unsigned int* capabilities,
                                          const CUatomicOperation* operations, unsigned int count,
                                          CUdevice from_handle, CUdevice to_handle) {
  const Device *from = state->device(from_handle), *to = state->device(to_handle);
  if (!from || !to || from == to) return CUDA_ERROR_INVALID_DEVICE;
  if (!capabilities || !operations || count == 0) return CUDA_ERROR_INVALID_VALUE;
  const bool native = native_atomics(from, to);
  for (unsigned i = 0; i < count; i++) {
    if (operations[i] < CU_ATOMIC_OPERATION_INTEGER_ADD || operations[i] >= CU_ATOMIC_OPERATION_MAX)
      return CUDA_ERROR_INVALID_VALUE;
    capabilities[i] = native ? CU_ATOMIC_CAPABILITY_SIGNED | CU_ATOMIC_CAPABILITY_UNSIGNED |
                                   CU_ATOMIC_CAPABILITY_SCALAR_32 | CU_ATOMIC_CAPABILITY_SCALAR_64
                             : 0;
  }
  return CUDA_SUCCESS;
}

}  // namespace tonnage::driver
