// int8 for inference, and training for it.
//
// Dynamic quantization: trained Linear and LSTM layers with int8 weights; inputs are quantized as
// they come.
//
//   tonnage::quantize_dynamic_(*net);               // all Linear and LSTM layers, in place
//   tonnage::DynamicQuantizedLinear small(linear);  // one layer: a quarter of float's bytes
//
// Quantization-aware training (QAT): the layer computes with values that are rounded as int8 would
// round them, and training adapts the weights to that.
//
//   tonnage::prepare_qat_(*net);                    // Linear and Conv2d train net's parameters
//   ... train, on any device ...
//   tonnage::convert_(*net);                        // for the CPU
//
// In place means: layers that are tonnage::Linear, tonnage::Conv2d or tonnage::LSTM (replaceable.h)
// where torch::nn's would stand, and entries of a torch::nn::Sequential. A typed member of
// torch::nn::Linear calls the float layer whatever is registered in its place, so these functions
// throw, with the names, and change nothing; ReplaceOptions has a filter, and leave_fixed for a
// list instead. A torch::nn::Sequential may also be mapped to a new one, its own layers unchanged:
// quantize_dynamic(net), prepare_qat(net), convert(qat).
//
// Devices: a dynamic Linear runs on the CPU and on CUDA, where its input is. A dynamic LSTM and
// what convert makes of QAT run on the CPU only: libtorch has no int8 kernels of them for CUDA. An
// LSTM on CUDA is not replaced (that is an error, see above), and CUDA inputs of such layers are
// refused. QAT itself trains on any device.
//
// Memory of weights, in bytes: a Linear of (out, in): out * in + 4 * out (scales) + 4 * out (bias),
// instead of 4 * out * in + 4 * out; on CUDA both sizes are rounded up to 8 and 16. An LSTM alike.
// QAT adds to training what its fake quantization saves: one bool mask per quantized tensor (input,
// weight, output).
//
// Rounding: weights symmetric per output channel in [-127, 127]; inputs on the CPU affine per
// tensor in 7 bits (fbgemm's kernels would saturate with 8 on older processors, and Python does the
// same), on CUDA symmetric per row in 8 bits.
//
// Errors: c10::Error, with nothing changed, for gradients asked of quantized layers, for types
// other than float, for an LSTM with proj_size or without bias, for layers that cannot be replaced
// where they are, and for converting a layer that never saw data. Shapes are those of the layers
// that are replaced. Threads: one at a time. Owns: the int8 weights; QAT layers share the
// parameters of the layer.
//
// Source of the methods: Jacob et al., "Quantization and Training of Neural Networks for Efficient
// Integer-Arithmetic-Only Inference", CVPR 2018; the kernels are PyTorch's (torch.ao.quantization
// in Python), reached through the dispatcher.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "tonnage/torch/replaceable.h"

namespace tonnage {

// Runs where its input is: the weight is kept in the form of one device, and moves with the first
// input from another.
class DynamicQuantizedLinearImpl : public ::torch::nn::Module {
 public:
  explicit DynamicQuantizedLinearImpl(const ::torch::nn::Linear& trained);
  ::torch::Tensor forward(const ::torch::Tensor& input);  // (..., in) float -> (..., out) float
  ::torch::Tensor dequantized_weight() const;             // (out, in) float, CPU
  int64_t weight_bytes()
      const;  // weight, scales and bias, without a kernel's own padding on the CPU

 private:
  void to_cpu_form();
  void to_cuda_form(c10::Device device);
  int64_t in_, out_;
  c10::IValue packed_;  // CPU form
  ::torch::Tensor weight_, scales_,
      bias_;  // CUDA form: int8 (out', in'), float (out'), float (out)
};
TORCH_MODULE(DynamicQuantizedLinear);

// CPU only. Input (length, batch, in) or (batch, length, in) with batch_first.
class DynamicQuantizedLSTMImpl : public ::torch::nn::Module {
 public:
  using State = std::tuple<::torch::Tensor, ::torch::Tensor>;
  explicit DynamicQuantizedLSTMImpl(const ::torch::nn::LSTM& trained);
  // As torch::nn::LSTM: (output, (h_n, c_n)); without a state, zeros.
  std::tuple<::torch::Tensor, State> forward(const ::torch::Tensor& input,
                                             ::torch::optional<State> state = {});

 private:
  ::torch::nn::LSTMOptions options_;
  std::vector<c10::IValue> cells_;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, ::torch::nn::AnyValue(::torch::optional<State>())})
};
TORCH_MODULE(DynamicQuantizedLSTM);

// A new Sequential: Linear and LSTM replaced, all other modules the same objects. Error: one of
// those contains such layers.
::torch::nn::Sequential quantize_dynamic(const ::torch::nn::Sequential& trained);

// All Linear and LSTM layers of `trained`, wherever they are. Layers that were replaced before
// count as what they are now.
ReplacedLayers quantize_dynamic_(::torch::nn::Module& trained, const ReplaceOptions& options = {});

// Rounds to int8 (or uint8) steps and back. An activation's range follows the data as a moving
// average, a weight's is that of its present values. Gradients pass through where the value was
// inside the range (straight-through estimator).
class FakeQuantizeImpl : public ::torch::nn::Module {
 public:
  enum class Kind {
    kActivation,
    kWeight
  };  // affine per tensor in [0, 127]; symmetric per channel 0 in [-127, 127]
  explicit FakeQuantizeImpl(Kind kind, double averaging = 0.01);
  ::torch::Tensor forward(const ::torch::Tensor& input);
  // In training mode the range follows the data unless this is false: for the last steps, as the
  // paper advises.
  void observe(bool on) { observe_ = on; }
  bool has_seen_data() const;

  ::torch::Tensor running_min, running_max;  // of activations
  ::torch::Tensor scale, zero_point;

 private:
  Kind kind_;
  double averaging_;
  bool observe_ = true;
  ::torch::Tensor on_, off_;
};
TORCH_MODULE(FakeQuantize);

// The parameters are the trained layer's own tensors.
class QatLinearImpl : public ::torch::nn::Module {
 public:
  explicit QatLinearImpl(const ::torch::nn::Linear& layer);
  ::torch::Tensor forward(const ::torch::Tensor& input);

  ::torch::Tensor weight, bias;
  FakeQuantize input_range{nullptr}, weight_range{nullptr}, output_range{nullptr};
};
TORCH_MODULE(QatLinear);

// Zero padding only.
class QatConv2dImpl : public ::torch::nn::Module {
 public:
  explicit QatConv2dImpl(const ::torch::nn::Conv2d& layer);
  ::torch::Tensor forward(const ::torch::Tensor& input);

  ::torch::nn::Conv2dOptions options;
  ::torch::Tensor weight, bias;
  FakeQuantize input_range{nullptr}, weight_range{nullptr}, output_range{nullptr};
};
TORCH_MODULE(QatConv2d);

// The result of QAT: int8 kernels with the learnt ranges. CPU, float in and out.
class QuantizedLayerImpl : public ::torch::nn::Module {
 public:
  explicit QuantizedLayerImpl(const QatLinear& layer);
  explicit QuantizedLayerImpl(const QatConv2d& layer);
  ::torch::Tensor forward(const ::torch::Tensor& input);

 private:
  bool convolution_;
  c10::IValue packed_;
  double input_scale_, output_scale_;
  int64_t input_zero_, output_zero_;
};
TORCH_MODULE(QuantizedLayer);

// A new Sequential with QAT versions of Linear and Conv2d; other modules are the same objects.
::torch::nn::Sequential prepare_qat(const ::torch::nn::Sequential& net);
// A new Sequential in which QAT layers are int8 layers.
::torch::nn::Sequential convert(const ::torch::nn::Sequential& qat);

// In place, in any module. Parameters stay the same tensors when QAT begins, so an optimizer made
// before goes on with them.
ReplacedLayers prepare_qat_(::torch::nn::Module& net, const ReplaceOptions& options = {});
ReplacedLayers convert_(::torch::nn::Module& qat, const ReplaceOptions& options = {});

}  // namespace tonnage
