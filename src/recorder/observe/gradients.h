// Gradients: labelled when AccumulateGrad keeps them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <cstdint>

#include "recorder/observe/operator_info.h"

namespace torch::autograd {
struct Node;
}

namespace tonnage::recorder {

struct Frame;

// A node of the backward pass begins in this frame. Notes whether it accumulates a gradient.
void watch_accumulation(Frame& frame, torch::autograd::Node* node);
// An operator inside such a frame begins. The first operator that keeps the gradient, or adds to
// it, shows where it is. Hooks that run afterwards may free it at once.
void look_for_gradient(Frame& accumulation, const OpInfo& info, const at::RecordFunction& function);
// The node ends.
void label_accumulated(const Frame& accumulation);

// Whether a labelled gradient is at this address. It may say no although one is.
bool is_gradient_address(uint64_t address);
// Under the allocator's lock.
void forget_gradient_address(uint64_t address);

}  // namespace tonnage::recorder
