#include "optimizer_states.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "tonnage/torch/recorder.h"

namespace tonnage {

std::vector<std::pair<std::string, ::torch::Tensor>> state_tensors(
    const ::torch::optim::OptimizerParamState& state) {
  using namespace ::torch::optim;
  std::vector<std::pair<std::string, ::torch::Tensor>> all;
  if (auto* adam = dynamic_cast<const AdamParamState*>(&state))
    all = {{"exp_avg", adam->exp_avg()},
           {"exp_avg_sq", adam->exp_avg_sq()},
           {"max_exp_avg_sq", adam->max_exp_avg_sq()}};
  else if (auto* adamw = dynamic_cast<const AdamWParamState*>(&state))
    all = {{"exp_avg", adamw->exp_avg()},
           {"exp_avg_sq", adamw->exp_avg_sq()},
           {"max_exp_avg_sq", adamw->max_exp_avg_sq()}};
  else if (auto* sgd = dynamic_cast<const SGDParamState*>(&state))
    all = {{"momentum_buffer", sgd->momentum_buffer()}};
  else if (auto* rmsprop = dynamic_cast<const RMSpropParamState*>(&state))
    all = {{"square_avg", rmsprop->square_avg()},
           {"momentum_buffer", rmsprop->momentum_buffer()},
           {"grad_avg", rmsprop->grad_avg()}};
  else if (auto* adagrad = dynamic_cast<const AdagradParamState*>(&state))
    all = {{"sum", adagrad->sum()}};
  else if (auto* named = dynamic_cast<const NamedStates*>(&state))
    all = named->named_states();
  std::erase_if(all, [](const auto& named) { return !named.second.defined(); });
  return all;
}

}  // namespace tonnage
