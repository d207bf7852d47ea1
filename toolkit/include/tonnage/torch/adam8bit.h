// Adam and AdamW that keep their two moments in 8 bits.
//
//   auto options = tonnage::Adam8bitOptions(3e-4).weight_decay(0.1);
//   tonnage::Adam8bit optimizer(model->parameters(), options);
//
// Each moment is cut into blocks of 256 elements. A block keeps its largest magnitude as a float,
// and each element as one byte: its share of that magnitude, on a scale that is finer near zero
// (seven decades for the first moment, eight for the second). The second moment is never rounded
// down to zero, so no step is divided by epsilon alone.
//
// Memory of the state, in bytes, n elements of a parameter: 2*n + 8*ceil(n/256), instead of Adam's
// 8*n in float. Parameters with fewer than min_elements (biases, norms) keep moments of their own
// type: 8*n for float. Temporary memory: 4 bytes while such parameters are updated, and a
// gradient's size where its memory order is not its parameter's.
//
// Parameters: float, bfloat16 or half, contiguous or dense in any order, on the CPU or on CUDA;
// gradients alike. The arithmetic is in float on both. On CUDA the kernel is compiled when it is
// first needed, by NVRTC (it comes with PyTorch), once per type and card.
//
// Errors: c10::Error before anything is changed, for what optim.h says and where NVRTC or the
// driver fail (with their own text). Threads: one at a time. Stream: the current one. Owns: handles
// to the parameters, and the state.
//
// Source of the method: Dettmers, Lewis, Shleifer, Zettlemoyer, "8-bit Optimizers via Block-wise
// Quantization", ICLR 2022. The codes here are computed, not looked up, and differ from that
// paper's table in their last few values.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/optim/serialize.h>

#include <tuple>
#include <vector>

#include "tonnage/torch/recorder.h"

namespace tonnage {

struct Adam8bitOptions : public ::torch::optim::OptimizerCloneableOptions<Adam8bitOptions> {
  Adam8bitOptions(double learning_rate = 1e-3) : lr_(learning_rate) {}
  using betas_t = std::tuple<double, double>;
  TORCH_ARG(double, lr);
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-8;
  TORCH_ARG(double, weight_decay) = 0.01;
  TORCH_ARG(bool, decoupled) = true;        // true: AdamW's weight decay; false: Adam's
  TORCH_ARG(int64_t, min_elements) = 4096;  // smaller parameters keep plain moments

 public:
  void serialize(::torch::serialize::InputArchive& archive) override;
  void serialize(::torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return lr_; }
  void set_lr(const double value) override { lr_ = value; }
};

// exp_avg and exp_avg_sq: uint8 codes of shape (n), in the parameter's memory order, with their
// blocks' magnitudes (float, of shape (ceil(n/256))) in the _scale tensors; or like the parameter,
// without _scale.
struct Adam8bitParamState : public ::torch::optim::OptimizerCloneableParamState<Adam8bitParamState>,
                            public NamedStates {
  TORCH_ARG(int64_t, step) = 0;
  TORCH_ARG(::torch::Tensor, exp_avg);
  TORCH_ARG(::torch::Tensor, exp_avg_sq);
  TORCH_ARG(::torch::Tensor, exp_avg_scale);
  TORCH_ARG(::torch::Tensor, exp_avg_sq_scale);

 public:
  std::vector<std::pair<std::string, ::torch::Tensor>> named_states() const override;
  void serialize(::torch::serialize::InputArchive& archive) override;
  void serialize(::torch::serialize::OutputArchive& archive) const override;
};

class Adam8bit : public ::torch::optim::Optimizer {
 public:
  // Throws c10::Error for options out of range.
  explicit Adam8bit(const std::vector<::torch::optim::OptimizerParamGroup>& groups,
                    Adam8bitOptions defaults = {});
  explicit Adam8bit(std::vector<::torch::Tensor> parameters, Adam8bitOptions defaults = {})
      : Adam8bit({::torch::optim::OptimizerParamGroup(std::move(parameters))},
                 std::move(defaults)) {}

  ::torch::Tensor step(LossClosure closure = nullptr) override;
  void save(::torch::serialize::OutputArchive& archive) const override;
  void load(::torch::serialize::InputArchive& archive) override;
};

// The codes by themselves: blocks of 256 float values to bytes and magnitudes and back. is_signed:
// the first moment's scale. values: float, CPU, any shape. Returns (codes uint8 (n), scales float
// (ceil(n/256))).
std::tuple<::torch::Tensor, ::torch::Tensor> quantize_blocks(const ::torch::Tensor& values,
                                                             bool is_signed);
::torch::Tensor dequantize_blocks(const ::torch::Tensor& codes, const ::torch::Tensor& scales,
                                  bool is_signed);

}  // namespace tonnage
