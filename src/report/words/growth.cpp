// What is said of growth, and of fragmentation.
#include "report/words/tables.h"

namespace tonnage::report {
namespace {

using S = analysis::Statement;

constexpr StatementRow kGrowthRows[] = {
    {S::kTitleEvalGraphs, "A loop without a backward pass keeps its graphs"},
    {S::kTitleHookedCheckpoint, "{0} leaves what a checkpoint made again behind"},
    {S::kTitleGraph, "{0} leaves a whole graph behind"},
    {S::kTitleGraphWithBackward, "{0} leaves a whole graph behind, its backward pass included"},
    {S::kTitleGrowsInPlace, "What is made at one line grows with every {0}"},
    {S::kTitleTensorAndGradient, "{0} leaves a tensor and its gradient behind"},
    {S::kTitleGradientsLeft, "{0} leaves gradients behind"},
    {S::kTitleTensorsLeft, "{0} leaves tensors behind"},

    {S::kEvalGraphs,
     "Each of {0} {1:s} leaves {2} behind: what autograd saves of a forward pass called {3}. No "
     "backward pass ran, so nothing frees it; something that the loop keeps (an output, a loss) "
     "refers to it."},
    {S::kHookedCheckpoint,
     "{0} stay alive, about {1} tensors: what the backward pass made again of a checkpointed "
     "forward pass called {2}. Hooks on tensors inside the checkpoint "
     "(torch.autograd.graph.saved_tensors_hooks, register_hook, something that is put aside there) "
     "hold the graph that was made again."},
    {S::kGraphStays,
     "{0} stay alive, about {1} tensors: what autograd saved of a forward pass called {2}."},
    {S::kGraphOfBackward,
     "Part of it are {0} that a backward pass made which can be gone through again "
     "(create_graph=True)."},
    {S::kSomethingHoldsGraph,
     "Something that is kept (a loss in a list or a running sum, an output, a hidden state) still "
     "refers to the graph."},
    {S::kSomethingHoldsGraphTwice,
     "Something that is kept (a loss in a list or a running sum, an output, a hidden state, a "
     "penalty, or the gradients themselves) still refers to the graph."},
    {S::kSumOfLosses,
     "Before, this line had a backward pass after it; here none ran: a sum of losses keeps the "
     "graphs of all of them until its one backward()."},
    {S::kGrowsInPlace,
     "What was made {0} and is held after each {1} grows by {2} {1:a}, to {3}: each time a larger "
     "tensor takes the place of the last (torch.cat with what was there, a cache of keys and "
     "values "
     "that is never cut)."},
    {S::kTensorAndGradient,
     "{0} stay alive: what was made {1}, and gradients of the same size that backward passes made "
     "of it. Something that is kept (a penalty, a loss, the tensor itself with its .grad) still "
     "refers to them."},
    {S::kStayFromLines, "{0} stay alive, made at {1} lines that belong together, above all {2}."},
    {S::kStayOneOfSize, "{0} made {1} stay alive, one tensor each time of {2}."},
    {S::kStayManyOfSize, "{0} made {1} stay alive, {2} tensors each time of {3}."},
    {S::kStayMany, "{0} made {1} stay alive, {2} each time."},
    {S::kBackwardMadeThem,
     "Backward passes made them: gradients that are collected, or what a backward pass with "
     "create_graph=True keeps as long as something (a penalty, a loss) refers to it."},
    {S::kNoGraphOnThem, "As far as the record shows, no graph seems to hang on them."},

    {S::kOlderOfSameSize,
     "{0} more in {1} of the same size are older than the history: most likely the same, from the "
     "{2:s} before"},
    {S::kLeftAtLine, "{0} of {1} complete {2:s} left memory behind at this line, {3} in all"},
    {S::kLeftAtLines, "{0} of {1} complete {2:s} left memory behind at these lines, {3} in all"},
    {S::kPartSavedOfForward, "of it {0} {1:a} {2}, {3}: saved of the forward pass"},
    {S::kPartMadeInForward, "of it {0} {1:a} {2}, {3}: made in the forward pass"},
    {S::kPartMadeByBackward, "of it {0} {1:a} {2}, {3}: made by backward passes"},
    {S::kPartGiven, "of it {0} {1:a} {2}, {3}: what the pass was given"},
    {S::kPartKept, "of it {0} {1:a} {2}, {3}: kept"},
    {S::kPartLarger, "of it {0} {1:a} {2}, {3}: made of what is kept, and larger each time"},
    {S::kCacheBeyondCard,
     "If this is a cache, a replay buffer or a queue, its bound lies beyond what the card holds."},
    {S::kMayBeFilling,
     "It may also be a cache, a replay buffer or a queue that is still filling: no tensor of it "
     "was "
     "given back or found again within {0} {1:s}."},
    {S::kMayBeCutLater,
     "It may also be one that is still on its way to a length at which it is cut or started anew: "
     "that it ends was not seen within {0} {1:s}."},
    {S::kWouldShowFull,
     "What would show it: about {0} are held by now; a run past the capacity that is meant (more "
     "than {1} {2:s}) has no growth left if it is a cache, and this finding is gone"},
    {S::kWouldShowCut,
     "What would show it: a run of more than {0} {1:s}, past the length that is meant; if it is "
     "cut "
     "there, nothing grows any more and this finding is gone"},
    {S::kMadeNothingIn,
     "in {0} of the {1:s} this line made nothing, as a cache does that has what is asked for"},
    {S::kWillFail, "At this rate {0} {1} will fail on {2}."},
    {S::kWillFailIfOn, "If it goes on at this rate, {0} {1} will fail on {2}."},
    {S::kWillFailUnlessFull,
     "If it goes on at this rate, {0} {1} will fail on {2}; what is full before that fits."},

    // --- fragmentation ---
    {S::kTitleFragmentation, "Enough memory is free, but not in one piece"},
    {S::kTitleFragmentationLikely, "Fragmentation is likely"},
    {S::kTitlePrivatePool, "A private pool keeps the free memory"},
    {S::kTitleReservedUnused, "PyTorch reserves far more than it ever allocates"},
    {S::kFreeInPieces,
     "{0} of the {1} that PyTorch has reserved are free, more than the {2} that were asked for "
     "{3}, "
     "but in {4} pieces of which the largest is {5}."},
    {S::kFreeInPiecesWithHeadroom,
     "{0} of the {1} that PyTorch has reserved are free, and {2} outside of them: together more "
     "than the {3} that were asked for {4}, but in {5} pieces of which the largest is {6}."},
    {S::kPinnedSegments,
     "{0} of {1} segments are held by something small that lives on, so that they could not be "
     "given back."},
    {S::kReservedSum,
     "reserved {0} = requested {1} + rounding {2} + waiting for streams {3} + free segments {4} + "
     "free pieces of segments in use {5}"},
    {S::kMoveEmpties,
     "moving {0} blocks of together {1} would empty {2} segments ({3}), enough for the request"},
    {S::kMoveWithin,
     "moving {0} blocks of together {1} within one segment would make a hole of {2}"},
    {S::kMoveLine, "{0} of them, {1}, were made {2}"},
    {S::kPoolKeepsSegments,
     "{0} are free in whole segments; with the {3} that the driver could still give, that is "
     "enough "
     "for the {1} that were asked for {2}. But a private pool is in use (torch.cuda.MemPool, CUDA "
     "graphs): PyTorch does not give the free segments of a private pool back while it is in use, "
     "nor those of other pools for a request inside it."},
    {S::kFragmentationLikely,
     "{0} of the {1} that PyTorch has reserved are not allocated, and {2} are free: together more "
     "than the {3} that were asked for. So the free memory lies in pieces. (The message has sums "
     "only; a snapshot shows the pieces.)"},
    {S::kSlackSum, "request {0} <= unallocated {1} + free {2}"},
    {S::kPrivatePools,
     "{0} of the {1} that count as allocated lie in private pools (CUDA graphs): they serve only "
     "the graphs, and stay as long as the graphs do."},
    {S::kReservedUnused, "The reserved peak of {0} is {1} above the allocated peak of {2}."},
    {S::kReservedUnusedParts,
     "When it was reached, {0} were free in whole segments and {1} in pieces of {2} segments that "
     "were in use."},
};

}  // namespace

std::span<const StatementRow> growth_words() { return kGrowthRows; }

}  // namespace tonnage::report
