// The random numbers of the device: what PyTorch's CUDA operators draw from their Philox generator.
// They are computed on the host. So masks, indices and counts that follow from them are those of a
// real card.
//
// Method: Philox4x32-10 (ATen's engine gives the numbers that curand gives) with the thread's
// number as subsequence and the generator's offset, in the order in which PyTorch's grid-stride
// kernels use it (ATen/native/cuda/DistributionTemplates.h says which thread makes which element).
// Integers, uniform numbers and Bernoulli draws equal an H200's to the bit; normal and exponential
// numbers up to the last places of logarithm and sine.
#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

#include "recorder/observe/operator_info.h"
#include "recorder/values/device.h"

namespace tonnage::recorder {

// Puts what the operator draws into `arguments[0]`, a CPU tensor, which alone stays there (the
// result, as after a boxed call); the other arguments are the operator's own, device tensors
// replaced by CPU copies. False (nothing changed): not known here.
bool draw(const OpInfo& info, const device::RandomState& state,
          std::vector<c10::IValue>& arguments);

// Whether the result of this operator is kept although it is a large tensor of floating-point
// numbers: noise that programs compare and sort to make masks.
bool keeps_drawn_floats(const OpInfo& info, const at::Tensor& result);

}  // namespace tonnage::recorder
