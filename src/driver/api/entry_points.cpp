// How a runtime finds the driver's functions, and the few that answer without a device: errors,
// profiler, logs.
#include <string.h>

#include <algorithm>
#include <atomic>
#include <string>

#include "driver/entry_points.h"
#include "driver/proc_table.h"
#include "driver/recording.h"
#include "driver/state.h"

namespace tonnage::driver {

extern "C" __attribute__((visibility("hidden"))) void tonnage_stub_called(const char* function) {
  record_stub_call(function);
}

namespace {

// The newest variant not newer than the version asked for. Null: the symbol is unknown, or (*known)
// all its variants are newer.
void* find_function(const char* symbol, int version, bool per_thread, bool* known) {
  *known = false;
  const ProcEntry* end = kProcTable + kProcTableSize;
  const ProcEntry* entry =
      std::lower_bound(kProcTable, end, symbol,
                       [](const ProcEntry& e, const char* s) { return strcmp(e.symbol, s) < 0; });
  void* plain = nullptr;
  void* own = nullptr;
  for (; entry != end && strcmp(entry->symbol, symbol) == 0; ++entry) {
    *known = true;
    if (entry->since > version) continue;
    (entry->per_thread_stream ? own : plain) = entry->function;
  }
  return per_thread && own ? own : plain;
}

}  // namespace

CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  if (!symbol || !function) return CUDA_ERROR_INVALID_VALUE;
  bool known = false;
  *function = find_function(symbol, version,
                            (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0, &known);
  if (status)
    *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS
              : known   ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                        : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags) {
  // If a runtime older than 12.0 asks for cuGetProcAddress, it means this one, with four arguments.
  return cuGetProcAddress_v2(symbol, function, version, flags, nullptr);
}

namespace {

struct ErrorText {
  CUresult code;
  const char* name;
  const char* text;
};
#define VGPU_ERROR(code, text) \
  { code, #code, text }
const ErrorText kErrors[] = {
    VGPU_ERROR(CUDA_SUCCESS, "no error"),
    VGPU_ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    VGPU_ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    VGPU_ERROR(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    VGPU_ERROR(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    VGPU_ERROR(CUDA_ERROR_PROFILER_DISABLED,
               "profiler disabled while using external profiling tool"),
    VGPU_ERROR(CUDA_ERROR_STUB_LIBRARY, "CUDA driver is a stub library"),
    VGPU_ERROR(CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA-capable device(s) is/are busy or unavailable"),
    VGPU_ERROR(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    VGPU_ERROR(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    VGPU_ERROR(CUDA_ERROR_DEVICE_NOT_LICENSED, "device doesn't have valid Grid license"),
    VGPU_ERROR(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    VGPU_ERROR(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    VGPU_ERROR(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed"),
    VGPU_ERROR(CUDA_ERROR_UNMAP_FAILED, "unmapping of buffer object failed"),
    VGPU_ERROR(CUDA_ERROR_ARRAY_IS_MAPPED, "array is mapped"),
    VGPU_ERROR(CUDA_ERROR_ALREADY_MAPPED, "resource already mapped"),
    VGPU_ERROR(CUDA_ERROR_NO_BINARY_FOR_GPU,
               "no kernel image is available for execution on the device"),
    VGPU_ERROR(CUDA_ERROR_ALREADY_ACQUIRED, "resource already acquired"),
    VGPU_ERROR(CUDA_ERROR_NOT_MAPPED, "resource not mapped"),
    VGPU_ERROR(CUDA_ERROR_NOT_MAPPED_AS_ARRAY, "resource not mapped as array"),
    VGPU_ERROR(CUDA_ERROR_NOT_MAPPED_AS_POINTER, "resource not mapped as pointer"),
    VGPU_ERROR(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered"),
    VGPU_ERROR(CUDA_ERROR_UNSUPPORTED_LIMIT, "limit is not supported on this architecture"),
    VGPU_ERROR(CUDA_ERROR_CONTEXT_ALREADY_IN_USE,
               "exclusive-thread device already in use by a different thread"),
    VGPU_ERROR(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
               "peer access is not supported between these two devices"),
    VGPU_ERROR(CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"),
    VGPU_ERROR(CUDA_ERROR_INVALID_GRAPHICS_CONTEXT, "invalid OpenGL or DirectX context"),
    VGPU_ERROR(CUDA_ERROR_NVLINK_UNCORRECTABLE,
               "uncorrectable NVLink error detected during the execution"),
    VGPU_ERROR(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, "PTX JIT compiler library not found"),
    VGPU_ERROR(CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
               "the provided PTX was compiled with an unsupported toolchain."),
    VGPU_ERROR(CUDA_ERROR_JIT_COMPILATION_DISABLED, "PTX JIT compilation was disabled"),
    VGPU_ERROR(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY,
               "the provided execution affinity is not supported"),
    VGPU_ERROR(CUDA_ERROR_INVALID_SOURCE, "device kernel image is invalid"),
    VGPU_ERROR(CUDA_ERROR_FILE_NOT_FOUND, "file not found"),
    VGPU_ERROR(CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, "shared object symbol not found"),
    VGPU_ERROR(CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, "shared object initialization failed"),
    VGPU_ERROR(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS"),
    VGPU_ERROR(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    VGPU_ERROR(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
    VGPU_ERROR(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    VGPU_ERROR(CUDA_ERROR_NOT_READY, "device not ready"),
    VGPU_ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    VGPU_ERROR(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
    VGPU_ERROR(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated"),
    VGPU_ERROR(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
    VGPU_ERROR(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"),
    VGPU_ERROR(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE,
               "cannot set while device is active in this process"),
    VGPU_ERROR(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    VGPU_ERROR(CUDA_ERROR_ASSERT, "device-side assert triggered"),
    VGPU_ERROR(CUDA_ERROR_TOO_MANY_PEERS, "peer mapping resources exhausted"),
    VGPU_ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
               "part or all of the requested memory range is already mapped"),
    VGPU_ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
               "pointer does not correspond to a registered memory region"),
    VGPU_ERROR(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    VGPU_ERROR(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "too many blocks in cooperative launch"),
    VGPU_ERROR(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    VGPU_ERROR(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    VGPU_ERROR(CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized"),
    VGPU_ERROR(CUDA_ERROR_INVALID_CLUSTER_SIZE, "cluster misconfiguration"),
    VGPU_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
               "operation not permitted when stream is capturing"),
    VGPU_ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
               "operation failed due to a previous error during capture"),
    VGPU_ERROR(CUDA_ERROR_STREAM_CAPTURE_MERGE,
               "operation would result in a merge of separate capture sequences"),
    VGPU_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
               "capture was not ended in the same stream as it began"),
    VGPU_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    VGPU_ERROR(CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
               "dependency created on uncaptured work in another stream"),
    VGPU_ERROR(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
               "operation would make the legacy stream depend on a capturing blocking stream"),
    VGPU_ERROR(CUDA_ERROR_CAPTURED_EVENT,
               "operation not permitted on an event last recorded in a capturing stream"),
    VGPU_ERROR(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
               "attempt to terminate a thread-local capture sequence from another thread"),
    VGPU_ERROR(CUDA_ERROR_TIMEOUT, "wait operation timed out"),
    VGPU_ERROR(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
               "the graph update was not performed because it included changes which violated "
               "constraints specific to "
               "instantiated graph update"),
    VGPU_ERROR(CUDA_ERROR_EXTERNAL_DEVICE,
               "an async error has occured in external entity outside of CUDA"),
    VGPU_ERROR(CUDA_ERROR_UNKNOWN, "unknown error"),
};
#undef VGPU_ERROR

const ErrorText* error_text(CUresult code) {
  for (const ErrorText& error : kErrors)
    if (error.code == code) return &error;
  return nullptr;
}

}  // namespace

CUresult cuGetErrorString(CUresult code, const char** text) {
  if (!text) return CUDA_ERROR_INVALID_VALUE;
  const ErrorText* error = error_text(code);
  *text = error ? error->text : nullptr;
  return error ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGetErrorName(CUresult code, const char** name) {
  if (!name) return CUDA_ERROR_INVALID_VALUE;
  const ErrorText* error = error_text(code);
  *name = error ? error->name : nullptr;
  return error ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuProfilerInitialize(const char*, const char*, int) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuProfilerStart(Driver*) { return driver() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED; }
CUresult cuProfilerStop(Driver*) { return driver() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED; }

// The log of the driver's own messages: always empty.
CUresult cuLogsCurrent(CUlogIterator* iterator, unsigned int) {
  if (!iterator) return CUDA_ERROR_INVALID_VALUE;
  *iterator = 0;
  return CUDA_SUCCESS;
}
CUresult cuLogsDumpToMemory(CUlogIterator*, char* buffer, size_t* size, unsigned int) {
  if (!buffer || !size || *size == 0) return CUDA_ERROR_INVALID_VALUE;
  buffer[0] = 0;
  *size = 0;
  return CUDA_SUCCESS;
}
CUresult cuLogsRegisterCallback(CUlogsCallback callback, void*, CUlogsCallbackHandle* handle) {
  if (!callback || !handle) return CUDA_ERROR_INVALID_VALUE;
  *handle = reinterpret_cast<CUlogsCallbackHandle>(new char);
  return CUDA_SUCCESS;
}
CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle handle) {
  delete reinterpret_cast<char*>(handle);
  return CUDA_SUCCESS;
}

}  // namespace tonnage::driver
