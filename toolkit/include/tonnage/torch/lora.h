// LoRA: layers whose trained weight is frozen, with a small trainable product of two matrices added
// to it.
//
//   tonnage::LoraLinear layer(linear, tonnage::LoraOptions(8).alpha(16));  // shares the weight
//   y = layer(x);        // x W^T + b + (alpha / rank) * dropout(x) A^T B^T
//   layer->merge();      // for inference: W += (alpha / rank) * B A
//
// Memory, in elements, of a Linear of (out, in) with rank r: gradient and optimizer state exist for
// r * (in + out) instead of out * in. B starts at zero, so the layer starts with exactly the
// trained layer's outputs.
//
// Devices, types: the trained layer's. Owns: A and B; the trained weight's memory is shared with
// the layer that it came from, whose own requires_grad stays as it is. Threads: like torch::nn's
// modules; merge() not during forward().
//
// Errors: c10::Error for a rank below 1, or above the smaller side of the weight. merge() and
// unmerge() while the layer is in that state already do nothing; forward() of a merged layer that
// would need A's or B's gradient throws. Numbers: unmerge() restores the weight up to rounding.
//
// Source of the method: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022.
#pragma once

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>

namespace tonnage {

struct LoraOptions {
  LoraOptions(int64_t rank_of_update) : rank_(rank_of_update) {}
  TORCH_ARG(int64_t, rank);
  TORCH_ARG(double, alpha) = 1;    // the update is scaled by alpha / rank
  TORCH_ARG(double, dropout) = 0;  // of the update's input
};

// Input (..., in), output (..., out). Parameters: weight (out, in) and bias (out), frozen; lora_a
// (rank, in), lora_b (out, rank).
class LoraLinearImpl : public ::torch::nn::Module {
 public:
  LoraLinearImpl(const ::torch::nn::Linear& trained, LoraOptions options);
  ::torch::Tensor forward(const ::torch::Tensor& input);
  void merge();
  void unmerge();
  bool merged() const { return merged_; }

  LoraOptions options;
  ::torch::Tensor weight, bias, lora_a, lora_b;

 private:
  bool merged_ = false;
};
TORCH_MODULE(LoraLinear);

// Input: indices of any shape, output (..., width). lora_a (count, rank) starts at zero, lora_b
// (rank, width). No dropout.
class LoraEmbeddingImpl : public ::torch::nn::Module {
 public:
  LoraEmbeddingImpl(const ::torch::nn::Embedding& trained, LoraOptions options);
  ::torch::Tensor forward(const ::torch::Tensor& indices);

  LoraOptions options;
  ::torch::nn::EmbeddingOptions embedding_options;
  ::torch::Tensor weight, lora_a, lora_b;
};
TORCH_MODULE(LoraEmbedding);

// Input (N, C, H, W). lora_a (rank, C / groups, kH, kW), lora_b (out, rank, 1, 1). Groups must be 1.
class LoraConv2dImpl : public ::torch::nn::Module {
 public:
  LoraConv2dImpl(const ::torch::nn::Conv2d& trained, LoraOptions options);
  ::torch::Tensor forward(const ::torch::Tensor& input);

  LoraOptions options;
  ::torch::nn::Conv2d base;
  ::torch::Tensor lora_a, lora_b;
};
TORCH_MODULE(LoraConv2d);

}  // namespace tonnage
