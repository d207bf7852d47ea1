// What the multi-tensor optimizers share: which parameters have a gradient, checked, and sorted so
// that one kernel can take them.
#pragma once

#include <torch/optim/optimizer.h>

#include <string>
#include <vector>

#include "optimizer_states.h"

namespace tonnage::optim {

// Runs the closure, if there is one, with gradients enabled.
::torch::Tensor run_closure(const ::torch::optim::Optimizer::LossClosure& closure);

// The parameters of the group that have a gradient. Throws c10::Error, naming `optimizer` and the
// parameter's index, if one cannot be updated by a kernel for dense floating point tensors.
std::vector<::torch::Tensor> ready_parameters(const ::torch::optim::OptimizerParamGroup& group,
                                              const char* optimizer);

// The state of a parameter, made by `make` the first time.
template <class State, class Make>
State& state_of(::torch::optim::Optimizer& optimizer, const ::torch::Tensor& parameter, Make make) {
  auto& slot = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (!slot) {
    auto state = std::make_unique<State>();
    make(*state);  // may run out of memory: then the slot stays empty
    label_state(parameter, *state);
    slot = std::move(state);
  }
  return static_cast<State&>(*slot);
}

// A zero tensor like the parameter, without its history.
::torch::Tensor zeros_for(const ::torch::Tensor& parameter);

}  // namespace tonnage::optim
