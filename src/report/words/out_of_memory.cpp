// What is said of an out-of-memory error of PyTorch's, from a record, a snapshot or a log.
#include "report/words/tables.h"

namespace tonnage::report {
namespace {

using S = analysis::Statement;

constexpr StatementRow kRows[] = {
    // --- titles ---
    {S::kTitleLargerThanMemory, "One tensor is larger than the memory there is"},
    {S::kTitleLargerThanCard, "One tensor is larger than the card"},
    {S::kTitleKeptByException, "What the failed attempt before made is still alive"},
    {S::kTitleOtherProcess, "Another process holds the card"},
    {S::kTitleOtherContexts, "Other processes have contexts on this GPU"},
    {S::kTitleRanksHere, "Other ranks hold memory on this GPU"},
    {S::kRanksHere,
     "{0} holds {2} of context and {3} of tensors on GPU {1}, which is another rank's."},
    {S::kRanksFirstTensor, "The first of these tensors was made {0}."},
    {S::kTitleOutside, "Much of the card is not PyTorch's"},
    {S::kTitleOutsideAllocator, "Much of the card is taken outside PyTorch's allocator"},
    {S::kTitleOwnLimit, "PyTorch's own limit refused, not the card"},
    {S::kTitleMemoryFull, "The memory is full"},
    {S::kTitleCardFull, "The card is full"},
    {S::kTitleFirstStep, "The optimizer's first step makes its state, and there is no room for it"},
    {S::kTitleOptimizerStep, "The optimizer's step does not fit"},
    {S::kTitleOptimizerCopies, "The optimizer's step makes copies of the parameters' size"},
    {S::kTitleModelState, "The model's own state fills the memory"},
    {S::kTitleModelTooLarge, "The model does not fit"},
    {S::kTitleLogits, "The loss's logits do not fit"},
    {S::kTitleLogitsLargest, "The logits of the loss are the largest part"},
    {S::kTitleLargeSample, "This step's sample is larger than the others"},
    {S::kTitleCheckpointInactive, "Checkpointing is called, but activations are kept all the same"},
    {S::kTitleCopies, "Copies in another type are a large part"},
    {S::kTitleWorkspaces, "Workspaces of libraries are a large part"},
    {S::kTitleActivations, "Activations and gradients fill the card"},
    {S::kTitleActivationsFill, "Activations fill the memory"},
    {S::kTitleHugeTensor, "One huge tensor does not fit"},
    {S::kTitleEnoughFree, "The card had enough free memory"},
    {S::kTitleOversubscribed, "More is allocated than the card has"},
    {S::kTitleDidWithLess, "A library was refused memory and did with less"},
    {S::kTitleOutOfMemory, "Out of memory"},
    {S::kTitleUntrained, "A checkpointed part of the model is not trained"},
    {S::kTitleMemorySummary, "PyTorch counted out-of-memory errors"},
    {S::kTitleSmi, "What nvidia-smi showed"},

    // --- one tensor ---
    {S::kTensorOverCard,
     "A single tensor of {0} was asked for {1}; the card has {2}. Nothing else matters: freeing "
     "every other byte would not make it fit."},
    {S::kTensorOverLimit,
     "A single tensor of {0} was asked for {1}; PyTorch has {2}. Nothing else matters: freeing "
     "every other byte would not make it fit."},
    {S::kRequestAvailable, "request {0}, available {1}"},
    {S::kLargerThanCard, "{0} were asked for at once; the card has {1}."},
    {S::kHugeTensor,
     "One tensor of {0} is {1} of the card: it grows with the product of two lengths (attention "
     "without a memory-efficient kernel, logits, a pairwise matrix), not with the model."},

    // --- kept ---
    {S::kKeptByException,
     "It had run out of memory before. {0} in {1} tensors of that attempt are still alive now, "
     "{2} of what is allocated. An exception that is kept (inside its except block, or as the last "
     "one of a notebook) holds the frames of the failed call, and they hold its tensors."},
    {S::kOlderThanFailure, "{0} tensors older than the earlier failure"},
    {S::kOfAllocated, "{0} of the {1} allocated"},

    // --- who else is there ---
    {S::kHeldByOthers,
     "Of {0} on the card {1} were held by {2}. This process had {3} reserved when {4} more were "
     "asked for {5}."},
    {S::kHeldByUnknown,
     "Of {0} on the card {1} were neither free nor PyTorch's: other processes, contexts or other "
     "libraries have them. This process had {2} reserved when {3} more were asked for {4}."},
    {S::kCapacityFreeReserved, "capacity {0}, free {1}, reserved {2}"},
    {S::kOutsideAllocator,
     "{0} on the device belong neither to PyTorch's allocator nor to contexts: libraries (NCCL, "
     "cuDNN) or other frameworks allocate on their own."},
    {S::kOutsideUnnamed,
     "Of {0}, {1} are neither free nor reserved by this process's PyTorch: other processes, a "
     "display, contexts, NCCL or another framework have them (the message does not name them). {2} "
     "were asked for."},
    {S::kOutsideNamed,
     "Of {0}, {1} are neither free nor reserved by this process's PyTorch: {2}. {3} were asked "
     "for."},
    {S::kOwnProcess,
     "Process {0} with {1} is this process itself: PyTorch has reserved {2} of it, and the rest is "
     "its context. A container hides that number from the process."},
    {S::kContextsOnly,
     "{0} processes hold little more than a context here, {1} together, as ranks do that touched "
     "this GPU on the way to their own."},
    {S::kOutsideSum, "capacity {0} - free {1} - reserved {2} = {3} outside"},

    // --- limits ---
    {S::kOwnLimit,
     "{0} of the card were free. PyTorch's own limit of {1} refused "
     "(set_per_process_memory_fraction, or per_process_memory_fraction in the allocator's "
     "settings)."},
    {S::kOwnLimitBetween,
     "{0} of the card were free. PyTorch's own limit, between {1} and {2}, refused "
     "(set_per_process_memory_fraction, or per_process_memory_fraction in the allocator's "
     "settings)."},
    {S::kFreeReservedAsked, "free on the device {0}, reserved {1}, asked for {2}"},
    {S::kLogOwnLimit,
     "PyTorch may use {0} and has {1} reserved; {2} more were asked for. {3} of the card are "
     "free."},
    {S::kEnoughFree,
     "{0} were asked for and {1} were free: the card is not full. A limit of the platform refused "
     "(a memory fraction that the message does not print, a MIG or container limit, Windows' "
     "paging file, address space), or the figure was taken after something else had let go."},
    {S::kOversubscribed,
     "{0} are allocated on a card of {1}. The driver has moved part of it to the host's memory "
     "(Windows, WSL), which is slow, and now that is full too."},

    // --- what fills it ---
    {S::kAllocatedUnknown,
     "{0} are allocated; what most of it is for is not known from the record."},
    {S::kFailingRequest, "The failing request was {0} {1}."},
    {S::kFailingRequestOfLimit,
     "The failing request was {0} {1}, {2} of what PyTorch could get by itself."},
    {S::kMadeInTensors, "{0} in {1} made {2}"},
    {S::kAllocatedOf,
     "{0} of {1} are allocated by tensors; {2} more were asked for, and {3} were free or cached."},
    {S::kSlackTooSmall,
     "The {0} of cached pieces would have held it in one piece, but that is {1} of what is "
     "reserved: closing the holes would not carry far."},
    {S::kMissingAtLeast, "missing at least {0}"},
    {S::kWhileLoading,
     "It failed while a state was loaded: loaded onto the GPU it exists twice there."},
    {S::kWhileSaving,
     "It failed while a checkpoint was saved: a full state dict brings all shards together on "
     "every "
     "rank that asks for it."},
    {S::kInFirstStep,
     "It failed in the function in which the optimizer makes its state, in its first step (8 bytes "
     "a parameter for Adam in 32 bits): a smaller batch frees none of it."},
    {S::kInOptimizerStep,
     "It failed in the optimizer's step, which makes its state in the first step (8 bytes a "
     "parameter for Adam in 32 bits) and copies with foreach."},
    {S::kInOptimizer, "It failed in the optimizer's step."},
    {S::kInLoss,
     "It failed in the loss: its input has samples or tokens x classes elements, and the loss "
     "makes "
     "copies of it."},
    {S::kInEvaluation,
     "It failed in evaluation: is it under torch.no_grad(), and are outputs collected on the GPU?"},
    {S::kInCollection,
     "It failed where evaluation puts the outputs of all batches together on the GPU."},
    {S::kWhileMoving,
     "It failed while the model was moved to the GPU: its parameters alone do not fit beside what "
     "is there."},
    {S::kInBackward, "It failed in the backward pass."},

    // --- the model's state ---
    {S::kFirstStepState,
     "The optimizer keeps {0} per parameter and makes its state in its first step: about {1} in "
     "all, of which {2} existed when it failed {3}."},
    {S::kFirstStepWhole,
     "With {0} of parameters and {1} of gradients the model's state needs about {2}."},
    {S::kFirstStepWholeNoParameters,
     "With the parameters (how many is not in the history) and {0} of gradients the model's state "
     "needs about {1}."},
    {S::kPyTorchMayUse, "PyTorch may use {0}."},
    {S::kPyTorchMayUseAtMost, "PyTorch may use at most {0}."},
    {S::kStateParts, "parameters {0}, gradients {1}, optimizer state {2} of about {3}"},
    {S::kActivationsThen, "activations then: {0}; a smaller batch frees none of the state"},
    {S::kOptimizerCopies,
     "{0} are temporaries of the optimizer's step {1}, the {2} that failed included. They exist "
     "only during step(), on top of parameters, gradients and state."},
    {S::kForeachAtOnce, "The foreach implementation works on all parameters at once."},
    {S::kOptimizerTemporaries, "live temporaries made inside torch/optim: {0}"},
    {S::kModelState,
     "Parameters ({0}), gradients ({1}) and optimizer state ({2}) take {3} of {4}; activations "
     "have {5}. A smaller batch cannot make room for the state."},
    {S::kSecondWeights,
     "{0} more have the parameters' sizes and were made {1}: the weights a second time (a "
     "checkpoint loaded to the GPU, a copy)."},
    {S::kShareOfLimit, "{0} of what PyTorch may use"},
    {S::kCopiesMade, "{0} of copies, made {1}"},
    {S::kStateTakes, "Parameters, gradients and optimizer state take {0}."},
    {S::kStateTakesAtLeast,
     "Parameters, gradients and optimizer state are at least {0}, and what {1} are for could not "
     "be told."},

    // --- the pass ---
    {S::kLogits,
     "Tensors of the loss's size ({0} each: samples or tokens x classes) take {1} of {2}, the "
     "request that failed {3} included. The loss works on about {4} of them at a time."},
    {S::kLogitsBySize,
     "The last {0} tensors of the pass have {1} each (or half, or double) and are far larger than "
     "all before them. They take {2} of {3}, the request that failed {4} included. The last "
     "tensors "
     "of a model are its logits (samples or tokens x classes), and the loss makes more of them."},
    {S::kAboutTensors, "about {0} tensors of {1}"},
    {S::kLargeSample,
     "In step {0} the tensors made at the same lines are {1} times as large as in the usual step "
     "before it; {2} steps had passed, with a peak of {3} in the median. The memory follows the "
     "largest sample, not the average one."},
    {S::kLargestTensors, "largest tensors {0} x the median step's, e.g. {1}"},
    {S::kCheckpointInactive,
     "{0} of activations that are alive were made inside torch.utils.checkpoint, which should have "
     "dropped them after the forward pass."},
    {S::kCopies,
     "{0} were made by conversions (aten::_to_copy), as autocast makes them of parameters and "
     "inputs."},
    {S::kCopiesBySize,
     "{0} have half the parameters' sizes, one for each, and were made inside modules: copies that "
     "autocast makes of parameters and keeps until the end of its block."},
    {S::kWorkspaces,
     "{0} are scratch memory of cuBLAS, cuDNN or others; cuBLAS keeps one per stream and thread."},
    {S::kActivationsSaved,
     "{0} of the {1} allocated are activations that the forward pass saved for the backward pass."},
    {S::kFailedBeforeForwardEnded,
     "It failed {0}, before the forward pass was through: the whole pass needs more still."},
    {S::kFailedAt, "It failed {0}."},
    {S::kByDataParallelReplica,
     "{0} of it are copies of the model that nn.DataParallel makes on every GPU, in every pass "
     "anew."},
    {S::kByDataParallelGather,
     "{0} of it are outputs of all GPUs that nn.DataParallel brings together on the first one."},
    {S::kByDdpBuckets,
     "{0} of it are DistributedDataParallel's buckets: a second copy of the gradients for the "
     "exchange."},
    {S::kByFsdpGathered,
     "{0} of it are whole parameters that FSDP gathered of all ranks for the layers at work."},
    {S::kByZero, "{0} of it are partitions and buffers of DeepSpeed's ZeRO."},
    {S::kByKeyValueCache,
     "{0} of it are a key-value cache made {1} (use_cache): generation needs it, training does "
     "not."},
    {S::kByLanguageModelHead,
     "{0} of it are outputs of the language model's head made {1}: tokens x classes."},
    {S::kByEvaluationCollect,
     "{0} of it are outputs of evaluation that the trainer puts together on the GPU {1}."},
    {S::kByMovingAverage, "{0} of it are a second set of weights, a moving average, made {1}."},
    {S::kUnfusedActivation,
     "{0} of it were saved by an activation function that is written as a formula {1}: each "
     "operation in it saves a tensor of the input's size, where a fused one saves a single one."},

    {S::kDidWithLessOnce,
     "A request of up to {0} was refused inside an operator that went on all the same: a "
     "convolution tries algorithms with large workspaces first. No error reached the program; it "
     "may be slower so near the limit."},
    {S::kDidWithLess,
     "{0} requests of up to {1} were refused inside operators that went on all the same: a "
     "convolution tries algorithms with large workspaces first. No error reached the program; it "
     "may be slower so near the limit."},

    // --- messages that say little ---
    {S::kMessageCut, "{0} were asked for; the message was cut off before its figures."},
    {S::kMessageNoFigures, "The message has no figures."},
    {S::kUntrained,
     "PyTorch warns that no input of torch.utils.checkpoint wants gradients: with "
     "use_reentrant=True nothing inside gets any. Memory that was measured so is no saving of "
     "checkpointing: no activations are kept because no backward pass comes."},
    {S::kUntrainedLine,
     "line {0} of the log: None of the inputs have requires_grad=True. Gradients will be None"},
    {S::kLineOfLog, "line {0} of the log: {1}"},
    {S::kSummaryCounters,
     "torch.cuda.memory_summary() counts its out-of-memory errors (CUDA OOMs: {0}) and the retries "
     "of "
     "cudaMalloc ({1})."},
    {S::kSummarySums,
     "When it was printed, {0} were allocated and {1} reserved: {2} were reserved but not "
     "allocated."},
    {S::kSummaryPeak, "The peak of what was allocated is {0}."},
    {S::kSummaryPieces, "{0} of it lie in pieces of segments that are in use."},
    {S::kRetriesMean,
     "A retry is a request for which PyTorch first gave all its free segments back to the driver: "
     "the program ran at the limit and was slow there."},
    {S::kSmiUse, "GPU {0}: {1} of {2} are in use, {3} are free."},
    {S::kSmiProcesses, "On it: {0}."},
    {S::kSmiNobody,
     "The table names no process on it: they run in another container or under another user, or a "
     "process that was killed has not given its memory back."},
    {S::kSmiLine, "line {0} of the log: the row of this GPU"},

    // --- what cannot be known ---
    {S::kLimitMessageSums,
     "A message has sums only: which tensors fill the memory, whether something grows, and how the "
     "free pieces lie is in a snapshot (torch.cuda.memory._record_memory_history)."},
    {S::kLimitSnapshot,
     "A PyTorch snapshot shows PyTorch's allocator only: contexts, NCCL, other libraries and other "
     "processes are not in it."},
    {S::kLimitCardSize,
     "How large the card is: if it has much more than PyTorch could get, another process or "
     "another "
     "library holds the rest (--memory SIZE, or the log of the error beside the snapshot, tells)."},
    {S::kLimitCardSizeAtLeast,
     "How large the card is: {0} is what PyTorch could get; if it has much more than PyTorch could "
     "get, another process or another library holds the rest (--memory SIZE, or the log of the "
     "error beside the snapshot, tells)."},
    {S::kLimitNoHistory,
     "There is no history, only the state when the snapshot was taken: peaks, growth and causes "
     "need _record_memory_history()."},
    {S::kLimitUnknownBytes, "What {0} of the {1} at the peak are for could not be told."},
    {S::kLimitHolder,
     "Which variable keeps the memory alive is not recorded: the line that made it is."},
    {S::kLimitTruncated,
     "The history begins in the middle: what was allocated before has no line, and an earlier peak "
     "is not seen."},
};

}  // namespace

std::span<const StatementRow> out_of_memory_words() { return kRows; }

}  // namespace tonnage::report
