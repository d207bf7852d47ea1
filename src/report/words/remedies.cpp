// What to do: one sentence for each remedy, and the setting to copy.
#include "report/words/tables.h"

namespace tonnage::report {
namespace {

using R = analysis::Remedy;

constexpr RemedyRow kRows[] = {
    // --- the allocator ---
    {R::kExpandableSegments,
     "Expandable segments let free pieces of different segments serve one request; most of the {0} "
     "would become usable",
     "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"},
    {R::kExpandableSegmentsLog,
     "Expandable segments (if they are not on yet) let free pieces serve one request: up to {0} "
     "become usable",
     "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"},
    {R::kExpandableCloser,
     "Expandable segments keep reserved memory close to allocated memory where sizes change; at "
     "best {0} less",
     "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"},
    {R::kExpandableAlreadyOn,
     "Expandable segments are already on. The free pieces that are left are smaller than a page (2 "
     "or 20 MiB) and lie beside live blocks",
     ""},
    {R::kExpandableKept,
     "Expandable segments are already on; the rest is kept for reuse, and is given back before an "
     "out-of-memory error",
     ""},
    {R::kWithoutMaxSplit,
     "max_split_size of {0} is set: larger blocks are never split, and serve only requests of "
     "nearly their size. Try without it",
     ""},
    {R::kMakeItFirst,
     "Make the {0} tensor {1} before the small tensors that stay, or make it once and reuse it",
     ""},
    {R::kLargeBuffersEarly,
     "Make large buffers once and early; call empty_cache() between phases with different shapes",
     ""},
    {R::kLeavePool,
     "Delete the pool, or call torch.cuda.empty_cache() before it is used: this frees {0}",
     "del pool; torch.cuda.empty_cache()"},
    {R::kOnePool, "Let CUDA graphs share one pool (torch.cuda.graph(..., pool=...))", ""},
    {R::kFewerGraphs,
     "Capture CUDA graphs for fewer batch sizes, or let them share one pool: {0} are in their "
     "pools",
     ""},
    {R::kRaiseFraction,
     "If nothing else needs the rest of the card, raise the fraction: {0} are free",
     "torch.cuda.set_per_process_memory_fraction(1.0)"},
    {R::kRaiseFractionLog, "Raise the fraction: {0} are free",
     "torch.cuda.set_per_process_memory_fraction(1.0)"},
    {R::kWithinLimit, "Stay within the limit of {0}: tensors have {1}", ""},
    {R::kALittleLess, "With a little less memory in use ({0}), the faster algorithms can run", ""},

    // --- who else is there ---
    {R::kStopOther,
     "Stop the other process (is it a crashed run that is still there?), or use another GPU: this "
     "frees {0}, and the model may not have to change",
     ""},
    {R::kFindWithSmi,
     "Find with nvidia-smi which process holds it, or use another GPU: this frees {0}, and the "
     "model may not have to change",
     ""},
    {R::kStopProcess,
     "Stop {0} (is it a crashed run that is still there?), or use another GPU: this frees {1}", ""},
    {R::kFindWhoHas,
     "Find out what holds the {0}: nvidia-smi lists processes. A context takes 0.3 to 1 GiB, each "
     "NCCL communicator several hundred MiB",
     ""},
    {R::kEmptyCardMayDo,
     "On an empty card the same request may fit, without any change of the model", ""},
    {R::kOwnGpuPerRank,
     "{0} processes have little more than a context here. If they are ranks of the same job: call "
     "torch.cuda.set_device(local_rank) first, and load checkpoints with map_location, so that "
     "each rank touches only its own GPU",
     "torch.load(path, map_location=\"cpu\")"},
    {R::kLoadToOwnGpu,
     "Load checkpoints with map_location, and call torch.cuda.set_device(local_rank) before "
     "anything else touches a GPU: this frees {0} here",
     "torch.load(path, map_location=\"cpu\")"},
    {R::kFewerCommunicators,
     "Use fewer communicators and process groups; let other frameworks allocate on demand", ""},
    {R::kLookWhoHolds, "Before the start, look with nvidia-smi which processes use the card", ""},
    {R::kStopWhoHolds, "Stop what holds the other {0} of the card", ""},
    {R::kRunAlone,
     "Run it alone and watch nvidia-smi: another process may take the memory for a moment", ""},
    {R::kLookForLimits,
     "Look for set_per_process_memory_fraction, for a cgroup or MIG slice, and on Windows for the "
     "paging file's size",
     ""},
    {R::kBatchWouldNotHelp, "A smaller batch does not help here", ""},
    {R::kNeedsMoreThanCard,
     "The program needs {0} more than the card has: smaller model, batch or samples", ""},
    {R::kNoSystemFallback,
     "Turn off the driver's system-memory fallback, so that the program fails early instead of "
     "becoming very slow",
     ""},

    // --- tensors ---
    {R::kSplitInParts,
     "Split the tensor into at least {0} parts that are computed one after the other", ""},
    {R::kWorkInParts, "The failing line has to work in at least {0} parts", ""},
    {R::kSplitTensor,
     "Split the computation of the {0} tensor (chunked attention or loss, a memory-efficient "
     "kernel): halved it needs {1}",
     ""},
    {R::kPrintShapes,
     "Print the shapes at the failing line; look for negative or multiplied dimensions", ""},
    {R::kLookThereFirst, "The largest part is made {0}: look there first", ""},
    {R::kRetryAfterExcept,
     "Try again after the except block, not inside it. The {0} are freed when the exception is "
     "freed; gc.collect() and empty_cache() inside the block cannot free them",
     ""},

    // --- the model's state ---
    {R::kEightBitOptimizer, "An 8-bit optimizer keeps about a quarter of the {0} of 32-bit state",
     ""},
    {R::kShardState,
     "Sharding parameters, gradients and state over 2 GPUs (FSDP, ZeRO-3) halves the {0} per GPU; "
     "over 8 it leaves {1}",
     ""},
    {R::kAdaptersOnly,
     "Training only adapters (LoRA) needs almost none of the {0} of gradients and optimizer state",
     ""},
    {R::kRestHasToGo,
     "Parameters, gradients and state alone would fit with {0} to spare. Free what else is alive "
     "in the step (loss, outputs, caches)",
     ""},
    {R::kFusedOptimizer, "With fused=True (or foreach=False) the optimizer needs none of these {0}",
     "fused=True"},
    {R::kCopyOnHost,
     "Keep the copy on the host (torch.load with map_location=\"cpu\", .cpu()): this frees {0}",
     "map_location=\"cpu\""},
    {R::kWholeGradients,
     "Gradients are {0} times the parameters. While FSDP's no_sync() accumulates, the gradients of "
     "a sharded model are not sharded. Without no_sync() (or with set_requires_gradient_sync) they "
     "are sharded in each micro-step: about {1} less",
     ""},
    {R::kZeroGradToNone,
     "{0} of gradients are alive during the forward pass. Unless you accumulate, "
     "zero_grad(set_to_none=True) before the pass frees them",
     "optimizer.zero_grad(set_to_none=True)"},
    {R::kLoadToHost,
     "Load to the host first (map_location=\"cpu\"), then copy into the existing model and "
     "optimizer, and delete the loaded dict",
     "torch.load(path, map_location=\"cpu\")"},
    {R::kShardedStateDict,
     "Save sharded state dicts, or gather only on rank 0 and in host memory (offload_to_cpu, "
     "rank0_only)",
     ""},

    // --- the pass ---
    {R::kChunkedLoss,
     "A chunked or fused linear cross-entropy (8 chunks) would hold about {0} instead of {1}", ""},
    {R::kFewerLogits,
     "Compute logits only for the positions that the loss needs (labels that are not ignored)", ""},
    {R::kLimitSample,
     "Limit the length or size of samples (or put similar ones together): at the usual size about "
     "{0} less would be alive here",
     ""},
    {R::kLargestFirst,
     "Run the largest sample first. If it does not fit, the program then fails in the first step",
     ""},
    {R::kCheckCheckpoint,
     "Check that the checkpointed function really runs (use_reentrant, modules in eval mode, "
     "outputs kept by hooks)",
     ""},
    {R::kSmallerParameters,
     "Keep the parameters themselves in the smaller data type, so that autocast converts nothing",
     ""},
    {R::kSmallerWorkspaces, "Smaller cuBLAS workspaces, and fewer streams",
     "CUBLAS_WORKSPACE_CONFIG=:4096:2:16:8"},
    {R::kCheckpointBlocks,
     "Activation checkpointing of the {0} equal layers ({1} each) would free about {2} of the {3}, "
     "and costs one more forward pass",
     "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)"},
    {R::kHalfBatch,
     "Half the batch (with gradient accumulation, if you want the whole batch) halves the "
     "activations: about {0} less here",
     ""},
    {R::kAutocast,
     "If the model runs in float32: autocast to bfloat16 makes most activations half as large (the "
     "record does not say the data type)",
     ""},
    {R::kFusedActivation,
     "A fused activation function instead of the formula saves one tensor instead of several of "
     "these {0}",
     "torch.nn.functional.gelu(x, approximate=\"tanh\"), torch.nn.functional.silu(x)"},
    {R::kDdpInstead,
     "DistributedDataParallel instead of nn.DataParallel: one process for each GPU, no copies in "
     "every pass, and outputs stay where they are",
     "torchrun --nproc-per-node N"},
    {R::kGradientAsBucketView, "Let the gradients be views of the buckets: {0} less",
     "DistributedDataParallel(model, gradient_as_bucket_view=True)"},
    {R::kFsdpReshard,
     "Free gathered parameters after the forward pass, and wrap smaller parts of the model",
     "reshard_after_forward=True"},
    {R::kZeroBuckets, "Smaller buckets and no overlap of communication",
     "reduce_bucket_size, allgather_bucket_size, overlap_comm=false"},
    {R::kNoUseCache, "Turn the cache off in training: {0} less", "model.config.use_cache = False"},
    {R::kAverageOnHost, "Keep the averaged weights on the host: {0} less", ""},
    {R::kFirstSteps,
     "If it fails in the first steps: a smaller batch or shorter samples reduce only activations. "
     "If the model with its gradients and optimizer state (16 bytes per parameter with 32-bit "
     "Adam) already needs almost the whole card, only sharding, offloading or an 8-bit optimizer "
     "helps",
     ""},
    {R::kLaterSteps,
     "If it fails later: something grows (a leak), or one sample is larger. A recorded history "
     "shows which (torch.cuda.memory._record_memory_history, then tonnage explain)",
     ""},
    {R::kEvalAccumulation,
     "Move the outputs to the host every few batches (in the Hugging Face Trainer: "
     "eval_accumulation_steps), and keep the argmax or the metric instead of all logits. On the "
     "host the logits would need as much memory",
     "eval_accumulation_steps=1"},
    {R::kSmallerBatch, "A smaller batch or shorter samples", ""},
    {R::kSmallerBatchFreesActivations,
     "A smaller batch or shorter samples reduce the activations; parameters, gradients and "
     "optimizer state stay",
     ""},
    {R::kNewerTorchForFigures,
     "A newer PyTorch says in the same message how much was requested, allocated and free", ""},
    {R::kRecordHistory,
     "Record a history with torch.cuda.memory._record_memory_history(), then run tonnage explain "
     "with the snapshot",
     ""},
    {R::kWholeMessage,
     "The whole message has the card's size, the free memory, and what PyTorch holds; a recorded "
     "history has everything",
     ""},
    {R::kNoReentrance,
     "Checkpoint with use_reentrant=False, or let the first input require gradients "
     "(x.requires_grad_(), model.enable_input_require_grads()). Then measure again",
     "use_reentrant=False"},

    // --- growth ---
    {R::kNoGrad,
     "Run the loop under torch.no_grad() or torch.inference_mode(): then the {0} are not kept",
     "with torch.inference_mode():"},
    {R::kNoGradIfValidation,
     "If this is a validation: run it under torch.no_grad() or torch.inference_mode()",
     "with torch.inference_mode():"},
    {R::kDetachIfWanted,
     "If you want gradients: call .detach() or .item() on what is kept, and .cpu() if it is large. "
     "If losses of many batches are summed, backward() on each of them frees its graph at once",
     ""},
    {R::kNoHooksInCheckpoint,
     "Register no hooks on tensors inside the checkpointed function (put saved_tensors_hooks "
     "around the checkpoint, not inside it), or remove them after the backward pass: this frees "
     "{0} {1:a}",
     ""},
    {R::kNonReentrant,
     "Keep only detached values of the tensors that the hook sees: a tensor of the second pass "
     "holds the whole graph of that pass",
     "value.detach()"},
    {R::kBackwardEach,
     "Call backward() on the loss of each batch: gradients add up in the same way, and {0} are "
     "freed each time",
     "(loss / accumulation_steps).backward()"},
    {R::kGradientsToNone,
     "After backward(create_graph=True), a gradient and its graph keep each other alive. Set "
     "gradients to None each {0}, or use torch.autograd.grad(..., create_graph=True) and keep only "
     "numbers: this frees {1} {0:a}",
     "optimizer.zero_grad(set_to_none=True)"},
    {R::kNumbersNotTensors,
     "Keep numbers, not tensors: call .item() (or .detach()) on what is collected {0}. This frees "
     "{1} {2:a}",
     "losses.append(loss.item())"},
    {R::kNumbersAndNoGrad,
     "Keep numbers, not tensors: call .item() (or .detach()) on what is collected. And set .grad "
     "of the tensor that was made {0} to None where it is used again. This frees {1} {2:a}",
     "losses.append(loss.item())"},
    {R::kGiveItAnEnd,
     "Limit it: use a fixed length and drop the oldest part, or start anew. Joining also holds the "
     "old and the new tensor at the same time ({0})",
     ""},
    {R::kOneOptimizer,
     "Make one optimizer before the loop, or let go of the old one (its scheduler and closures, "
     "too) "
     "before the next is made; that frees {0} {1:a}",
     ""},
    {R::kMoveOff,
     "Move what is collected off the GPU (.cpu()), reduce it each {0}, or empty the list: {1} "
     "{0:a}. detach() alone does not move it",
     ""},
    {R::kMoveOffIfUnbounded,
     "If nothing limits it, move what is collected off the GPU (.cpu()), reduce it each {0}, or "
     "empty the list: {1} {0:a}. detach() alone does not move it",
     ""},
    {R::kCacheCapacity,
     "If it is a cache or a buffer: choose its capacity for this card; each {0} adds {1}", ""},

    // --- disguised errors ---
    {R::kHandleEarly,
     "Treat it as out of memory: use a smaller batch, or make the handle early (one small matrix "
     "product on the GPU before the model is loaded)",
     ""},
    {R::kHalfBatchShows,
     "Treat it as out of memory first. If it goes away with half the batch, it was", ""},
    {R::kLaunchBlocking,
     "If it happens at once on an empty card: wrong labels or indices can cause this error, too. "
     "Run once with CUDA_LAUNCH_BLOCKING=1",
     "CUDA_LAUNCH_BLOCKING=1"},
    {R::kVersionsMatch,
     "If it also happens on an empty card: the versions of driver and library do not match, or an "
     "earlier kernel failed (run once with CUDA_LAUNCH_BLOCKING=1)",
     "CUDA_LAUNCH_BLOCKING=1"},
    {R::kStatsHaveFigures,
     "Treat it as out of memory; torch.cuda.memory_stats() or a recorded history has the figures",
     ""},
    {R::kRoomForNccl,
     "Leave memory for NCCL: make the communicators before PyTorch's cache grows, or limit PyTorch "
     "with a memory fraction",
     ""},
    {R::kFewerChannels, "Fewer process groups and channels: each communicator has its own buffers",
     "NCCL_MAX_NCHANNELS=8"},
    {R::kBoardRoom,
     "Close other programs, use a smaller model or batch, or add swap space for the CPU", ""},
    {R::kCloseOthers,
     "Close other users of the memory ({0}), and call torch.mps.empty_cache() before large steps",
     ""},
    {R::kWatermarkOnlyLifts,
     "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 only removes the limit: then the system itself may fail",
     ""},

    // --- the host ---
    {R::kLargerShm, "Give the container a larger /dev/shm",
     "docker run --shm-size=8g (or --ipc=host)"},
    {R::kFewerWorkers, "Use fewer data-loader workers or a smaller prefetch_factor", ""},
    {R::kSmallerSwap, "Give the server a smaller swap space", "--swap-space 4"},
    {R::kDeepSpeedHost,
     "Each rank loads and offloads in host memory, so the need grows with the number of ranks on a "
     "host. Offload less (offload_optimizer, offload_param), load with low_cpu_mem_usage, or use "
     "fewer ranks per host",
     ""},
    {R::kLookForKiller,
     "The kernel's log says whether it was the out-of-memory killer, and how much memory the "
     "process had",
     "dmesg | grep -i \"killed process\""},
    {R::kMetricByBatch,
     "Results of the whole data set are collected on the host ({0}): compute the metric batch by "
     "batch, or keep the argmax instead of all classes",
     ""},
    {R::kMetricByBatchUnknown,
     "Results of the whole data set are collected on the host: compute the metric batch by batch, "
     "or keep the argmax instead of all classes",
     ""},
    {R::kLessOnHost,
     "Use fewer data-loader workers and a smaller prefetch_factor, reduce results before they are "
     "collected on the CPU, or raise the container's limit",
     ""},
    {R::kSmallerModelOnHost,
     "A smaller model or quantization, a shorter context, or more memory and swap for the host",
     ""},
    {R::kLargerPagingFile,
     "A larger paging file (System, Advanced, Performance, Virtual memory), or fewer data-loader "
     "workers",
     "num_workers=0"},
    {R::kBusErrorElsewhere,
     "If /dev/shm is not full (df -h /dev/shm): a file that is mapped into memory became shorter, "
     "or "
     "its disk is full",
     "df -h /dev/shm"},
    {R::kLessPinned,
     "Pin less: pin_memory=False, fewer workers and prefetched batches, smaller offload buffers",
     "pin_memory=False"},

    // --- TensorFlow, XLA ---
    {R::kTensorFlowGrowth,
     "If training fails afterwards, another process has a part of the card. With "
     "tf.config.experimental.set_memory_growth TensorFlow takes only what it needs",
     ""},
    {R::kDriverPool, "The driver's own pool can join free pieces",
     "TF_GPU_ALLOCATOR=cuda_malloc_async"},
    {R::kHalfFirstDimension,
     "If its first dimension, {0}, is the batch: use {1}, which needs half of it", ""},
    {R::kKerasMixedPrecision, "Mixed precision (tf.keras.mixed_precision) halves most activations",
     ""},
    {R::kHaveToGo,
     "At least {0} have to be saved: jax.checkpoint (remat), a smaller batch per device, or "
     "sharding over more devices",
     ""},
    {R::kAccumulationAddsBuffer,
     "Gradient accumulation adds a buffer as large as the gradients; it saves only activations",
     ""},
    {R::kRematOrBatch,
     "Use jax.checkpoint (remat) around the layers, a smaller batch, or donated buffers "
     "(donate_argnums)",
     ""},
    {R::kReturnLess,
     "Return less from the jitted function: {0} are its results (return metrics instead of every "
     "output; do not stack intermediate results of scan)",
     ""},
    {R::kDonate, "Donated arguments give their memory to the outputs: {0} are arguments",
     "jax.jit(f, donate_argnums=(0,))"},
    {R::kRemat,
     "Use jax.checkpoint (remat) around the layers, or a smaller batch: {0} are temporaries of the "
     "program",
     "jax.checkpoint(f)"},
    {R::kShardArguments, "Shard the arguments over more devices: {0} of them are on this one", ""},
    {R::kJaxShare, "If another framework uses the same card, limit JAX to its share",
     "XLA_PYTHON_CLIENT_MEM_FRACTION=0.5"},
    {R::kMemoryAnalysis, "compiled.memory_analysis() says what the program needs before it runs",
     ""},

    // --- inference servers ---
    {R::kMaxModelLen, "The server computed the length that fits: {0} tokens",
     "--max-model-len {0}"},
    {R::kMaxModelLenComputed, "By the figures of the message, about {0} tokens fit into the cache",
     "--max-model-len {0}"},
    {R::kMoreShareBy,
     "Give the server a larger share of the card, if it is free: the cache needs {0} more "
     "(gpu_memory_utilization)",
     ""},
    {R::kMoreShare,
     "Give the server a larger share of the card, if it is free (gpu_memory_utilization)",
     "--gpu-memory-utilization 0.95"},
    {R::kLessShare,
     "Give weights and cache a smaller share of the card, so that more is left for the rest "
     "(gpu_memory_utilization)",
     "--gpu-memory-utilization 0.85"},
    {R::kShareThatFits, "Use a share that fits into the free memory: {0} of the card, {1}",
     "--gpu-memory-utilization {0}"},
    {R::kKvCacheFp8, "A key-value cache of 8 bits holds twice as many tokens",
     "--kv-cache-dtype fp8"},
    {R::kTensorParallel, "Spread weights and cache over more GPUs", "--tensor-parallel-size 2"},
    {R::kQuantizeOrParallel,
     "A quantized model, or weights spread over more GPUs (tensor parallelism), leaves more room",
     ""},
    {R::kFewerSequences, "Fewer sequences at once (max_num_seqs)", "--max-num-seqs 64"},
    {R::kFewerBatchedTokens,
     "Fewer tokens in one batch: the measured pass and the batch need less "
     "(max_num_batched_tokens)",
     "--max-num-batched-tokens 2048"},
    {R::kOneAfterAnother,
     "Start one server after the other, and wait until the memory of an old process is free", ""},
    {R::kSglangMoreStatic,
     "Give weights and cache a larger share, if the card has it (mem_fraction_static)",
     "--mem-fraction-static 0.9"},
    {R::kSglangLessStatic,
     "Give weights and cache a smaller share, so that more is left for the rest "
     "(mem_fraction_static)",
     "--mem-fraction-static 0.8"},
    {R::kSglangSmallerGraphs, "Capture CUDA graphs for smaller batches only",
     "--cuda-graph-max-bs 16"},
    {R::kSglangChunkedPrefill, "Process long prompts in smaller pieces",
     "--chunked-prefill-size 2048"},
    {R::kSglangFewerRequests, "Fewer requests at once", "--max-running-requests 64"},
    {R::kFreeTheGpus, "Free all GPUs of the group before the start, or leave out the busy one", ""},
    {R::kTgiPrefill, "Fewer prompt tokens in one batch", "--max-batch-prefill-tokens 2048"},
    {R::kTgiFraction, "A smaller share of the card for the key-value cache",
     "--cuda-memory-fraction 0.9"},
    {R::kSmallerQuantization, "A smaller quantization (4 bits instead of 8) or a smaller model",
     ""},
    {R::kOffloadPart,
     "Allow a part of the model on the host, if the loader can (llm_int8_enable_fp32_cpu_offload, "
     "a device map of your own), or use more GPUs",
     ""},

    // --- llama.cpp ---
    {R::kLlamaFewerLayers, "Fewer layers on the GPU; the rest runs on the CPU", "--n-gpu-layers N"},
    {R::kLlamaContext, "A shorter context: the key-value cache grows with it", "--ctx-size 4096"},
    {R::kLlamaCacheType, "A quantized key-value cache, with flash attention",
     "--flash-attn on --cache-type-k q8_0 --cache-type-v q8_0"},
    {R::kLlamaSmallerBatch, "A smaller micro-batch makes the compute buffer smaller",
     "--ubatch-size 128"},
    {R::kLlamaFewerSlots, "Fewer sequences at once: they share the context", "--parallel 1"},
    {R::kOllamaContext, "A shorter context: the key-value cache grows with it",
     "OLLAMA_CONTEXT_LENGTH=4096 (or num_ctx)"},
    {R::kOllamaCacheType, "A quantized key-value cache, with flash attention",
     "OLLAMA_FLASH_ATTENTION=1 OLLAMA_KV_CACHE_TYPE=q8_0"},
    {R::kOllamaFewerLayers, "Fewer layers on the GPU; the rest runs on the CPU",
     "PARAMETER num_gpu N"},
    {R::kOllamaParallel, "One request at a time, one model at a time",
     "OLLAMA_NUM_PARALLEL=1 OLLAMA_MAX_LOADED_MODELS=1"},
    {R::kOllamaSmaller, "A smaller model or quantization", ""},

    // --- kernels ---
    {R::kSmallerBlocks,
     "Smaller blocks or fewer stages in the kernel's configuration (BLOCK sizes, num_stages)", ""},
    {R::kOtherKernel,
     "If it is a library's kernel: use another attention or GEMM backend, or a version that "
     "supports this GPU",
     ""},
    {R::kFewerThreads, "Fewer threads for each block, or fewer registers for each thread", ""},

    // --- other libraries ---
    {R::kOrtBatch, "A smaller batch or shorter inputs for this session", ""},
    {R::kOrtArena, "Let the arena grow by the requested size, not by powers of two",
     "arena_extend_strategy=kSameAsRequested"},
    {R::kOrtLimit, "Give the arena its share of the card (gpu_mem_limit), and run one session",
     "gpu_mem_limit"},
    {R::kTensorRtWorkspace, "A smaller workspace while the engine is built",
     "config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, 1 << 30)"},
    {R::kTensorRtShapes, "Use smaller maximum shapes in the optimization profile", ""},
    {R::kXgboostExternal,
     "Keep the data on the host and load it in parts (ExtMemQuantileDMatrix, QuantileDMatrix)", ""},
    {R::kXgboostBins, "Use fewer bins, less depth, or a part of the rows each time",
     "max_bin=128, subsample=0.5, sampling_method=gradient_based"},
    {R::kXgboostRmm, "Spread the rows over more GPUs (dask, spark)", ""},
    {R::kRmmSpill, "Let cuDF move data that is not in use to the host", "CUDF_SPILL=on"},
    {R::kRmmManaged, "Managed memory can be larger than the card, but it is slower",
     "rmm.reinitialize(managed_memory=True)"},
    {R::kRmmParts, "Work in smaller partitions", ""},
    {R::kRmmLargerPool, "A larger pool, if the card has it",
     "rmm.reinitialize(pool_allocator=True, maximum_pool_size=...)"},
    {R::kCatBoostRamPart, "A smaller part of the card at the start, or fewer borders",
     "gpu_ram_part=0.8"},
    {R::kCatBoostBorders, "Fewer borders and less depth", "border_count=32, depth=6"},
    {R::kLightGbmBins, "Fewer bins", "max_bin=63"},
    {R::kPaddleBatch, "A smaller batch or smaller images", ""},
    {R::kPaddleFraction,
     "Let Paddle allocate memory as it needs it, so that other processes can use the rest",
     "FLAGS_allocator_strategy=auto_growth"},
    {R::kPaddleLimit, "Raise the limit that was set, if the card has more",
     "FLAGS_gpu_memory_limit_mb=0"},
    {R::kFewerBoxes,
     "Its memory grows with images x boxes x anchors: a smaller batch, or images with fewer boxes "
     "(crop, tile) keep it on the card",
     ""},
    {R::kComfyLowVram, "Let ComfyUI keep less of the model on the card",
     "--lowvram (or --novram), --disable-smart-memory"},
    {R::kWebUiLowVram, "Let the web UI keep less of the model on the card",
     "--medvram (or --lowvram), --xformers"},
    {R::kTiledDecode, "Decode the picture in tiles", "VAE Decode (Tiled)"},
    {R::kSmallerPicture,
     "A smaller picture or video, or fewer of them at once: attention grows with the square of "
     "their area",
     ""},
    {R::kPipelineOffload, "Keep only the part at work on the card, and decode in tiles",
     "pipe.enable_model_cpu_offload(); pipe.vae.enable_tiling()"},
    {R::kFewerTokens, "Fewer or shorter sequences at once: the key-value cache grows with both",
     "max_new_tokens"},
    {R::kCacheOffload, "Keep the key-value cache on the host, or quantize it",
     "generate(..., cache_implementation=\"offloaded\")"},
    {R::kCupyFreeBlocks,
     "Free cached blocks before large steps; other libraries on the card cannot use them",
     "cupy.get_default_memory_pool().free_all_blocks()"},
    {R::kCupyParts, "Work on parts of the array, or in float32 instead of float64", ""},
    {R::kCupyManaged, "Managed memory can be larger than the card, but it is slower",
     "cupy.cuda.set_allocator(cupy.cuda.MemoryPool(cupy.cuda.malloc_managed).malloc)"},
    {R::kCupyLimit, "Raise the pool's limit, if the card has it",
     "cupy.get_default_memory_pool().set_limit(fraction=0.9), CUPY_GPU_MEMORY_LIMIT"},
    {R::kNumbaDelete, "Delete device arrays that are not used any more; Numba frees them late",
     "NUMBA_CUDA_MAX_PENDING_DEALLOCS_COUNT=1"},
    {R::kWarpPool, "Delete arrays that are not used, and free the pool's cache",
     "wp.set_mempool_release_threshold(\"cuda:0\", 0)"},
    {R::kJuliaReclaim, "Free arrays explicitly, and give the pool's memory back",
     "CUDA.unsafe_free!(x); CUDA.reclaim()"},
    {R::kMxnetPool, "Use another pool, which keeps less", "MXNET_GPU_MEM_POOL_TYPE=Round"},
    {R::kFaissTemp, "A smaller scratch space, or parts of the queries at a time",
     "res.setTempMemory(256 << 20)"},
    {R::kBnbPaged, "A paged optimizer moves its state to the host when the card is full",
     "PagedAdamW8bit"},
    {R::kCt2Compute, "Weights of 8 bits", "compute_type=\"int8_float16\""},

    // --- nvidia-smi ---
    {R::kSmiStopOthers, "Stop the processes that do not belong to this job, or use another GPU",
     ""},
    {R::kSmiRead,
     "nvidia-smi shows what processes have reserved, their caches included: PyTorch's own figures "
     "are in torch.cuda.memory_summary() or a recorded history",
     ""},
};

}  // namespace

std::span<const RemedyRow> remedy_words() { return kRows; }

}  // namespace tonnage::report
