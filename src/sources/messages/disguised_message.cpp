// Messages that do not look like one of memory, and those of the host.
#include <algorithm>
#include <string>

#include "sources/messages/log_scan.h"
#include "sources/messages/message_family.h"
#include "sources/messages/message_pattern.h"

namespace tonnage::sources {

std::vector<uint64_t> parse_shape(std::string_view text) {
  std::vector<uint64_t> shape;
  LogScan scan(text);
  while (shape.size() < 32) {
    const auto dim = scan.number();
    if (!dim) break;
    shape.push_back(*dim);
    if (!scan.literal(",")) break;
    scan.spaces();
  }
  return shape;
}

namespace {

// Whose message it is, by the names in it.
LogFramework library_in(std::string_view text, LogFramework otherwise) {
  struct Name {
    const char* part;
    LogFramework framework;
  };
  constexpr Name kNames[] = {{"onnxruntime", LogFramework::kOnnxRuntime},
                             {"ONNXRuntimeError", LogFramework::kOnnxRuntime},
                             {"cupy", LogFramework::kCupy},
                             {"external/xla", LogFramework::kJax},
                             {"jaxlib", LogFramework::kJax},
                             {"tensorflow", LogFramework::kTensorFlow},
                             {"xgboost", LogFramework::kXgboost},
                             {"XGBoostError", LogFramework::kXgboost},
                             {"ggml", LogFramework::kLlamaCpp},
                             {"ctranslate2", LogFramework::kCTranslate2},
                             {"paddle", LogFramework::kPaddle},
                             {"mxnet", LogFramework::kMxnet},
                             {"numba", LogFramework::kNumba},
                             {"faiss", LogFramework::kFaiss},
                             {"torch", LogFramework::kPyTorch}};
  for (const Name& name : kNames)
    if (text.find(name.part) != std::string_view::npos) return name.framework;
  return otherwise;
}

// The bytes of an array that NumPy names by shape and type only.
std::optional<LogSize> array_bytes(const std::vector<uint64_t>& shape, std::string_view dtype) {
  size_t digits = dtype.size();
  while (digits > 0 && dtype[digits - 1] >= '0' && dtype[digits - 1] <= '9') --digits;
  uint64_t bytes = dtype == "bool" ? 8 : LogScan(dtype, digits).number().value_or(0);
  bytes /= 8;
  if (bytes == 0 || bytes > 32 || shape.empty()) return std::nullopt;
  for (const uint64_t dim : shape)
    if (__builtin_mul_overflow(bytes, dim, &bytes)) return std::nullopt;
  return exact_bytes(bytes);
}

// "Unable to allocate 14.9 GiB for an array with shape (2000000000,) and data type float64"; before
// NumPy 1.18 without the size.
bool parse_array(std::string_view text, LogOom& oom) {
  LogScan scan(text);
  if (!scan.find("Unable to allocate ")) return false;
  LogOom found;
  found.requested = scan.size();
  if (found.requested && !scan.literal(" for an ")) return false;
  if (!scan.literal("array with shape (")) return false;
  found.shape = parse_shape(scan.until(")", 400));
  if (scan.literal(") and data type ")) found.dtype = std::string(scan.until(" \n", 40));
  if (!found.requested) found.requested = array_bytes(found.shape, found.dtype);
  found.backend = "CPU";
  found.format = OomFormat::kHostArray;
  oom = std::move(found);
  return true;
}

// What NCCL says where it gets no memory: its own allocation, or a call's error.
bool parse_nccl(std::string_view text, LogOom& oom) {
  LogScan scan(text);
  if (scan.find("Failed to CUDA calloc ") || scan.find("Failed to CUDA malloc ")) {
    oom.framework = LogFramework::kNccl;
    oom.format = OomFormat::kNcclCalloc;
    scan.literal("async ");
    if (const auto bytes = scan.number()) oom.requested = exact_bytes(*bytes);
    return true;
  }
  // Only NCCL writes it so; its own name may stand lines before.
  if (scan.find("Cuda failure ")) {
    scan.number();
    scan.spaces();
    if (scan.literal("'out of memory'")) {
      oom.framework = LogFramework::kNccl;
      oom.format = OomFormat::kNcclWarn;
      return true;
    }
  }
  return false;
}

// The system ended a process for want of host memory.
bool parse_killed(std::string_view text, LogOom& oom) {
  LogScan scan(text);
  LogOom shell;  // a shell's word for the end of its child: "line 12: 4711 Killed"
  const bool killed = match_pattern(text, "line <units>: <unitsthere> Killed ", shell);
  for (const char* sign :
       {killed ? "Killed" : "Out of memory: Killed process", "oom-kill:", "oom_kill event",
        "OOMKilled", "exitcode : -9", "exitcode: -9", "exitcode=-9", "exit code 137",
        "exit status 137", "exited with code 137", "died with <Signals.SIGKILL: 9>",
        "is killed by signal: Killed", "received signal 9", "signal 9 (SIGKILL)",
        "Signal 9 (SIGKILL)"}) {
    scan.seek(0);
    if (!scan.find(sign)) continue;
    oom.framework = LogFramework::kUnknown;
    oom.backend = "CPU";
    oom.format = OomFormat::kHostKilled;
    oom.detail = sign;
    return true;
  }
  return false;
}

}  // namespace

bool parse_disguised(std::string_view text, LogOom& oom) {
  LogScan scan(text);
  oom.framework = LogFramework::kPyTorch;
  oom.backend = "CUDA";
  for (const char* status :
       {"CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED",
        "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", "CURAND_STATUS_ALLOCATION_FAILED",
        "CUSOLVER_STATUS_ALLOC_FAILED", "CUSPARSE_STATUS_ALLOC_FAILED", "CUFFT_ALLOC_FAILED"}) {
    if (text.find(status) == std::string_view::npos) continue;
    oom.format = OomFormat::kLibraryAllocFailed;
    oom.framework = library_in(text, LogFramework::kPyTorch);
    oom.detail = status;
    return true;
  }
  if (text.find("NVML_SUCCESS == r INTERNAL ASSERT FAILED") != std::string_view::npos) {
    oom.format = OomFormat::kNvmlAssert;
    return true;
  }
  if (parse_nccl(text, oom)) return true;
  for (const char* error :
       {"cuda runtime error (2) : out of memory", "CUDA error: out of memory",
        "HIP error: out of memory", "CUDA driver error: out of memory", "error=2 : out of memory",
        "CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorMemoryAllocation"}) {
    scan.seek(0);
    if (!scan.find(error)) continue;
    oom.format = OomFormat::kCudaError;
    if (error[0] == 'H') oom.backend = "HIP";
    // PyTorch's words, or bare names of the driver's and the runtime's error.
    const bool bare = std::string_view(error).find("UDA_ERROR") != std::string_view::npos ||
                      std::string_view(error) == "cudaErrorMemoryAllocation";
    oom.framework = library_in(text, bare ? LogFramework::kUnknown : LogFramework::kPyTorch);
    oom.detail = std::string_view(error).find("driver") != std::string_view::npos ? "driver" : "";
    return true;
  }
  scan.seek(0);
  if (scan.find("DefaultCPUAllocator: ") && scan.find("you tried to allocate ")) {
    oom.backend = "CPU";
    oom.format = OomFormat::kCpuAllocator;
    if (const auto bytes = scan.number()) oom.requested = exact_bytes(*bytes);
    return true;
  }
  scan.seek(0);
  if (scan.find("NvMapMemAllocInternalTagged: ")) {
    oom.format = OomFormat::kJetson;
    if (const auto bytes = scan.number(); bytes && scan.literal(" error 12")) {
      oom.requested = exact_bytes(*bytes);
      return true;
    }
  }
  if (parse_array(text, oom)) return true;
  for (const char* sign :
       {"CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate",
        "CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasLtCreate",
        "CUDNN_STATUS_NOT_INITIALIZED", "CURAND_STATUS_INITIALIZATION_FAILED",
        "CUSOLVER_STATUS_NOT_INITIALIZED", "unable to find an engine to execute this computation",
        "Unable to find a valid cuDNN algorithm"}) {
    const size_t at = text.find(sign);
    if (at == std::string_view::npos) continue;
    oom.format = OomFormat::kLibraryNotReady;
    oom.framework = library_in(text, LogFramework::kPyTorch);
    oom.detail = std::string_view(sign).substr(0, std::string_view(sign).find(" when"));
    return true;
  }
  if (parse_killed(text, oom)) return true;
  // Python's own word, alone in its line.
  const std::string_view line = text.substr(0, std::min(text.find('\n'), text.size()));
  if (line == "MemoryError" || line == "MemoryError:") {
    oom.framework = LogFramework::kUnknown;
    oom.backend = "CPU";
    oom.format = OomFormat::kCpuAllocator;
    return true;
  }
  return false;
}

}  // namespace tonnage::sources
