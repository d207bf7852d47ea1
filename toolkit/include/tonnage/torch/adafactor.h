// Adafactor: Adam's second moment kept as one row and one column per matrix, and no first moment.
//
//   tonnage::Adafactor optimizer(model->parameters(), tonnage::AdafactorOptions(1e-2));
//
// Memory of the state, in elements of the parameter's type: for a parameter of shape (..., r, c)
// the product of the leading sizes times (r + c), for a vector its length. Temporary: twice the
// bytes of the largest parameter (its estimate and update; Python's takes three times).
//
// Nothing is read back from the device: the norms that scale the step stay on it (Python's waits
// for the device twice per parameter). The formulas and defaults are those of
// torch.optim.Adafactor.
//
// Errors, threads, stream, ownership: as in optim.h.
//
// Source of the method: Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear
// Memory Cost", ICML 2018.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/optim/serialize.h>

#include <vector>

#include "tonnage/torch/recorder.h"

namespace tonnage {

struct AdafactorOptions : public ::torch::optim::OptimizerCloneableOptions<AdafactorOptions> {
  AdafactorOptions(double learning_rate = 1e-2) : lr_(learning_rate) {}
  TORCH_ARG(double, lr);
  TORCH_ARG(double, beta2_decay) = -0.8;  // the second moment forgets 1 - step^beta2_decay
  TORCH_ARG(double, eps1) = -1;  // floor of the second moment's root; negative: the type's epsilon
  TORCH_ARG(double,
            eps2) = 1e-3;  // floor of the parameter's root mean square, which scales the step
  TORCH_ARG(double, clip) = 1.0;  // largest root mean square of an update (d in the paper)
  TORCH_ARG(double, weight_decay) = 0.0;

 public:
  void serialize(::torch::serialize::InputArchive& archive) override;
  void serialize(::torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return lr_; }
  void set_lr(const double value) override { lr_ = value; }
};

// row (..., r, 1) and column (..., 1, c) for a parameter of two or more dimensions, else full.
struct AdafactorParamState
    : public ::torch::optim::OptimizerCloneableParamState<AdafactorParamState>,
      public NamedStates {
  TORCH_ARG(int64_t, step) = 0;
  TORCH_ARG(::torch::Tensor, row);
  TORCH_ARG(::torch::Tensor, column);
  TORCH_ARG(::torch::Tensor, full);

 public:
  std::vector<std::pair<std::string, ::torch::Tensor>> named_states()
      const override;  // with the names of Python's states
  void serialize(::torch::serialize::InputArchive& archive) override;
  void serialize(::torch::serialize::OutputArchive& archive) const override;
};

class Adafactor : public ::torch::optim::Optimizer {
 public:
  explicit Adafactor(const std::vector<::torch::optim::OptimizerParamGroup>& groups,
                     AdafactorOptions defaults = {});
  explicit Adafactor(std::vector<::torch::Tensor> parameters, AdafactorOptions defaults = {})
      : Adafactor({::torch::optim::OptimizerParamGroup(std::move(parameters))},
                  std::move(defaults)) {}

  ::torch::Tensor step(LossClosure closure = nullptr) override;
  void save(::torch::serialize::OutputArchive& archive) const override;
  void load(::torch::serialize::InputArchive& archive) override;
};

}  // namespace tonnage
