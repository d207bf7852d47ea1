#include "tonnage/torch/quantize.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/torch.h>

#include <cmath>

#include "layer_places.h"

namespace tonnage {
namespace {

using ::torch::Tensor;
namespace nn = ::torch::nn;

// Operators that only the dispatcher knows: they have no C++ function in libtorch.
c10::IValue call(const char* name, const char* overload, torch::jit::Stack stack) {
  const auto found = c10::Dispatcher::singleton().findSchema({name, overload});
  TORCH_CHECK(found, "quantize: this libtorch has no operator ", name,
              ". It was built without quantized kernels for the CPU");
  found->callBoxed(&stack);
  return stack.size() == 1 ? stack[0] : c10::ivalue::Tuple::create(std::move(stack));
}

void check_inference(const Tensor& input, const char* who) {
  TORCH_CHECK(input.scalar_type() == at::kFloat, who, ": input is ", input.dtype(),
              "; it must be float");
  TORCH_CHECK(!(at::GradMode::is_enabled() && input.requires_grad()), who,
              ": it has no gradient. Run it under torch::NoGradGuard, or train with prepare_qat()");
}

// Scale of each row such that its largest magnitude is 127; 1 for rows of zeros.
Tensor row_scales(const Tensor& matrix) {
  const Tensor largest = matrix.abs().amax(1);
  return at::where(largest > 0, largest / 127, at::ones_like(largest));
}

Tensor float_weight(const Tensor& weight, const char* who) {
  TORCH_CHECK(weight.scalar_type() == at::kFloat, who, ": the weight is ", weight.dtype(),
              "; it must be float");
  return weight.detach();
}

// (out, ...) float -> quantized tensor, per channel 0.
Tensor quantized_weight(const Tensor& weight, const Tensor& scales) {
  return at::quantize_per_channel(weight.cpu().contiguous(), scales.cpu().to(at::kDouble),
                                  at::zeros({weight.size(0)}, at::kLong), 0, at::kQInt8);
}

std::optional<Tensor> optional_bias(const Tensor& bias) {
  return bias.defined() ? std::optional<Tensor>(bias.detach().cpu().to(at::kFloat)) : std::nullopt;
}

c10::IValue pack_linear(const Tensor& weight, const Tensor& scales,
                        const std::optional<Tensor>& bias) {
  return call("quantized::linear_prepack", "", {quantized_weight(weight, scales), bias});
}

int64_t rounded_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

}  // namespace

DynamicQuantizedLinearImpl::DynamicQuantizedLinearImpl(const nn::Linear& trained)
    : in_(trained->weight.size(1)), out_(trained->weight.size(0)) {
  ::torch::NoGradGuard no_grad;
  const Tensor weight = float_weight(trained->weight, "DynamicQuantizedLinear");
  packed_ = pack_linear(weight, row_scales(weight.flatten(1)), optional_bias(trained->bias));
  if (weight.is_cuda()) to_cuda_form(weight.device());
}

void DynamicQuantizedLinearImpl::to_cuda_form(c10::Device device) {
  ::torch::NoGradGuard no_grad;
  if (weight_.defined()) {
    weight_ = weight_.to(device);
    scales_ = scales_.to(device);
    if (bias_.defined()) bias_ = bias_.to(device);
    return;
  }
  const auto parts = call("quantized::linear_unpack", "", {packed_}).toTuple();
  const Tensor quantized = parts->elements()[0].toTensor();
  // The integer kernels of cuBLAS take multiples of 8 and 16.
  const int64_t out = rounded_up(out_, 8), in = rounded_up(in_, 16);
  weight_ = at::constant_pad_nd(quantized.int_repr(), {0, in - in_, 0, out - out_}).to(device);
  scales_ = at::constant_pad_nd(quantized.q_per_channel_scales().to(at::kFloat), {0, out - out_}, 1)
                .to(device);
  bias_ = parts->elements()[1].isNone() ? Tensor() : parts->elements()[1].toTensor().to(device);
  packed_ = c10::IValue();
}

void DynamicQuantizedLinearImpl::to_cpu_form() {
  if (!packed_.isNone()) return;
  ::torch::NoGradGuard no_grad;
  const Tensor scales = scales_.cpu().slice(0, 0, out_);
  const Tensor weight =
      weight_.cpu().slice(0, 0, out_).slice(1, 0, in_).to(at::kFloat) * scales.unsqueeze(1);
  packed_ = pack_linear(weight, scales, optional_bias(bias_));
  weight_ = scales_ = bias_ = Tensor();
}

Tensor DynamicQuantizedLinearImpl::forward(const Tensor& input) {
  check_inference(input, "DynamicQuantizedLinear");
  TORCH_CHECK(input.dim() >= 1 && input.size(-1) == in_, "DynamicQuantizedLinear: input is ",
              input.sizes(), "; its last size must be ", in_);
  TORCH_CHECK(input.is_cpu() || input.is_cuda(), "DynamicQuantizedLinear: input is on ",
              input.device(), "; there are kernels for the CPU and for CUDA");
  if (input.is_cpu()) {
    to_cpu_form();
    return call("quantized::linear_dynamic", "",
                {input.contiguous(), packed_, /*reduce_range=*/true})
        .toTensor();
  }
  if (!weight_.defined() || weight_.device() != input.device()) to_cuda_form(input.device());
  ::torch::NoGradGuard no_grad;
  auto shape = input.sizes().vec();
  shape.back() = out_;
  const Tensor rows = input.reshape({-1, in_});
  const Tensor scales = row_scales(rows).unsqueeze(1);
  const int64_t padded_rows =
      std::max<int64_t>(rounded_up(rows.size(0), 8), 24);  // the kernel wants more than 16
  const Tensor codes =
      at::constant_pad_nd(rows.div(scales).round_().to(at::kChar),
                          {0, weight_.size(1) - in_, 0, padded_rows - rows.size(0)});
  Tensor product =
      at::_int_mm(codes, weight_.t()).slice(0, 0, rows.size(0)).slice(1, 0, out_).to(at::kFloat);
  product.mul_(scales).mul_(scales_.slice(0, 0, out_));
  if (bias_.defined()) product.add_(bias_);
  return product.view(shape);
}

Tensor DynamicQuantizedLinearImpl::dequantized_weight() const {
  if (!packed_.isNone())
    return call("quantized::linear_unpack", "", {packed_})
        .toTuple()
        ->elements()[0]
        .toTensor()
        .dequantize();
  return weight_.cpu().slice(0, 0, out_).slice(1, 0, in_).to(at::kFloat) *
         scales_.cpu().slice(0, 0, out_).unsqueeze(1);
}

int64_t DynamicQuantizedLinearImpl::weight_bytes() const {
  if (weight_.defined())
    return static_cast<int64_t>(weight_.nbytes() + scales_.nbytes() +
                                (bias_.defined() ? bias_.nbytes() : 0));
  const auto parts = call("quantized::linear_unpack", "", {packed_}).toTuple();
  return out_ * in_ + 4 * out_ + (parts->elements()[1].isNone() ? 0 : 4 * out_);
}

DynamicQuantizedLSTMImpl::DynamicQuantizedLSTMImpl(const nn::LSTM& trained)
    : options_(trained->options) {
  TORCH_CHECK(options_.proj_size() == 0, "DynamicQuantizedLSTM: proj_size is ",
              options_.proj_size(), "; projections are not supported");
  TORCH_CHECK(options_.bias(),
              "DynamicQuantizedLSTM: an LSTM without bias is not supported by the kernel");
  ::torch::NoGradGuard no_grad;
  const auto parameters = trained->named_parameters();
  for (int64_t layer = 0; layer < options_.num_layers(); layer++)
    for (const std::string& suffix : options_.bidirectional()
                                         ? std::vector<std::string>{"", "_reverse"}
                                         : std::vector<std::string>{""}) {
      const std::string place = "_l" + std::to_string(layer) + suffix;
      std::vector<c10::IValue> packed;
      std::vector<Tensor> biases;
      for (const char* which : {"ih", "hh"}) {
        const Tensor weight =
            float_weight(parameters["weight_" + (which + place)], "DynamicQuantizedLSTM");
        biases.push_back(parameters["bias_" + (which + place)].detach().cpu());
        packed.push_back(pack_linear(weight, row_scales(weight), biases.back()));
      }
      cells_.push_back(call("quantized::make_quantized_cell_params_dynamic", "",
                            {packed[0], packed[1], biases[0], biases[1], /*reduce_range=*/true}));
    }
}

std::tuple<Tensor, DynamicQuantizedLSTMImpl::State> DynamicQuantizedLSTMImpl::forward(
    const Tensor& input, ::torch::optional<State> state) {
  check_inference(input, "DynamicQuantizedLSTM");
  TORCH_CHECK(input.is_cpu(), "DynamicQuantizedLSTM: input is on ", input.device(),
              "; there is an int8 LSTM for the CPU only. Move the input, or keep torch::nn::LSTM "
              "on the device");
  TORCH_CHECK(input.dim() == 3 && input.size(2) == options_.input_size(),
              "DynamicQuantizedLSTM: input is ", input.sizes(),
              "; it must have three dimensions, the last ", options_.input_size());
  const int64_t batch = input.size(options_.batch_first() ? 0 : 1),
                directions = options_.bidirectional() ? 2 : 1;
  if (!state) {
    const Tensor zeros = at::zeros(
        {options_.num_layers() * directions, batch, options_.hidden_size()}, input.options());
    state = State(zeros, zeros);
  }
  c10::List<Tensor> hidden({std::get<0>(*state), std::get<1>(*state)});
  c10::impl::GenericList cells(cells_.at(0).type());
  for (const c10::IValue& cell : cells_) cells.push_back(cell);
  const auto result = call("aten::quantized_lstm", "input",
                           {input, hidden, cells, true, options_.num_layers(), options_.dropout(),
                            false, options_.bidirectional(), options_.batch_first(),
                            static_cast<int64_t>(at::kQInt8), /*use_dynamic=*/true})
                          .toTuple();
  return {result->elements()[0].toTensor(),
          State(result->elements()[1].toTensor(), result->elements()[2].toTensor())};
}

namespace {

using detail::Choice;
using detail::choice_for;

std::optional<Choice> cannot(const std::string& why) { return Choice{nullptr, why}; }

std::optional<Choice> choose_dynamic(const std::string&,
                                     const std::shared_ptr<nn::Module>& module) {
  if (auto choice = choice_for<nn::LinearImpl>(module, [](std::shared_ptr<nn::LinearImpl> linear) {
        return nn::AnyModule(DynamicQuantizedLinear(nn::Linear(linear)));
      })) {
    const Tensor& weight = std::static_pointer_cast<nn::LinearImpl>(module)->weight;
    if (choice->make && weight.scalar_type() != at::kFloat)
      return cannot(std::string("its weight is ") + c10::toString(weight.scalar_type()) +
                    ", and only float can be quantized: call to(torch::kFloat) first");
    return choice;
  }
  auto choice = choice_for<nn::LSTMImpl>(module, [](std::shared_ptr<nn::LSTMImpl> lstm) {
    return nn::AnyModule(DynamicQuantizedLSTM(nn::LSTM(lstm)));
  });
  if (!choice || !choice->make) return choice;
  const auto& lstm = static_cast<nn::LSTMImpl&>(*module);
  const Tensor weight = module->named_parameters(/*recurse=*/false)["weight_ih_l0"];
  if (weight.scalar_type() != at::kFloat)
    return cannot(std::string("its weights are ") + c10::toString(weight.scalar_type()) +
                  ", and only float can be quantized: call to(torch::kFloat) first");
  if (!weight.is_cpu())
    return cannot("it is on " + weight.device().str() +
                  ", and there is an int8 LSTM for the CPU only: move the model to the CPU first");
  if (lstm.options.proj_size() != 0 || !lstm.options.bias())
    return cannot("there is no int8 kernel for an LSTM with proj_size or without bias");
  return choice;
}

// A new Sequential with some of the entries of `from` replaced; names are kept.
nn::Sequential map_sequential(const nn::Sequential& from, const detail::Choose& choose,
                              const char* who) {
  std::vector<std::optional<nn::AnyModule>> others;
  const auto names = from->named_children().keys();
  for (auto& entry : *from) {
    const std::string& name = names[others.size()];
    const auto* replaceable = dynamic_cast<const Replaceable*>(entry.ptr().get());
    const auto layer =
        replaceable && replaceable->substitute() ? replaceable->substitute() : entry.ptr();
    const auto choice = choose(name, layer);
    others.emplace_back();
    if (!choice) {
      const auto below = detail::chosen_below(*layer, choose);
      TORCH_CHECK(below.empty(), who, ": entry ", name, " (", layer->name(),
                  ") contains layers that a new Sequential cannot replace: ", name, ".",
                  below.empty() ? "" : below[0], below.size() > 1 ? " and others" : "",
                  ". Replace them in place with ", who, "_(*model)");
      continue;
    }
    TORCH_CHECK(choice->make, who, ": entry ", name, " (", layer->name(),
                ") cannot be replaced: ", choice->why);
    others.back() = choice->make();
    others.back()->ptr()->train(entry.ptr()->is_training());
  }
  nn::Sequential to;
  to->train(from->is_training());  // while it has no children: theirs stays as it is
  size_t i = 0;
  for (auto& entry : *from) {
    to->push_back(names[i], others[i] ? *others[i] : entry);
    i++;
  }
  return to;
}

}  // namespace

nn::Sequential quantize_dynamic(const nn::Sequential& trained) {
  return map_sequential(trained, choose_dynamic, "quantize_dynamic");
}

ReplacedLayers quantize_dynamic_(nn::Module& trained, const ReplaceOptions& options) {
  return detail::replace_chosen(trained, choose_dynamic, options, "quantize_dynamic_");
}

// ---- quantization-aware training ----

FakeQuantizeImpl::FakeQuantizeImpl(Kind kind, double averaging)
    : kind_(kind), averaging_(averaging) {
  TORCH_CHECK(averaging > 0 && averaging <= 1, "FakeQuantize: averaging is ", averaging,
              "; it must be in (0, 1]");
  if (kind == Kind::kWeight) {  // sized by the first weight
    scale = register_buffer("scale", at::empty({0}));
    zero_point = register_buffer("zero_point", at::empty({0}, at::kInt));
    return;
  }
  const float infinity = std::numeric_limits<float>::infinity();
  running_min = register_buffer("running_min", at::full({1}, infinity));
  running_max = register_buffer("running_max", at::full({1}, -infinity));
  scale = register_buffer("scale", at::ones({1}));
  zero_point = register_buffer("zero_point", at::zeros({1}, at::kInt));
  on_ = register_buffer("on", at::ones({1}, at::kLong));
  off_ = register_buffer("off", at::zeros({1}, at::kLong));
}

Tensor FakeQuantizeImpl::forward(const Tensor& input) {
  const bool observing = is_training() && observe_;
  if (kind_ == Kind::kWeight) {
    if (observing) {
      ::torch::NoGradGuard no_grad;
      scale.resize_({input.size(0)}).copy_(row_scales(input.detach().flatten(1)));
      zero_point.resize_({input.size(0)}).zero_();
    }
    TORCH_CHECK(has_seen_data(),
                "FakeQuantize: it has no range yet. Run it in training mode first");
    return at::fake_quantize_per_channel_affine(input, scale, zero_point, 0, -127, 127);
  }
  TORCH_CHECK(observing || has_seen_data(),
              "FakeQuantize: it has no range yet. Run it in training mode first");
  return at::fused_moving_avg_obs_fake_quant(input, observing ? on_ : off_, on_, running_min,
                                             running_max, scale, zero_point, averaging_, 0, 127,
                                             -1);
}

bool FakeQuantizeImpl::has_seen_data() const {
  return kind_ == Kind::kWeight ? scale.numel() > 0 : running_min.isfinite().all().item<bool>();
}

namespace {

struct Ranges {
  FakeQuantize input{FakeQuantizeImpl::Kind::kActivation}, weight{FakeQuantizeImpl::Kind::kWeight},
      output{FakeQuantizeImpl::Kind::kActivation};
};

template <class Layer>
void add_ranges(Layer& layer, const c10::Device& device) {
  Ranges ranges;
  layer.input_range = layer.register_module("input_range", ranges.input);
  layer.weight_range = layer.register_module("weight_range", ranges.weight);
  layer.output_range = layer.register_module("output_range", ranges.output);
  for (FakeQuantize* range : {&layer.input_range, &layer.weight_range, &layer.output_range})
    (*range)->to(device);
}

template <class Layer, class From>
void take_parameters(Layer& layer, From& from) {
  layer.weight = layer.register_parameter("weight", from.weight, from.weight.requires_grad());
  if (from.bias.defined())
    layer.bias = layer.register_parameter("bias", from.bias, from.bias.requires_grad());
}

template <class Options>
bool has_zero_padding(const Options& options) {
  return std::holds_alternative<::torch::enumtype::kZeros>(options.padding_mode()) &&
         std::holds_alternative<::torch::ExpandingArray<2>>(options.padding());
}

std::vector<int64_t> numbers(const ::torch::ExpandingArray<2>& array) {
  return {(*array)[0], (*array)[1]};
}

}  // namespace

QatLinearImpl::QatLinearImpl(const nn::Linear& layer) {
  take_parameters(*this, *layer);
  add_ranges(*this, weight.device());
}

Tensor QatLinearImpl::forward(const Tensor& input) {
  return output_range->forward(
      at::linear(input_range->forward(input), weight_range->forward(weight), bias));
}

QatConv2dImpl::QatConv2dImpl(const nn::Conv2d& layer)
    : options(layer->options.in_channels(), layer->options.out_channels(),
              layer->options.kernel_size()) {
  TORCH_CHECK(
      has_zero_padding(layer->options),
      "QatConv2d: only zero padding that is given as numbers is supported. Leave this layer out");
  options.stride(layer->options.stride())
      .padding(layer->options.padding())
      .dilation(layer->options.dilation())
      .groups(layer->options.groups());
  take_parameters(*this, *layer);
  add_ranges(*this, weight.device());
}

Tensor QatConv2dImpl::forward(const Tensor& input) {
  const auto padding = numbers(std::get<::torch::ExpandingArray<2>>(options.padding()));
  return output_range->forward(at::conv2d(
      input_range->forward(input), weight_range->forward(weight), bias, numbers(options.stride()),
      padding, numbers(options.dilation()), options.groups()));
}

namespace {

template <class Layer>
void check_trained(Layer& layer) {
  for (const FakeQuantize& range : {layer.input_range, layer.weight_range, layer.output_range})
    TORCH_CHECK(range->has_seen_data(), "convert: a ", layer.name(), " (weight ",
                layer.weight.sizes(), ") never saw data in training mode. Train it first");
}

}  // namespace

QuantizedLayerImpl::QuantizedLayerImpl(const QatLinear& layer) : convolution_(false) {
  ::torch::NoGradGuard no_grad;
  check_trained(*layer);
  packed_ =
      pack_linear(layer->weight.detach(), layer->weight_range->scale, optional_bias(layer->bias));
  input_scale_ = layer->input_range->scale.item<double>();
  input_zero_ = layer->input_range->zero_point.item<int64_t>();
  output_scale_ = layer->output_range->scale.item<double>();
  output_zero_ = layer->output_range->zero_point.item<int64_t>();
}

QuantizedLayerImpl::QuantizedLayerImpl(const QatConv2d& layer) : convolution_(true) {
  ::torch::NoGradGuard no_grad;
  check_trained(*layer);
  packed_ = call("quantized::conv2d_prepack", "",
                 {quantized_weight(layer->weight.detach(), layer->weight_range->scale),
                  optional_bias(layer->bias), numbers(layer->options.stride()),
                  numbers(std::get<::torch::ExpandingArray<2>>(layer->options.padding())),
                  numbers(layer->options.dilation()), layer->options.groups()});
  input_scale_ = layer->input_range->scale.item<double>();
  input_zero_ = layer->input_range->zero_point.item<int64_t>();
  output_scale_ = layer->output_range->scale.item<double>();
  output_zero_ = layer->output_range->zero_point.item<int64_t>();
}

Tensor QuantizedLayerImpl::forward(const Tensor& input) {
  check_inference(input, "QuantizedLayer");
  TORCH_CHECK(input.is_cpu(), "QuantizedLayer: input is on ", input.device(),
              "; what convert() makes runs on the CPU only. Move the input, or on "
              "CUDA use DynamicQuantizedLinear");
  // Training saw 7 bits: what lies above its range was cut off there, and uint8 would have room for
  // it.
  const auto cut = [](const Tensor& t, double scale, int64_t zero) {
    return t.clamp(-static_cast<double>(zero) * scale, static_cast<double>(127 - zero) * scale);
  };
  const Tensor codes = at::quantize_per_tensor(cut(input, input_scale_, input_zero_), input_scale_,
                                               input_zero_, at::kQUInt8);
  const c10::IValue result =
      convolution_ ? call("quantized::conv2d", "new", {codes, packed_, output_scale_, output_zero_})
                   : call("quantized::linear", "", {codes, packed_, output_scale_, output_zero_});
  return cut(result.toTensor().dequantize(), output_scale_, output_zero_);
}

namespace {

std::optional<Choice> choose_qat(const std::string&, const std::shared_ptr<nn::Module>& module) {
  if (auto choice = choice_for<nn::LinearImpl>(module, [](std::shared_ptr<nn::LinearImpl> linear) {
        return nn::AnyModule(QatLinear(nn::Linear(linear)));
      }))
    return choice;
  auto choice = choice_for<nn::Conv2dImpl>(module, [](std::shared_ptr<nn::Conv2dImpl> conv) {
    return nn::AnyModule(QatConv2d(nn::Conv2d(conv)));
  });
  if (choice && choice->make && !has_zero_padding(static_cast<nn::Conv2dImpl&>(*module).options))
    return cannot("only zero padding that is given as numbers is supported");
  return choice;
}

std::optional<Choice> choose_convert(const std::string&,
                                     const std::shared_ptr<nn::Module>& module) {
  if (auto choice = choice_for<QatLinearImpl>(module, [](std::shared_ptr<QatLinearImpl> linear) {
        return nn::AnyModule(QuantizedLayer(QatLinear(linear)));
      }))
    return choice;
  return choice_for<QatConv2dImpl>(module, [](std::shared_ptr<QatConv2dImpl> conv) {
    return nn::AnyModule(QuantizedLayer(QatConv2d(conv)));
  });
}

}  // namespace

nn::Sequential prepare_qat(const nn::Sequential& net) {
  return map_sequential(net, choose_qat, "prepare_qat");
}
nn::Sequential convert(const nn::Sequential& qat) {
  return map_sequential(qat, choose_convert, "convert");
}

ReplacedLayers prepare_qat_(nn::Module& net, const ReplaceOptions& options) {
  return detail::replace_chosen(net, choose_qat, options, "prepare_qat_");
}
ReplacedLayers convert_(nn::Module& qat, const ReplaceOptions& options) {
  return detail::replace_chosen(qat, choose_convert, options, "convert_");
}

}  // namespace tonnage
