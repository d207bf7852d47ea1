// Attention whose memory does not grow with the square of the sequence.
//
// memory_efficient_attention: exact, in slices of queries and keys, with the slices computed again
// in the backward pass. For what at::scaled_dot_product_attention has no fused kernel for (float on
// old cards, a bias that trains, wide heads); where it has one, it is the faster choice, and
// MemoryEfficientAttention takes it.
//
//   saved for the backward pass, in elements: q, k, v, the output, and one float per query and
//   head. Temporary: three slices of (batch, heads, query_slice, key_slice) in float. Plain
//   attention saves (batch, heads, L, S) twice.
//
// performer_attention: an approximation that is linear in the sequence: softmax(q k^T / sqrt(d)) is
// estimated with `features` random features. Its error falls with the root of the number of
// features.
//
//   saved, in elements: (batch, heads, L + S, features) and, if causal, one (features, d) state per
//   slice of 128 positions and head.
//
// Shapes: q (batch, heads, L, d), k (batch, heads, S, d), v (batch, heads, S, dv), output (batch,
// heads, L, dv); one device and floating type, on the CPU or CUDA. Errors: c10::Error for what does
// not fit, and for double backward of memory_efficient_attention. Threads: any; the modules like
// torch::nn's, redraw() not during forward(). Owns: nothing but what the graph keeps; modules their
// parameters.
//
// Sources of the methods: Rabe and Staats, "Self-attention Does Not Need O(n^2) Memory", 2021; Dao
// et al., "FlashAttention", NeurIPS 2022 (the backward pass); Choromanski et al., "Rethinking
// Attention with Performers", ICLR 2021 (FAVOR+).
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <cstdint>
#include <optional>

namespace tonnage {

struct AttentionOptions {
  bool causal = false;               // query i sees keys 0..i (L == S)
  std::optional<double> scale = {};  // default 1 / sqrt(d)
  int64_t query_slice = 512;
  int64_t key_slice = 1024;
};

// bias: added to the scores; undefined, or of a shape that broadcasts to (batch, heads, L, S), of
// q's type. It gets a gradient if it requires one (then a full (L, S) gradient of its shape exists
// in the backward pass).
::torch::Tensor memory_efficient_attention(const ::torch::Tensor& q, const ::torch::Tensor& k,
                                           const ::torch::Tensor& v,
                                           const ::torch::Tensor& bias = {},
                                           const AttentionOptions& options = {});

// Rows are orthogonal in blocks of d, with the lengths of Gaussian vectors: (features, d), float,
// on the CPU's generator, then moved.
::torch::Tensor performer_projection(int64_t features, int64_t d, c10::Device device = at::kCPU);

// projection: (features, d) as performer_projection makes it.
::torch::Tensor performer_attention(const ::torch::Tensor& q, const ::torch::Tensor& k,
                                    const ::torch::Tensor& v, const ::torch::Tensor& projection,
                                    bool causal = false);

struct SelfAttentionOptions {
  SelfAttentionOptions(int64_t model_width, int64_t number_of_heads)
      : width_(model_width), heads_(number_of_heads) {}
  TORCH_ARG(int64_t, width);  // of the input and output; a multiple of heads
  TORCH_ARG(int64_t, heads);
  TORCH_ARG(bool, causal) = false;
  TORCH_ARG(double, dropout) = 0;      // of the attention weights; needs the fused kernels
  TORCH_ARG(bool, bias) = true;        // of the projections
  TORCH_ARG(int64_t, features) = 256;  // PerformerSelfAttention only
};

// Self-attention, input and output (batch, length, width), with exact attention:
// at::scaled_dot_product_attention's fused kernels, and memory_efficient_attention where the
// tensors have none. Parameters: in_proj (3 * width, width), out_proj (width, width).
class MemoryEfficientAttentionImpl : public ::torch::nn::Module {
 public:
  explicit MemoryEfficientAttentionImpl(SelfAttentionOptions options);
  // bias: as above; it goes to memory_efficient_attention unless it needs no gradient.
  ::torch::Tensor forward(const ::torch::Tensor& input, const ::torch::Tensor& bias = {});

  SelfAttentionOptions options;
  ::torch::nn::Linear in_proj{nullptr}, out_proj{nullptr};
};
TORCH_MODULE(MemoryEfficientAttention);

// The same with performer_attention. Buffer: projection (features, width / heads).
class PerformerSelfAttentionImpl : public ::torch::nn::Module {
 public:
  explicit PerformerSelfAttentionImpl(SelfAttentionOptions options);
  ::torch::Tensor forward(const ::torch::Tensor& input);
  void redraw();  // new random features, as the paper advises every thousand steps or so

  SelfAttentionOptions options;
  ::torch::nn::Linear in_proj{nullptr}, out_proj{nullptr};
  ::torch::Tensor projection;
};
TORCH_MODULE(PerformerSelfAttention);

}  // namespace tonnage
