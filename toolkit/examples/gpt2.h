// A language model of GPT-2's shape (Radford et al. 2019; 124 million parameters by default; no
// dropout), with torch::nn and tonnage::Linear. Its linear layers and its attention can be replaced.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "tonnage/torch/replaceable.h"
#include "tonnage/torch/share.h"

namespace examples {

struct Gpt2Options {
  int64_t layers = 12, width = 768, heads = 12, vocabulary = 50257, length = 1024;
  bool tie = true;  // the output layer has the token embedding's weight
  // inputs, outputs -> a module that maps (..., inputs) to (..., outputs)
  std::function<torch::nn::AnyModule(int64_t, int64_t)> linear = [](int64_t in, int64_t out) {
    return torch::nn::AnyModule(tonnage::Linear(in, out));
  };
  // causal; queries, keys, values: (batch, heads, length, width / heads)
  std::function<torch::Tensor(torch::Tensor, torch::Tensor, torch::Tensor)> attention =
      [](torch::Tensor q, torch::Tensor k, torch::Tensor v) {
        return at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true);
      };
};

struct Gpt2BlockImpl : torch::nn::Module {
  explicit Gpt2BlockImpl(const Gpt2Options& o) : heads(o.heads), attention(o.attention) {
    norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.width})));
    norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.width})));
    qkv = add("qkv", o.linear(o.width, 3 * o.width));
    out = add("out", o.linear(o.width, o.width));
    up = add("up", o.linear(o.width, 4 * o.width));
    down = add("down", o.linear(4 * o.width, o.width));
  }

  // x: (batch, length, width)
  torch::Tensor forward(torch::Tensor x) {
    const int64_t batch = x.size(0), length = x.size(1), width = x.size(2);
    auto parts = qkv.forward<torch::Tensor>(norm1(x))
                     .view({batch, length, 3, heads, width / heads})
                     .permute({2, 0, 3, 1, 4})
                     .unbind(0);
    torch::Tensor y =
        attention(parts[0], parts[1], parts[2]).transpose(1, 2).reshape({batch, length, width});
    x = x + out.forward<torch::Tensor>(y);
    return x +
           down.forward<torch::Tensor>(torch::gelu(up.forward<torch::Tensor>(norm2(x)), "tanh"));
  }

  int64_t heads;
  std::function<torch::Tensor(torch::Tensor, torch::Tensor, torch::Tensor)> attention;
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::AnyModule qkv, out, up, down;

 private:
  torch::nn::AnyModule add(const std::string& name, torch::nn::AnyModule module) {
    register_module(name, module.ptr());
    return module;
  }
};
TORCH_MODULE(Gpt2Block);

struct Gpt2Impl : torch::nn::Module {
  explicit Gpt2Impl(const Gpt2Options& o = {}) {
    tokens = register_module("tokens", torch::nn::Embedding(o.vocabulary, o.width));
    positions = register_module("positions", torch::nn::Embedding(o.length, o.width));
    for (int64_t i = 0; i < o.layers; i++)
      blocks.push_back(register_module("block" + std::to_string(i), Gpt2Block(o)));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.width})));
    head = register_module(
        "head", torch::nn::Linear(torch::nn::LinearOptions(o.width, o.vocabulary).bias(false)));
    if (o.tie) tonnage::share_parameter(*tokens, "weight", *head, "weight", head->weight);
    torch::NoGradGuard no_grad;
    for (auto& p : parameters())
      if (p.dim() == 2 && p.is_floating_point()) p.normal_(0, 0.02);
  }

  // ids: (batch, length) integers. (batch, length, width)
  torch::Tensor embed(const torch::Tensor& ids) {
    return tokens(ids) + positions(torch::arange(ids.size(1), ids.device()));
  }

  // Mean cross entropy of the last block's result against targets: (batch, length) int64.
  torch::Tensor loss_of(const torch::Tensor& x, const torch::Tensor& targets) {
    torch::Tensor logits = head(norm(x));
    return torch::nn::functional::cross_entropy(logits.view({-1, logits.size(-1)}),
                                                targets.reshape({-1}));
  }

  torch::Tensor forward(const torch::Tensor& ids, const torch::Tensor& targets) {
    torch::Tensor x = embed(ids);
    for (auto& block : blocks) x = block->forward(x);
    return loss_of(x, targets);
  }

  torch::nn::Embedding tokens{nullptr}, positions{nullptr};
  std::vector<Gpt2Block> blocks;
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Gpt2);

}  // namespace examples
