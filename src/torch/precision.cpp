#include "tonnage/torch/precision.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>

#include <map>
#include <utility>

namespace tonnage {

AutocastGuard::AutocastGuard(c10::DeviceType device_type, c10::ScalarType dtype, bool enabled, bool cache_casts)
    : device_type_(device_type) {
  TORCH_CHECK(device_type == c10::kCPU || device_type == c10::kCUDA, "AutocastGuard: no autocast for ", device_type,
              "; use torch::kCPU or torch::kCUDA");
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
  TORCH_CHECK_VALUE(options.growth_factor > 1, "GradScaler: growth_factor must be above 1, not ", options.growth_factor);
  TORCH_CHECK_VALUE(options.backoff_factor > 0 && options.backoff_factor < 1, "GradScaler: backoff_factor must be between 0 and 1, not ",
                    options.backoff_factor);
  TORCH_CHECK_VALUE(options.initial_scale > 0 && options.growth_interval > 0, "GradScaler: initial_scale and growth_interval must be positive");
}

void GradScaler::make_tensors(c10::Device device) {
  if (scale_.defined()) return;
  scale_ = ::torch::full({}, options_.initial_scale, ::torch::TensorOptions().dtype(::torch::kFloat).device(device));
  growth_tracker_ = ::torch::full({}, initial_growth_tracker_, ::torch::TensorOptions().dtype(::torch::kInt).device(device));
}

::torch::Tensor GradScaler::scale(const ::torch::Tensor& loss) {
  if (!options_.enabled) return loss;
  TORCH_CHECK(loss.defined() && loss.is_floating_point(), "GradScaler::scale: needs a floating point loss");
  make_tensors(loss.device());
  return loss * scale_.to(loss.device(), /*non_blocking=*/true);
}

void GradScaler::check_gradients(const ::torch::optim::Optimizer& optimizer) const {
  TORCH_CHECK(scale_.defined(), "GradScaler: scale() was not called yet; scale the loss before its backward pass");
  size_t group_index = 0;
  for (const auto& group : optimizer.param_groups()) {
    size_t index = 0;
    for (const auto& p : group.params()) {
      TORCH_CHECK(!p.grad().defined() || p.grad().scalar_type() != c10::kHalf, "GradScaler: the gradient of parameter ", index,
                  " of group ", group_index, " is float16; its parameter must be float32 (autocast makes the float16 copies)");
      index++;
    }
    group_index++;
  }
}

void GradScaler::unscale_(::torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) return;
  PerOptimizer& state = optimizers_[&optimizer];
  TORCH_CHECK(state.stage != Stage::kUnscaled, "GradScaler::unscale_: was called already for this optimizer since the last update()");
  TORCH_CHECK(state.stage != Stage::kStepped, "GradScaler::unscale_: is called after step()");
  check_gradients(optimizer);
  std::map<std::pair<c10::DeviceIndex, c10::ScalarType>, std::vector<::torch::Tensor>> gradients;  // the CPU's index is -1
  for (const auto& group : optimizer.param_groups())
    for (const auto& p : group.params()) {
      ::torch::Tensor gradient = p.grad();
      if (!gradient.defined()) continue;
      if (gradient.is_sparse()) {
        gradient = gradient.coalesce();
        p.mutable_grad() = gradient;
        gradient = gradient._values();
      }
      gradients[{gradient.is_cuda() ? gradient.device().index() : c10::DeviceIndex(-1), gradient.scalar_type()}].push_back(gradient);
    }
  // In double: the reciprocal of a large scale keeps its last bits.
  const ::torch::Tensor inverse = scale_.to(::torch::kDouble).reciprocal().to(::torch::kFloat);
  std::map<c10::DeviceIndex, ::torch::Tensor> found, inverse_on;
  at::NoGradGuard no_grad;
  for (auto& [key, list] : gradients) {
    const c10::Device device = list[0].device();
    if (!found.count(key.first)) {
      found[key.first] = ::torch::zeros({}, ::torch::TensorOptions().dtype(::torch::kFloat).device(device));
      inverse_on[key.first] = inverse.to(device, /*non_blocking=*/true);
    }
    at::_amp_foreach_non_finite_check_and_unscale_(list, found[key.first], inverse_on[key.first]);
  }
  for (auto& [device, tensor] : found) state.found_inf.push_back(tensor);
  state.stage = Stage::kUnscaled;
}

bool GradScaler::step(::torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return true;
  }
  PerOptimizer& state = optimizers_[&optimizer];
  TORCH_CHECK(state.stage != Stage::kStepped, "GradScaler::step: was called already for this optimizer since the last update()");
  if (state.stage == Stage::kReady) unscale_(optimizer);
  TORCH_CHECK(!state.found_inf.empty(), "GradScaler::step: this optimizer has no gradients; run the backward pass of the scaled loss first");
  bool finite = true;
  for (const auto& f : state.found_inf) finite = finite && f.item<float>() == 0;
  if (finite) optimizer.step();
  state.stage = Stage::kStepped;
  return finite;
}

void GradScaler::update() {
  if (!options_.enabled) return;
  TORCH_CHECK(scale_.defined(), "GradScaler::update: scale() was not called yet");
  ::torch::Tensor any;
  for (const auto& [optimizer, state] : optimizers_)
    for (const auto& f : state.found_inf) {
      const ::torch::Tensor here = f.to(scale_.device(), /*non_blocking=*/true);
      any = any.defined() ? any + here : here;
    }
  TORCH_CHECK(any.defined(), "GradScaler::update: no gradients were checked since the last update; call step() or unscale_() first");
  at::NoGradGuard no_grad;
  at::_amp_update_scale_(scale_, growth_tracker_, any, options_.growth_factor, options_.backoff_factor, options_.growth_interval);
  clear_optimizers();
}

void GradScaler::update(double new_scale) {
  if (!options_.enabled) return;
  TORCH_CHECK_VALUE(new_scale > 0 && std::isfinite(new_scale), "GradScaler::update: the scale must be positive, not ", new_scale);
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
