// Operators whose result's size depends on data (nonzero, unique, …) and host reads that decide a
// size or a check.
//
// Their real CUDA host code runs and reads a count back; before it does, the count is computed
// (known data) or assumed (unknown data: the upper bound, or the share that the user set) and
// posted to the driver, which answers the read with it. Assumptions are recorded with operator and
// line.
//
// How many reads there are, and of what, follows ATen's host code (aten/src/ATen/native/cuda:
// Nonzero.cu, UniqueCub.cu, Unique.cu, Repeat.cu, sparse/cuda/SparseCUDATensor.cu): one count of 4
// or 8 bytes each.
#pragma once

#include "recorder/state.h"

namespace tonnage::recorder {

struct OpInfo;

// Both run inside the recorder's own scope (record functions off).
void before_selection(ThreadState& thread, OpFrame& frame);
void after_selection(ThreadState& thread, OpFrame& frame);
void after_coalesce(OpFrame& frame);

// The block at this address was freed: what was assumed about it is void.
void forget_assumption(uint64_t address);

}  // namespace tonnage::recorder
