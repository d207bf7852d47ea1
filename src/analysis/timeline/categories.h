// What each allocation is for, where the program has not said it.
//
// A label (kLabel) is certain. Everything else is inferred from the life of an allocation:
//   - made in the forward pass, freed by the backward pass: activation
//   - made in the backward pass, alive in the optimizer: gradient
//   - made by the optimizer and kept: optimizer state
//   - made and freed inside one operator: temporary
//   - anything else: unknown
// The confidence is our own estimate (docs/exactness.md), not a measured probability.
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
