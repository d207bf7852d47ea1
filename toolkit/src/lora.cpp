#include "tonnage/torch/lora.h"

#include <torch/torch.h>

#include <cmath>

namespace tonnage {
namespace {

using ::torch::Tensor;
namespace F = ::torch::nn::functional;

void check(const LoraOptions& options, int64_t smaller_side, const char* layer) {
  TORCH_CHECK(options.rank() >= 1 && options.rank() <= smaller_side, layer, ": rank is ",
              options.rank(), "; it must be from 1 to ", smaller_side,
              ", the smaller side of the weight");
  TORCH_CHECK(options.dropout() >= 0 && options.dropout() < 1, layer, ": dropout is ",
              options.dropout(), "; it must be in [0, 1)");
}

// Shares the trained tensor's memory, without its history: the trained layer may be dropped or kept.
Tensor frozen(const Tensor& trained) { return trained.detach(); }

// The trained convolution with its parameters frozen; the trained layer's own still train.
struct FrozenConv2dImpl : ::torch::nn::Conv2dImpl {
  explicit FrozenConv2dImpl(const ::torch::nn::Conv2dImpl& trained)
      : ::torch::nn::Conv2dImpl(trained) {
    weight = parameters_["weight"] = frozen(trained.weight);
    if (trained.bias.defined()) bias = parameters_["bias"] = frozen(trained.bias);
  }
};

Tensor uniform_start(c10::IntArrayRef shape, const Tensor& like) {
  Tensor a = at::empty(shape, like.options().requires_grad(false));
  ::torch::nn::init::kaiming_uniform_(a, std::sqrt(5.0));
  return a;
}

double scale_of(const LoraOptions& options) {
  return options.alpha() / static_cast<double>(options.rank());
}

}  // namespace

LoraLinearImpl::LoraLinearImpl(const ::torch::nn::Linear& trained, LoraOptions lora)
    : options(lora) {
  check(options, std::min(trained->weight.size(0), trained->weight.size(1)), "LoraLinear");
  weight = register_parameter("weight", frozen(trained->weight), /*requires_grad=*/false);
  if (trained->bias.defined())
    bias = register_parameter("bias", frozen(trained->bias), /*requires_grad=*/false);
  lora_a = register_parameter("lora_a", uniform_start({options.rank(), weight.size(1)}, weight));
  lora_b =
      register_parameter("lora_b", at::zeros({weight.size(0), options.rank()}, weight.options()));
}

Tensor LoraLinearImpl::forward(const Tensor& input) {
  const Tensor base = at::linear(input, weight, bias);
  if (merged_) {
    TORCH_CHECK(!(is_training() && at::GradMode::is_enabled() && lora_a.requires_grad()),
                "LoraLinear: the layer is merged, so its update would get no gradient. Call "
                "unmerge(), or eval() for inference");
    return base;
  }
  return base + at::linear(at::linear(at::dropout(input, options.dropout(), is_training()), lora_a),
                           lora_b * scale_of(options));
}

void LoraLinearImpl::merge() {
  if (merged_) return;
  ::torch::NoGradGuard no_grad;
  weight.addmm_(lora_b, lora_a, 1, scale_of(options));
  merged_ = true;
}

void LoraLinearImpl::unmerge() {
  if (!merged_) return;
  ::torch::NoGradGuard no_grad;
  weight.addmm_(lora_b, lora_a, 1, -scale_of(options));
  merged_ = false;
}

LoraEmbeddingImpl::LoraEmbeddingImpl(const ::torch::nn::Embedding& trained, LoraOptions lora)
    : options(lora), embedding_options(trained->options) {
  check(options, std::min(trained->weight.size(0), trained->weight.size(1)), "LoraEmbedding");
  TORCH_CHECK(options.dropout() == 0, "LoraEmbedding: its input are indices; dropout must be 0");
  TORCH_CHECK(!embedding_options.max_norm().has_value() && !embedding_options.sparse() &&
                  !embedding_options.scale_grad_by_freq(),
              "LoraEmbedding: max_norm, sparse and scale_grad_by_freq are not supported");
  weight = register_parameter("weight", frozen(trained->weight), /*requires_grad=*/false);
  lora_a =
      register_parameter("lora_a", at::zeros({weight.size(0), options.rank()}, weight.options()));
  lora_b =
      register_parameter("lora_b", at::randn({options.rank(), weight.size(1)}, weight.options()));
}

Tensor LoraEmbeddingImpl::forward(const Tensor& indices) {
  const int64_t padding = embedding_options.padding_idx().value_or(-1);
  return at::embedding(weight, indices, padding) +
         at::matmul(at::embedding(lora_a, indices, padding), lora_b * scale_of(options));
}

LoraConv2dImpl::LoraConv2dImpl(const ::torch::nn::Conv2d& trained, LoraOptions lora)
    : options(lora), base(nullptr) {
  const Tensor& w = trained->weight;
  check(options, std::min(w.size(0), w.size(1) * w.size(2) * w.size(3)), "LoraConv2d");
  TORCH_CHECK(trained->options.groups() == 1, "LoraConv2d: groups is ", trained->options.groups(),
              "; only 1 is supported");
  TORCH_CHECK(std::holds_alternative<::torch::enumtype::kZeros>(trained->options.padding_mode()),
              "LoraConv2d: only zero padding is supported");
  std::shared_ptr<::torch::nn::Conv2dImpl> shared = std::make_shared<FrozenConv2dImpl>(*trained);
  base = register_module("base", ::torch::nn::Conv2d(std::move(shared)));
  lora_a = register_parameter("lora_a",
                              uniform_start({options.rank(), w.size(1), w.size(2), w.size(3)}, w));
  lora_b = register_parameter("lora_b", at::zeros({w.size(0), options.rank(), 1, 1}, w.options()));
}

Tensor LoraConv2dImpl::forward(const Tensor& input) {
  // The same convolution with another weight: stride, padding and dilation are the trained layer's.
  const auto& o = base->options;
  auto detail = F::Conv2dFuncOptions().stride(o.stride()).dilation(o.dilation());
  std::visit([&](const auto& padding) { detail.padding(padding); }, o.padding());
  const Tensor update =
      F::conv2d(at::dropout(input, options.dropout(), is_training()), lora_a, detail);
  return base->forward(input) + F::conv2d(update, lora_b * scale_of(options));
}

}  // namespace tonnage
