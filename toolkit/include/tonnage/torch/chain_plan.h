// Checkpointing a chain of layers within a budget of bytes. A plan says which layers keep what they
// save, and which parts (also parts within parts) are run again. Of all plans of this form that
// keep the budget, it takes the least time.
//
//   auto layers = tonnage::layers_of(model);               // a torch::nn::Sequential
//   auto costs = tonnage::measure_chain(layers, input);    // once: runs each layer both ways
//   auto plan = tonnage::plan_chain(costs, 3LL << 30);     // 3 GiB, as counted below
//   auto output = tonnage::run_chain(layers, plan, input); // every step
//
// The budget counts, at its peak over the forward and backward pass: what layers save, inputs of
// checkpointed parts, the layer's working memory, and the gradients that flow between layers. Not
// in it: the chain's input, parameters, their gradients, buffers.
//
// Errors: c10::Error (ValueError) if no plan fits; the message says the least that can. Nothing is
// changed then. Threads: any; run_chain as checkpoint. Owns: costs and plans are plain values;
// layers hold their modules.
//
// Source of the method: the dynamic programme for heterogeneous chains of Beaumont, Eyraud-Dubois,
// Herrmann, Joly and Shilova 2019, Optimal checkpointing for heterogeneous chains. Sizes are
// rounded up to budget / kChainSlots, the only thing that can keep a plan from being the best one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tonnage/torch/checkpoint.h"

namespace tonnage {

inline constexpr int64_t kChainSlots = 1000;

struct LayerCost {
  int64_t output_bytes = 0;  // its result
  int64_t kept_bytes =
      0;  // its result and all that it saves, without its input and without parameters
  int64_t forward_extra_bytes = 0;   // more than that, while it runs forward
  int64_t backward_extra_bytes = 0;  // more than what it saved and the gradients of its input and
                                     // output, while it runs backward
  double forward_seconds = 0;
  double backward_seconds = 0;
};

struct ChainCosts {
  std::vector<LayerCost> layers;
  int64_t input_gradient_bytes = 0;  // of the chain's input; 0 if it needs none
};

// One layer that keeps what it saves (`inside` is empty), or a part [begin, end) that is
// checkpointed and, when it runs again, follows the steps inside.
struct ChainStep {
  size_t begin = 0, end = 0;
  std::vector<ChainStep> inside;
  bool checkpointed() const { return !inside.empty(); }
};

struct ChainPlan {
  std::vector<ChainStep> steps;
  int64_t peak_bytes = 0;  // of the budget, as simulate_chain says
  double seconds = 0;      // forward, backward and what runs again

  std::string to_string() const;  // "0 1 (2 3 (4 5) 6) 7": parentheses are checkpointed parts
};

// budget_bytes > 0. Cost: about n^3 * 170 operations for n layers (100 layers: a fifth of a second).
ChainPlan plan_chain(const ChainCosts& costs, int64_t budget_bytes);

// The smallest budget that plan_chain accepts.
int64_t least_chain_bytes(const ChainCosts& costs);

struct ChainFigures {
  int64_t peak_bytes = 0;
  double seconds = 0;
};

// Simulates the steps, layer by layer, and counts. It shares no code with the planner.
ChainFigures simulate_chain(const ChainCosts& costs, const std::vector<ChainStep>& steps);

// Runs every layer three times forward and backward on `input`, with its results as the next one's
// input. Random state is put back; what layers change themselves (batch norm's running statistics)
// is not. Sizes of CUDA tensors are those of the allocator's blocks; the extra bytes are measured
// on CUDA only. Times are real times: on a virtual GPU they mean nothing, set them yourself there.
ChainCosts measure_chain(const std::vector<Layer>& layers, const ::torch::Tensor& input);

// Error: the plan is for another number of layers.
::torch::Tensor run_chain(const std::vector<Layer>& layers, const ChainPlan& plan,
                          ::torch::Tensor input, const CheckpointOptions& options = {});

}  // namespace tonnage
