// Operators whose result's size depends on data (nonzero, unique, …).
//
// Their real CUDA host code runs and reads a count back. Before it does, the count is computed
// (known data) or assumed (unknown data: the upper bound, or the share that the user set) and
// posted to the driver, which answers the read with it. Assumptions are recorded with operator and
// line.
//
// How many reads there are, and of what, follows ATen's host code (aten/src/ATen/native/cuda:
// Nonzero.cu, UniqueCub.cu, Unique.cu, Repeat.cu, sparse/cuda/SparseCUDATensor.cu): one count of 4
// or 8 bytes each.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>

namespace tonnage::recorder {

struct Frame;
struct ThreadState;

// All run inside the recorder's own scope (record functions off).
void begin_data_dependent(ThreadState& thread, Frame& frame,
                          c10::ArrayRef<const c10::IValue> inputs);
void begin_coalesce(Frame& frame, c10::ArrayRef<const c10::IValue> inputs);
void end_coalesce(Frame& frame, c10::ArrayRef<const c10::IValue> outputs);

// A size was assumed: `taken` of at most `bound`.
void note_assumed_size(uint32_t operator_name, int64_t taken, int64_t bound);

}  // namespace tonnage::recorder
