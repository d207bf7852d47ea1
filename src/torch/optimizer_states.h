// The tensors that torch::optim's optimizers keep per parameter, with their names.
#pragma once

#include <torch/optim/optimizer.h>

#include <string>
#include <utility>
#include <vector>

namespace tonnage {

// Empty for a class that is not one of torch::optim's. Undefined tensors are left out.
std::vector<std::pair<std::string, ::torch::Tensor>> state_tensors(const ::torch::optim::OptimizerParamState& state);

}  // namespace tonnage
