// Streams and events. Work is done at once, so nothing is ever pending; time is virtual (state.h).
#include <string.h>

#include "driver/footprint.h"
#include "driver/graphs/graph.h"
#include "driver/recording.h"
#include "driver/state.h"

using namespace tonnage::driver;

#define VGPU_STREAM(name, handle)                      \
  VGPU_CONTEXT(context_of_##name);                     \
  Stream* name = to_stream(handle, context_of_##name); \
  if (!name) return CUDA_ERROR_INVALID_HANDLE

VGPU_API cuStreamCreateWithPriority(CUstream* out, unsigned int flags, int priority) {
  VGPU_CONTEXT(context);
  if (!out || (flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)))
    return CUDA_ERROR_INVALID_VALUE;
  auto* stream = new Stream;
  stream->context = context;
  stream->flags = flags;
  stream->priority = priority < -5 ? -5 : priority > 0 ? 0 : priority;
  Driver* state = driver();
  stream->id = state->new_id();
  {
    std::lock_guard lock(state->objects_mutex);
    context->streams.insert(stream);
  }
  charge_stream(context->device);
  *out = to_handle(stream);
  return CUDA_SUCCESS;
}
VGPU_API cuStreamCreate(CUstream* out, unsigned int flags) {
  return cuStreamCreateWithPriority(out, flags, 0);
}

VGPU_API cuStreamDestroy_v2(CUstream handle) {
  VGPU_DRIVER(state);
  if (!handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD)
    return CUDA_ERROR_INVALID_HANDLE;
  auto* stream = reinterpret_cast<Stream*>(handle);
  if (stream->magic != kStreamMagic) return CUDA_ERROR_INVALID_HANDLE;
  capture_stream_destroyed(stream);
  refund_stream(stream->context->device);
  std::lock_guard lock(state->objects_mutex);
  stream->context->streams.erase(stream);
  stream->magic = 0;
  delete stream;
  return CUDA_SUCCESS;
}
VGPU_API cuStreamDestroy(CUstream handle) { return cuStreamDestroy_v2(handle); }

VGPU_API cuStreamGetPriority(CUstream handle, int* priority) {
  VGPU_STREAM(stream, handle);
  if (!priority) return CUDA_ERROR_INVALID_VALUE;
  *priority = stream->priority;
  return CUDA_SUCCESS;
}
VGPU_API cuStreamGetFlags(CUstream handle, unsigned int* flags) {
  VGPU_STREAM(stream, handle);
  if (!flags) return CUDA_ERROR_INVALID_VALUE;
  *flags = stream->flags;
  return CUDA_SUCCESS;
}
VGPU_API cuStreamGetId(CUstream handle, unsigned long long* id) {
  VGPU_STREAM(stream, handle);
  if (!id) return CUDA_ERROR_INVALID_VALUE;
  *id = stream->id;
  return CUDA_SUCCESS;
}
VGPU_API cuStreamGetCtx(CUstream handle, CUcontext* out) {
  VGPU_STREAM(stream, handle);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = to_handle(stream->context);
  return CUDA_SUCCESS;
}
VGPU_API cuStreamGetCtx_v2(CUstream handle, CUcontext* out, CUgreenCtx* green) {
  VGPU_STREAM(stream, handle);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = to_handle(stream->context);
  if (green) *green = nullptr;
  return CUDA_SUCCESS;
}
VGPU_API cuStreamGetDevice(CUstream handle, CUdevice* device) {
  VGPU_STREAM(stream, handle);
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  *device = stream->context->device->index;
  return CUDA_SUCCESS;
}
VGPU_API cuStreamQuery(CUstream handle) {
  VGPU_STREAM(stream, handle);
  return capture_refuse_wait(stream);
}
VGPU_API cuStreamSynchronize(CUstream handle) {
  VGPU_STREAM(stream, handle);
  if (const CUresult result = capture_refuse_wait(stream); result != CUDA_SUCCESS) return result;
  pools_on_synchronise(stream->context);
  return CUDA_SUCCESS;
}
VGPU_API cuStreamAttachMemAsync(CUstream handle, CUdeviceptr, size_t, unsigned int) {
  VGPU_STREAM(stream, handle);
  (void)stream;
  return CUDA_SUCCESS;
}
VGPU_API cuStreamCopyAttributes(CUstream to, CUstream from) {
  VGPU_STREAM(target, to);
  Stream* source = to_stream(from, context_of_target);
  if (!source) return CUDA_ERROR_INVALID_HANDLE;
  return CUDA_SUCCESS;
}
VGPU_API cuStreamGetAttribute(CUstream handle, CUstreamAttrID attribute, CUstreamAttrValue* value) {
  VGPU_STREAM(stream, handle);
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  memset(value, 0, sizeof *value);
  if (attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY) value->priority = stream->priority;
  if (attribute == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY)
    value->syncPolicy = CU_SYNC_POLICY_AUTO;
  return CUDA_SUCCESS;
}
VGPU_API cuStreamSetAttribute(CUstream handle, CUstreamAttrID attribute,
                              const CUstreamAttrValue* value) {
  VGPU_STREAM(stream, handle);
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  if (attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY) stream->priority = value->priority;
  return CUDA_SUCCESS;
}

VGPU_API cuStreamAddCallback(CUstream handle, CUstreamCallback callback, void* data,
                             unsigned int flags) {
  VGPU_STREAM(stream, handle);
  if (!callback || flags) return CUDA_ERROR_INVALID_VALUE;
  bool capturing = false;
  if (const CUresult result = capture_state(stream, &capturing); result != CUDA_SUCCESS)
    return result;
  if (capturing) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  callback(handle, CUDA_SUCCESS, data);
  return CUDA_SUCCESS;
}
VGPU_API cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
  VGPU_STREAM(stream, handle);
  if (!function) return CUDA_ERROR_INVALID_VALUE;
  bool capturing = false;
  if (const CUresult result = capture_state(stream, &capturing); result != CUDA_SUCCESS)
    return result;
  if (capturing) return capture_host(stream, function, data);
  advance(stream);
  function(data);
  return CUDA_SUCCESS;
}

// Memory operations on streams: writes take effect (they are small and exact), waits are already
// met since work is done at once; a wait on something that nobody will write cannot be told apart
// from one that somebody will.
namespace {
CUresult write_value(CUstream handle, CUdeviceptr address, const void* value, size_t n) {
  VGPU_STREAM(stream, handle);
  advance(stream);
  Allocation allocation;
  if (!find_allocation(address, &allocation)) return CUDA_ERROR_INVALID_VALUE;
  if (allocation.host)
    memcpy(static_cast<char*>(allocation.host) + (address - allocation.address), value, n);
  else
    driver()->content.set(address, value, n);
  return CUDA_SUCCESS;
}
CUresult wait_value(CUstream handle) {
  VGPU_STREAM(stream, handle);
  advance(stream);
  return CUDA_SUCCESS;
}
}  // namespace
VGPU_API cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                 unsigned int) {
  return write_value(stream, address, &value, 4);
}
VGPU_API cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                 unsigned int) {
  return write_value(stream, address, &value, 8);
}
VGPU_API cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                              unsigned int) {
  return write_value(stream, address, &value, 4);
}
VGPU_API cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
                              unsigned int) {
  return write_value(stream, address, &value, 8);
}
VGPU_API cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr, cuuint32_t, unsigned int) {
  return wait_value(stream);
}
VGPU_API cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr, cuuint64_t, unsigned int) {
  return wait_value(stream);
}
VGPU_API cuStreamWaitValue32(CUstream stream, CUdeviceptr, cuuint32_t, unsigned int) {
  return wait_value(stream);
}
VGPU_API cuStreamWaitValue64(CUstream stream, CUdeviceptr, cuuint64_t, unsigned int) {
  return wait_value(stream);
}
VGPU_API cuStreamBatchMemOp_v2(CUstream stream, unsigned int count,
                               CUstreamBatchMemOpParams* operations, unsigned int flags) {
  if (count && !operations) return CUDA_ERROR_INVALID_VALUE;
  {
    VGPU_STREAM(work, stream);
    bool capturing = false;
    if (const CUresult result = capture_state(work, &capturing); result != CUDA_SUCCESS)
      return result;
    if (capturing) return capture_batch_mem_op(work, count, operations, flags);
  }
  for (unsigned i = 0; i < count; i++) {
    CUresult result = CUDA_SUCCESS;
    const CUstreamBatchMemOpParams& op = operations[i];
    switch (op.operation) {
      case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        result = write_value(stream, op.writeValue.address, &op.writeValue.value, 4);
        break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        result = write_value(stream, op.writeValue.address, &op.writeValue.value64, 8);
        break;
      default: result = wait_value(stream); break;
    }
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}
VGPU_API cuStreamBatchMemOp(CUstream stream, unsigned int count,
                            CUstreamBatchMemOpParams* operations, unsigned int flags) {
  return cuStreamBatchMemOp_v2(stream, count, operations, flags);
}

// --- Events ---

VGPU_API cuEventCreate(CUevent* out, unsigned int flags) {
  VGPU_CONTEXT(context);
  if (!out || (flags & ~7u)) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING))
    return CUDA_ERROR_INVALID_VALUE;
  auto* event = new Event;
  event->context = context;
  event->flags = flags;
  Driver* state = driver();
  std::lock_guard lock(state->objects_mutex);
  context->events.insert(event);
  *out = reinterpret_cast<CUevent>(event);
  return CUDA_SUCCESS;
}

VGPU_API cuEventDestroy_v2(CUevent handle) {
  VGPU_DRIVER(state);
  Event* event = to_event(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  std::lock_guard lock(state->objects_mutex);
  event->context->events.erase(event);
  event->magic = 0;
  delete event;
  return CUDA_SUCCESS;
}
VGPU_API cuEventDestroy(CUevent handle) { return cuEventDestroy_v2(handle); }

VGPU_API cuEventRecordWithFlags(CUevent handle, CUstream stream_handle, unsigned int flags) {
  VGPU_STREAM(stream, stream_handle);
  Event* event = to_event(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if (flags & ~1u) return CUDA_ERROR_INVALID_VALUE;
  bool capturing = false;
  if (const CUresult result = capture_state(stream, &capturing); result != CUDA_SUCCESS)
    return result;
  if (capturing) return capture_event_record(stream, event, flags);
  capture_forget_event(event);
  event->ticks.store(stream->ticks.load(std::memory_order_relaxed), std::memory_order_relaxed);
  event->recorded.store(true, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}
VGPU_API cuEventRecord(CUevent event, CUstream stream) {
  return cuEventRecordWithFlags(event, stream, 0);
}

VGPU_API cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned int flags) {
  VGPU_STREAM(stream, stream_handle);
  Event* event = to_event(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if (flags & ~1u) return CUDA_ERROR_INVALID_VALUE;
  bool handled = false;
  if (const CUresult result = capture_event_wait(stream, event, flags, &handled);
      result != CUDA_SUCCESS || handled)
    return result;
  uint64_t ticks = stream->ticks.load(std::memory_order_relaxed);
  const uint64_t then = event->ticks.load(std::memory_order_relaxed);
  while (ticks < then &&
         !stream->ticks.compare_exchange_weak(ticks, then, std::memory_order_relaxed)) {
  }
  return CUDA_SUCCESS;
}

VGPU_API cuEventQuery(CUevent handle) {
  VGPU_DRIVER(state);
  (void)state;
  Event* event = to_event(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  return capture_refuse_event(event);
}
VGPU_API cuEventSynchronize(CUevent handle) {
  VGPU_DRIVER(state);
  (void)state;
  Event* event = to_event(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult result = capture_refuse_event(event); result != CUDA_SUCCESS) return result;
  pools_on_synchronise(event->context);
  return CUDA_SUCCESS;
}

VGPU_API cuEventElapsedTime_v2(float* milliseconds, CUevent start_handle, CUevent end_handle) {
  VGPU_DRIVER(state);
  (void)state;
  Event* start = to_event(start_handle);
  Event* end = to_event(end_handle);
  if (!start || !end) return CUDA_ERROR_INVALID_HANDLE;
  if (!milliseconds) return CUDA_ERROR_INVALID_VALUE;
  if ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_HANDLE;
  if (!start->recorded.load() || !end->recorded.load()) return CUDA_ERROR_INVALID_HANDLE;
  const int64_t ticks =
      static_cast<int64_t>(end->ticks.load()) - static_cast<int64_t>(start->ticks.load());
  const int64_t unit = static_cast<int64_t>(kTicksPerUnit);
  const int64_t units = ticks > 0 ? (ticks + unit - 1) / unit : ticks / unit;
  *milliseconds = static_cast<float>(static_cast<double>(units) * kMillisecondsPerUnit);
  // An event after another on an idle stream is still a moment later.
  if (units == 0) *milliseconds = 0.002f;
  return CUDA_SUCCESS;
}
VGPU_API cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return cuEventElapsedTime_v2(milliseconds, start, end);
}
VGPU_API cuCtxRecordEvent(CUcontext handle, CUevent event) {
  Context* context = to_context(handle);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  return cuEventRecord(event, nullptr);
}
VGPU_API cuCtxWaitEvent(CUcontext handle, CUevent event) {
  Context* context = to_context(handle);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  return cuStreamWaitEvent(nullptr, event, 0);
}
