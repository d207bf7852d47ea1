// Progressive growth: training starts with a small network, which grows while it trains.
//
// GrowingStack: blocks of equal input and output shape that do not exist until they are grown; each
// then fades in.
//
//   tonnage::GrowingStack stack(
//       12, [](int64_t i) { return torch::nn::AnyModule(Block(768)); }, torch::kCUDA);
//   stack->grow(4);               // 4 blocks exist
//   ... train ...
//   auto added = stack->grow(4);  // 4 more; gives their parameters
//   optimizer.add_param_group(torch::optim::OptimizerParamGroup(added));
//   stack->set_fade(0.3);         // the newest blocks count 30 %: x + 0.3 * (block(x) - x)
//
// widen, deepen (Net2Net): a wider hidden layer, or one more layer, with the same results as
// before.
//
// Resolution: GrowthSchedule says which size to train with at a step.
//
// Memory: blocks that do not exist yet take none: no parameters, gradients, state, activations.
// While a fade is below 1, each fading block saves one more tensor of its output's size.
//
// Threads: not while forward() runs. Owns: its blocks; widen and deepen give new layers and leave
// the old ones as they are.
//
// Errors: c10::Error, with nothing grown, for more blocks than there are, fades outside [0, 1],
// layers that do not fit. Sources of the methods: Karras et al., "Progressive Growing of GANs",
// ICLR 2018; Chen, Goodfellow, Shlens, "Net2Net", ICLR 2016; Gong et al., "Efficient Training of
// BERT by Progressively Stacking", ICML 2019.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace tonnage {

class GrowingStackImpl : public ::torch::nn::Module {
 public:
  // Makes block i; it is called when the block is grown. Its forward takes and returns one tensor
  // of the same shape.
  using MakeBlock = std::function<::torch::nn::AnyModule(int64_t i)>;
  GrowingStackImpl(int64_t largest, MakeBlock make, c10::Device device = c10::kCPU);

  // `count` more blocks, on the device, in this module's training mode. copy_last: with the
  // parameters of the last block that exists (stacking) instead of fresh ones. Returns the new
  // parameters.
  std::vector<::torch::Tensor> grow(int64_t count, bool copy_last = false);
  // Weight of the blocks that the last grow() made, in [0, 1]; it stays what it was set to (1 at
  // first).
  void set_fade(double fade);
  double fade() const { return fade_; }
  int64_t size() const { return static_cast<int64_t>(blocks_.size()); }
  int64_t largest() const { return largest_; }

  ::torch::Tensor forward(::torch::Tensor x);

 private:
  int64_t largest_;
  MakeBlock make_;
  c10::Device device_;
  std::vector<::torch::nn::AnyModule> blocks_;
  int64_t faded_from_ = 0;  // blocks from here on count fade_
  double fade_ = 1;
};
TORCH_MODULE(GrowingStack);

// Makes the hidden layer between `in` (hidden, a) and `out` (b, hidden) `new_hidden` wide: new
// units are copies of random ones whose outgoing weights are divided among the copies, so
// out(act(in(x))) stays the same for any activation by element. `noise`: standard deviation,
// relative to each weight's, of what is added to the copies' incoming weights to tell them apart.
// Returns the new layers; optimizers must be made anew.
std::pair<::torch::nn::Linear, ::torch::nn::Linear> widen(const ::torch::nn::Linear& in,
                                                          const ::torch::nn::Linear& out,
                                                          int64_t new_hidden, double noise = 0);

// A Linear (width, width) that changes nothing: for activations with act(act(x)) == act(x), such as
// ReLU.
::torch::nn::Linear deepen(int64_t width, bool bias = true,
                           const ::torch::TensorOptions& options = {});

// Sizes by step: {{0, 128}, {10'000, 160}, {20'000, 224}}: 128 until step 10000, and so on.
class GrowthSchedule {
 public:
  struct Stage {
    int64_t first_step;
    int64_t size;
  };
  // Stages in ascending order of first_step, the first at 0.
  explicit GrowthSchedule(std::vector<Stage> stages);
  int64_t size_at(int64_t step) const;
  // Share of the way from the stage's start to its end in `fade_steps` steps, 1 for the first
  // stage: what set_fade takes.
  double fade_at(int64_t step, int64_t fade_steps) const;

 private:
  std::vector<Stage> stages_;
};

}  // namespace tonnage
