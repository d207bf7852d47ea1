#include "tonnage/torch/adafactor.h"

#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "optim_groups.h"

namespace tonnage {
namespace {

using ::torch::Tensor;

double epsilon_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble: return std::numeric_limits<double>::epsilon();
    case at::kHalf: return 0x1p-10;
    case at::kBFloat16: return 0x1p-7;
    default: return std::numeric_limits<float>::epsilon();
  }
}

void make_state(AdafactorParamState& state, const Tensor& p) {
  if (p.dim() > 1) {
    auto row_shape = p.sizes().vec(), column_shape = p.sizes().vec();
    row_shape.back() = 1;
    column_shape[column_shape.size() - 2] = 1;
    state.row(at::zeros(row_shape, p.options().requires_grad(false)));
    state.column(at::zeros(column_shape, p.options().requires_grad(false)));
  } else {
    state.full(optim::zeros_for(p));
  }
}

// Mean of the squares along a dimension, without a tensor of squares.
Tensor mean_square(const Tensor& grad, int64_t dim) {
  return at::linalg_vector_norm(grad, 2, dim, /*keepdim=*/true).square_().div_(grad.size(dim));
}

void update(const Tensor& p, AdafactorParamState& state, const AdafactorOptions& options) {
  const Tensor& grad = p.grad();
  const double step = static_cast<double>(state.step() + 1);
  const double share = std::pow(step, options.beta2_decay());
  const double rate = std::min(options.lr(), 1 / std::sqrt(step));
  const double eps1 = options.eps1() < 0 ? epsilon_of(p.scalar_type()) : options.eps1();
  const double root_elements = std::sqrt(static_cast<double>(std::max<int64_t>(p.numel(), 1)));

  const Tensor scale =
      at::linalg_vector_norm(p, 2).div_(root_elements).clamp_min_(options.eps2()).mul_(rate);
  if (options.weight_decay() != 0) p.mul_(1 - options.lr() * options.weight_decay());
  Tensor estimate;
  if (grad.dim() > 1) {
    state.row().lerp_(mean_square(grad, -1), share);
    state.column().lerp_(mean_square(grad, -2), share);
    estimate = at::matmul(state.row(), state.column());
    estimate.div_(state.row().mean(-2, /*keepdim=*/true).clamp_min_(eps1));
  } else {
    state.full().lerp_(grad * grad, share);
    estimate = state.full().clone();
  }
  Tensor step_of_p = estimate.clamp_min_(eps1 * eps1).rsqrt_().mul_(grad);
  const Tensor clip =
      at::linalg_vector_norm(step_of_p, 2).div_(root_elements * options.clip()).clamp_min_(1.0);
  p.sub_(step_of_p.mul_(scale.div(clip)));
  state.step(state.step() + 1);
}

}  // namespace

void AdafactorOptions::serialize(::torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(beta2_decay);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(eps1);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(eps2);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(clip);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(weight_decay);
}

void AdafactorOptions::serialize(::torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, beta2_decay);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, eps1);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, eps2);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, clip);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, weight_decay);
}

void AdafactorParamState::serialize(::torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(step);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(row);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(column);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(full);
}

void AdafactorParamState::serialize(::torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(int64_t, step);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(Tensor, row);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(Tensor, column);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(Tensor, full);
}

std::vector<std::pair<std::string, Tensor>> AdafactorParamState::named_states() const {
  return {{"row_var", row()}, {"col_var", column()}, {"variance", full()}};
}

Adafactor::Adafactor(const std::vector<::torch::optim::OptimizerParamGroup>& groups,
                     AdafactorOptions defaults)
    : Optimizer(groups, std::make_unique<AdafactorOptions>(defaults)) {
  TORCH_CHECK(defaults.lr() >= 0, "Adafactor: lr is ", defaults.lr(), "; it must not be negative");
  TORCH_CHECK(defaults.beta2_decay() <= 0, "Adafactor: beta2_decay is ", defaults.beta2_decay(),
              "; it must not be positive");
  TORCH_CHECK(defaults.eps2() >= 0 && defaults.weight_decay() >= 0,
              "Adafactor: eps2 and weight_decay must not be negative");
  TORCH_CHECK(defaults.clip() >= 1, "Adafactor: clip is ", defaults.clip(),
              "; it must be at least 1");
}

Tensor Adafactor::step(LossClosure closure) {
  ::torch::NoGradGuard no_grad;
  Tensor loss = optim::run_closure(closure);
  RECORD_USER_SCOPE("Optimizer.step#Adafactor.step");
  std::vector<std::vector<Tensor>> ready;
  for (const auto& group : param_groups_)
    ready.push_back(optim::ready_parameters(group, "Adafactor"));
  for (const auto& params : ready)
    for (const Tensor& p : params)
      optim::state_of<AdafactorParamState>(
          *this, p, [&](AdafactorParamState& fresh) { make_state(fresh, p); });
  for (size_t i = 0; i < ready.size(); i++)
    for (const Tensor& p : ready[i])
      update(p, static_cast<AdafactorParamState&>(*state_[p.unsafeGetTensorImpl()]),
             static_cast<const AdafactorOptions&>(param_groups_[i].options()));
  return loss;
}

void Adafactor::save(::torch::serialize::OutputArchive& archive) const {
  ::torch::optim::serialize<AdafactorParamState, AdafactorOptions>(archive, *this);
}
void Adafactor::load(::torch::serialize::InputArchive& archive) {
  ::torch::optim::serialize<AdafactorParamState, AdafactorOptions>(archive, *this);
}

}  // namespace tonnage
