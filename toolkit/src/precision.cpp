#include "tonnage/torch/precision.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>

#include <map>
#include <utility>

#include "tonnage/torch/optim.h"

namespace tonnage {

AutocastGuard::AutocastGuard(c10::DeviceType device_type, c10::ScalarType dtype, bool enabled,
                             bool cache_casts)
    : device_type_(device_type) {
  TORCH_CHECK(device_type == c10::kCPU || device_type == c10::kCUDA,
              "AutocastGuard: no autocast for ", device_type, "; use torch::kCPU or torch::kCUDA");
  TORCH_CHECK(!enabled || dtype == c10::kBFloat16 || dtype == c10::kHalf, "AutocastGuard: ", dtype,
              " is no type to cast to; use torch::kBFloat16 or torch::kHalf");
  enabled_before_ = at::autocast::is_autocast_enabled(device_type);
  dtype_before_ = at::autocast::get_autocast_dtype(device_type);
  cache_before_ = at::autocast::is_autocast_cache_enabled();
  at::autocast::set_autocast_enabled(device_type, enabled);
  if (enabled) at::autocast::set_autocast_dtype(device_type, dtype);
  at::autocast::set_autocast_cache_enabled(cache_casts);
  at::autocast::increment_nesting();
}

AutocastGuard::~AutocastGuard() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_type_, enabled_before_);
  at::autocast::set_autocast_dtype(device_type_, dtype_before_);
  at::autocast::set_autocast_cache_enabled(cache_before_);
}

GradScaler::GradScaler(const GradScalerOptions& options) : options_(options) {
  TORCH_CHECK_VALUE(options.growth_factor > 1, "GradScaler: growth_factor must be above 1, not ",
                    options.growth_factor);
  TORCH_CHECK_VALUE(options.backoff_factor > 0 && options.backoff_factor < 1,
                    "GradScaler: backoff_factor must be between 0 and 1, not ",
                    options.backoff_factor);
  TORCH_CHECK_VALUE(options.initial_scale > 0 && options.growth_interval > 0,
                    "GradScaler: initial_scale and growth_interval must be positive");
}

void GradScaler::make_tensors(c10::Device device) {
  if (scale_.defined()) return;
  scale_ = ::torch::full({}, options_.initial_scale,
                         ::torch::TensorOptions().dtype(::torch::kFloat).device(device));
  growth_tracker_ = ::torch::full({}, initial_growth_tracker_,
                                  ::torch::TensorOptions().dtype(::torch::kInt).device(device));
}

::torch::Tensor GradScaler::scale(const ::torch::Tensor& loss) {
  if (!options_.enabled) return loss;
  TORCH_CHECK(loss.defined() && loss.is_floating_point(),
              "GradScaler::scale: needs a floating point loss");
  make_tensors(loss.device());
  return loss * scale_.to(loss.device(), /*non_blocking=*/true);
}

void GradScaler::check_gradients(const ::torch::optim::Optimizer& optimizer,
                                 bool allow_half) const {
  TORCH_CHECK(scale_.defined(),
              "GradScaler: scale() was not called yet; scale the loss before its backward pass");
  size_t group_index = 0;
  for (const auto& group : optimizer.param_groups()) {
    size_t index = 0;
    for (const auto& p : group.params()) {
      TORCH_CHECK(allow_half || !p.grad().defined() || p.grad().scalar_type() != c10::kHalf,
                  "GradScaler: the gradient of parameter ", index, " of group ", group_index,
                  " is float16; its parameter must be float32 (autocast makes the float16 copies)");
      index++;
    }
    group_index++;
  }
}

std::vector<::torch::Tensor> GradScaler::find_infinities(::torch::optim::Optimizer& optimizer,
                                                         const ::torch::Tensor& inverse) const {
  std::map<std::pair<c10::DeviceIndex, c10::ScalarType>, std::vector<::torch::Tensor>>
      gradients;  // the CPU's index is -1
  for (const auto& group : optimizer.param_groups())
    for (const auto& p : group.params()) {
      ::torch::Tensor gradient = p.grad();
      if (!gradient.defined()) continue;
      if (gradient.is_sparse()) {
        gradient = gradient.coalesce();
        p.mutable_grad() = gradient;
        gradient = gradient._values();
      }
      gradients[{gradient.is_cuda() ? gradient.device().index() : c10::DeviceIndex(-1),
                 gradient.scalar_type()}]
          .push_back(gradient);
    }
  std::map<c10::DeviceIndex, ::torch::Tensor> found, inverse_on;
  at::NoGradGuard no_grad;
  for (auto& [key, list] : gradients) {
    const c10::Device device = list[0].device();
    if (!found.count(key.first)) {
      found[key.first] =
          ::torch::zeros({}, ::torch::TensorOptions().dtype(::torch::kFloat).device(device));
      inverse_on[key.first] = inverse.to(device, /*non_blocking=*/true);
    }
    at::_amp_foreach_non_finite_check_and_unscale_(list, found[key.first], inverse_on[key.first]);
  }
  std::vector<::torch::Tensor> all;
  for (auto& [device, tensor] : found) all.push_back(tensor);
  return all;
}

::torch::Tensor GradScaler::sum_on_scale_device(
    const std::vector<::torch::Tensor>& found_inf) const {
  ::torch::Tensor sum;
  for (const auto& f : found_inf) {
    const ::torch::Tensor here = f.to(scale_.device(), /*non_blocking=*/true);
    sum = sum.defined() ? sum + here : here;
  }
  return sum;
}

void GradScaler::unscale_(::torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) return;
  PerOptimizer& state = optimizers_[&optimizer];
  TORCH_CHECK(
      state.stage != Stage::kUnscaled,
      "GradScaler::unscale_: was called already for this optimizer since the last update()");
  TORCH_CHECK(state.stage != Stage::kStepped, "GradScaler::unscale_: is called after step()");
  check_gradients(optimizer, /*allow_half=*/false);
  // In double: the reciprocal of a large scale keeps its last bits.
  state.found_inf =
      find_infinities(optimizer, scale_.to(::torch::kDouble).reciprocal().to(::torch::kFloat));
  state.stage = Stage::kUnscaled;
}

StepTaken::operator bool() const {
  return found_inf_.defined() ? found_inf_.item<float>() == 0 : taken_;
}

StepTaken GradScaler::step(::torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return StepTaken(true);
  }
  constexpr const char* kNoGradients =
      "GradScaler::step: this optimizer has no gradients; run the backward pass of the scaled loss "
      "first";
  PerOptimizer& state = optimizers_[&optimizer];
  TORCH_CHECK(state.stage != Stage::kStepped,
              "GradScaler::step: was called already for this optimizer since the last update()");
  if (auto* scaled = dynamic_cast<ScaledStep*>(&optimizer)) {
    const bool divides = state.stage == Stage::kReady;
    if (divides) {
      check_gradients(optimizer, /*allow_half=*/true);
      state.found_inf = find_infinities(optimizer, ::torch::ones({}, scale_.options()));
    }
    TORCH_CHECK(!state.found_inf.empty(), kNoGradients);
    ::torch::Tensor found = sum_on_scale_device(state.found_inf);
    if (state.found_inf.size() > 1) found = found.clamp_max(1);  // the kernels compare with 1
    scaled->step_scaled(divides ? scale_ : ::torch::Tensor(), found);
    state.stage = Stage::kStepped;
    return StepTaken(found);
  }
  if (state.stage == Stage::kReady) unscale_(optimizer);
  TORCH_CHECK(!state.found_inf.empty(), kNoGradients);
  bool finite = true;
  for (const auto& f : state.found_inf) finite = finite && f.item<float>() == 0;
  if (finite) optimizer.step();
  state.stage = Stage::kStepped;
  return StepTaken(finite);
}

void GradScaler::update() {
  if (!options_.enabled) return;
  TORCH_CHECK(scale_.defined(), "GradScaler::update: scale() was not called yet");
  std::vector<::torch::Tensor> all;
  for (const auto& [optimizer, state] : optimizers_)
    all.insert(all.end(), state.found_inf.begin(), state.found_inf.end());
  const ::torch::Tensor any = sum_on_scale_device(all);
  TORCH_CHECK(any.defined(),
              "GradScaler::update: no gradients were checked since the last update; call step() or "
              "unscale_() first");
  at::NoGradGuard no_grad;
  at::_amp_update_scale_(scale_, growth_tracker_, any, options_.growth_factor,
                         options_.backoff_factor, options_.growth_interval);
  clear_optimizers();
}

void GradScaler::update(double new_scale) {
  if (!options_.enabled) return;
  TORCH_CHECK_VALUE(new_scale > 0 && std::isfinite(new_scale),
                    "GradScaler::update: the scale must be positive, not ", new_scale);
  if (scale_.defined())
    scale_.fill_(new_scale);
  else
    options_.initial_scale = new_scale;
  clear_optimizers();
}

void GradScaler::clear_optimizers() { optimizers_.clear(); }

double GradScaler::get_scale() const {
  if (!options_.enabled) return 1;
  return scale_.defined() ? scale_.item<float>() : options_.initial_scale;
}

GradScalerState GradScaler::state() const {
  return {get_scale(), options_.growth_factor, options_.backoff_factor, options_.growth_interval,
          growth_tracker_.defined() ? growth_tracker_.item<int>() : initial_growth_tracker_};
}

void GradScaler::load_state(const GradScalerState& state) {
  GradScalerOptions options = options_;
  options.initial_scale = state.scale;
  options.growth_factor = state.growth_factor;
  options.backoff_factor = state.backoff_factor;
  options.growth_interval = state.growth_interval;
  GradScaler checked(options);  // throws before anything is changed
  options_ = checked.options_;
  initial_growth_tracker_ = state.growth_tracker;
  if (scale_.defined()) {
    scale_.fill_(state.scale);
    growth_tracker_.fill_(state.growth_tracker);
  }
  clear_optimizers();
}

}  // namespace tonnage
