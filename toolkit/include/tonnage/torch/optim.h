// Adam, AdamW and SGD whose update of all parameters is a few kernels: drop-in replacements for
// torch::optim's.
//
// torch::optim's own optimizers launch about ten small kernels per parameter. These call the
// kernels that Python's torch.optim uses (ATen's _fused_* and _foreach_* operators). Options, state
// and the format of save() and load() are those of the torch::optim class, so a checkpoint of one
// can be loaded into the other.
//
//   tonnage::FusedAdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-4));
//   ...
//   loss.backward();
//   optimizer.step();
//
// Memory, on the device, in bytes; n: parameter elements, s: bytes of an element. Adam and AdamW:
// 2*n*s of state (3*n*s with amsgrad), SGD: n*s with momentum. The fused step needs 4 bytes more
// while it runs (Python keeps a step tensor per parameter). The foreach step works on slices of at
// most kForeachSliceBytes of parameters (or one parameter, if that is larger) and needs as much
// again, twice with weight decay of Adam or SGD; Python's needs it for all parameters at once.
//
// Which: fused is faster and needs no extra memory; foreach has the same rounding as Python's
// default on CUDA.
//
// With a GradScaler (precision.h) the fused optimizers get the scaled gradients: the kernel divides
// them, in place, and changes nothing where an infinity was found, so the step does not wait for
// the device. Such a step is counted in state() until the next step(), save() or settle() has read
// whether it was taken.
//
// Errors: c10::Error before anything is changed if a gradient's device, type, shape or layout is
// not its parameter's, if the parameter is not a floating point tensor, or for options that the
// kernels do not have (closures may throw their own). Threads: like torch::optim, one thread at a
// time. Stream: the current one. Owns: handles to the parameters, and the state.
//
// Source of the methods: Kingma and Ba 2015 (Adam), Loshchilov and Hutter 2019 (AdamW); the order
// of operations is ATen's.
#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <memory>

namespace tonnage {

// Parameters that one foreach call works on, in bytes.
inline constexpr int64_t kForeachSliceBytes = int64_t{64} << 20;

// An optimizer that takes gradients as a GradScaler left them.
class ScaledStep {
 public:
  virtual ~ScaledStep() = default;
  // grad_scale: what the gradients were multiplied by; undefined where they have been divided
  // already. found_inf: 0, or 1 where a gradient is infinite or NaN and nothing may change. Both
  // float tensors of one element, on any device of the parameters.
  virtual void step_scaled(const ::torch::Tensor& grad_scale, const ::torch::Tensor& found_inf) = 0;
};

namespace detail {
struct UnsettledStep;
}

// Plain: torch::optim::Adam, AdamW or SGD. Constructors, options and state are Plain's.
template <class Plain>
class Fused : public Plain, public ScaledStep {
 public:
  using Plain::Plain;
  // One update; parameters without a gradient are left alone. Returns what the closure returned
  // (undefined without one).
  ::torch::Tensor step(::torch::optim::Optimizer::LossClosure closure = nullptr) override;

  // GradScaler::step() calls this. Where it changed nothing, the gradients are still scaled. (A
  // first step of SGD that is skipped leaves no momentum behind; in PyTorch 2.11's fused SGD the
  // momentum is uninitialised then.)
  void step_scaled(const ::torch::Tensor& grad_scale, const ::torch::Tensor& found_inf) override;

  // Makes state() right after a scaled step. Waits for that step's check of its gradients, not for
  // what was queued later.
  void settle();

  void save(::torch::serialize::OutputArchive& archive) const override;
  void load(::torch::serialize::InputArchive& archive) override;

 private:
  void update(const ::torch::Tensor& grad_scale, const ::torch::Tensor& found_inf);
  std::shared_ptr<detail::UnsettledStep> unsettled_;
};

template <class Plain>
class Foreach : public Plain {
 public:
  using Plain::Plain;
  ::torch::Tensor step(::torch::optim::Optimizer::LossClosure closure = nullptr) override;
};

using FusedAdam = Fused<::torch::optim::Adam>;
using FusedAdamW = Fused<::torch::optim::AdamW>;
using FusedSGD = Fused<::torch::optim::SGD>;
using ForeachAdam = Foreach<::torch::optim::Adam>;
using ForeachAdamW = Foreach<::torch::optim::AdamW>;
using ForeachSGD = Foreach<::torch::optim::SGD>;

}  // namespace tonnage
