// One message: the families are tried in an order in which the more telling one wins.
#include <algorithm>
#include <string>

#include "sources/messages/log_reader.h"
#include "sources/messages/log_tables.h"
#include "sources/messages/message_family.h"
#include "sources/messages/message_table.h"

namespace tonnage::sources {
namespace {

constexpr size_t kMaxText = 2000;
constexpr int kSummaryLines = 40, kAssignmentLines = 24, kProgramLines = 40, kOwnerLines = 2;

}  // namespace

LogSize exact_bytes(uint64_t bytes) { return {bytes, 0, std::to_string(bytes) + " bytes"}; }

bool parse_library(std::string_view text, LogOom& oom, int& lines) {
  for (const MessageRow& row : message_rows()) {
    LogOom found;
    if (!match_pattern(text, row.pattern, found)) continue;
    oom = std::move(found);
    oom.framework = row.framework;
    oom.format = row.format;
    oom.backend = row.backend;
    lines = row.lines;
    // TensorFlow has its own copy of XLA (external/local_xla); this one is JAX's.
    if (row.format == OomFormat::kTensorFlowDevice &&
        text.find("external/xla/") != std::string_view::npos)
      oom.framework = LogFramework::kJax;
    if (row.format == OomFormat::kMemorySummary) {
      oom = {};
      lines = kSummaryLines;
      return parse_memory_summary(text, oom);
    }
    return true;
  }
  return false;
}

std::optional<LogOom> parse_oom_message(std::string_view text, int& lines) {
  lines = 0;
  const auto keep = [&](LogOom& oom) {
    oom.text = std::string(text.substr(0, kMaxText));
    return std::optional<LogOom>(std::move(oom));
  };
  if (LogOom oom; parse_pytorch(text, oom)) return keep(oom);
  if (LogOom oom; parse_library(text, oom, lines)) return keep(oom);
  for (bool (*family)(std::string_view, LogOom&) : {parse_tensorflow, parse_jax, parse_disguised}) {
    LogOom oom;
    if (!family(text, oom)) continue;
    if (oom.format == OomFormat::kXlaBytes) lines = kAssignmentLines;
    if (oom.format == OomFormat::kXlaMemorySpace || oom.format == OomFormat::kXlaReserve)
      lines = kProgramLines;
    if (oom.format == OomFormat::kCudaError) lines = kOwnerLines;
    return keep(oom);
  }
  return std::nullopt;
}

std::optional<LogOom> parse_oom_message(std::string_view text) {
  int lines = 0;
  return parse_oom_message(text, lines);
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
    case OomFormat::kTorchStorage: return "torch_storage";
    case OomFormat::kPinnedHost: return "pinned_host_memory";
    case OomFormat::kServingMaxLength: return "serving_max_length";
    case OomFormat::kServingNoBlocks: return "serving_no_blocks";
    case OomFormat::kServingStartup: return "serving_startup";
    case OomFormat::kServingTokens: return "serving_tokens";
    case OomFormat::kServingWarmUp: return "serving_warm_up";
    case OomFormat::kServingSwap: return "serving_swap";
    case OomFormat::kServingProfile: return "serving_profile";
    case OomFormat::kServingPlacement: return "placement";
    case OomFormat::kLibraryRequest: return "library_request";
    case OomFormat::kLibraryPool: return "library_pool";
    case OomFormat::kKernelResources: return "kernel_resources";
    case OomFormat::kMemorySummary: return "memory_summary";
    case OomFormat::kNvidiaSmi: return "nvidia_smi";
    case OomFormat::kRetried: return "retried";
    case OomFormat::kMetalBuffer: return "metal_buffer";
  }
  return "unknown";
}

const char* log_framework_name(LogFramework framework) {
  switch (framework) {
    case LogFramework::kPyTorch: return "pytorch";
    case LogFramework::kTensorFlow: return "tensorflow";
    case LogFramework::kJax: return "jax";
    case LogFramework::kNccl: return "nccl";
    case LogFramework::kVllm: return "vllm";
    case LogFramework::kSglang: return "sglang";
    case LogFramework::kTgi: return "text_generation_inference";
    case LogFramework::kTensorRt: return "tensorrt";
    case LogFramework::kLlamaCpp: return "llama_cpp";
    case LogFramework::kOllama: return "ollama";
    case LogFramework::kOnnxRuntime: return "onnxruntime";
    case LogFramework::kXgboost: return "xgboost";
    case LogFramework::kRmm: return "rmm";
    case LogFramework::kPaddle: return "paddle";
    case LogFramework::kCupy: return "cupy";
    case LogFramework::kNumba: return "numba";
    case LogFramework::kTriton: return "triton";
    case LogFramework::kCatBoost: return "catboost";
    case LogFramework::kLightGbm: return "lightgbm";
    case LogFramework::kMxnet: return "mxnet";
    case LogFramework::kCaffe: return "caffe";
    case LogFramework::kFaiss: return "faiss";
    case LogFramework::kJulia: return "cuda_jl";
    case LogFramework::kOpenCv: return "opencv";
    case LogFramework::kBitsandbytes: return "bitsandbytes";
    case LogFramework::kCTranslate2: return "ctranslate2";
    case LogFramework::kRay: return "ray";
    case LogFramework::kAccelerate: return "accelerate";
    case LogFramework::kDeepSpeed: return "deepspeed";
    case LogFramework::kTorchrun: return "torchrun";
    case LogFramework::kWarp: return "warp";
    case LogFramework::kUltralytics: return "ultralytics";
    case LogFramework::kComfyUi: return "comfyui";
    case LogFramework::kWebUi: return "stable_diffusion_webui";
    case LogFramework::kDiffusers: return "diffusers";
    case LogFramework::kTransformers: return "transformers";
    case LogFramework::kPyCuda: return "pycuda";
    case LogFramework::kOpenCl: return "opencl";
    case LogFramework::kUnknown: break;
  }
  return "unknown";
}

}  // namespace tonnage::sources
