// Messages that do not look like one of memory, and those of the host.
#include <string>

#include "sources/messages/log_scan.h"
#include "sources/messages/message_family.h"

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
    oom.detail = status;
    return true;
  }
  if (text.find("NVML_SUCCESS == r INTERNAL ASSERT FAILED") != std::string_view::npos) {
    oom.format = OomFormat::kNvmlAssert;
    return true;
  }
  if (scan.find("Failed to CUDA calloc ") || scan.find("Failed to CUDA malloc ")) {
    oom.framework = LogFramework::kNccl;
    oom.format = OomFormat::kNcclCalloc;
    if (const auto bytes = scan.number()) oom.requested = exact_bytes(*bytes);
    return true;
  }
  if (scan.find("NCCL WARN Cuda failure ") ||
      (text.find("NCCL") != std::string_view::npos && scan.find("Cuda failure "))) {
    scan.number();
    scan.spaces();
    if (scan.literal("'out of memory'")) {
      oom.framework = LogFramework::kNccl;
      oom.format = OomFormat::kNcclWarn;
      return true;
    }
  }
  for (const char* error :
       {"cuda runtime error (2) : out of memory", "CUDA error: out of memory",
        "HIP error: out of memory", "CUDA driver error: out of memory", "error=2 : out of memory",
        "CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorMemoryAllocation"}) {
    scan.seek(0);
    if (!scan.find(error)) continue;
    oom.format = OomFormat::kCudaError;
    if (error[0] == 'H') oom.backend = "HIP";
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
  scan.seek(0);
  if (scan.find("Unable to allocate ")) {
    oom.requested = scan.size();
    if (oom.requested && scan.literal(" for an array with shape (")) {
      oom.framework = LogFramework::kUnknown;
      oom.backend = "CPU";
      oom.format = OomFormat::kHostArray;
      oom.shape = parse_shape(scan.until(")", 400));
      if (scan.literal(") and data type ")) oom.dtype = std::string(scan.until(" \n", 40));
      return true;
    }
    oom.requested.reset();
  }
  for (const char* sign :
       {"CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate",
        "CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasLtCreate",
        "CUDNN_STATUS_NOT_INITIALIZED", "CURAND_STATUS_INITIALIZATION_FAILED",
        "CUSOLVER_STATUS_NOT_INITIALIZED", "unable to find an engine to execute this computation",
        "Unable to find a valid cuDNN algorithm"}) {
    const size_t at = text.find(sign);
    if (at == std::string_view::npos) continue;
    oom.format = OomFormat::kLibraryNotReady;
    oom.detail = std::string_view(sign).substr(0, std::string_view(sign).find(" when"));
    return true;
  }
  for (const char* sign :
       {"Out of memory: Killed process", "oom-kill:", "oom_kill event", "OOMKilled",
        "exitcode : -9", "exitcode: -9", "exitcode=-9", "exit code 137", "exit status 137",
        "exited with code 137", "died with <Signals.SIGKILL: 9>", "is killed by signal: Killed",
        "received signal 9", "signal 9 (SIGKILL)", "Signal 9 (SIGKILL)"}) {
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

}  // namespace tonnage::sources
