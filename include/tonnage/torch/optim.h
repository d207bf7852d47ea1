// Adam, AdamW and SGD whose update of all parameters is a few kernels: drop-in replacements for torch::optim's.
//
// torch::optim's own optimizers launch about ten small kernels per parameter. These call the kernels that Python's
// torch.optim uses (ATen's _fused_* and _foreach_* operators). Options, state and the format of save() and load() are those of
// the torch::optim class, so a checkpoint of one can be loaded into the other.
//
//   tonnage::FusedAdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-4));
//   ...
//   loss.backward();
//   optimizer.step();
//
// Memory, on the device, in bytes; n: parameter elements, s: bytes of an element. Adam and AdamW: 2*n*s of state (3*n*s with
// amsgrad), SGD: n*s with momentum. The fused step needs 4 bytes more while it runs (Python keeps a step tensor per parameter). The
// foreach step works on slices of at most kForeachSliceBytes of parameters (or one parameter, if that is larger) and needs as
// much again, twice with weight decay of Adam or SGD; Python's needs it for all parameters at once.
//
// Which: fused is faster and needs no extra memory; foreach has the same rounding as Python's default on CUDA.
//
// Errors: c10::Error before anything is changed if a gradient's device, type, shape or layout is not its parameter's, if the
// parameter is not a floating point tensor, or for options that the kernels do not have (closures may throw their own).
// Threads: like torch::optim, one thread at a time. Stream: the current one. Owns: handles to the parameters, and the state.
//
// Source of the methods: Kingma and Ba 2015 (Adam), Loshchilov and Hutter 2019 (AdamW); the order of operations is ATen's.
#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cstdint>

namespace tonnage {

// Parameters that one foreach call works on, in bytes.
inline constexpr int64_t kForeachSliceBytes = int64_t{64} << 20;

// Plain: torch::optim::Adam, AdamW or SGD. Constructors, options and state are Plain's.
template <class Plain>
class Fused : public Plain {
 public:
  using Plain::Plain;
  // One update; parameters without a gradient are left alone. Returns what the closure returned (undefined without one).
  ::torch::Tensor step(::torch::optim::Optimizer::LossClosure closure = nullptr) override;
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
