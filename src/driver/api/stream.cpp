// Streams and events. Work is done at once, so nothing is ever pending; time is virtual (state.h).
#include <string.h>

#include "driver/api/memory_pools.h"
#include "driver/entry_points.h"
#include "driver/graphs/graph.h"
#include "driver/recording.h"
#include "driver/state.h"
#include "gpu/clock.h"

namespace tonnage::driver {

CUresult cuStreamCreateWithPriority(Context* context, CUstream* out, unsigned int flags,
                                    int priority) {
  if (!out || (flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)))
    return CUDA_ERROR_INVALID_VALUE;
  if (!context->device->footprint.charge_stream()) return CUDA_ERROR_OUT_OF_MEMORY;
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
  *out = to_handle(stream);
  return CUDA_SUCCESS;
}
CUresult cuStreamCreate(Context* context, CUstream* out, unsigned int flags) {
  return cuStreamCreateWithPriority(context, out, flags, 0);
}

CUresult cuStreamDestroy_v2(Driver* state, CUstream handle) {
  if (!handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD)
    return CUDA_ERROR_INVALID_HANDLE;
  auto* stream = reinterpret_cast<Stream*>(handle);
  if (stream->magic != kStreamMagic) return CUDA_ERROR_INVALID_HANDLE;
  capture_stream_destroyed(stream);
  stream->context->device->footprint.refund_stream();
  std::lock_guard lock(state->objects_mutex);
  stream->context->streams.erase(stream);
  stream->magic = 0;
  delete stream;
  return CUDA_SUCCESS;
}
CUresult cuStreamDestroy(Driver* state, CUstream handle) {
  return cuStreamDestroy_v2(state, handle);
}

CUresult cuStreamGetPriority(Stream* stream, int* priority) {
  if (!priority) return CUDA_ERROR_INVALID_VALUE;
  *priority = stream->priority;
  return CUDA_SUCCESS;
}
CUresult cuStreamGetFlags(Stream* stream, unsigned int* flags) {
  if (!flags) return CUDA_ERROR_INVALID_VALUE;
  *flags = stream->flags;
  return CUDA_SUCCESS;
}
CUresult cuStreamGetId(Stream* stream, unsigned long long* id) {
  if (!id) return CUDA_ERROR_INVALID_VALUE;
  *id = stream->id;
  return CUDA_SUCCESS;
}
CUresult cuStreamGetCtx(Stream* stream, CUcontext* out) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = to_handle(stream->context);
  return CUDA_SUCCESS;
}
CUresult cuStreamGetCtx_v2(Stream* stream, CUcontext* out, CUgreenCtx* green) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = to_handle(stream->context);
  if (green) *green = nullptr;
  return CUDA_SUCCESS;
}
CUresult cuStreamGetDevice(Stream* stream, CUdevice* device) {
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  *device = stream->context->device->index;
  return CUDA_SUCCESS;
}
CUresult cuStreamQuery(Stream* stream) { return capture_refuse_wait(stream); }
CUresult cuStreamSynchronize(Stream* stream) {
  if (const CUresult result = capture_refuse_wait(stream); result != CUDA_SUCCESS) return result;
  trim_pools_at_synchronise(stream->context);
  return CUDA_SUCCESS;
}
CUresult cuStreamAttachMemAsync(Stream*, CUdeviceptr, size_t, unsigned int) { return CUDA_SUCCESS; }
CUresult cuStreamCopyAttributes(Stream* target, CUstream from) {
  Stream* source = to_stream(from, target->context);
  if (!source) return CUDA_ERROR_INVALID_HANDLE;
  return CUDA_SUCCESS;
}
CUresult cuStreamGetAttribute(Stream* stream, CUstreamAttrID attribute, CUstreamAttrValue* value) {
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  memset(value, 0, sizeof *value);
  if (attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY) value->priority = stream->priority;
  if (attribute == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY)
    value->syncPolicy = CU_SYNC_POLICY_AUTO;
  return CUDA_SUCCESS;
}
CUresult cuStreamSetAttribute(Stream* stream, CUstreamAttrID attribute,
                              const CUstreamAttrValue* value) {
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  if (attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY) stream->priority = value->priority;
  return CUDA_SUCCESS;
}

CUresult cuStreamAddCallback(Context* context, CUstream handle, CUstreamCallback callback,
                             void* data, unsigned int flags) {
  Stream* stream = to_stream(handle, context);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (!callback || flags) return CUDA_ERROR_INVALID_VALUE;
  bool capturing = false;
  if (const CUresult result = capture_state(stream, &capturing); result != CUDA_SUCCESS)
    return result;
  if (capturing) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  callback(handle, CUDA_SUCCESS, data);
  return CUDA_SUCCESS;
}
CUresult cuLaunchHostFunc(Stream* stream, CUhostFn function, void* data) {
  if (!function) return CUDA_ERROR_INVALID_VALUE;
  bool capturing = false;
  if (const CUresult result = capture_state(stream, &capturing); result != CUDA_SUCCESS)
    return result;
  if (capturing) return capture_host(stream, function, data);
  advance(stream);
  function(data);
  return CUDA_SUCCESS;
}

// Memory operations on streams: writes take effect (they are small and exact), waits succeed at
// once, because work is done at once. A wait for a value that is never written cannot be
// recognised.
namespace {
CUresult write_value(Stream* stream, CUdeviceptr address, const void* value, size_t n) {
  advance(stream);
  Allocation allocation;
  if (!find_allocation(address, &allocation)) return CUDA_ERROR_INVALID_VALUE;
  if (allocation.host)
    memcpy(static_cast<char*>(allocation.host) + (address - allocation.address), value, n);
  else
    driver()->content.set(address, value, n);
  return CUDA_SUCCESS;
}
CUresult wait_value(Stream* stream) {
  advance(stream);
  return CUDA_SUCCESS;
}
}  // namespace
CUresult cuStreamWriteValue32_v2(Stream* stream, CUdeviceptr address, cuuint32_t value,
                                 unsigned int) {
  return write_value(stream, address, &value, 4);
}
CUresult cuStreamWriteValue64_v2(Stream* stream, CUdeviceptr address, cuuint64_t value,
                                 unsigned int) {
  return write_value(stream, address, &value, 8);
}
CUresult cuStreamWriteValue32(Stream* stream, CUdeviceptr address, cuuint32_t value, unsigned int) {
  return write_value(stream, address, &value, 4);
}
CUresult cuStreamWriteValue64(Stream* stream, CUdeviceptr address, cuuint64_t value, unsigned int) {
  return write_value(stream, address, &value, 8);
}
CUresult cuStreamWaitValue32_v2(Stream* stream, CUdeviceptr, cuuint32_t, unsigned int) {
  return wait_value(stream);
}
CUresult cuStreamWaitValue64_v2(Stream* stream, CUdeviceptr, cuuint64_t, unsigned int) {
  return wait_value(stream);
}
CUresult cuStreamWaitValue32(Stream* stream, CUdeviceptr, cuuint32_t, unsigned int) {
  return wait_value(stream);
}
CUresult cuStreamWaitValue64(Stream* stream, CUdeviceptr, cuuint64_t, unsigned int) {
  return wait_value(stream);
}
CUresult cuStreamBatchMemOp_v2(Stream* stream, unsigned int count,
                               CUstreamBatchMemOpParams* operations, unsigned int flags) {
  if (count && !operations) return CUDA_ERROR_INVALID_VALUE;
  bool capturing = false;
  if (const CUresult result = capture_state(stream, &capturing); result != CUDA_SUCCESS)
    return result;
  if (capturing) return capture_batch_mem_op(stream, count, operations, flags);
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
CUresult cuStreamBatchMemOp(Stream* stream, unsigned int count,
                            CUstreamBatchMemOpParams* operations, unsigned int flags) {
  return cuStreamBatchMemOp_v2(stream, count, operations, flags);
}

// --- Events ---

CUresult cuEventCreate(Context* context, CUevent* out, unsigned int flags) {
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

CUresult cuEventDestroy_v2(Driver* state, CUevent handle) {
  Event* event = to_event(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  std::lock_guard lock(state->objects_mutex);
  event->context->events.erase(event);
  event->magic = 0;
  delete event;
  return CUDA_SUCCESS;
}
CUresult cuEventDestroy(Driver* state, CUevent handle) { return cuEventDestroy_v2(state, handle); }

CUresult cuEventRecordWithFlags(CUevent handle, Stream* stream, unsigned int flags) {
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
CUresult cuEventRecord(CUevent event, Stream* stream) {
  return cuEventRecordWithFlags(event, stream, 0);
}

CUresult cuStreamWaitEvent(Stream* stream, CUevent handle, unsigned int flags) {
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

CUresult cuEventQuery(Driver*, CUevent handle) {
  Event* event = to_event(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  return capture_refuse_event(event);
}
CUresult cuEventSynchronize(Driver*, CUevent handle) {
  Event* event = to_event(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult result = capture_refuse_event(event); result != CUDA_SUCCESS) return result;
  trim_pools_at_synchronise(event->context);
  return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime_v2(Driver*, float* milliseconds, CUevent start_handle,
                               CUevent end_handle) {
  Event* start = to_event(start_handle);
  Event* end = to_event(end_handle);
  if (!start || !end) return CUDA_ERROR_INVALID_HANDLE;
  if (!milliseconds) return CUDA_ERROR_INVALID_VALUE;
  if ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_HANDLE;
  if (!start->recorded.load() || !end->recorded.load()) return CUDA_ERROR_INVALID_HANDLE;
  *milliseconds = gpu::shown_milliseconds(start->ticks.load(), end->ticks.load());
  return CUDA_SUCCESS;
}
CUresult cuEventElapsedTime(Driver* state, float* milliseconds, CUevent start, CUevent end) {
  return cuEventElapsedTime_v2(state, milliseconds, start, end);
}
CUresult cuCtxRecordEvent(Driver*, CUcontext handle, CUevent event) {
  Context* context = to_context(handle);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  return cuEventRecord(event, &context->legacy_stream);
}
CUresult cuCtxWaitEvent(Driver*, CUcontext handle, CUevent event) {
  Context* context = to_context(handle);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  return cuStreamWaitEvent(&context->legacy_stream, event, 0);
}

}  // namespace tonnage::driver
