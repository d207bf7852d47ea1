// Layers that can be replaced by others inside of any module.
//
// A C++ module calls its layers through typed members, so another module registered under the same
// name would change the names of the parameters and nothing that forward() computes. The layers
// here are torch::nn's, with a substitute that forward() goes to once there is one:
//
//   struct NetImpl : torch::nn::Module {
//     tonnage::Linear fc{nullptr};                      // where torch::nn::Linear was
//     NetImpl() { fc = register_module("fc", tonnage::Linear(784, 10)); }
//     torch::Tensor forward(torch::Tensor x) { return fc(x); }
//   };
//
//   net->fc->replace(tonnage::LoraLinear(net->fc, 8));  // one layer
//   tonnage::quantize_dynamic_(*net);                   // all of them: quantize.h
//   tonnage::replace_layers(
//       *net, [](const std::string& name, const std::shared_ptr<torch::nn::Module>& layer) {...});
//
// Before it is replaced such a layer is torch::nn's (Linear with one kernel less where the input
// has more than two dimensions): the same names in checkpoints, the same initialisation, clone(),
// and everything that takes a torch::nn::Linear takes it. Afterwards its own parameters are gone
// (their memory, too, unless the substitute or someone else holds them), and the substitute is its
// child "layer": "fc.layer.weight". It is in training mode if the layer was.
//
// Places that can be filled with another layer: these classes wherever they are registered, and the
// entries of a torch::nn::Sequential, also of one inside of other modules. Nothing else can;
// replace_layers says so.
//
// Memory: a substitute and the layer exist at once only while layers are being replaced. Devices,
// shapes: the substitute must be where its input will be, and take and return what the layer does;
// that shows in forward().
//
// Errors: c10::Error, with nothing changed, where a layer has to be replaced and cannot be; for
// clone() of a layer that was replaced; for packed sequences in an LSTM that was replaced. Threads:
// not while forward() runs. Owns: the substitute, shared with its holders.
#pragma once

#include <ATen/ops/linear.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace tonnage {

class Replaceable {
 public:
  virtual ~Replaceable() = default;

  // Its forward must take and return what this layer's does, as exactly that: (torch::Tensor) ->
  // torch::Tensor, for an LSTM (torch::Tensor, std::optional<state>) -> (output, state). A second
  // call replaces the first substitute.
  virtual void replace(::torch::nn::AnyModule layer) = 0;

  // Null: it was not replaced.
  const std::shared_ptr<::torch::nn::Module>& substitute() const { return substitute_; }

 protected:
  std::shared_ptr<::torch::nn::Module> substitute_;
};

// Plain: torch::nn::LinearImpl or Conv2dImpl.
template <class Plain>
class ReplaceableImpl : public Plain, public Replaceable {
 public:
  using Plain::Plain;
  // With the parameters of a layer of torch::nn, which both have then.
  explicit ReplaceableImpl(const Plain& layer) : Plain(layer) {}

  ::torch::Tensor forward(const ::torch::Tensor& input) {
    if (call_) return call_(input);
    // torch::nn::Linear adds its bias with a kernel of its own unless the input has two dimensions;
    // Python's adds it in the product.
    if constexpr (std::is_same_v<Plain, ::torch::nn::LinearImpl>)
      return at::linear(input, this->weight, this->bias);
    else
      return Plain::forward(input);
  }

  void replace(::torch::nn::AnyModule layer) override;
  // Any holder whose module has a forward from a tensor to a tensor, torch::nn::Sequential among
  // them.
  template <class Layer>
  void replace(const ::torch::nn::ModuleHolder<Layer>& layer) {
    put(layer.ptr(), [impl = layer.ptr()](const ::torch::Tensor& input) {
      return ::torch::Tensor(impl->forward(input));
    });
  }

  std::shared_ptr<::torch::nn::Module> clone(
      const std::optional<c10::Device>& device = std::nullopt) const override;
  void pretty_print(std::ostream& stream) const override;

 private:
  void put(std::shared_ptr<::torch::nn::Module> layer,
           std::function<::torch::Tensor(const ::torch::Tensor&)> call);
  std::function<::torch::Tensor(const ::torch::Tensor&)> call_;
};

using LinearImpl = ReplaceableImpl<::torch::nn::LinearImpl>;
using Conv2dImpl = ReplaceableImpl<::torch::nn::Conv2dImpl>;

// Holders, as torch::nn's are, which also go where one of those is asked for.
class Linear : public ::torch::nn::ModuleHolder<LinearImpl> {
 public:
  using ::torch::nn::ModuleHolder<LinearImpl>::ModuleHolder;
  using Impl = LinearImpl;
  operator ::torch::nn::Linear() const {
    return std::static_pointer_cast<::torch::nn::LinearImpl>(ptr());
  }
};
class Conv2d : public ::torch::nn::ModuleHolder<Conv2dImpl> {
 public:
  using ::torch::nn::ModuleHolder<Conv2dImpl>::ModuleHolder;
  using Impl = Conv2dImpl;
  operator ::torch::nn::Conv2d() const {
    return std::static_pointer_cast<::torch::nn::Conv2dImpl>(ptr());
  }
};

class LSTMImpl : public ::torch::nn::LSTMImpl, public Replaceable {
 public:
  using State = std::tuple<::torch::Tensor, ::torch::Tensor>;
  using ::torch::nn::LSTMImpl::LSTMImpl;
  explicit LSTMImpl(const ::torch::nn::LSTMImpl& layer) : ::torch::nn::LSTMImpl(layer) {}

  std::tuple<::torch::Tensor, State> forward(const ::torch::Tensor& input,
                                             std::optional<State> state = {});
  std::tuple<::torch::nn::utils::rnn::PackedSequence, State> forward_with_packed_input(
      const ::torch::nn::utils::rnn::PackedSequence& packed_input, std::optional<State> state = {});

  void replace(::torch::nn::AnyModule layer) override;
  std::shared_ptr<::torch::nn::Module> clone(
      const std::optional<c10::Device>& device = std::nullopt) const override;
  void pretty_print(std::ostream& stream) const override;

 private:
  ::torch::nn::AnyModule any_;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, ::torch::nn::AnyValue(std::optional<State>())})
};

class LSTM : public ::torch::nn::ModuleHolder<LSTMImpl> {
 public:
  using ::torch::nn::ModuleHolder<LSTMImpl>::ModuleHolder;
  using Impl = LSTMImpl;
  operator ::torch::nn::LSTM() const {
    return std::static_pointer_cast<::torch::nn::LSTMImpl>(ptr());
  }
};

// Chooses layers by their full name ("encoder.0.fc").
using LayerFilter = std::function<bool(const std::string& name, const ::torch::nn::Module& layer)>;

struct ReplaceOptions {
  LayerFilter filter = nullptr;  // layers for which it is false stay, and are not reported;
                                 // default: all are looked at
  bool leave_fixed =
      false;  // true: what cannot be replaced stays and is listed, instead of an error
};

struct ReplacedLayers {
  std::vector<std::string> replaced;  // full names
  std::vector<std::string> fixed;     // that should have been and cannot be where they are
};

// A module for the place of `layer`, or nothing: it stays, and its children are looked at. `layer`
// is a substitute where there is one.
using MakeSubstitute = std::function<std::optional<::torch::nn::AnyModule>(
    const std::string& name, const std::shared_ptr<::torch::nn::Module>& layer)>;

// Asks for every module below `model` (for `model` itself, if it is a replaceable layer) in the
// order of registration, then replaces. A module that is in several places gets one substitute.
// `model` is changed in place; its other modules stay the same objects.
ReplacedLayers replace_layers(::torch::nn::Module& model, const MakeSubstitute& make,
                              const ReplaceOptions& options = {});

}  // namespace tonnage
