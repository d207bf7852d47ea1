// The optimizer's step inside the backward pass: each parameter is updated and its gradient freed
// as soon as it is complete, so the gradients of the whole model never exist at once.
//
//   tonnage::OptimizerInBackward updates(model->parameters(), [](std::vector<torch::Tensor> p) {
//     return std::make_unique<tonnage::FusedAdamW>(std::move(p), torch::optim::AdamWOptions(3e-4));
//   });
//   loss.backward();      // steps; there is no step() and no zero_grad()
//
// Memory: the gradients of the parameters, whose sum a plain loop holds at the end of the backward
// pass, shrink to those in flight (a few parameters). Time: one small update per parameter; as much
// work, more launches.
//
// Not possible with it, because they need all gradients at once: clipping by global norm, loss
// scaling with a check for overflow, accumulation over several backward passes (each one steps). A
// tied parameter is updated once, when its gradient is complete.
//
// Errors: c10::Error in the constructor, with nothing installed, for a parameter that is no leaf,
// does not require a gradient, has a gradient already, or has such a hook; what an optimizer throws
// comes out of backward(). Owns: the optimizers; the hooks are taken away by the destructor.
// Threads: backward passes over the same parameters one at a time. Stream: that of the backward
// pass.
//
// Source of the method: Lv et al., "Full Parameter Fine-tuning for Large Language Models with
// Limited Resources" (LOMO), ACL 2024; the hook is PyTorch's (register_post_accumulate_grad_hook in
// Python).
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace tonnage {

class OptimizerInBackward {
 public:
  // Makes one optimizer for the parameters that it is given (always one).
  using Make =
      std::function<std::unique_ptr<::torch::optim::Optimizer>(std::vector<::torch::Tensor>)>;

  OptimizerInBackward(const std::vector<::torch::Tensor>& parameters, const Make& make);
  ~OptimizerInBackward();
  OptimizerInBackward(const OptimizerInBackward&) = delete;
  OptimizerInBackward& operator=(const OptimizerInBackward&) = delete;

  // For all parameters; takes effect with the next update.
  void set_lr(double lr);
  double lr() const;

  // One per parameter, in the order of the constructor. Valid as long as this object.
  const std::vector<std::unique_ptr<::torch::optim::Optimizer>>& optimizers() const {
    return optimizers_;
  }

  // Updates made so far, over all parameters.
  int64_t updates() const;

  void save(::torch::serialize::OutputArchive& archive) const;
  void load(::torch::serialize::InputArchive& archive);

 private:
  struct Shared;
  std::vector<::torch::Tensor> parameters_;
  std::vector<std::unique_ptr<::torch::optim::Optimizer>> optimizers_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace tonnage
