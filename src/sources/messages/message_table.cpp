// The messages of libraries, one row each, in an order in which the more telling one wins. Sources:
// what these libraries print (vLLM, SGLang, llama.cpp, ONNX Runtime, TensorRT, RMM, XGBoost,
// Paddle, CuPy, Triton and others), in the versions that are in use.
#include "sources/messages/message_table.h"

#include <array>

namespace tonnage::sources {
namespace {

using F = LogFramework;
using O = OomFormat;

constexpr const char* kGpu = "CUDA";
constexpr const char* kHost = "CPU";

constexpr MessageRow kRows[] = {
    // --- vLLM ---
    {F::kVllm, O::kServingMaxLength, kGpu,
     "To serve at least one request with the model<*>max seq len (<tok>), <*><req> KV cache "
     "is<*>larger "
     "than the available KV <word> memory (<free>)[[. Based on the available memory, the estimated "
     "maximum model length is <tokfit>]]",
     3},
    {F::kVllm, O::kServingMaxLength, kGpu,
     "max seq len (<tok>) is larger than the maximum number of tokens that can be stored in KV "
     "cache "
     "(<tokfit>)",
     2},
    {F::kVllm, O::kServingMaxLength, kGpu,
     "max seq len (<tok>) is larger than the maximum number of tokens that can be stored in KV "
     "cache"},
    {F::kVllm, O::kServingNoBlocks, kGpu, "No available memory for the cache blocks"},
    {F::kVllm, O::kServingNoBlocks, kGpu, "No available block found in"},
    {F::kVllm, O::kServingStartup, kGpu,
     "Free memory on device [[<word> ]](<free:GiB>/<cap:GiB>) on startup is less than desired GPU "
     "memory "
     "utilization (<frac>, <req:GiB>)",
     2},
    {F::kVllm, O::kServingProfile, kGpu,
     "Error in memory profiling. Initial free memory <other>, current free memory <free>", 2},
    {F::kVllm, O::kServingProfile, kGpu,
     "Error in memory profiling. Initial used memory <other>, currently used memory <alloc>", 2},
    {F::kVllm, O::kServingProfile, kGpu, "Error in memory profiling.", 2},
    {F::kVllm, O::kServingWarmUp, kGpu,
     "CUDA out of memory occurred when warming up sampler with <units> dummy requests", 2},
    {F::kVllm, O::kServingWarmUp, kGpu, "CUDA out of memory occurred when warming up", 2},
    {F::kVllm, O::kServingSwap, kHost,
     "Too large swap space. <req> out of the <cap> total CPU memory"},
    // --- SGLang ---
    {F::kSglang, O::kServingNoBlocks, kGpu,
     "Not enough memory. Please try to increase --mem-fraction-static.[[ Current value: "
     "mem_fraction_static=<frac>]]"},
    {F::kSglang, O::kServingNoBlocks, kGpu,
     "Not enough memory. Please try to increase --mem-fraction-static. mem_fraction_static=<frac>"},
    {F::kSglang, O::kServingNoBlocks, kGpu,
     "Not enough memory; please try to increase --mem-fraction-static"},
    {F::kSglang, O::kServingTokens, kGpu,
     "out of memory. Try to lower your batch size. Try to allocate <tok> tokens. Ava<*> tokens: "
     "<tokfit>",
     4},
    {F::kSglang, O::kServingTokens, kGpu,
     "Out of memory. Try to lower your batch size. Try to allocate <tok> tokens.[[<*>tokens: "
     "<tokfit>]]",
     4},
    {F::kSglang, O::kServingTokens, kGpu, "out of memory. Try to lower your batch size.", 4},
    {F::kSglang, O::kServingTokens, kGpu,
     "Please set a smaller number for `--max-running-requests`"},
    {F::kSglang, O::kServingStartup, kGpu,
     "The memory capacity is unbalanced. Some GPUs may be occupied by other processes.[[<*>"
     "pre_model_load_memory=<other:GiB>]][[<*>local_gpu_memory=<free:GiB>]]"},
    // --- text-generation-inference ---
    {F::kTgi, O::kServingTokens, kGpu, "Not enough memory to handle [[<tok> ]]<*>tokens"},
    {F::kTgi, O::kHostKilled, kHost, "Shard process was signaled to shutdown with signal 9"},
    {F::kTgi, O::kServingTokens, kGpu, "Not enough memory to run with <*>max_batch_prefill_tokens"},
    // --- TensorRT, TensorRT-LLM ---
    {F::kTensorRt, O::kLibraryRequest, kGpu, "OutOfMemory (Requested size was <req> bytes.)"},
    {F::kTensorRt, O::kLibraryRequest, kGpu,
     "Requested amount of GPU memory (<req> bytes) could not be allocated"},
    {F::kTensorRt, O::kLibraryRequest, kGpu, "Error Code 2: OutOfMemory"},
    {F::kTensorRt, O::kLibraryRequest, kGpu,
     "Tactic Device request: <req:MiB> Available: <free:MiB>. Device memory is insufficient"},
    {F::kTensorRt, O::kLibraryRequest, kGpu, "[TRT<*>out of memory"},
    {F::kTensorRt, O::kLibraryRequest, kGpu,
     "[TensorRT-LLM]<*>CUDA runtime error in <*>: out of memory"},
    {F::kTensorRt, O::kServingMaxLength, kGpu, "available KV cache memory is<*>(<tokfit> tokens)"},
    // --- llama.cpp and what is built on it ---
    {F::kOllama, O::kLibraryRequest, kGpu,
     "runner process has terminated: cudaMalloc failed: out of memory[[<*>buffer of size <req>]]",
     2},
    {F::kOllama, O::kLibraryRequest, kGpu,
     "runner process has terminated: CUDA error<*>out of memory"},
    {F::kOllama, O::kLibraryRequest, kGpu,
     "runner process has terminated: error<*>unable to allocate CUDA"},
    {F::kOllama, O::kLibraryRequest, kGpu, "runner process has terminated: <*>out of memory"},
    {F::kOllama, O::kHostKilled, kHost, "runner process has terminated: signal: killed"},
    {F::kLlamaCpp, O::kLibraryRequest, kGpu,
     "allocating <req> on device <dev>: <word> failed: out of memory"},
    {F::kLlamaCpp, O::kLibraryRequest, kGpu, "failed to allocate CUDA<dev> buffer of size <req>"},
    {F::kLlamaCpp, O::kLibraryRequest, "HIP", "failed to allocate ROCm<dev> buffer of size <req>"},
    {F::kLlamaCpp, O::kLibraryRequest, "Vulkan",
     "failed to allocate Vulkan<dev> buffer of size <req>"},
    {F::kLlamaCpp, O::kCpuAllocator, kHost, "failed to allocate CPU buffer of size <req>"},
    {F::kLlamaCpp, O::kCpuAllocator, kHost,
     "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size <req>"},
    {F::kLlamaCpp, O::kLibraryRequest, "", "failed to allocate <word> buffer of size <req>"},
    {F::kLlamaCpp, O::kLibraryRequest, "", "unable to allocate <word> buffer"},
    {F::kLlamaCpp, O::kLibraryRequest, "Vulkan", "Device memory allocation of size <req> failed"},
    {F::kLlamaCpp, O::kLibraryRequest, "MPS", "error: failed to allocate buffer, size = <req>"},
    {F::kLlamaCpp, O::kPinnedHost, kHost, "failed to allocate <req> of pinned memory: <detail>"},
    {F::kLlamaCpp, O::kLibraryRequest, "", "failed to allocate compute <*>buffers"},
    {F::kLlamaCpp, O::kLibraryRequest, "", "failed to allocate buffer for kv cache"},
    {F::kLlamaCpp, O::kServingTokens, "", "failed to find a memory slot for batch of size <tok>"},
    {F::kLlamaCpp, O::kServingTokens, "", "failed to find free space in the KV cache"},
    {F::kLlamaCpp, O::kLibraryRequest, "MPS",
     "error: Insufficient Memory (<*>kIOGPUCommandBufferCallbackErrorOutOfMemory"},
    {F::kLlamaCpp, O::kCpuAllocator, kHost, "insufficient memory (attempted to allocate <req>)"},
    {F::kLlamaCpp, O::kLibraryRequest, "", "can't allocate <req> Bytes of memory on device"},
    {F::kLlamaCpp, O::kLibraryRequest, kGpu,
     "CUDA error <*>at <*>ggml<*>: out of memory[[ current device: <dev>]]", 1},
    {F::kLlamaCpp, O::kLibraryRequest, kGpu,
     "out of memory current device: <dev>, in function <word> at", 2},
    {F::kOllama, O::kHostArray, kHost,
     "model requires more system memory (<req>) than is available (<free>)"},
    // --- ONNX Runtime ---
    {F::kOnnxRuntime, O::kLibraryRequest, kGpu,
     "Failed to allocate memory for requested buffer of size <req>"},
    {F::kOnnxRuntime, O::kLibraryRequest, kGpu,
     "Available memory of <free> is smaller than requested bytes of <req>"},
    {F::kOnnxRuntime, O::kLibraryRequest, kGpu,
     "CUDA failure 2: out of memory[[ ; GPU=<dev>]][[<*>expr=<detail>;]]"},
    {F::kOnnxRuntime, O::kLibraryRequest, "",
     "Not enough memory resources are available to complete this operation"},
    {F::kOnnxRuntime, O::kLibraryRequest, "", "onnxruntime<*>out of memory"},
    {F::kOnnxRuntime, O::kLibraryAllocFailed, kGpu,
     "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED[[ ; GPU=<dev>]]"},
    {F::kOnnxRuntime, O::kLibraryAllocFailed, kGpu,
     "CUDNN failure <units>: CUDNN_STATUS_ALLOC_FAILED[[ ; GPU=<dev>]]"},
    // --- RAPIDS: RMM, XGBoost; gradient boosting ---
    {F::kXgboost, O::kLibraryRequest, kGpu,
     "emory allocation error on worker <rank>:<**>Free memory: <free><**>Requested memory: <req>",
     4},
    {F::kXgboost, O::kLibraryRequest, kGpu,
     "emory allocation error<**>Free memory: <free><**>Requested memory: <req>", 4},
    {F::kXgboost, O::kLibraryRequest, kGpu, "emory allocation error on worker <rank>:", 4},
    {F::kXgboost, O::kLibraryRequest, kGpu, "XGBoostError<**>out of memory", 4},
    {F::kRmm, O::kLibraryPool, kGpu,
     "Maximum pool size exceeded[[ (failed to allocate <req>)]][[: <*>limit<*><allowed>]]"},
    {F::kRmm, O::kLibraryPool, kGpu, "not enough room in <*>pool"},
    {F::kRmm, O::kLibraryRequest, kGpu,
     "std::bad_alloc: out_of_memory: CUDA error[[ (failed to allocate <req> bytes)]]"},
    {F::kRmm, O::kLibraryRequest, kGpu,
     "std::bad_alloc: out_of_memory: RMM failure at<*>: <detail>"},
    {F::kRmm, O::kLibraryRequest, kGpu, "std::bad_alloc: out_of_memory", 2},
    {F::kRmm, O::kLibraryRequest, kGpu,
     "std::bad_alloc: CUDA error at<*>cudaErrorMemoryAllocation"},
    {F::kCatBoost, O::kLibraryRequest, kGpu, "Out of memory. Requested <req:MiB>; Free <free:MiB>"},
    {F::kCatBoost, O::kLibraryRequest, kGpu, "catboost<*>CUDA error 2: out of memory"},
    {F::kCatBoost, O::kLibraryRequest, kGpu, "NCudaLib::TOutOfMemoryError"},
    {F::kLightGbm, O::kLibraryRequest, kGpu, "[LightGBM]<*>out of memory"},
    {F::kLightGbm, O::kLibraryRequest, kGpu, "LightGBMError<*>out of memory"},
    {F::kLightGbm, O::kLibraryRequest, "", "LightGBMError<*>Memory Object Allocation Failure"},
    // --- Paddle ---
    {F::kPaddle, O::kLibraryRequest, kGpu,
     "Out of memory error on GPU <dev>. Cannot allocate <req> memory on GPU <*>, <alloc> memory "
     "has been "
     "allocated and available memory is only <free>.[[<**>FLAGS_gpu_memory_limit_mb` is "
     "<allowed:MiB>]]",
     9},
    {F::kPaddle, O::kLibraryRequest, kGpu,
     "Out of memory error on GPU <dev>. Cannot allocate <req> memory on GPU <*>, available memory "
     "is "
     "only <free>.",
     9},
    {F::kPaddle, O::kLibraryRequest, kGpu,
     "Cannot allocate <req> memory on GPU <dev>, available memory is only <free>"},
    {F::kPaddle, O::kLibraryRequest, kGpu, "Out of memory error on GPU <dev>.", 9},
    {F::kPaddle, O::kCpuAllocator, kHost, "Fail to alloc memory of <req> size, error code is 12"},
    // --- CuPy, Numba, Warp, Julia ---
    {F::kCupy, O::kLibraryPool, kGpu,
     "Out of memory allocating <req> bytes (allocated so far: <alloc> bytes, limit set to: "
     "<allowed> "
     "bytes)"},
    {F::kCupy, O::kLibraryRequest, kGpu,
     "Out of memory allocating <req> bytes (allocated so far: <alloc> bytes"},
    {F::kCupy, O::kLibraryRequest, kGpu,
     "cupy<*>OutOfMemoryError: Out of memory allocating <req> bytes"},
    {F::kCupy, O::kLibraryRequest, kGpu, "cupy<*>cudaErrorMemoryAllocation: out of memory"},
    {F::kNumba, O::kLibraryRequest, kGpu, "Call to <word> results in CUDA_ERROR_OUT_OF_MEMORY"},
    {F::kNumba, O::kKernelResources, kGpu,
     "Call to <word> results in CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"},
    {F::kWarp, O::kLibraryRequest, kGpu, "Failed to allocate <req> bytes on device '<*>:<dev>'"},
    {F::kWarp, O::kLibraryRequest, kGpu,
     "Warp CUDA error 2: out of memory[[ (in function <word>]]"},
    {F::kPyCuda, O::kLibraryRequest, kGpu, "pycuda<*>MemoryError: <word> failed: out of memory"},
    {F::kPyCuda, O::kLibraryRequest, kGpu, "MemoryError: cuMemAlloc failed: out of memory"},
    {F::kOpenCl, O::kLibraryRequest, "", "CL_MEM_OBJECT_ALLOCATION_FAILURE"},
    {F::kOpenCl, O::kLibraryRequest, "", "MEM_OBJECT_ALLOCATION_FAILURE"},
    {F::kJulia, O::kLibraryRequest, kGpu,
     "Out of GPU memory trying to allocate <req>[[ Effective GPU memory usage: <*>% "
     "(<other>/<cap>)]][[ "
     "Memory pool usage: <alloc> (<resv> reserved)]]",
     3},
    // --- kernels ---
    {F::kTriton, O::kKernelResources, kGpu,
     "out of resource: <detail>, Required: <units>, Hardware limit: <unitsthere>"},
    {F::kTriton, O::kKernelResources, kGpu,
     "out of resource: <*> Required: <units> Hardware limit:[[ ]]<unitsthere>"},
    {F::kTriton, O::kKernelResources, kGpu, "OutOfResources: out of resource: <word>"},
    {F::kTriton, O::kKernelResources, kGpu,
     "uses too much shared data (<units> bytes, <unitsthere> max)"},
    {F::kUnknown, O::kKernelResources, kGpu, "too many resources requested for launch"},
    {F::kUnknown, O::kKernelResources, kGpu, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"},
    // --- programs that go on after a refusal ---
    {F::kUltralytics, O::kRetried, kGpu, "OutOfMemoryError in <word>, using CPU"},
    {F::kComfyUi, O::kRetried, kGpu,
     "Ran out of memory when regular <detail>, retrying with tiled"},
    // --- JAX's pool in the driver ---
    {F::kJax, O::kXlaBytes, kGpu,
     "cuMemAllocAsync failed to allocate <req> bytes<*>Free memory/Total memory: <free>/<cap>[[<*>"
     "InUse: <alloc>]][[<*>MaxInUse: <peak>]]",
     4},
    {F::kJax, O::kXlaBytes, kGpu, "cuMemAllocAsync failed to allocate <req> bytes", 4},
    // --- other frameworks ---
    {F::kTensorFlow, O::kTensorFlowShape, kGpu, "failed to allocate memory [Op:<word>]"},
    {F::kTensorFlow, O::kTensorFlowShape, kGpu, "Dst tensor is not initialized"},
    {F::kTensorFlow, O::kLibraryNotReady, kGpu,
     "Failed to get convolution algorithm. This is probably because cuDNN failed to initialize"},
    {F::kTensorFlow, O::kLibraryNotReady, kGpu,
     "failed to create cublas handle: CUBLAS_STATUS_NOT_INITIALIZED"},
    {F::kTensorFlow, O::kLibraryAllocFailed, kGpu,
     "failed to create cublas handle: CUBLAS_STATUS_ALLOC_FAILED"},
    {F::kTensorFlow, O::kTensorFlowDevice, kGpu,
     "failed to allocate <*>(<req> bytes) from device: <*>CUDA_ERROR_OUT_OF_MEMORY"},
    {F::kMxnet, O::kLibraryRequest, kGpu, "cudaMalloc retry failed: out of memory"},
    {F::kMxnet, O::kLibraryRequest, kGpu, "mxnet<*>out of memory"},
    {F::kMxnet, O::kLibraryRequest, kGpu,
     "Memory allocation failed[[ to allocate <req>]][[<*>pooled_storage_manager]]<*>mxnet"},
    {F::kCaffe, O::kLibraryRequest, kGpu, "error == cudaSuccess (2 vs. 0) out of memory"},
    {F::kFaiss, O::kLibraryRequest, kGpu,
     "StandardGpuResources: alloc fail <*>dev <dev> <*>size <req> bytes (cudaMalloc error out of "
     "memory"},
    {F::kOpenCv, O::kLibraryRequest, kGpu, "error: (-217:Gpu API call) out of memory"},
    {F::kBitsandbytes, O::kLibraryRequest, kGpu,
     "out of memory at line <units> in file <*>pythonInterface"},
    {F::kCTranslate2, O::kLibraryRequest, kGpu, "CUDA failed with error out of memory"},
    {F::kAccelerate, O::kServingPlacement, kGpu,
     "Make sure you have enough GPU RAM to fit the quantized model"},
    {F::kAccelerate, O::kServingPlacement, kGpu,
     "Make sure you have enough GPU RAM to fit the entire model"},
    {F::kAccelerate, O::kServingPlacement, kGpu, "Insufficient VRAM <*>for model"},
    // --- PyTorch before 1.0 ---
    {F::kPyTorch, O::kPinnedHost, kHost,
     "cuda runtime error (2) : out of memory at <*>THCCachingHostAllocator"},
    {F::kPyTorch, O::kPinnedHost, kHost,
     "THCudaCheck FAIL file=<*>THCCachingHostAllocator<*>out of memory"},
    {F::kPyTorch, O::kTorchStorage, kGpu,
     "cuda runtime error (2) : out of memory at [[<*>/]]THC<detail>"},
    {F::kPyTorch, O::kTorchStorage, kGpu,
     "THCudaCheck FAIL file=<*>THC<detail> error=2 : out of memory"},
    {F::kPyTorch, O::kPinnedHost, kHost, "cannot pin <*> memory"},
    // --- torch.cuda.memory_summary() is read as a table; this line begins it ---
    {F::kPyTorch, O::kMemorySummary, kGpu, "CUDA OOMs: <ooms> | cudaMalloc retries: <retries> |"},
    // --- the host's shared memory ---
    {F::kUnknown, O::kHostShared, kHost,
     "is killed by signal: Bus error[[. It is possible that dataloader's workers are out of shared "
     "memory]]"},
    {F::kUnknown, O::kHostShared, kHost, "dataloader's workers are out of shared memory"},
    {F::kUnknown, O::kHostShared, kHost, "insufficient shared memory (shm)"},
    {F::kUnknown, O::kHostShared, kHost, "unable to allocate shared memory (shm)"},
    {F::kUnknown, O::kHostShared, kHost, "unable to allocate shared memory(shm)"},
    {F::kUnknown, O::kHostShared, kHost, "unable to write to file <*>/torch_"},
    {F::kUnknown, O::kHostShared, kHost,
     "unable to open shared memory object <*>/torch_<*>No space left on device"},
    {F::kUnknown, O::kHostShared, kHost,
     "unable to open shared memory object <*>/torch_<*>Cannot allocate memory"},
    {F::kTorchrun, O::kHostShared, kHost, "Signal 7 (SIGBUS) received by PID"},
    {F::kTorchrun, O::kHostShared, kHost, "terminated with signal SIGBUS"},
    {F::kUnknown, O::kHostShared, kHost, "Bus error (core dumped)"},
    {F::kUnknown, O::kHostShared, kHost, "unable to mmap <req> bytes from file <*>/torch_"},
    {F::kNccl, O::kHostShared, kHost, "rror while creating shared memory segment <*>(size <req>)"},
    {F::kNccl, O::kHostShared, kHost, "rror while creating shared memory segment"},
    {F::kNccl, O::kHostShared, kHost, "/dev/shm/nccl-<*>No space left on device"},
    {F::kUnknown, O::kHostShared, kHost, "/dev/shm<*>No space left on device"},
    {F::kUnknown, O::kHostShared, kHost, "No space left on device: '/dev/shm"},
    {F::kUnknown, O::kHostShared, kHost, "No space left on device: '/psm_"},
    // --- killed: the host's memory ---
    {F::kRay, O::kHostKilled, kHost,
     "killed due to the node running low on memory.[[<**>memory used=<req>)]][[<**>was running was "
     "<alloc> "
     "/ <cap>]][[<*>threshold of <frac>]]",
     4},
    {F::kRay, O::kHostKilled, kHost,
     "Memory on the node (<*>was <alloc> / <cap> (<*>threshold of <frac>"},
    {F::kUnknown, O::kHostKilled, kHost, "Killed process <units> (<word>)[[<*>anon-rss:<alloc>]]"},
    {F::kUnknown, O::kHostKilled, kHost, "oom-kill event"},
    {F::kUnknown, O::kHostKilled, kHost, "cgroup out-of-memory handler"},
    {F::kUnknown, O::kHostKilled, kHost, "srun: error: <*>: Out Of Memory"},
    {F::kUnknown, O::kHostKilled, kHost,
     "exceeded memory limit (<alloc:KiB> > <cap:KiB>), being killed"},
    {F::kUnknown, O::kHostKilled, kHost, "DUE TO MEMORY LIMIT"},
    {F::kUnknown, O::kHostArray, kHost, "The paging file is too small for this operation"},
    {F::kDeepSpeed, O::kHostKilled, kHost, "exits with return code = -9"},
    {F::kTorchrun, O::kHostKilled, kHost, "Signal 9 (SIGKILL) received by PID"},
    {F::kTorchrun, O::kHostKilled, kHost, "failed (exitcode: -9)[[ local_rank: <rank>]]"},
    {F::kTorchrun, O::kHostKilled, kHost, "exitcode : -9"},
    {F::kTorchrun, O::kHostKilled, kHost, "exitcode: -9"},
    {F::kTorchrun, O::kHostKilled, kHost, "terminated with signal SIGKILL"},
    {F::kAccelerate, O::kHostKilled, kHost, "died with <*>SIGKILL: 9"},
    {F::kUnknown, O::kCpuAllocator, kHost,
     "DefaultCPUAllocator: not enough memory: you tried to allocate <req>"},
    {F::kUnknown, O::kCpuAllocator, kHost, "OSError: [Errno 12] Cannot allocate memory"},
    {F::kUnknown, O::kCpuAllocator, kHost, "not enough memory: you tried to allocate <req>"},
    {F::kUnknown, O::kCpuAllocator, kHost,
     "terminate called after throwing an instance of 'std::bad_alloc' what(): std::bad_alloc", 1},
    // --- Apple, Intel ---
    {F::kPyTorch, O::kMetalBuffer, "MPS", "Invalid buffer size: <req>"},
    {F::kPyTorch, O::kCudaError, "XPU", "UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"},
    {F::kPyTorch, O::kCudaError, "XPU", "PI_ERROR_OUT_OF_RESOURCES"},
    {F::kPyTorch, O::kCudaError, "XPU", "UR_RESULT_ERROR_OUT_OF_RESOURCES"},
    // --- the runtime's words in programs of one's own ---
    {F::kUnknown, O::kCudaError, kGpu, "GPUassert: out of memory"},
    {F::kUnknown, O::kCudaError, kGpu, "CUDA Runtime Error: out of memory"},
};

}  // namespace

std::span<const MessageRow> message_rows() { return kRows; }

}  // namespace tonnage::sources
