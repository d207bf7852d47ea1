// The random numbers of the device: what PyTorch's CUDA operators draw from their Philox generator,
// computed on the host, so that masks, indices and counts that follow from them are what a card
// would have.
//
// Method: curand's Philox4x32-10 with the thread's number as subsequence and the generator's
// offset, in the order in which PyTorch's grid-stride kernels use it
// (ATen/native/cuda/DistributionTemplates.h says which thread makes which element). Integers,
// uniform numbers and Bernoulli draws equal an H200's to the bit; normal and exponential numbers up
// to the last places of logarithm and sine.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>

#include "recorder/observe/operators.h"

namespace tonnage::recorder {

// A generator about to be drawn from, and the card that draws: its size decides the order.
struct RandomState {
  uint64_t seed = 0, offset = 0;
  uint64_t multiprocessors = 0, threads_per_multiprocessor = 0;
  bool known = false;
};

// Before the operator runs: afterwards the offset is another. Not known for operators that draw in
// another way.
RandomState random_state(const OpInfo& info, c10::ArrayRef<const c10::IValue> inputs);

// Puts what the operator draws into `arguments[0]`, a CPU tensor, which alone stays there (the
// result, as after a boxed call); the other arguments are the operator's own, device tensors
// replaced by CPU copies. False (nothing changed): not known here.
bool draw(const OpInfo& info, const RandomState& state, std::vector<c10::IValue>& arguments);

// Whether the result of this operator is kept although it is a large tensor of floating-point
// numbers: noise that programs compare and sort to make masks.
bool keeps_drawn_floats(const OpInfo& info, const at::Tensor& result);

}  // namespace tonnage::recorder
