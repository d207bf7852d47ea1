// Contexts: the primary one of each device, others, and each thread's stack of current ones.
#include <vector>

#include "driver/api/memory.h"
#include "driver/api/memory_pools.h"
#include "driver/entry_points.h"
#include "driver/graphs/graph.h"
#include "driver/host_layout.h"
#include "driver/recorder_loader.h"
#include "driver/recording.h"
#include "driver/state.h"

namespace tonnage::driver {
namespace {

// A thread's stack of contexts. It has no destructor, because libraries still call the driver from
// their exit handlers, after the main thread's destructors have run. No program nests deeper than
// this.
struct ContextStack {
  static constexpr int kDepth = 256;
  Context* entries[kDepth];
  int size;
  bool empty() const { return size == 0; }
  Context* back() const { return entries[size - 1]; }
  void pop_back() { size--; }
  void push_back(Context* context) {
    if (size == kDepth) size--;  // the top is replaced rather than anything overwritten
    entries[size++] = context;
  }
};
thread_local ContextStack t_stack;

// Flags a context may be made with.
constexpr unsigned kKnownFlags = 0xff;

Context* make_context(Driver* state, Device* device, unsigned flags, bool primary) {
  auto* context = new Context;
  context->device = device;
  context->flags = flags;
  context->primary = primary;
  context->api_version = 3020;  // what a driver 580 says of every context
  context->id = state->new_id();
  context->legacy_stream.context = context;
  context->legacy_stream.id = state->new_id();
  return context;
}

// What the driver holds after a device's first context was made: addresses of the host and of the
// card (their memory is part of CardDesc::context_bytes).
void prepare_context_memory(Driver* state, Device* device) {
  static std::mutex& mutex = *new std::mutex;
  std::lock_guard lock(mutex);
  if (device->footprint.is_prepared()) return;
  const bool first = state->addresses.contexts() == 0;
  lay_out_host_at_context(first ? &state->high_regions : nullptr);
  if (!first) state->addresses.prepare_further_context();
  device->footprint.prepare_context();
}

// A context takes memory of the card before anything is allocated. If the card is nearly full, it
// fails as on a real card.
bool charge_context(Driver* state, Context* context) {
  Device* device = context->device;
  const uint64_t bytes = device->card->context_bytes;
  if (!device->charge(bytes, "context")) return false;
  context->charged = true;
  prepare_context_memory(state, device);
  record_context(device->index, bytes);
  return true;
}

}  // namespace

// The primary context's object. Its handle is known before the context is made: the CUDA runtime
// asks for it when it starts. This must not make a context, or the host's address space would
// differ from that of a real machine.
Context* primary_context_object(Driver* state, Device* device) {
  std::lock_guard lock(state->objects_mutex);
  if (!device->primary) {
    device->primary = make_context(state, device, device->primary_flags, true);
    device->primary->alive.store(false);
  }
  return device->primary;
}

Context* current_context() { return t_stack.empty() ? nullptr : t_stack.back(); }

void set_current(Context* context) {
  if (!t_stack.empty()) t_stack.pop_back();
  if (context) t_stack.push_back(context);
}

// Frees what belongs to a context: allocations, streams, events. Its object stays, marked as dead,
// because the program may still have handles.
void tear_down(Driver* state, Context* context) {
  std::vector<Allocation> left;
  {
    std::lock_guard lock(state->memory_mutex);
    for (auto& [address, allocation] : state->allocations)
      if (allocation.context == context && allocation.device && !allocation.owned_elsewhere)
        left.push_back(allocation);
  }
  for (const Allocation& allocation : left) free_allocation(allocation);
  context->alive.store(false);
  drop_context_storage(to_handle(context));
  const uint64_t bytes = (context->charged ? context->device->card->context_bytes : 0) +
                         context->device->driver_bytes.exchange(0);
  context->charged = false;
  if (bytes == 0) return;
  record_context_end(context->device->index, bytes);
  context->device->refund(bytes);
}

CUresult cuDevicePrimaryCtxRetain(Driver* state, CUcontext* out, Device* device) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  load_recorder();
  Context* context = primary_context_object(state, device);
  std::lock_guard lock(state->objects_mutex);
  if (!context->alive.load()) {
    context->flags = device->primary_flags;
    context->limits.clear();
    context->peers.clear();
    if (!charge_context(state, context)) return CUDA_ERROR_OUT_OF_MEMORY;
    context->alive.store(true);
    device->primary_refs = 0;
  }
  device->primary_refs++;
  *out = to_handle(context);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(Driver* state, Device* device) {
  Context* dying = nullptr;
  {
    std::lock_guard lock(state->objects_mutex);
    if (!device->primary || device->primary_refs == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--device->primary_refs == 0) dying = device->primary;
  }
  if (dying) tear_down(state, dying);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(Device* handle) {
  return cuDevicePrimaryCtxRelease_v2(driver(), handle);
}

CUresult cuDevicePrimaryCtxSetFlags_v2(Device* device, unsigned int flags) {
  if (flags & ~kKnownFlags) return CUDA_ERROR_INVALID_VALUE;
  device->primary_flags = flags;
  if (device->primary) device->primary->flags = flags;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxSetFlags(Device* handle, unsigned int flags) {
  return cuDevicePrimaryCtxSetFlags_v2(handle, flags);
}

CUresult cuDevicePrimaryCtxGetState(Driver* state, Device* device, unsigned int* flags,
                                    int* active) {
  if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(state->objects_mutex);
  *flags = device->primary_flags;
  *active = device->primary && device->primary->alive.load() ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset_v2(Driver* state, Device* device) {
  Context* dying = nullptr;
  {
    std::lock_guard lock(state->objects_mutex);
    dying = device->primary;
    device->primary_refs = 0;
  }
  if (dying && dying->alive.load()) tear_down(state, dying);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxReset(Device* handle) {
  return cuDevicePrimaryCtxReset_v2(driver(), handle);
}

CUresult cuCtxCreate_v2(Driver* state, CUcontext* out, unsigned int flags, Device* device) {
  if (!out || (flags & ~kKnownFlags)) return CUDA_ERROR_INVALID_VALUE;
  Context* context = make_context(state, device, flags, false);
  if (!charge_context(state, context)) {
    delete context;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  t_stack.push_back(context);
  *out = to_handle(context);
  return CUDA_SUCCESS;
}
CUresult cuCtxCreate(CUcontext* out, unsigned int flags, Device* handle) {
  return cuCtxCreate_v2(driver(), out, flags, handle);
}
CUresult cuCtxCreate_v3(CUcontext* out, CUexecAffinityParam*, int, unsigned int flags,
                        Device* handle) {
  return cuCtxCreate_v2(driver(), out, flags, handle);
}
CUresult cuCtxCreate_v4(CUcontext* out, CUctxCreateParams*, unsigned int flags, Device* handle) {
  return cuCtxCreate_v2(driver(), out, flags, handle);
}

CUresult cuCtxDestroy_v2(Driver* state, CUcontext handle) {
  Context* context = to_context(handle);
  if (!context || context->primary || !context->alive.load()) return CUDA_ERROR_INVALID_CONTEXT;
  if (current_context() == context) set_current(nullptr);
  tear_down(state, context);
  return CUDA_SUCCESS;
}
CUresult cuCtxDestroy(Driver* state, CUcontext handle) { return cuCtxDestroy_v2(state, handle); }
CUresult cuCtxAttach(Context* context, CUcontext* out, unsigned int flags) {
  if (!out || flags) return CUDA_ERROR_INVALID_VALUE;
  *out = to_handle(context);
  return CUDA_SUCCESS;
}
CUresult cuCtxDetach(Driver* state, CUcontext handle) { return cuCtxDestroy_v2(state, handle); }

CUresult cuCtxPushCurrent_v2(Driver*, CUcontext handle) {
  Context* context = to_context(handle);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  t_stack.push_back(context);
  return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent(Driver* state, CUcontext handle) {
  return cuCtxPushCurrent_v2(state, handle);
}

CUresult cuCtxPopCurrent_v2(Driver*, CUcontext* out) {
  if (t_stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (out) *out = to_handle(t_stack.back());
  t_stack.pop_back();
  return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent(Driver* state, CUcontext* out) { return cuCtxPopCurrent_v2(state, out); }

CUresult cuCtxSetCurrent(Driver*, CUcontext handle) {
  Context* context = handle ? to_context(handle) : nullptr;
  if (handle && !context) return CUDA_ERROR_INVALID_CONTEXT;
  set_current(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(Driver*, CUcontext* out) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = to_handle(current_context());
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(Context* context, CUdevice* device) {
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  *device = context->device->index;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice_v2(Driver*, CUdevice* device, CUcontext handle) {
  Context* context = handle ? to_context(handle) : current_context();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  *device = context->device->index;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(Context* context, unsigned int* flags) {
  if (!flags) return CUDA_ERROR_INVALID_VALUE;
  *flags = context->flags;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetFlags(Context* context, unsigned int flags) {
  if (flags & ~kKnownFlags) return CUDA_ERROR_INVALID_VALUE;
  context->flags = flags;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetId(Context* current, CUcontext handle, unsigned long long* id) {
  Context* context = handle ? to_context(handle) : current;
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (!id) return CUDA_ERROR_INVALID_VALUE;
  *id = context->id;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetApiVersion(Context* current, CUcontext handle, unsigned int* version) {
  Context* context = handle ? to_context(handle) : current;
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  *version = context->api_version;
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(Context* context) {
  if (const CUresult result = capture_refuse_wait(context); result != CUDA_SUCCESS) return result;
  trim_pools_at_synchronise(context);
  return CUDA_SUCCESS;
}
CUresult cuCtxSynchronize_v2(Driver*, CUcontext handle) {
  Context* context = handle ? to_context(handle) : current_context();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult result = capture_refuse_wait(context); result != CUDA_SUCCESS) return result;
  trim_pools_at_synchronise(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(Context*, int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return CUDA_SUCCESS;
}

// Defaults as a real driver answers (H200, driver 580); the persisting L2 and fetch granularity are
// hints.
CUresult cuCtxGetLimit(Context* context, size_t* value, CUlimit limit) {
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  const auto set = context->limits.find(limit);
  if (set != context->limits.end()) {
    *value = set->second;
    return CUDA_SUCCESS;
  }
  switch (limit) {
    case CU_LIMIT_STACK_SIZE: *value = 1024; break;
    case CU_LIMIT_PRINTF_FIFO_SIZE: *value = 8650752; break;
    case CU_LIMIT_MALLOC_HEAP_SIZE: *value = 8 << 20; break;
    case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH:
      if (context->device->card->cc_major >= 9) return CUDA_ERROR_UNSUPPORTED_LIMIT;
      *value = 2;
      break;
    case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT: *value = 2048; break;
    case CU_LIMIT_MAX_L2_FETCH_GRANULARITY: *value = 64; break;
    case CU_LIMIT_PERSISTING_L2_CACHE_SIZE:
      *value =
          static_cast<size_t>(
              context->device->card->attributes[CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE]) /
          10 * 3;
      break;
    case CU_LIMIT_SHMEM_SIZE:
      *value = static_cast<size_t>(
          context->device->card->attributes[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN]);
      break;
    case CU_LIMIT_CIG_ENABLED: *value = 0; break;
    case CU_LIMIT_CIG_SHMEM_FALLBACK_ENABLED: return CUDA_ERROR_UNSUPPORTED_LIMIT;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}
CUresult cuCtxSetLimit(Context* context, CUlimit limit, size_t value) {
  size_t old = 0;
  if (const CUresult result = cuCtxGetLimit(context, &old, limit); result != CUDA_SUCCESS)
    return result;
  if (limit == CU_LIMIT_PERSISTING_L2_CACHE_SIZE) {
    const auto most = static_cast<size_t>(
        context->device->card->attributes[CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE]);
    if (most == 0) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    value = std::min(value, most);
  }
  context->limits[limit] = value;
  return CUDA_SUCCESS;
}
CUresult cuCtxResetPersistingL2Cache(Context*) { return CUDA_SUCCESS; }
CUresult cuCtxGetCacheConfig(Context* context, CUfunc_cache* config) {
  if (!config) return CUDA_ERROR_INVALID_VALUE;
  *config = context->cache_config;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCacheConfig(Context* context, CUfunc_cache config) {
  context->cache_config = config;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetSharedMemConfig(Context* context, CUsharedconfig* config) {
  if (!config) return CUDA_ERROR_INVALID_VALUE;
  *config = context->shared_config;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetSharedMemConfig(Context* context, CUsharedconfig config) {
  context->shared_config = config;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetExecAffinity(Context* context, CUexecAffinityParam* affinity,
                              CUexecAffinityType type) {
  if (!affinity) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_EXEC_AFFINITY_TYPE_SM_COUNT) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  affinity->type = type;
  affinity->param.smCount.val = static_cast<unsigned>(
      context->device->card->attributes[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT]);
  return CUDA_SUCCESS;
}

}  // namespace tonnage::driver
