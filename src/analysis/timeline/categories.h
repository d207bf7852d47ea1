// What each allocation is for, where the program has not said it.
//
// A label (kLabel) is certain. Everything else is inferred from an allocation's life, as an expert
// would read it: made in the forward pass and freed by the backward pass is an activation; made in
// the backward pass and alive in the optimizer is a gradient; made by the optimizer and kept is its
// state; made and freed inside one operator is scratch. What nothing tells stays unknown. The
// confidence is our own estimate (docs/exactness.md), not a probability that was measured.
#pragma once

#include <vector>

#include "analysis/timeline/timeline.h"

namespace tonnage::analysis {

// Sets category, source and confidence of every allocation that has no label. Cost: one pass over
// events and allocations.
void infer_categories(Timeline& timeline);

// The phase of an event: what the record says, else what its stack tells (snapshots have no
// phases). seen_forward: whether a forward pass was seen before; then events without a stack belong
// to autograd's own thread.
Phase phase_of(const record::Record& record, const Stacks& stacks, const abi::MemoryEvent& event,
               bool seen_forward);

}  // namespace tonnage::analysis
