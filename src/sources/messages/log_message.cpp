// The messages themselves: one function per family, tried in an order in which the more telling one
// wins.
#include <algorithm>

#include "sources/messages/log_reader.h"
#include "sources/messages/log_scan.h"

namespace tonnage::sources {
namespace {

constexpr uint64_t kPiB = 1ull << 50;

// "[[S allowed; ]]Of the allocated memory ..." and so on: as much of it as the text holds.
void parse_pytorch_21(LogScan& scan, LogOom& oom) {
  oom.format = OomFormat::kPyTorchCut;
  if (const auto device = scan.number()) oom.device = device;
  if (!scan.literal(" has a total capacity of ") && !scan.literal(" has a total capacty of "))
    return;
  oom.capacity = scan.size();
  if (!oom.capacity) return;
  oom.format = OomFormat::kPyTorch21;
  if (scan.literal(" of which ")) {
    oom.free = scan.size();
    scan.literal(" is free");
  }
  scan.literal(".");
  scan.spaces();
  for (;;) {
    LogProcess process;
    if (scan.literal("Including non-PyTorch memory, this process has ")) {
      process.is_self = true;
    } else if (scan.literal("Process ")) {
      process.pid = scan.number();
      if (!scan.literal(" has ")) break;
    } else {
      break;
    }
    const auto in_use = scan.size();
    if (!in_use || !scan.literal(" memory in use.")) break;
    scan.spaces();
    process.in_use = *in_use;
    process.plausible = in_use->bytes < kPiB;
    if (oom.processes.size() < 1000) oom.processes.push_back(process);
  }
  const size_t before = scan.at();
  if (const auto allowed = scan.size(); allowed && scan.literal(" allowed;")) {
    oom.allowed = allowed;
    scan.spaces();
  } else {
    scan.seek(before);
  }
  if (!scan.literal("Of the allocated memory ")) return;
  oom.allocated = scan.size();
  if (!scan.literal(" is allocated by PyTorch,")) return;
  scan.spaces();
  if (scan.literal("with ")) {
    oom.private_pools = scan.size();
    scan.find("), ");
  }
  if (scan.literal("and ")) oom.unallocated = scan.size();
}

void parse_pytorch_10(LogScan& scan, LogOom& oom) {
  oom.format = OomFormat::kPyTorchCut;
  oom.device = scan.number();
  if (!scan.literal("; ")) return;
  oom.capacity = scan.size();
  if (!scan.literal(" total capacity; ")) return;
  oom.allocated = scan.size();
  if (!scan.literal(" already allocated; ")) return;
  oom.free = scan.size();
  if (scan.literal(" current active; ")) oom.free = scan.size();  // Ascend
  if (!scan.literal(" free; ")) return;
  auto last = scan.size();
  if (scan.literal(" allowed; ")) {
    oom.allowed = last;
    last = scan.size();
  }
  if (scan.literal(" cached)")) {
    oom.unallocated = last;
    oom.format = OomFormat::kPyTorch10;
  } else if (scan.literal(" reserved in total by PyTorch)")) {
    oom.reserved = last;
    oom.format = OomFormat::kPyTorch14;
  }
}

void parse_hint(std::string_view text, LogOom& oom) {
  const size_t at = text.find("try setting");
  if (at == std::string_view::npos) return;
  const std::string_view rest = text.substr(at, 200);
  if (rest.find("expandable_segments") != std::string_view::npos)
    oom.hint = "expandable_segments";
  else if (rest.find("max_split_size_mb") != std::string_view::npos)
    oom.hint = "max_split_size_mb";
}

bool pytorch(std::string_view text, LogOom& oom) {
  LogScan scan(text);
  while (scan.find("out of memory")) {
    const size_t behind = scan.at();
    const std::string_view before =
        text.substr(0, behind - std::min(behind, std::string_view("out of memory").size()));
    if (scan.literal(". Tried to allocate ")) {
      oom.framework = LogFramework::kPyTorch;
      for (const char* backend :
           {"CUDA", "HIP", "XPU", "NPU", "MLU", "MTIA", "PrivateUse1", "GPU"}) {
        const std::string word = std::string(backend) + " ";
        if (before.size() >= word.size() && before.substr(before.size() - word.size()) == word) {
          oom.backend = backend;
          break;
        }
      }
      if (scan.literal("more than 1EB memory")) {
        oom.format = OomFormat::kPyTorchTooLarge;
        return true;
      }
      oom.requested = scan.size();
      oom.format = OomFormat::kPyTorchCut;
      for (const char* word : {"GPU ", "NPU ", "XPU ", "MLU "}) {
        if (scan.literal(std::string(" (") + word)) {
          parse_pytorch_10(scan, oom);
          break;
        }
        if (scan.literal(std::string(". ") + word)) {
          parse_pytorch_21(scan, oom);
          break;
        }
      }
      parse_hint(scan.rest(), oom);
      return oom.requested.has_value();
    }
    if (scan.literal(" (MPS allocated: ")) {
      oom.framework = LogFramework::kPyTorch;
      oom.backend = "MPS";
      oom.format = OomFormat::kMps;
      oom.allocated = scan.size();
      if (scan.literal(", other allocations: ")) oom.other = scan.size();
      if (scan.literal(", max allowed: ")) oom.capacity = scan.size();
      if (scan.literal("). Tried to allocate ")) oom.requested = scan.size();
      return true;
    }
  }
  scan.seek(0);
  if (scan.find("OutOfMemoryError: Allocation on device") &&
      scan.rest().find_first_not_of(" \n") == std::string_view::npos) {
    oom.framework = LogFramework::kPyTorch;  // a program printed the first words only
    oom.backend = "CUDA";
    oom.format = OomFormat::kCudaMallocAsync;
    return true;
  }
  scan.seek(0);
  if (scan.find("Allocation on device ")) {
    oom.device = scan.number();
    if (scan.literal(" would exceed allowed memory. (out of memory)")) {
      oom.framework = LogFramework::kPyTorch;
      oom.backend = "CUDA";
      oom.format = OomFormat::kCudaMallocAsync;
      const auto field = [&scan](std::string_view name) -> std::optional<LogSize> {
        scan.spaces();
        if (!scan.literal(name)) return std::nullopt;
        scan.spaces();
        if (!scan.literal(":")) return std::nullopt;
        scan.spaces();
        return scan.size();
      };
      oom.allocated = field("Currently allocated");
      oom.requested = field("Requested");
      oom.capacity = field("Device limit");
      oom.free = field("Free (according to CUDA)");
      oom.allowed = field("PyTorch limit (set by user-supplied memory fraction)");
      return true;
    }
    oom.device.reset();
  }
  return false;
}

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

uint64_t dtype_bytes(std::string_view dtype) {
  if (dtype == "double" || dtype == "int64" || dtype == "uint64" || dtype == "complex64") return 8;
  if (dtype == "float" || dtype == "int32" || dtype == "uint32") return 4;
  if (dtype == "half" || dtype == "bfloat16" || dtype == "int16" || dtype == "uint16") return 2;
  if (dtype == "bool" || dtype == "int8" || dtype == "uint8") return 1;
  if (dtype == "complex128") return 16;
  return 0;
}

bool tensorflow(std::string_view text, LogOom& oom) {
  LogScan scan(text);
  if (scan.find("OOM when allocating tensor with shape[")) {
    oom.framework = LogFramework::kTensorFlow;
    oom.format = OomFormat::kTensorFlowShape;
    oom.shape = parse_shape(scan.until("]", 400));
    scan.literal("]");
    if (scan.literal(" and type ")) {
      oom.dtype = std::string(scan.until(" \n", 40));
      if (scan.literal(" on ")) {
        const std::string_view device = scan.until(" \n", 200);
        const size_t colon = device.rfind(':');
        if (colon != std::string_view::npos && device.find("GPU:") != std::string_view::npos)
          oom.device = LogScan(device, colon + 1).number();
        if (device.find("GPU") != std::string_view::npos) oom.backend = "CUDA";
        if (device.find("CPU") != std::string_view::npos) oom.backend = "CPU";
      }
      if (scan.literal(" by allocator ")) oom.detail = std::string(scan.until(" \n", 80));
    }
    // The size follows exactly from shape and type; without a type nothing is claimed.
    if (const uint64_t each = dtype_bytes(oom.dtype); each && !oom.shape.empty()) {
      uint64_t bytes = each;
      bool fits = true;
      for (const uint64_t dim : oom.shape)
        fits = fits && !__builtin_mul_overflow(bytes, dim, &bytes);
      if (fits) oom.requested = LogSize{bytes, 0, std::to_string(bytes) + " bytes (shape x type)"};
    }
    return true;
  }
  if (scan.find("ran out of memory trying to allocate ")) {
    const size_t behind = scan.at();
    oom.framework = LogFramework::kTensorFlow;
    oom.format = OomFormat::kTensorFlowBfc;
    oom.requested = scan.size();
    if (!oom.requested) return false;
    if (scan.literal(" (rounded to ")) {
      if (const auto bytes = scan.number())
        oom.requested = LogSize{*bytes, 0, std::to_string(*bytes) + " bytes"};
      if (scan.find("requested by op ")) oom.detail = std::string(scan.until(" \n", 200));
    }
    scan.seek(0);
    if (scan.find("Allocator (") && scan.at() < behind) {
      const std::string_view allocator = scan.until(")", 80);
      if (allocator.substr(0, 4) == "GPU_") {
        oom.backend = "CUDA";
        oom.device = LogScan(allocator, 4).number();
      }
    }
    const auto statistic = [&](std::string_view name) -> std::optional<LogSize> {
      LogScan field(text, behind);
      if (!field.find(name)) return std::nullopt;
      field.spaces();
      const auto bytes = field.number();
      if (!bytes) return std::nullopt;
      return LogSize{*bytes, 0, std::to_string(*bytes)};
    };
    oom.capacity = statistic("Limit:");
    oom.allocated = statistic("\nInUse:");
    if (!oom.allocated) oom.allocated = statistic(" InUse:");
    oom.peak = statistic("MaxInUse:");
    return true;
  }
  if (scan.find("failed to allocate ")) {
    auto printed = scan.size();
    if (printed && scan.literal(" (")) {
      const auto bytes = scan.number();
      if (bytes && scan.literal(" bytes) from device: CUDA_ERROR_OUT_OF_MEMORY")) {
        oom.framework = LogFramework::kTensorFlow;
        oom.backend = "CUDA";
        oom.format = OomFormat::kTensorFlowDevice;
        oom.requested = LogSize{*bytes, 0, std::to_string(*bytes) + " bytes"};
        return true;
      }
    }
  }
  return false;
}

bool jax(std::string_view text, LogOom& oom) {
  LogScan scan(text);
  if (scan.find("Failed to allocate request for ")) {
    oom.requested = scan.size();
    if (scan.literal(" (")) {
      if (const auto bytes = scan.number())
        oom.requested = LogSize{*bytes, 0, std::to_string(*bytes) + " bytes"};
      scan.literal("B)");
    }
    if (scan.literal(" on device ordinal ")) oom.device = scan.number();
    oom.framework = LogFramework::kJax;
    oom.format = OomFormat::kXlaRequest;
    return oom.requested.has_value();
  }
  scan.seek(0);
  if (scan.find("Ran out of memory in memory space ")) {
    oom.framework = LogFramework::kJax;
    oom.backend = "TPU";
    oom.format = OomFormat::kXlaMemorySpace;
    oom.detail = std::string(scan.until(". \n", 20));
    if (scan.literal(". Used ")) oom.allocated = scan.size();
    if (scan.literal(" of ")) oom.capacity = scan.size();
    return true;
  }
  scan.seek(0);
  if (scan.find("Out of host memory while trying to allocate ")) {
    oom.framework = LogFramework::kJax;
    oom.backend = "CPU";
    oom.format = OomFormat::kXlaHost;
    oom.requested = scan.size();
    return true;
  }
  scan.seek(0);
  if (scan.find("Attempting to reserve ") || scan.find("Attempting to allocate ")) {
    oom.requested = scan.size();
    if (oom.requested && scan.find("That was not possible. There are ")) {
      oom.framework = LogFramework::kJax;
      oom.backend = "TPU";
      oom.format = OomFormat::kXlaReserve;
      oom.free = scan.size();
      return true;
    }
    oom.requested.reset();
  }
  scan.seek(0);
  const bool exhausted = scan.find("RESOURCE_EXHAUSTED: ") || scan.find("Resource exhausted: ");
  if (exhausted && (scan.find("ut of memory while trying to allocate ") ||
                    scan.find("ut of memory allocating "))) {
    oom.framework = LogFramework::kJax;
    oom.format = OomFormat::kXlaBytes;
    oom.requested = scan.size();
    if (scan.literal(" with allocator ")) {
      const std::string_view allocator = scan.until(" \n", 80);
      oom.detail = std::string(allocator);
      if (scan.literal(" on device ")) oom.device = scan.number();
    }
    if (scan.find("[executable_name='")) oom.detail = std::string(scan.until("'", 200));
    return true;
  }
  return false;
}

bool disguised(std::string_view text, LogOom& oom) {
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
    if (const auto bytes = scan.number())
      oom.requested = LogSize{*bytes, 0, std::to_string(*bytes) + " bytes"};
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
    if (const auto bytes = scan.number())
      oom.requested = LogSize{*bytes, 0, std::to_string(*bytes) + " bytes"};
    return true;
  }
  scan.seek(0);
  if (scan.find("NvMapMemAllocInternalTagged: ")) {
    oom.format = OomFormat::kJetson;
    if (const auto bytes = scan.number(); bytes && scan.literal(" error 12")) {
      oom.requested = LogSize{*bytes, 0, std::to_string(*bytes) + " bytes"};
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
       {"insufficient shared memory (shm)", "unable to allocate shared memory (shm)",
        "unable to write to file </torch_", "unable to open shared memory object </torch_"}) {
    if (text.find(sign) == std::string_view::npos) continue;
    oom.backend = "CPU";
    oom.format = OomFormat::kHostShared;
    oom.detail = sign;
    return true;
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

}  // namespace

std::optional<LogOom> parse_oom_message(std::string_view text) {
  for (bool (*family)(std::string_view, LogOom&) : {pytorch, tensorflow, jax, disguised}) {
    LogOom oom;
    if (!family(text, oom)) continue;
    oom.text = std::string(text.substr(0, 2000));
    return oom;
  }
  return std::nullopt;
}

const char* oom_format_name(OomFormat format) {
  switch (format) {
    case OomFormat::kPyTorch10: return "pytorch_1.0";
    case OomFormat::kPyTorch14: return "pytorch_1.4";
    case OomFormat::kPyTorch21: return "pytorch_2.1";
    case OomFormat::kPyTorchCut: return "pytorch_cut";
    case OomFormat::kPyTorchTooLarge: return "pytorch_too_large";
    case OomFormat::kCudaMallocAsync: return "cuda_malloc_async";
    case OomFormat::kMps: return "mps";
    case OomFormat::kCudaError: return "cuda_error";
    case OomFormat::kLibraryAllocFailed: return "library_alloc_failed";
    case OomFormat::kNvmlAssert: return "nvml_assert";
    case OomFormat::kNcclCalloc: return "nccl_calloc";
    case OomFormat::kNcclWarn: return "nccl_warn";
    case OomFormat::kCpuAllocator: return "cpu_allocator";
    case OomFormat::kHostKilled: return "host_killed";
    case OomFormat::kTensorFlowShape: return "tensorflow_shape";
    case OomFormat::kTensorFlowBfc: return "tensorflow_bfc";
    case OomFormat::kTensorFlowDevice: return "tensorflow_device";
    case OomFormat::kXlaBytes: return "xla_bytes";
    case OomFormat::kXlaRequest: return "xla_request";
    case OomFormat::kXlaMemorySpace: return "xla_memory_space";
    case OomFormat::kXlaHost: return "xla_host";
    case OomFormat::kJetson: return "jetson";
    case OomFormat::kLibraryNotReady: return "library_not_ready";
    case OomFormat::kXlaReserve: return "xla_reserve";
    case OomFormat::kHostArray: return "host_array";
    case OomFormat::kHostShared: return "host_shared_memory";
  }
  return "unknown";
}

const char* log_framework_name(LogFramework framework) {
  switch (framework) {
    case LogFramework::kPyTorch: return "pytorch";
    case LogFramework::kTensorFlow: return "tensorflow";
    case LogFramework::kJax: return "jax";
    case LogFramework::kNccl: return "nccl";
    case LogFramework::kUnknown: break;
  }
  return "unknown";
}

}  // namespace tonnage::sources
