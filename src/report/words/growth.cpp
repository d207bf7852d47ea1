// What is said of growth, and of fragmentation.
#include "report/words/tables.h"

namespace tonnage::report {
namespace {

using S = analysis::Statement;

constexpr StatementRow kGrowthRows[] = {
    {S::kTitleEvalGraphs, "A loop without a backward pass keeps its autograd graphs"},
    {S::kTitleHookedCheckpoint, "{0} leaves tensors behind that a checkpoint made again"},
    {S::kTitleGraph, "{0} leaves a whole autograd graph behind"},
    {S::kTitleGraphWithBackward, "{0} leaves a whole autograd graph behind, and its backward pass"},
    {S::kTitleGrowsInPlace, "A tensor made at one line grows with every {0}"},
    {S::kTitleTensorAndGradient, "{0} leaves a tensor and its gradient behind"},
    {S::kTitleGradientsLeft, "{0} leaves gradients behind"},
    {S::kTitleTensorsLeft, "{0} leaves tensors behind"},
    {S::kTitleOptimizersLeft, "{0} leaves an optimizer's state behind"},
    {S::kOptimizersLeft,
     "{0} of optimizer state stay alive, made {1}. State is made once for each parameter: here "
     "optimizers are made anew, and something keeps the old ones (a list, a scheduler, a "
     "closure)."},

    {S::kEvalGraphs,
     "Each of {0} {1:s} leaves {2} behind: the tensors that autograd saves in a forward pass "
     "called {3}. No backward pass ran, so nothing frees them. Something that the loop keeps (an "
     "output, a loss) refers to them."},
    {S::kHookedCheckpoint,
     "{0} stay alive, about {1} tensors. A checkpoint was called {2}, and its backward pass made "
     "them again. Hooks on tensors inside the checkpoint hold the new graph "
     "(torch.autograd.graph.saved_tensors_hooks, register_hook, or code there that keeps a "
     "tensor)."},
    {S::kGraphStays,
     "{0} stay alive, about {1} tensors: those that autograd saved in a forward pass called {2}."},
    {S::kGraphOfBackward,
     "{0} of it were made by a backward pass that can itself be differentiated "
     "(create_graph=True)."},
    {S::kSomethingHoldsGraph,
     "Something that is kept (a loss in a list or a running sum, an output, a hidden state) still "
     "refers to the graph."},
    {S::kSomethingHoldsGraphTwice,
     "Something that is kept (a loss in a list or a running sum, an output, a hidden state, a "
     "penalty, or the gradients themselves) still refers to the graph."},
    {S::kSumOfLosses,
     "Earlier this line was followed by a backward pass; here none ran. A sum of losses keeps the "
     "graphs of all of them until its one backward()."},
    {S::kGrowsInPlace,
     "The tensor that is made {0} and held after each {1} grows by {2} {1:a}, to {3}. Each time a "
     "larger tensor replaces the last one (torch.cat with the old one, a cache of keys and values "
     "that is never cut)."},
    {S::kTensorAndGradient,
     "{0} stay alive: tensors made {1}, and their gradients. Something that is kept (a penalty, a "
     "loss, the tensor itself with its .grad) still refers to them."},
    {S::kStayFromLines,
     "{0} stay alive. They were made at {1} lines that belong together, most of them {2}."},
    {S::kStayOneOfSize, "{0} made {1} stay alive: one tensor of {2} each time."},
    {S::kStayManyOfSize, "{0} made {1} stay alive: {2} tensors of {3} each time."},
    {S::kStayMany, "{0} made {1} stay alive, {2} each time."},
    {S::kBackwardMadeThem,
     "Backward passes made them. Either gradients are collected, or they belong to a backward pass "
     "with create_graph=True, and something (a penalty, a loss) still refers to it."},
    {S::kNoGraphOnThem, "As far as the record shows, they hold no autograd graph."},

    {S::kOlderOfSameSize,
     "{0} more in {1} of the same size were made before the history begins. Most likely they come "
     "from earlier {2:s} in the same way"},
    {S::kLeftAtLine, "{0} of {1} complete {2:s} left memory behind at this line, {3} in all"},
    {S::kLeftAtLines, "{0} of {1} complete {2:s} left memory behind at these lines, {3} in all"},
    {S::kPartSavedOfForward, "of it {0} {1:a} {2}, {3}: saved by the forward pass"},
    {S::kPartMadeInForward, "of it {0} {1:a} {2}, {3}: made in the forward pass"},
    {S::kPartMadeByBackward, "of it {0} {1:a} {2}, {3}: made by backward passes"},
    {S::kPartGiven, "of it {0} {1:a} {2}, {3}: inputs of the pass"},
    {S::kPartKept, "of it {0} {1:a} {2}, {3}: kept"},
    {S::kPartLarger, "of it {0} {1:a} {2}, {3}: made from kept tensors, and larger each time"},
    {S::kCacheBeyondCard,
     "If this is a cache, a replay buffer or a queue, its limit is higher than the card's memory."},
    {S::kMayBeFilling,
     "It may also be a cache, a replay buffer or a queue that is not full yet: within {0} {1:s}, "
     "none of its tensors was freed or found again."},
    {S::kMayBeCutLater,
     "It may also be a tensor that is cut or started anew at some length: within {0} {1:s} this "
     "did not happen."},
    {S::kWouldShowFull,
     "How to find out: about {0} are held now. Run past the capacity that you intend (more than "
     "{1} {2:s}). If it is a cache, nothing grows then, and this finding is gone"},
    {S::kWouldShowCut,
     "How to find out: run more than {0} {1:s}, past the length that you intend. If it is cut "
     "there, nothing grows any more, and this finding is gone"},
    {S::kMadeNothingIn,
     "in {0} of the {1:s} this line made nothing. A cache behaves so when it already has the "
     "value"},
    {S::kWillFail, "At this rate {0} {1} will fail on {2}."},
    {S::kWillFailIfOn, "If it goes on at this rate, {0} {1} will fail on {2}."},
    {S::kWillFailUnlessFull,
     "If it goes on at this rate, {0} {1} will fail on {2}. A cache that is full before that "
     "fits."},

    // --- fragmentation ---
    {S::kTitleFragmentation, "Enough memory is free, but not in one piece"},
    {S::kTitleFragmentationLikely, "Fragmentation is likely"},
    {S::kTitlePrivatePool, "A private pool holds the free memory"},
    {S::kTitleReservedUnused, "PyTorch reserves far more than it ever allocates"},
    {S::kFreeInPieces,
     "{0} of the {1} that PyTorch has reserved are free. That is more than the {2} that were "
     "requested {3}. But they are in {4} pieces, and the largest piece is {5}."},
    {S::kFreeInPiecesWithHeadroom,
     "{0} of the {1} that PyTorch has reserved are free, and {2} outside of them: together more "
     "than the {3} that were requested {4}. But they are in {5} pieces, and the largest piece is "
     "{6}."},
    {S::kPinnedSegments,
     "{0} of {1} segments hold a small block that stays alive, so PyTorch could not give them "
     "back."},
    {S::kReservedSum,
     "reserved {0} = requested {1} + rounding {2} + waiting for streams {3} + free segments {4} + "
     "free pieces of segments in use {5}"},
    {S::kMoveEmpties,
     "moving {0} blocks of together {1} would empty {2} segments ({3}): enough for the request"},
    {S::kMoveWithin,
     "moving {0} blocks of together {1} within one segment would make one free piece of {2}"},
    {S::kMoveLine, "{0} of them, {1}, were made {2}"},
    {S::kPoolKeepsSegments,
     "{0} are free in whole segments. With the {3} that the driver could still give, that is "
     "enough for the {1} that were requested {2}. But a private pool is in use "
     "(torch.cuda.MemPool, CUDA graphs). PyTorch does not give back the free segments of a private "
     "pool that is in use. Nor does it give back those of other pools for a request inside a "
     "private pool."},
    {S::kFragmentationLikely,
     "{0} of the {1} that PyTorch has reserved are not allocated, and {2} are free: together more "
     "than the {3} that were requested. So the free memory is in pieces. (The message has only "
     "sums; a snapshot shows the pieces.)"},
    {S::kSlackSum, "request {0} <= unallocated {1} + free {2}"},
    {S::kPrivatePools,
     "{0} of the {1} that count as allocated are in private pools (CUDA graphs). Only the graphs "
     "use them, and they stay as long as the graphs."},
    {S::kReservedUnused, "The reserved peak of {0} is {1} above the allocated peak of {2}."},
    {S::kReservedUnusedParts,
     "At that peak, {0} were free in whole segments, and {1} in pieces of {2} segments that were "
     "in use."},
};

}  // namespace

std::span<const StatementRow> growth_words() { return kGrowthRows; }

}  // namespace tonnage::report
