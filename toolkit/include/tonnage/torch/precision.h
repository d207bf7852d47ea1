// Mixed precision: autocast for a scope, and the gradient scaler that float16 needs.
//
//   tonnage::GradScaler scaler;
//   {
//     tonnage::AutocastGuard autocast(torch::kCUDA, torch::kHalf);
//     loss = criterion(model->forward(x), y);
//   }
//   scaler.scale(loss).backward();
//   scaler.unscale_(optimizer);   // only if gradients are read or clipped
//   torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
//   scaler.step(optimizer);       // does nothing if a gradient is infinite or NaN
//   scaler.update();
//
// Same kernels and rules as torch.autocast and torch.amp.GradScaler in Python: the same scale after
// every step. With the fused optimizers (optim.h) the division by the scale happens in their
// kernel, and step() does not wait for the device. Threads: a guard belongs to its thread and ends
// in reverse order; a scaler is used by one at a time. Owns: the scaler its scalars; an optimizer
// must live from its first unscale_ or step to update().
//
// Source of the method: Micikevicius et al. 2018, Mixed Precision Training.
#pragma once

#include <c10/core/DeviceType.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tonnage {

// Autocast on this thread until the end of the scope; the state before it is put back, and with the
// outermost scope the casts of parameters that were kept are released. Run the backward pass
// outside of it. Nesting with enabled = false switches it off inside. Memory: with cache_casts, a
// copy of every parameter that is used, in `dtype`, lives until the outermost scope ends. Error:
// c10::Error if dtype is not bfloat16 or float16, or the device has no autocast (only CPU and CUDA
// are for this toolkit).
class AutocastGuard {
 public:
  explicit AutocastGuard(c10::DeviceType device_type = c10::kCUDA,
                         c10::ScalarType dtype = c10::kBFloat16, bool enabled = true,
                         bool cache_casts = true);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  c10::DeviceType device_type_;
  c10::ScalarType dtype_before_;
  bool enabled_before_, cache_before_;
};

struct GradScalerOptions {
  double initial_scale = 65536;
  double growth_factor = 2;     // > 1; after growth_interval steps in a row without an infinity
  double backoff_factor = 0.5;  // between 0 and 1; after a step with one
  int64_t growth_interval = 2000;
  bool enabled = true;  // false: every call does what it would do without a scaler
};

// What there is to save between runs.
struct GradScalerState {
  double scale = 0, growth_factor = 0, backoff_factor = 0;
  int64_t growth_interval = 0, growth_tracker = 0;
};

// Whether a step was taken. With a fused optimizer only the device knows: asking waits for it.
class StepTaken {
 public:
  operator bool() const;

 private:
  friend class GradScaler;
  explicit StepTaken(bool taken) : taken_(taken) {}
  explicit StepTaken(::torch::Tensor found_inf) : found_inf_(std::move(found_inf)) {}
  bool taken_ = true;
  ::torch::Tensor found_inf_;  // defined: it decides
};

// One per training run. Memory: a few scalars on the device of the first loss. get_scale() and
// state() wait for the device, and so does step() unless the optimizer is a ScaledStep (FusedAdam,
// FusedAdamW, FusedSGD). Errors: c10::Error, before anything is changed, for a second unscale_ or
// step of an optimizer between updates, for float16 gradients (keep the parameters in float32; a
// ScaledStep takes them unless unscale_ is called), if no gradient was checked, or for options out
// of range.
class GradScaler {
 public:
  explicit GradScaler(const GradScalerOptions& options = {});

  ::torch::Tensor scale(const ::torch::Tensor& loss);

  // Divides the optimizer's gradients by the scale, in place, and looks for infinities and NaNs.
  void unscale_(::torch::optim::Optimizer& optimizer);

  // Updates the parameters unless an infinity or NaN was found. A ScaledStep divides the gradients
  // by the scale itself (after a skipped step they are still scaled); for any other optimizer this
  // calls unscale_, where it was not called, and optimizer.step().
  StepTaken step(::torch::optim::Optimizer& optimizer);

  void update();
  void update(double new_scale);

  double get_scale() const;
  bool enabled() const { return options_.enabled; }

  GradScalerState state() const;
  void load_state(const GradScalerState& state);

 private:
  enum class Stage { kReady, kUnscaled, kStepped };
  struct PerOptimizer {
    Stage stage = Stage::kReady;
    std::vector<::torch::Tensor> found_inf;  // one per device
  };

  void make_tensors(c10::Device device);
  void clear_optimizers();
  void check_gradients(const ::torch::optim::Optimizer& optimizer, bool allow_half) const;
  // Multiplies the gradients by `inverse`, in place, and looks for infinities: one scalar per device.
  std::vector<::torch::Tensor> find_infinities(::torch::optim::Optimizer& optimizer,
                                               const ::torch::Tensor& inverse) const;
  ::torch::Tensor sum_on_scale_device(const std::vector<::torch::Tensor>& found_inf) const;

  GradScalerOptions options_;
  ::torch::Tensor scale_, growth_tracker_;
  int64_t initial_growth_tracker_ = 0;
  std::unordered_map<const ::torch::optim::Optimizer*, PerOptimizer> optimizers_;
};

}  // namespace tonnage
