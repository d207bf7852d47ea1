// The tensors that torch::optim's and the toolkit's optimizers keep per parameter, with their names.
#pragma once

#include <torch/optim/optimizer.h>

#include <string>
#include <utility>
#include <vector>

namespace tonnage {

// Empty for a class that is neither's and no NamedStates. Undefined tensors are left out.
std::vector<std::pair<std::string, ::torch::Tensor>> state_tensors(
    const ::torch::optim::OptimizerParamState& state);

// Tells the recorder, if there is one, what a state that was just made is for:
// "layer1.weight.exp_avg", if label_module has named the parameter.
void label_state(const ::torch::Tensor& parameter,
                 const ::torch::optim::OptimizerParamState& state);

}  // namespace tonnage
