#include "tonnage/torch/optim_in_backward.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <atomic>

namespace tonnage {

using ::torch::Tensor;

struct OptimizerInBackward::Shared {
  std::atomic<int64_t> updates{0};
};

namespace {

// Lives in the parameter, so it must not own it.
class UpdateHook : public ::torch::autograd::PostAccumulateGradHook {
 public:
  UpdateHook(::torch::optim::Optimizer* optimizer, std::atomic<int64_t>* updates)
      : optimizer_(optimizer), updates_(updates) {}
  void operator()(const Tensor& parameter) override {
    optimizer_->step();
    const_cast<Tensor&>(parameter).mutable_grad().reset();
    updates_->fetch_add(1, std::memory_order_relaxed);
  }

 private:
  ::torch::optim::Optimizer* optimizer_;
  std::atomic<int64_t>* updates_;
};

}  // namespace

OptimizerInBackward::OptimizerInBackward(const std::vector<Tensor>& parameters, const Make& make)
    : shared_(std::make_shared<Shared>()) {
  TORCH_CHECK(make, "OptimizerInBackward: no function that makes an optimizer was given");
  for (size_t i = 0; i < parameters.size(); i++) {
    const Tensor& p = parameters[i];
    TORCH_CHECK(p.defined() && p.is_leaf() && p.requires_grad(), "OptimizerInBackward: parameter ",
                i, " is not a leaf that requires a gradient. Leave frozen parameters out");
    TORCH_CHECK(!p.grad().defined(), "OptimizerInBackward: parameter ", i,
                " has a gradient already. Step or zero_grad() first");
    TORCH_CHECK(
        !::torch::autograd::impl::post_acc_grad_hooks(p), "OptimizerInBackward: parameter ", i,
        " has a hook after accumulation already. Only one optimizer can step in the backward pass");
    for (size_t j = 0; j < i; j++)
      TORCH_CHECK(!parameters[j].is_same(p), "OptimizerInBackward: parameters ", j, " and ", i,
                  " are the same tensor. Pass it once (unique_parameters)");
  }
  for (const Tensor& p : parameters) {
    optimizers_.push_back(make({p}));
    TORCH_CHECK(optimizers_.back(), "OptimizerInBackward: the function returned no optimizer");
  }
  parameters_ = parameters;
  for (size_t i = 0; i < parameters_.size(); i++)
    ::torch::autograd::impl::set_post_acc_grad_hooks(
        parameters_[i], std::make_unique<UpdateHook>(optimizers_[i].get(), &shared_->updates));
}

OptimizerInBackward::~OptimizerInBackward() {
  for (const Tensor& p : parameters_) ::torch::autograd::impl::set_post_acc_grad_hooks(p, nullptr);
}

void OptimizerInBackward::set_lr(double lr) {
  for (auto& optimizer : optimizers_)
    for (auto& group : optimizer->param_groups()) group.options().set_lr(lr);
}

double OptimizerInBackward::lr() const {
  TORCH_CHECK(!optimizers_.empty(),
              "OptimizerInBackward: there is no parameter, so no learning rate");
  return optimizers_[0]->param_groups()[0].options().get_lr();
}

int64_t OptimizerInBackward::updates() const {
  return shared_->updates.load(std::memory_order_relaxed);
}

void OptimizerInBackward::save(::torch::serialize::OutputArchive& archive) const {
  for (size_t i = 0; i < optimizers_.size(); i++) {
    ::torch::serialize::OutputArchive one(archive.compilation_unit());
    optimizers_[i]->save(one);
    archive.write(std::to_string(i), one);
  }
}

void OptimizerInBackward::load(::torch::serialize::InputArchive& archive) {
  for (size_t i = 0; i < optimizers_.size(); i++) {
    ::torch::serialize::InputArchive one;
    archive.read(std::to_string(i), one);
    optimizers_[i]->load(one);
  }
}

}  // namespace tonnage
