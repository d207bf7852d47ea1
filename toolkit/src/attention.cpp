#include "tonnage/torch/attention.h"

#include <torch/torch.h>

#include <cmath>
#include <limits>

namespace tonnage {
namespace {

using ::torch::Tensor;
using ::torch::autograd::AutogradContext;
using ::torch::autograd::variable_list;

struct Slice {
  int64_t begin, end;
};

// Scores of a slice of queries with a slice of keys, in float: (batch, heads, queries, keys). Keys
// that a query must not see are -inf.
Tensor scores_of(const Tensor& q, const Tensor& k, const Tensor& bias, Slice queries, Slice keys,
                 double scale, bool causal) {
  Tensor s = at::matmul(q.slice(2, queries.begin, queries.end).to(at::kFloat).mul(scale),
                        k.slice(2, keys.begin, keys.end).to(at::kFloat).transpose(-2, -1));
  if (bias.defined())
    s.add_(bias.slice(-2, queries.begin, queries.end).slice(-1, keys.begin, keys.end));
  if (causal && keys.end - 1 > queries.begin) {
    const auto options = q.options().dtype(at::kLong).requires_grad(false);
    const Tensor hidden = at::arange(keys.begin, keys.end, options).unsqueeze(0) >
                          at::arange(queries.begin, queries.end, options).unsqueeze(1);
    s.masked_fill_(hidden, -std::numeric_limits<float>::infinity());
  }
  return s;
}

struct EfficientAttention : ::torch::autograd::Function<EfficientAttention> {
  static Tensor forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                        const std::optional<Tensor>& optional_bias, double scale, bool causal,
                        int64_t query_slice, int64_t key_slice) {
    const Tensor bias = optional_bias.value_or(Tensor());
    const int64_t length = q.size(2), sources = k.size(2);
    const Tensor wide_bias =
        bias.defined() ? bias.expand({q.size(0), q.size(1), length, sources}) : bias;
    Tensor output =
        at::empty({q.size(0), q.size(1), length, v.size(3)}, q.options().requires_grad(false));
    Tensor log_sums = at::empty({q.size(0), q.size(1), length, 1},
                                q.options().dtype(at::kFloat).requires_grad(false));
    for (int64_t i = 0; i < length; i += query_slice) {
      const Slice queries{i, std::min(length, i + query_slice)};
      Tensor largest, sum, value;  // of the keys so far, relative to exp(largest)
      for (int64_t j = 0; j < (causal ? queries.end : sources); j += key_slice) {
        const Slice keys{j, std::min(sources, j + key_slice)};
        Tensor s = scores_of(q, k, wide_bias, queries, keys, scale, causal);
        Tensor top = s.amax(-1, /*keepdim=*/true);
        if (largest.defined()) top = at::maximum(top, largest);
        const Tensor base = top.masked_fill(top.isinf(), 0);  // rows that see no key yet
        const Tensor weights = s.sub_(base).exp_();
        const Tensor part = at::matmul(weights, v.slice(2, keys.begin, keys.end).to(at::kFloat));
        const Tensor part_sum = weights.sum(-1, /*keepdim=*/true);
        if (!largest.defined()) {
          value = part;
          sum = part_sum;
        } else {
          const Tensor shrink = (largest - base).exp();
          value.mul_(shrink).add_(part);
          sum.mul_(shrink).add_(part_sum);
        }
        largest = top;
      }
      output.slice(2, queries.begin, queries.end).copy_(value.div_(sum));
      log_sums.slice(2, queries.begin, queries.end).copy_(sum.log_().add_(largest));
    }
    context->save_for_backward({q, k, v, bias, output, log_sums});
    context->saved_data["scale"] = scale;
    context->saved_data["causal"] = causal;
    context->saved_data["query_slice"] = query_slice;
    context->saved_data["key_slice"] = key_slice;
    return output;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    TORCH_CHECK(
        !at::GradMode::is_enabled(),
        "memory_efficient_attention: double backward is not supported. Use plain attention for it");
    const auto saved = context->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &bias = saved[3], &output = saved[4],
                 &log_sums = saved[5];
    const double scale = context->saved_data["scale"].toDouble();
    const bool causal = context->saved_data["causal"].toBool();
    const int64_t query_slice = context->saved_data["query_slice"].toInt(),
                  key_slice = context->saved_data["key_slice"].toInt();
    const int64_t length = q.size(2), sources = k.size(2);
    const Tensor wide_bias =
        bias.defined() ? bias.expand({q.size(0), q.size(1), length, sources}) : bias;
    const auto floats = q.options().dtype(at::kFloat).requires_grad(false);
    // Sums over slices are kept in float.
    Tensor dq = at::zeros(q.sizes(), floats), dk = at::zeros(k.sizes(), floats),
           dv = at::zeros(v.sizes(), floats);
    Tensor dbias =
        bias.defined() && context->needs_input_grad(3) ? at::zeros(bias.sizes(), floats) : Tensor();
    for (int64_t i = 0; i < length; i += query_slice) {
      const Slice queries{i, std::min(length, i + query_slice)};
      const Tensor dout = grads[0].slice(2, queries.begin, queries.end).to(at::kFloat);
      const Tensor out_dot =
          (dout * output.slice(2, queries.begin, queries.end)).sum(-1, /*keepdim=*/true);
      for (int64_t j = 0; j < (causal ? queries.end : sources); j += key_slice) {
        const Slice keys{j, std::min(sources, j + key_slice)};
        Tensor weights = scores_of(q, k, wide_bias, queries, keys, scale, causal)
                             .sub_(log_sums.slice(2, queries.begin, queries.end))
                             .exp_();
        dv.slice(2, keys.begin, keys.end).add_(at::matmul(weights.transpose(-2, -1), dout));
        const Tensor ds =
            at::matmul(dout, v.slice(2, keys.begin, keys.end).to(at::kFloat).transpose(-2, -1))
                .sub_(out_dot)
                .mul_(weights);
        weights.reset();
        if (dbias.defined()) {
          Tensor place = bias.size(-2) == 1 ? dbias : dbias.slice(-2, queries.begin, queries.end);
          place = bias.size(-1) == 1 ? place : place.slice(-1, keys.begin, keys.end);
          place.add_(at::sum_to(ds, place.sizes()));
        }
        dq.slice(2, queries.begin, queries.end)
            .add_(at::matmul(ds, k.slice(2, keys.begin, keys.end).to(at::kFloat)), scale);
        dk.slice(2, keys.begin, keys.end)
            .add_(at::matmul(ds.transpose(-2, -1),
                             q.slice(2, queries.begin, queries.end).to(at::kFloat)),
                  scale);
      }
    }
    return {dq.to(q.scalar_type()),
            dk.to(k.scalar_type()),
            dv.to(v.scalar_type()),
            dbias.defined() ? dbias.to(bias.scalar_type()) : Tensor(),
            Tensor(),
            Tensor(),
            Tensor(),
            Tensor()};
  }
};

void check_shapes(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, const char* who) {
  TORCH_CHECK(q.dim() == 4 && k.dim() == 4 && v.dim() == 4, who,
              ": q, k and v must be (batch, heads, length, width); they are ", q.sizes(), ", ",
              k.sizes(), ", ", v.sizes());
  TORCH_CHECK(q.size(0) == k.size(0) && q.size(0) == v.size(0) && q.size(1) == k.size(1) &&
                  q.size(1) == v.size(1) && k.size(2) == v.size(2) && q.size(3) == k.size(3),
              who, ": shapes do not fit: q ", q.sizes(), ", k ", k.sizes(), ", v ", v.sizes());
  TORCH_CHECK(k.size(2) > 0, who, ": there are no keys");
  TORCH_CHECK(!causal || q.size(2) == k.size(2), who,
              ": causal attention needs as many queries as keys; there are ", q.size(2), " and ",
              k.size(2));
  TORCH_CHECK(at::isFloatingType(q.scalar_type()) && q.scalar_type() == k.scalar_type() &&
                  q.scalar_type() == v.scalar_type(),
              who, ": q, k and v must be of one floating point type; they are ", q.dtype(), ", ",
              k.dtype(), ", ", v.dtype());
  TORCH_CHECK(q.device() == k.device() && q.device() == v.device(), who, ": q is on ", q.device(),
              ", k on ", k.device(), ", v on ", v.device());
}

// exp(x w - |x|^2 / 2 - c) / sqrt(features), in float. c keeps the exponents small and cancels in
// the quotient: one number per head for the keys; for the queries each has its own, which takes the
// norm with it.
Tensor positive_features(const Tensor& x, const Tensor& projection, bool is_query) {
  const Tensor scaled = x.to(at::kFloat) * std::pow(static_cast<double>(x.size(-1)), -0.25);
  Tensor exponent = at::matmul(scaled, projection.t());
  if (!is_query) exponent = exponent - scaled.square().sum(-1, /*keepdim=*/true) / 2;
  const Tensor top = is_query ? exponent.detach().amax(-1, /*keepdim=*/true)
                              : exponent.detach().amax({-2, -1}, /*keepdim=*/true);
  return (exponent - top).exp() / std::sqrt(static_cast<double>(projection.size(0))) + 1e-6;
}

constexpr int64_t kPrefixSlice = 128;

}  // namespace

Tensor memory_efficient_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                  const Tensor& bias, const AttentionOptions& options) {
  const char* who = "memory_efficient_attention";
  check_shapes(q, k, v, options.causal, who);
  TORCH_CHECK(options.query_slice > 0 && options.key_slice > 0, who, ": slices must be positive");
  std::optional<Tensor> four;
  if (bias.defined()) {
    TORCH_CHECK(bias.device() == q.device() && bias.scalar_type() == q.scalar_type(), who,
                ": bias is ", bias.dtype(), " on ", bias.device(), ", q is ", q.dtype(), " on ",
                q.device());
    TORCH_CHECK(bias.dim() <= 4 && at::is_expandable_to(
                                       bias.sizes(), {q.size(0), q.size(1), q.size(2), k.size(2)}),
                who, ": bias ", bias.sizes(), " does not broadcast to ",
                c10::IntArrayRef({q.size(0), q.size(1), q.size(2), k.size(2)}));
    four = bias;
    while (four->dim() < 4) four = four->unsqueeze(0);
  }
  return EfficientAttention::apply(
      q, k, v, four, options.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3)))),
      options.causal, options.query_slice, options.key_slice);
}

Tensor performer_projection(int64_t features, int64_t d, c10::Device device) {
  TORCH_CHECK(features > 0 && d > 0,
              "performer_projection: features and d must be positive; they are ", features, " and ",
              d);
  ::torch::NoGradGuard no_grad;
  std::vector<Tensor> blocks;
  for (int64_t done = 0; done < features; done += d)
    blocks.push_back(
        std::get<0>(at::linalg_qr(at::randn({d, d}))).t().slice(0, 0, std::min(d, features - done)));
  return (at::cat(blocks) * at::randn({features, d}).norm(2, {1}, /*keepdim=*/true)).to(device);
}

Tensor performer_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                           const Tensor& projection, bool causal) {
  const char* who = "performer_attention";
  check_shapes(q, k, v, causal, who);
  TORCH_CHECK(projection.dim() == 2 && projection.size(1) == q.size(3), who, ": projection is ",
              projection.sizes(), "; it must be (features, ", q.size(3), ")");
  TORCH_CHECK(projection.device() == q.device(), who, ": projection is on ", projection.device(),
              ", q on ", q.device());
  const Tensor w = projection.to(at::kFloat), fq = positive_features(q, w, true),
               fk = positive_features(k, w, false), fv = v.to(at::kFloat);
  if (!causal) {
    const Tensor sums = fk.sum(2).unsqueeze(-1);                // (batch, heads, features, 1)
    const Tensor state = at::matmul(fk.transpose(-2, -1), fv);  // (batch, heads, features, dv)
    return (at::matmul(fq, state) / at::matmul(fq, sums)).to(q.scalar_type());
  }
  // Slices of positions: what came before a slice is one state; inside it, the triangle of scores
  // is small.
  std::vector<Tensor> parts;
  Tensor state, sums;
  for (int64_t begin = 0; begin < q.size(2); begin += kPrefixSlice) {
    const int64_t end = std::min(q.size(2), begin + kPrefixSlice);
    const Tensor a = fq.slice(2, begin, end), b = fk.slice(2, begin, end),
                 c = fv.slice(2, begin, end);
    const Tensor scores = at::matmul(a, b.transpose(-2, -1)).tril();
    Tensor numerator = at::matmul(scores, c), denominator = scores.sum(-1, /*keepdim=*/true);
    if (state.defined()) {
      numerator = numerator + at::matmul(a, state);
      denominator = denominator + at::matmul(a, sums);
    }
    parts.push_back(numerator / denominator);
    const Tensor slice_state = at::matmul(b.transpose(-2, -1), c),
                 slice_sums = b.sum(2).unsqueeze(-1);
    state = state.defined() ? state + slice_state : slice_state;
    sums = sums.defined() ? sums + slice_sums : slice_sums;
  }
  return at::cat(parts, 2).to(q.scalar_type());
}

namespace {

void check_options(const SelfAttentionOptions& options, const char* who) {
  TORCH_CHECK(options.heads() > 0 && options.width() > 0 && options.width() % options.heads() == 0,
              who, ": width ", options.width(), " is no multiple of the ", options.heads(),
              " heads");
}

::torch::nn::Linear projection_layer(int64_t in, int64_t out, bool bias) {
  return ::torch::nn::Linear(::torch::nn::LinearOptions(in, out).bias(bias));
}

// With the bias in the product, as torch::nn::Linear does not for three dimensions.
Tensor project(const ::torch::nn::Linear& layer, const Tensor& input) {
  return at::linear(input, layer->weight, layer->bias);
}

// (batch, length, 3 * width) -> three of (batch, heads, length, width / heads)
std::vector<Tensor> split_heads(const Tensor& projected, const SelfAttentionOptions& options) {
  return projected
      .view({projected.size(0), projected.size(1), 3, options.heads(),
             options.width() / options.heads()})
      .permute({2, 0, 3, 1, 4})
      .unbind(0);
}

Tensor join_heads(const Tensor& attended) {
  return attended.transpose(1, 2).reshape({attended.size(0), attended.size(2), -1});
}

// Whether scaled_dot_product_attention has a kernel for these that keeps no (length, length) tensor.
bool has_fused_kernel(const Tensor& q, const Tensor& bias) {
  if (bias.defined() && bias.requires_grad()) return false;
  return q.is_cuda() || (q.is_cpu() && !bias.defined());
}

}  // namespace

MemoryEfficientAttentionImpl::MemoryEfficientAttentionImpl(SelfAttentionOptions attention)
    : options(attention) {
  check_options(options, "MemoryEfficientAttention");
  in_proj = register_module("in_proj",
                            projection_layer(options.width(), 3 * options.width(), options.bias()));
  out_proj = register_module("out_proj",
                             projection_layer(options.width(), options.width(), options.bias()));
}

Tensor MemoryEfficientAttentionImpl::forward(const Tensor& input, const Tensor& bias) {
  const auto qkv = split_heads(project(in_proj, input), options);
  const double dropout = is_training() ? options.dropout() : 0;
  if (has_fused_kernel(qkv[0], bias) && !(bias.defined() && options.causal()))
    return project(out_proj, join_heads(at::scaled_dot_product_attention(
                                 qkv[0], qkv[1], qkv[2],
                                 bias.defined() ? std::optional<Tensor>(bias) : std::nullopt,
                                 dropout, options.causal())));
  TORCH_CHECK(dropout == 0,
              "MemoryEfficientAttention: dropout of attention weights needs a fused kernel, and "
              "there is none for this bias");
  AttentionOptions sliced;
  sliced.causal = options.causal();
  return project(out_proj,
                 join_heads(memory_efficient_attention(qkv[0], qkv[1], qkv[2], bias, sliced)));
}

PerformerSelfAttentionImpl::PerformerSelfAttentionImpl(SelfAttentionOptions attention)
    : options(attention) {
  check_options(options, "PerformerSelfAttention");
  TORCH_CHECK(options.dropout() == 0,
              "PerformerSelfAttention: there are no attention weights, so no dropout of them; "
              "dropout must be 0");
  in_proj = register_module("in_proj",
                            projection_layer(options.width(), 3 * options.width(), options.bias()));
  out_proj = register_module("out_proj",
                             projection_layer(options.width(), options.width(), options.bias()));
  projection = register_buffer(
      "projection", performer_projection(options.features(), options.width() / options.heads()));
}

Tensor PerformerSelfAttentionImpl::forward(const Tensor& input) {
  const auto qkv = split_heads(project(in_proj, input), options);
  return project(out_proj, join_heads(performer_attention(qkv[0], qkv[1], qkv[2], projection,
                                                          options.causal())));
}

void PerformerSelfAttentionImpl::redraw() {
  ::torch::NoGradGuard no_grad;
  projection.copy_(
      performer_projection(projection.size(0), projection.size(1), projection.device()));
}

}  // namespace tonnage
