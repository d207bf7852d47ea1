// Tells Tonnage's recorder what tensors are for, so that `tonnage run` on a C++ program names
// parameters, buffers and optimizer states and counts steps as it does for Python.
//
// Outside of `tonnage run` there is no recorder, and every call does nothing and costs a look-up
// (once) and a comparison.
//
//   auto model = std::make_shared<Net>();
//   model->to(torch::kCUDA);
//   tonnage::label_module(*model);                 // once, after the model is on its device
//   ...
//   optimizer.step();
//   tonnage::label_optimizer(optimizer, *model);   // after the first step, which makes the states;
//                                                  // the toolkit's own optimizers do it themselves
//   tonnage::mark_step();                          // after every step
//
// Only tensors with memory of their own on a CUDA device are labelled; others are passed over.
// Nothing is kept: the recorder copies addresses and names. Threads: any. No call changes a tensor,
// waits for the device, or throws.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tonnage {

// What the bytes of a tensor are for (the rows of Tonnage's report that a program can know).
enum class MemoryCategory : uint8_t {
  // categories: made by tools/gen_categories.py
  kParameter = 1,
  kGradient = 2,
  kOptimizerState = 3,
  kActivation = 4,
  kInput = 5,
  kWorkspace = 6,
  kTemporary = 7,
  kBuffer = 8,
  kKeyValueCache = 15,
  // end of categories
};

struct MemoryLabel {
  ::torch::Tensor tensor;
  MemoryCategory category = MemoryCategory::kParameter;
  std::string name;  // "layer1.0.conv1.weight"; a parameter's name also names its module
};

// True inside `tonnage run` once the recorder has started (it starts with the first use of the
// device).
bool recorder_present();

void label_tensors(const std::vector<MemoryLabel>& labels);

// Parameters and buffers of the module and all its children, by their names in it; gradients that
// exist already, too.
void label_module(const ::torch::nn::Module& module);

// States of torch::optim's and the toolkit's optimizers (and of classes made from them), and
// NamedStates; named after their parameter in `module`: "layer1.0.conv1.weight.exp_avg".
void label_optimizer(const ::torch::optim::Optimizer& optimizer, const ::torch::nn::Module& module);

// What label_optimizer has to know about states of other classes: a state that is derived from
// this, too, says what its tensors are.
class NamedStates {
 public:
  virtual ~NamedStates() = default;
  virtual std::vector<std::pair<std::string, ::torch::Tensor>> named_states()
      const = 0;  // {"exp_avg", ...}; undefined ones are left out
};

// An optimizer's step is over. Several calls without a backward pass between them count once.
void mark_step();

}  // namespace tonnage
