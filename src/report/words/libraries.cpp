// What is said of messages of other libraries, of drivers and of the host.
#include "report/words/tables.h"

namespace tonnage::report {
namespace {

using S = analysis::Statement;

constexpr StatementRow kRows[] = {
    // --- the host ---
    {S::kTitleSharedMemoryFull, "The host's shared memory (/dev/shm) is full, not the GPU"},
    {S::kSharedMemoryFull,
     "Data-loader workers pass their batches through /dev/shm, and that is full. A container gets "
     "only 64 MiB of it by default. The card is not the cause."},
    {S::kSharedMemoryFullOfNccl,
     "NCCL exchanges data between processes of one host through /dev/shm, and that is full. A "
     "container gets only 64 MiB of it by default. The card is not the cause."},
    {S::kRequestedThere, "{0} were requested there."},
    {S::kTitleHostMemory, "The host's memory ran out, not the GPU's"},
    {S::kHostRefused, "{0} of host memory were requested and refused."},
    {S::kHostRefusedOfFree, "{0} of host memory were requested; {1} were free."},
    {S::kHostRefusedNoFigures, "Host memory was requested and refused."},
    {S::kKilledFromOutside,
     "The process was killed from outside (signal 9). The kernel does that when the host's memory "
     "is full."},
    {S::kRayKilled,
     "Ray killed the task because the node's own memory was nearly full: {0} of {1} in use."},
    {S::kWorkerHeld, "The killed task held {0} of it."},
    {S::kKilledHeld, "It held {0}."},
    {S::kOverMemoryLimit, "The batch system ended it: it had {0} and was allowed {1}."},
    {S::kPagingFile,
     "Windows could not promise more memory: its paging file is too small. Loading CUDA libraries "
     "in several processes (data-loader workers) does that before the memory itself is full."},
    {S::kSwapTooLarge, "The server's swap space is {0} of the {1} that the host has."},
    {S::kTitlePinned, "Pinned host memory was refused, not the GPU's"},
    {S::kPinnedRefused, "{0} of pinned host memory were requested and refused."},
    {S::kPinnedRefusedNoFigures,
     "Pinned host memory was requested and refused. It is memory of the host that the driver "
     "locks; the error looks like an error of the card."},
    {S::kTitleUnifiedOthers, "Other allocations than PyTorch's tensors fill the unified memory"},
    {S::kUnifiedOthers, "PyTorch's tensors have {0}, other allocations {1} of {2} allowed."},
    {S::kTitleUnifiedFull, "PyTorch's tensors fill the memory that PyTorch may use"},
    {S::kUnifiedFull, "{0} of {1} are allocated; {2} more were requested."},

    {S::kTitleMetalBuffer, "One tensor is larger than a buffer may be"},
    {S::kMetalBuffer,
     "One tensor of {0} was requested. Metal gives no single buffer that large, even if more is "
     "free."},

    // --- disguised ---
    {S::kTitleExabyte, "More than an exabyte was requested"},
    {S::kSizeOverflowed,
     "A size is negative or overflowed. The memory is not too small: the shape that the failing "
     "line computes is wrong."},
    {S::kTitleTorchStorage, "PyTorch found no memory for a tensor"},
    {S::kTorchStorage,
     "PyTorch's own tensor storage refused ({0}), as versions before 1.0 report it: the card was "
     "full of the program's tensors. The message has no figures."},
    {S::kTitleDriver, "The driver had no memory"},
    {S::kDriverRefused,
     "The driver or the runtime refused a request outside PyTorch's allocator (a context, a "
     "library, expandable segments, a wrong device). The message has no figures."},
    {S::kDriverRefusedContext,
     "The driver refused the memory for the context itself, before any tensor was made. Either the "
     "card was already full, or the process may not use it."},
    {S::kTitleLibraryHandle, "{0} is an out-of-memory error"},
    {S::kLibraryHandle,
     "A library could not allocate its handle or workspace: PyTorch's cache and the program's "
     "tensors had left too little of the card."},
    {S::kTitleLibraryNotReady, "{0}: usually an out-of-memory error with another name"},
    {S::kDriverRefusedAnybody,
     "The driver or runtime refused an allocation. The message does not say who asked, nor how "
     "much."},
    {S::kDriverRefusedLibrary,
     "The driver or runtime refused memory that {0} asked for; the message has no figures."},
    {S::kLibraryHandleOf,
     "A library that {0} uses could not allocate its handle or workspace: what is in use on the "
     "card had left it too little."},
    {S::kLibraryNotReadyOf,
     "A library that {0} uses could not start, or found no algorithm whose workspace fits. Most "
     "often the card is full, with the memory that {0} took at its start; a driver that does not "
     "match the library does the same."},
    {S::kLibraryNotReady,
     "A library could not start, or found no algorithm whose workspace fits. Usually the card is "
     "full, also with PyTorch's cache. A driver that does not match the library has the same "
     "effect."},
    {S::kTitleNvmlAssert, "The real error behind this assertion is out of memory"},
    {S::kNvmlAssert,
     "PyTorch ran out of memory. Then it asked NVML which processes use the card, and NVML failed "
     "(MIG, containers, Jetson). So the real message was lost."},
    {S::kTitleNccl, "NCCL could not allocate its buffers"},
    {S::kNcclAsked,
     "NCCL requested {0} from the driver, outside PyTorch's allocator, and the card was full."},
    {S::kNcclAskedNoFigures,
     "NCCL requests memory from the driver itself, outside PyTorch's allocator, and the card was "
     "full."},
    {S::kTitleBoardFull, "The shared memory of the board is full"},
    {S::kBoardFull, "The driver could not map {0}; CPU and GPU share the memory."},

    // --- TensorFlow, XLA ---
    {S::kTitleTensorFlowTries, "{0} tried a large piece first"},
    {S::kTensorFlowTries,
     "The driver did not give {0} in one piece. {1} then tries smaller pieces. This line alone is "
     "often harmless."},
    {S::kAskedFor, "{0} were requested."},
    {S::kAskedForBy, "{0} were requested ({1})."},
    {S::kTitleRetried, "The program was refused memory and went on with less"},
    {S::kRetried,
     "{0} was refused memory in {1}. It says that it goes on in another way: more slowly, with "
     "less at a time."},
    {S::kTitleTrial, "A search for the batch size tried until one did not fit"},
    {S::kTrial,
     "AutoBatch tries larger and larger batches. This refusal ended the search, not the program; "
     "the batch size that it then takes is in the next lines."},
    {S::kShapeDidNotFit, "A tensor of shape {0} and type {1} ({2}) did not fit."},
    {S::kShapeDidNotFitNoType, "A tensor of shape {0} did not fit."},
    {S::kPoolInPieces, "{0} of its limit of {1} were free, in pieces: fragmentation."},
    {S::kTitlePoolInPieces, "Enough is free in TensorFlow's pool, but not in one piece"},
    {S::kInUseOf, "{0} of {1} were in use."},
    {S::kTitleTensorDidNotFit, "A tensor of the model did not fit"},
    {S::kTitleProgramTooLarge, "The compiled program needs more than the device has"},
    {S::kProgramTooLarge,
     "The program needs {0} of {1} in {2}: {3} too much. The compiler found this out; no step "
     "ran."},
    {S::kTitleDeviceFull, "The device's memory is full"},
    {S::kAskedOfFree, "{0} were requested and {1} were free."},
    {S::kMoreAsked, "{0} more were requested."},
    {S::kMoreAskedBy, "{0} more were requested by {1}."},
    {S::kJaxTakesAtStart,
     "JAX takes 75 % of the card when it starts. So nvidia-smi does not show how much of it is "
     "used."},
    {S::kXlaProgram,
     "The compiled program needs {0} in all: {1} of arguments, {2} of outputs and {3} of "
     "temporaries."},
    {S::kXlaFragmentation, "{0} of it is lost between buffers (fragmentation)."},
    {S::kDeviceAllocated, "{0} of {1} are allocated already."},
    {S::kXlaLargestBuffer, "Its largest single buffer has {0}."},
    {S::kTitleXlaOutputs, "The outputs of the compiled program are the largest part"},
    {S::kTitleXlaTemporaries, "The temporaries of the compiled program are the largest part"},
    {S::kTitleXlaArguments, "The arguments of the compiled program are the largest part"},

    // --- inference servers ---
    {S::kTitleCacheTooShort, "The key-value cache does not hold one request of the longest length"},
    {S::kCacheNeeds,
     "One request of {0} tokens needs {1} of key-value cache; {2} are left for it beside the "
     "weights."},
    {S::kCacheHoldsTokens,
     "The longest request may have {0} tokens; the key-value cache holds {1}."},
    {S::kCacheHoldsLess,
     "The longest request that the model allows does not fit into the key-value cache."},
    {S::kTitleNoCache, "Nothing is left for the key-value cache"},
    {S::kNothingLeftForCache,
     "The weights and the memory of a measured pass fill the share of the card that {0} may use: "
     "nothing is left for the key-value cache."},
    {S::kConfiguredShare, "The share is set to {0}."},
    {S::kTitleUnbalanced, "The GPUs of the group do not have the same free memory"},
    {S::kUnbalanced,
     "One of the GPUs has clearly less free memory than this one: something else runs there."},
    {S::kThisGpuHasFree, "This GPU has {0} free."},
    {S::kTitleLessFreeThanShare, "At the start, less memory is free than the server wants to use"},
    {S::kFullestGpuHasFree, "The fullest one has {0} free."},
    {S::kLessFreeThanShare,
     "vLLM wants {0} (gpu_memory_utilization {1} of {2}), and {3} are free: {4} were in use before "
     "it started. No key-value cache was made yet."},
    {S::kTitleNoRoomForTokens, "The key-value cache has no room for these tokens"},
    {S::kTokensAsked, "{0} needs room for {1} tokens in its key-value cache and has room for {2}."},
    {S::kTokensAskedOnly,
     "{0} needs room for {1} tokens in its key-value cache, and has not enough."},
    {S::kTokensNoFigures, "The key-value cache of {0} has no room for the next batch."},
    {S::kTitleWarmUp, "The server's warm-up run does not fit beside the key-value cache"},
    {S::kWarmUp, "The warm-up ran out of memory after the key-value cache was made."},
    {S::kWarmUpRequests,
     "The sampler's warm-up with {0} requests at once ran out of memory after the key-value cache "
     "was made: its logits have requests x classes elements."},
    {S::kTitleProfile, "Another process changed the card's memory while the server measured it"},
    {S::kProfileFree, "{0} were free before the measurement and {1} after it."},
    {S::kProfileUsed, "{0} were in use before the measurement and {1} after it."},
    {S::kProfileMeaning,
     "The server measures its own need by the free memory of the card. That goes wrong if another "
     "process frees memory at the same time."},
    {S::kTitlePlacement, "The model's parts do not all fit on the GPUs"},
    {S::kPlacement,
     "A part of the model had to be placed on the host or on disk, because the GPUs have too "
     "little free memory for all of it. This way of loading does not allow that."},

    // --- kernels ---
    {S::kTitleKernelResources, "One kernel needs more than a multiprocessor has"},
    {S::kKernelSharedMemory,
     "The kernel needs {1} ({3} bytes) of {0} for each block; the GPU has {2} ({4} bytes)."},
    {S::kKernelUnits, "The kernel needs {1} of {0}; the GPU has {2}."},
    {S::kKernelTooMany,
     "The kernel needs more registers, threads or shared memory for one block than a "
     "multiprocessor has."},
    {S::kNotDeviceMemory,
     "Device memory is not the problem: a larger card of the same kind or a smaller model changes "
     "nothing."},

    // --- other libraries ---
    {S::kTitleLibraryFull, "{0} found no memory on the card"},
    {S::kLibraryAskedAll, "{0} asked for {1} when {2} were free; it has allocated {3}."},
    {S::kLibraryAskedFree, "{0} asked for {1} when {2} were free."},
    {S::kLibraryAskedHeld, "{0} asked for {1} more and holds {2} already."},
    {S::kLibraryAsked, "{0} asked for {1}, and less was free on the card."},
    {S::kLibraryRefused, "{0} was refused memory; the message has no figures."},
    {S::kCardHas, "The card has {0}."},
    {S::kPoolReserved, "Its pool has {0} reserved."},
    {S::kLibraryAskedAbsurd, "{0} asked for {1}, which no machine has."},
    {S::kFreeButRefused,
     "That much was free. Its arena or pool wanted more in one piece, or another limit refused."},
    {S::kTitlePoolLimit, "The limit of {0}'s own pool refused the request, not the card"},
    {S::kPoolLimit, "{0}'s pool has reached the size that it was given."},
    {S::kPoolLimitAsked,
     "{0}'s pool has reached the size that it was given; {1} more were requested."},
    {S::kPoolLimitFigures, "{0}'s pool may have {1} and holds {2}; {3} more were requested."},
};

}  // namespace

std::span<const StatementRow> library_words() { return kRows; }

}  // namespace tonnage::report
