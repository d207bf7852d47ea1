// What is said of an out-of-memory error of PyTorch's, from a record, a snapshot or a log.
#include "report/words/tables.h"

namespace tonnage::report {
namespace {

using S = analysis::Statement;

constexpr StatementRow kRows[] = {
    // --- titles ---
    {S::kTitleLargerThanMemory, "One tensor is larger than the memory there is"},
    {S::kTitleLargerThanCard, "One tensor is larger than the card"},
    {S::kTitleKeptByException, "Tensors of an earlier, failed attempt are still alive"},
    {S::kTitleOtherProcess, "Another process holds the card"},
    {S::kTitleOtherContexts, "Other processes have contexts on this GPU"},
    {S::kTitleRanksHere, "Other ranks hold memory on this GPU"},
    {S::kRanksHere,
     "{0} holds {2} of context and {3} of tensors on GPU {1}. That GPU belongs to another rank."},
    {S::kRanksFirstTensor, "The first of these tensors was made {0}."},
    {S::kTitleOutside, "Much of the card's memory is not PyTorch's"},
    {S::kTitleOutsideAllocator,
     "Much of the card's memory was allocated outside PyTorch's allocator"},
    {S::kTitleOwnLimit, "PyTorch's own limit refused the request, not the card"},
    {S::kTitleMemoryFull, "The memory is full"},
    {S::kTitleCardFull, "The card is full"},
    {S::kTitleFirstStep,
     "The optimizer makes its state in its first step, and there is no room for it"},
    {S::kTitleOptimizerStep, "The optimizer's step does not fit"},
    {S::kTitleOptimizerCopies,
     "The optimizer's step makes copies that are as large as the parameters"},
    {S::kTitleModelState, "Parameters, gradients and optimizer state fill the memory"},
    {S::kTitleModelTooLarge, "The model does not fit"},
    {S::kTitleLogits, "The logits of the loss do not fit"},
    {S::kTitleLogitsLargest, "The logits of the loss are the largest part"},
    {S::kTitleLargeSample, "This step's sample is larger than the others"},
    {S::kTitleCheckpointInactive, "Checkpointing is called, but activations are kept nevertheless"},
    {S::kTitleCopies, "Copies in another data type are a large part"},
    {S::kTitleWorkspaces, "Workspaces of libraries are a large part"},
    {S::kTitleActivations, "Activations and gradients fill the card"},
    {S::kTitleActivationsFill, "Activations fill the memory"},
    {S::kTitleHugeTensor, "One huge tensor does not fit"},
    {S::kTitleEnoughFree, "The card had enough free memory"},
    {S::kTitleOversubscribed, "More is allocated than the card has"},
    {S::kTitleDidWithLess, "A library was refused memory and went on with less"},
    {S::kTitleOutOfMemory, "Out of memory"},
    {S::kTitleUntrained, "A checkpointed part of the model is not trained"},
    {S::kTitleMemorySummary, "PyTorch counted out-of-memory errors"},
    {S::kTitleMemoryTable, "What torch.cuda.memory_summary() showed"},
    {S::kTitleSmi, "What nvidia-smi showed"},

    // --- one tensor ---
    {S::kTensorOverCard,
     "One tensor of {0} was requested {1}; the card has {2}. It would not fit even if all other "
     "memory were free."},
    {S::kTensorOverLimit,
     "One tensor of {0} was requested {1}; PyTorch may use {2}. It would not fit even if all other "
     "memory were free."},
    {S::kRequestAvailable, "request {0}, available {1}"},
    {S::kLargerThanCard, "{0} were requested at once; the card has {1}."},
    {S::kHugeTensor,
     "One tensor of {0} is {1} of the card. Such a tensor does not grow with the model; it grows "
     "with the product of two lengths (attention without a memory-efficient kernel, logits, a "
     "pairwise matrix)."},

    // --- kept ---
    {S::kKeptByException,
     "The program ran out of memory before. {0} in {1} tensors of that attempt are still alive "
     "now, {2} of the allocated memory. An exception that is kept (inside its except block, or as "
     "the last one of a notebook) holds the frames of the failed call, and the frames hold its "
     "tensors."},
    {S::kOlderThanFailure, "{0} tensors were made before the earlier failure"},
    {S::kOfAllocated, "{0} of the {1} allocated"},

    // --- who else is there ---
    {S::kHeldByOthers,
     "Of {0} on the card, {1} were held by {2}. This process had {3} reserved when it requested "
     "{4} more {5}."},
    {S::kHeldByUnknown,
     "Of {0} on the card, {1} were neither free nor PyTorch's: other processes, contexts or other "
     "libraries hold them. This process had {2} reserved when it requested {3} more {4}."},
    {S::kCapacityFreeReserved, "capacity {0}, free {1}, reserved {2}"},
    {S::kOutsideAllocator,
     "{0} on the device belong neither to PyTorch's allocator nor to contexts. Libraries (NCCL, "
     "cuDNN) or other frameworks allocated them by themselves."},
    {S::kOutsideUnnamed,
     "Of {0}, {1} are neither free nor reserved by this process's PyTorch. Other processes, a "
     "display, contexts, NCCL or another framework hold them; the message does not name them. {2} "
     "were requested."},
    {S::kOutsideNamed,
     "Of {0}, {1} are neither free nor reserved by this process's PyTorch: {2}. {3} were "
     "requested."},
    {S::kOwnProcess,
     "Process {0} with {1} is this process itself: PyTorch has reserved {2} of it, and the rest is "
     "its context. In a container a process does not see this number as its own."},
    {S::kContextsOnly,
     "{0} processes hold little more than a context here, {1} together. Ranks do that when they "
     "touch this GPU before they switch to their own."},
    {S::kOutsideSum, "capacity {0} - free {1} - reserved {2} = {3} outside PyTorch"},

    // --- limits ---
    {S::kOwnLimit,
     "{0} of the card were free. PyTorch's own limit of {1} refused the request "
     "(set_per_process_memory_fraction, or per_process_memory_fraction in the allocator's "
     "settings)."},
    {S::kOwnLimitBetween,
     "{0} of the card were free. PyTorch's own limit refused the request; it is between {1} and "
     "{2} (set_per_process_memory_fraction, or per_process_memory_fraction in the allocator's "
     "settings)."},
    {S::kFreeReservedAsked, "free on the device {0}, reserved {1}, requested {2}"},
    {S::kLogOwnLimit,
     "PyTorch may use {0} and has {1} reserved; {2} more were requested. {3} of the card are "
     "free."},
    {S::kEnoughFree,
     "{0} were requested and {1} were free: the card is not full. Either a limit of the platform "
     "refused the request (a memory fraction that the message does not print, a MIG or container "
     "limit, Windows' paging file, address space), or something else freed memory before the "
     "figure was taken."},
    {S::kOversubscribed,
     "{0} are allocated on a card of {1}. The driver has moved a part to the host's memory "
     "(Windows, WSL). That is slow, and now the host's memory is full, too."},

    // --- what fills it ---
    {S::kAllocatedUnknown, "{0} are allocated. The record does not say what most of it is for."},
    {S::kFailingRequest, "The request that failed was {0} {1}."},
    {S::kFailingRequestOfLimit,
     "The request that failed was {0} {1}: {2} of all that PyTorch could get."},
    {S::kMadeInTensors, "{0} in {1} made {2}"},
    {S::kAllocatedOf,
     "Tensors have {0} of {1}; {2} more were requested, and {3} were free or cached."},
    {S::kPoolOfDriver,
     "{0} more of the card are neither free nor allocated by PyTorch: unused parts of the driver's "
     "pool (backend:cudaMallocAsync), the context, other processes. The message does not divide "
     "them."},
    {S::kSlackTooSmall,
     "In one piece, the {0} of cached memory would have been enough. But that is only {1} of the "
     "reserved memory: it would not last long."},
    {S::kMissingAtLeast, "missing at least {0}"},
    {S::kWhileLoading,
     "It failed while a state was loaded: a state that is loaded onto the GPU exists twice there."},
    {S::kWhileSaving,
     "It failed while a checkpoint was saved: a full state dict brings all shards together on "
     "every rank that makes one."},
    {S::kInFirstStep,
     "It failed in the function in which the optimizer makes its state, in its first step (8 bytes "
     "per parameter for 32-bit Adam). A smaller batch frees none of it."},
    {S::kInOptimizerStep,
     "It failed in the optimizer's step. The optimizer makes its state in the first step (8 bytes "
     "per parameter for 32-bit Adam), and its foreach implementation makes copies."},
    {S::kInOptimizer, "It failed in the optimizer's step."},
    {S::kInLoss,
     "It failed in the loss: its input has (samples or tokens) x classes elements, and the loss "
     "makes copies of it."},
    {S::kInEvaluation,
     "It failed in evaluation. Does evaluation run under torch.no_grad()? Are outputs collected on "
     "the GPU?"},
    {S::kInCollection,
     "It failed at the line where evaluation puts the outputs of all batches together on the GPU."},
    {S::kWhileMoving,
     "It failed while the model was moved to the GPU: the parameters alone do not fit into the "
     "memory that is free."},
    {S::kInBackward, "It failed in the backward pass."},

    // --- the model's state ---
    {S::kFirstStepState,
     "The optimizer keeps {0} per parameter and makes this state in its first step: about {1} in "
     "all. {2} of it existed when it failed {3}."},
    {S::kFirstStepWhole, "Parameters ({0}), gradients ({1}) and the whole state need about {2}."},
    {S::kFirstStepWholeNoParameters,
     "Gradients ({0}), the whole state and the parameters (the history does not say how large they "
     "are) need about {1}."},
    {S::kPyTorchMayUse, "PyTorch may use {0}."},
    {S::kPyTorchMayUseAtMost, "PyTorch may use at most {0}."},
    {S::kStateParts, "parameters {0}, gradients {1}, optimizer state {2} of about {3}"},
    {S::kActivationsThen,
     "activations at that moment: {0}; a smaller batch frees none of the state"},
    {S::kOptimizerCopies,
     "{0} are temporaries of the optimizer's step {1}; this includes the {2} whose request failed. "
     "They exist only during step(), in addition to parameters, gradients and state."},
    {S::kForeachAtOnce, "The foreach implementation works on all parameters at once."},
    {S::kOptimizerTemporaries, "live temporaries made inside torch/optim: {0}"},
    {S::kModelState,
     "Parameters ({0}), gradients ({1}) and optimizer state ({2}) take {3} of {4}. Activations "
     "take {5}. A smaller batch cannot make room for parameters, gradients and state."},
    {S::kSecondWeights,
     "{0} more have the same sizes as the parameters and were made {1}. They are probably a second "
     "copy of the weights (a checkpoint loaded to the GPU, a copy)."},
    {S::kShareOfLimit, "{0} of what PyTorch may use"},
    {S::kCopiesMade, "{0} of copies, made {1}"},
    {S::kStateTakes, "Parameters, gradients and optimizer state take {0}."},
    {S::kStateTakesAtLeast,
     "Parameters, gradients and optimizer state take at least {0}. What another {1} are for is not "
     "known."},

    // --- the pass ---
    {S::kLogits,
     "Tensors as large as the logits ({0} each: samples or tokens x classes) take {1} of {2}. This "
     "includes the request that failed {3}. The loss works on about {4} such tensors at a time."},
    {S::kLogitsBySize,
     "The last {0} tensors of the pass have {1} each (or half, or double) and are far larger than "
     "all tensors before them. They take {2} of {3}. This includes the request that failed {4}. "
     "The last tensors of a model are its logits (samples or tokens x classes), and the loss makes "
     "more tensors of their size."},
    {S::kAboutTensors, "about {0} tensors of {1}"},
    {S::kLargeSample,
     "In step {0} the tensors that are made at the same lines are {1} times as large as in the "
     "usual step before it. {2} steps had passed, with a median peak of {3}. The memory follows "
     "the largest sample, not the average one."},
    {S::kLargestTensors, "largest tensors {0} times those of the median step, for example {1}"},
    {S::kCheckpointInactive,
     "{0} of activations that are alive were made inside torch.utils.checkpoint. It should have "
     "freed them after the forward pass."},
    {S::kCopies,
     "{0} were made by conversions (aten::_to_copy). Autocast makes such copies of parameters and "
     "inputs."},
    {S::kCopiesBySize,
     "{0} have half the sizes of the parameters, one for each, and were made inside modules. They "
     "are copies that autocast makes of parameters and keeps until the end of its block."},
    {S::kWorkspaces,
     "{0} are workspaces of cuBLAS, cuDNN or other libraries. cuBLAS keeps one for each stream and "
     "thread."},
    {S::kActivationsSaved,
     "{0} of the {1} allocated are activations that the forward pass saved for the backward pass."},
    {S::kFailedBeforeForwardEnded,
     "It failed {0}, before the forward pass had ended: the whole pass needs still more."},
    {S::kFailedAt, "It failed {0}."},
    {S::kByDataParallelReplica,
     "{0} of it are copies of the model: nn.DataParallel makes them on every GPU, again in every "
     "pass."},
    {S::kByDataParallelGather,
     "{0} of it are the outputs of all GPUs: nn.DataParallel brings them together on the first "
     "GPU."},
    {S::kByDdpBuckets,
     "{0} of it are DistributedDataParallel's buckets: a second copy of the gradients, for the "
     "exchange between ranks."},
    {S::kByFsdpGathered,
     "{0} of it are whole parameters: FSDP gathers them from all ranks for the layers that it is "
     "running."},
    {S::kByZero, "{0} of it are partitions and buffers of DeepSpeed's ZeRO."},
    {S::kByKeyValueCache,
     "{0} of it are a key-value cache made {1} (use_cache). Generation needs it, training does "
     "not."},
    {S::kByGenerationCache,
     "{0} of it are the key-value cache of generation, made {1}: it grows with sequences x "
     "tokens."},
    {S::kByLanguageModelHead,
     "{0} of it are outputs of the language model's head made {1}: tokens x vocabulary size."},
    {S::kByEvaluationCollect,
     "{0} of it are outputs of evaluation that the trainer puts together on the GPU {1}."},
    {S::kByMovingAverage, "{0} of it are a second set of weights, a moving average, made {1}."},
    {S::kUnfusedActivation,
     "{0} of it were saved by an activation function that is written as a formula {1}. Each "
     "operation in the formula saves a tensor of the input's size; a fused function saves only "
     "one."},

    {S::kDidWithLessOnce,
     "A request of up to {0} was refused inside an operator, and the operator went on without it. "
     "A convolution tries algorithms with large workspaces first. No error reached the program, "
     "but it may be slower so near the limit."},
    {S::kDidWithLess,
     "{0} requests of up to {1} were refused inside operators, and the operators went on without "
     "them. A convolution tries algorithms with large workspaces first. No error reached the "
     "program, but it may be slower so near the limit."},

    // --- messages that say little ---
    {S::kMessageCut, "{0} were requested. The message was cut off before its other figures."},
    {S::kMessageNoFigures, "The message has no figures."},
    {S::kUntrained,
     "PyTorch warns that no input of torch.utils.checkpoint requires gradients. With "
     "use_reentrant=True, nothing inside gets any. So this run does not show what checkpointing "
     "saves: no activations are kept because there is no backward pass."},
    {S::kUntrainedLine,
     "line {0} of the log: None of the inputs have requires_grad=True. Gradients will be None"},
    {S::kLineOfLog, "line {0} of the log: {1}"},
    {S::kSummaryCounters,
     "torch.cuda.memory_summary() counts its out-of-memory errors (CUDA OOMs: {0}) and the retries "
     "of "
     "cudaMalloc ({1})."},
    {S::kSummaryNoErrors,
     "torch.cuda.memory_summary() counts no out-of-memory error and {0} retries of cudaMalloc."},
    {S::kSummarySums,
     "When it was printed, {0} were allocated and {1} reserved, so {2} were reserved but not "
     "allocated."},
    {S::kSummaryPeak, "The peak of the allocated memory is {0}."},
    {S::kSummaryPieces, "{0} of it lie in pieces of segments that are in use."},
    {S::kRetriesMean,
     "A retry means that PyTorch had to give all its free segments back to the driver before a "
     "request. The program ran at the limit of its memory, and that is slow."},
    {S::kSmiUse, "GPU {0}: {1} of {2} are in use, {3} are free."},
    {S::kSmiProcesses, "On it: {0}."},
    {S::kSmiNobody,
     "The table names no process on it. They run in another container or under another user, or "
     "the memory of a killed process was not freed."},
    {S::kSmiSlices, "It is divided (MIG), and a process sees its slice only: {0}."},
    {S::kSmiLine, "line {0} of the log: the row of this GPU"},

    // --- what cannot be known ---
    {S::kLimitMessageSums,
     "A message has only sums. A snapshot also shows which tensors fill the memory, whether "
     "something grows, and where the free pieces are (torch.cuda.memory._record_memory_history)."},
    {S::kLimitLibrarySums,
     "A message has sums only: what fills the card, and whether something grows, is not in it."},
    {S::kLimitHost,
     "How much of the host's memory each process had is not in such a line. The system's log or "
     "the batch system's accounting has it."},
    {S::kLimitSnapshot,
     "A PyTorch snapshot shows PyTorch's allocator only: contexts, NCCL, other libraries and other "
     "processes are not in it."},
    {S::kLimitCardSize,
     "How large the card is. If it is much larger than what PyTorch could get, another process or "
     "another library holds the rest. --memory SIZE gives the size, or the log of the error beside "
     "the snapshot."},
    {S::kLimitCardSizeAtLeast,
     "How large the card is: {0} is what PyTorch could get. If the card is much larger, another "
     "process or another library holds the rest. --memory SIZE gives the size, or the log of the "
     "error beside the snapshot."},
    {S::kLimitNoHistory,
     "There is no history, only the state when the snapshot was taken: peaks, growth and causes "
     "need _record_memory_history()."},
    {S::kLimitUnknownBytes, "What {0} of the {1} at the peak are for."},
    {S::kLimitHolder,
     "Which variable keeps the memory alive. Only the line that made it is recorded."},
    {S::kLimitTruncated,
     "The history begins in the middle: earlier allocations have no line, and an earlier peak is "
     "not in it."},
};

}  // namespace

std::span<const StatementRow> out_of_memory_words() { return kRows; }

}  // namespace tonnage::report
