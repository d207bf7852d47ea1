// One out-of-memory message of a training log, every number in it parsed.
//
// Formats and their versions: PyTorch c10/cuda/CUDACachingAllocator.cpp (1.0 to today),
// TensorFlow's BFC allocator, XLA. Printed sizes are rounded, so each carries how far off it may
// be. What a message does not say is std::nullopt, never 0.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tonnage::sources {

// A size as it was printed: "148.00 MiB" is 155189248 bytes, give or take half of the last digit.
struct LogSize {
  uint64_t bytes = 0;
  uint64_t plus_minus_bytes = 0;  // 0: printed exactly, in bytes
  std::string text;               // with its unit, as in the log
};

// Append only: names are part of the JSON output.
enum class OomFormat : uint8_t {
  kPyTorch10,           // 1.0 to 1.3: "... free; ... cached)"
  kPyTorch14,           // 1.4 to 2.0: "... reserved in total by PyTorch)"
  kPyTorch21,           // 2.1 and later: "GPU 0 has a total capacity of ..."
  kPyTorchCut,          // a PyTorch message that was cut off early
  kPyTorchTooLarge,     // "Tried to allocate more than 1EB memory"
  kCudaMallocAsync,     // backend:cudaMallocAsync
  kMps,                 // Apple
  kCudaError,           // the driver's or runtime's bare "out of memory"
  kLibraryAllocFailed,  // cuBLAS, cuDNN, cuRAND, cuSOLVER, cuFFT could not make their handle or plan
  kNvmlAssert,          // an out-of-memory error behind an NVML assertion
  kNcclCalloc,
  kNcclWarn,
  kCpuAllocator,  // host memory, not the GPU's
  kHostKilled,    // the kernel's out-of-memory killer, or exit code -9
  kTensorFlowShape,
  kTensorFlowBfc,
  kTensorFlowDevice,  // "failed to allocate ... from device": often harmless, TensorFlow tries less
  kXlaBytes,
  kXlaRequest,
  kXlaMemorySpace,  // TPU: "Ran out of memory in memory space hbm"
  kXlaHost,
  kJetson,           // NvMapMemAllocInternalTagged
  kLibraryNotReady,  // a library could not start or found no algorithm: mostly, but not always, for
                     // want of memory
  kXlaReserve,       // TPU: "Attempting to reserve ... There are ... free"
  kHostArray,        // NumPy: "Unable to allocate ... for an array with shape"
  kHostShared,       // /dev/shm of a container is full
  kTorchStorage,     // before 1.0: THCStorage and the other THC files
  kPinnedHost,       // pinned host memory
  kServingMaxLength,  // an inference server's key-value cache does not hold the longest request
  kServingNoBlocks,   // nothing is left for the key-value cache
  kServingStartup,    // less is free at the start than the server's share
  kServingTokens,     // no room for the tokens of a batch
  kServingWarmUp,     // warm-up or graph capture of a server
  kServingSwap,       // the server's swap space in host memory
  kServingProfile,    // memory changed while the server measured it
  kServingPlacement,  // the model's parts do not all fit on the GPUs
  kLibraryRequest,    // another library's allocator, with what it asked for
  kLibraryPool,       // the limit of a library's own pool
  kKernelResources,   // shared memory, registers or threads of one kernel
  kMemorySummary,     // torch.cuda.memory_summary()
  kNvidiaSmi,         // nvidia-smi's table
  kRetried,           // a program that was refused memory says that it goes on with less
  kMetalBuffer,       // one tensor is larger than a buffer of Metal's may be
};
const char* oom_format_name(OomFormat format);

// Who allocates. Append only, kUnknown excepted.
enum class LogFramework : uint8_t {
  kPyTorch,
  kTensorFlow,
  kJax,
  kNccl,
  kUnknown,
  kVllm,
  kSglang,
  kTgi,
  kTensorRt,
  kLlamaCpp,
  kOllama,
  kOnnxRuntime,
  kXgboost,
  kRmm,
  kPaddle,
  kCupy,
  kNumba,
  kTriton,
  kCatBoost,
  kLightGbm,
  kMxnet,
  kCaffe,
  kFaiss,
  kJulia,
  kOpenCv,
  kBitsandbytes,
  kCTranslate2,
  kRay,
  kAccelerate,
  kDeepSpeed,
  kTorchrun,
  kWarp,
  kUltralytics,
  kComfyUi,
  kWebUi,
  kDiffusers,
  kTransformers,
  kPyCuda,
  kOpenCl,
};
const char* log_framework_name(LogFramework framework);

struct LogProcess {
  std::optional<uint64_t> pid;  // null: "this process"
  bool is_self = false;
  bool plausible = true;  // false: more than 1 PiB, which drivers print for "not known"
  LogSize in_use;
};

struct LogFrame {
  std::string file, function, code;
  uint32_t line = 0;
};

struct LogOom {
  OomFormat format = OomFormat::kCudaError;
  LogFramework framework = LogFramework::kUnknown;
  std::string backend;             // "CUDA", "HIP", "XPU", "MPS", "TPU", "CPU"; "" if unknown
  std::optional<uint64_t> device;  // index
  std::optional<uint64_t> rank;    // of the distributed run, from the line's prefix
  std::optional<LogSize>
      requested;  // PyTorch: the segment it wanted, i.e. 2 MiB, 20 MiB or a multiple of 2 MiB
  std::optional<LogSize> capacity, free;
  std::optional<LogSize>
      allocated;  // by PyTorch's tensors (free blocks of private pools included); TensorFlow: InUse
  std::optional<LogSize> reserved;  // as printed (1.4 to 2.0)
  std::optional<LogSize>
      unallocated;  // reserved but not allocated, as printed ("cached" in 1.0 to 1.3)
  std::optional<LogSize> private_pools;  // part of `allocated`
  std::optional<LogSize> allowed;        // the cap of a memory fraction
  std::optional<LogSize> other;          // MPS: other allocations
  std::optional<LogSize> peak;           // TensorFlow: MaxInUse
  // XLA's buffer assignment: parts of one compiled program.
  std::optional<LogSize> arguments, outputs, temporaries, program, fragmentation;
  std::optional<uint64_t> tokens, tokens_that_fit;  // of an inference server's request and cache
  std::optional<double> fraction;                   // of the card, as configured
  std::optional<uint64_t> units, units_there;       // kernel resources that are no bytes
  std::optional<uint64_t> ooms, retries;            // counters of torch.cuda.memory_summary()
  std::vector<LogProcess> processes;
  std::vector<uint64_t> shape;  // TensorFlow
  std::string dtype;
  std::string detail;                       // library status, allocator, operator, executable
  std::optional<LogFramework> application;  // whose program it is, where other lines tell
  bool is_trial = false;                    // a search for the batch size tried until one failed
  std::string hint;              // the setting that the message suggests: "expandable_segments",
                                 // "max_split_size_mb" or ""
  std::vector<LogFrame> frames;  // of the Python traceback before it, outermost first
  uint64_t line_number = 0;      // from 1
  uint64_t count = 1;            // the same message again
  std::string text;              // the message, at most 2000 bytes
};

}  // namespace tonnage::sources
