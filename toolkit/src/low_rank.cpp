#include "tonnage/torch/low_rank.h"

#include <torch/torch.h>

namespace tonnage {
namespace {

using ::torch::Tensor;
namespace nn = ::torch::nn;

// The SVD has no kernels for half types.
Tensor in_full_precision(const Tensor& weight) {
  const Tensor w = weight.detach();
  return w.scalar_type() == at::kDouble ? w : w.to(at::kFloat);
}

void set(Tensor& parameter, const Tensor& value) {
  ::torch::NoGradGuard no_grad;
  parameter.copy_(value);
}

template <class Layer>
void like(Layer& layer, const Tensor& weight) {
  layer->to(weight.device(), weight.scalar_type());
}

// The leading `rank` left singular vectors of the matrix (size of dim, rest).
Tensor leading_vectors(const Tensor& weight, int64_t dim, int64_t rank) {
  const Tensor matrix = weight.movedim(dim, 0).flatten(1);
  // Eigenvectors of the small Gram matrix are enough, and far cheaper than the SVD of a wide matrix.
  const auto [values, vectors] = at::linalg_eigh(matrix.matmul(matrix.t()));
  return vectors.flip(1).slice(1, 0, rank);
}

}  // namespace

nn::Sequential low_rank_linear(const nn::Linear& trained, int64_t rank) {
  const Tensor& weight = trained->weight;
  const int64_t out = weight.size(0), in = weight.size(1);
  TORCH_CHECK(rank >= 1 && rank <= std::min(in, out), "low_rank_linear: rank is ", rank,
              "; it must be from 1 to ", std::min(in, out));
  const auto [u, s, vh] = at::linalg_svd(in_full_precision(weight), /*full_matrices=*/false);
  const Tensor root =
      s.slice(0, 0, rank)
          .sqrt();  // half of each singular value in each factor keeps both of one size
  nn::Linear first(nn::LinearOptions(in, rank).bias(false)),
      second(nn::LinearOptions(rank, out).bias(trained->bias.defined()));
  like(first, weight);
  like(second, weight);
  set(first->weight, root.unsqueeze(1) * vh.slice(0, 0, rank));
  set(second->weight, u.slice(1, 0, rank) * root);
  if (trained->bias.defined()) set(second->bias, trained->bias);
  return nn::Sequential(first, second);
}

nn::Sequential tucker_conv2d(const nn::Conv2d& trained, int64_t input_rank, int64_t output_rank) {
  const auto& options = trained->options;
  TORCH_CHECK(options.groups() == 1 && !options.transposed(),
              "tucker_conv2d: grouped and transposed convolutions are not supported");
  TORCH_CHECK(std::holds_alternative<::torch::enumtype::kZeros>(options.padding_mode()),
              "tucker_conv2d: only zero padding is supported");
  const int64_t out = trained->weight.size(0), in = trained->weight.size(1);
  TORCH_CHECK(input_rank >= 1 && input_rank <= in, "tucker_conv2d: input_rank is ", input_rank,
              "; it must be from 1 to ", in);
  TORCH_CHECK(output_rank >= 1 && output_rank <= out, "tucker_conv2d: output_rank is ", output_rank,
              "; it must be from 1 to ", out);
  const Tensor weight = in_full_precision(trained->weight);
  const Tensor outputs = leading_vectors(weight, 0, output_rank),
               inputs = leading_vectors(weight, 1, input_rank);
  const Tensor core = at::einsum("oikl,oa,ib->abkl", {weight, outputs, inputs});

  nn::Conv2d first(nn::Conv2dOptions(in, input_rank, 1).bias(false));
  nn::Conv2d middle(nn::Conv2dOptions(input_rank, output_rank, options.kernel_size())
                        .stride(options.stride())
                        .padding(options.padding())
                        .dilation(options.dilation())
                        .bias(false));
  nn::Conv2d last(nn::Conv2dOptions(output_rank, out, 1).bias(trained->bias.defined()));
  for (nn::Conv2d* layer : {&first, &middle, &last}) like(*layer, trained->weight);
  set(first->weight, inputs.t().unsqueeze(-1).unsqueeze(-1));
  set(middle->weight, core);
  set(last->weight, outputs.unsqueeze(-1).unsqueeze(-1));
  if (trained->bias.defined()) set(last->bias, trained->bias);
  return nn::Sequential(first, middle, last);
}

int64_t rank_for_energy(const Tensor& weight, double energy, int64_t dim) {
  TORCH_CHECK(weight.dim() >= 2, "rank_for_energy: the weight has ", weight.dim(),
              " dimensions; at least 2 are needed");
  TORCH_CHECK(energy > 0 && energy <= 1, "rank_for_energy: energy is ", energy,
              "; it must be in (0, 1]");
  const Tensor squares = at::linalg_svdvals(in_full_precision(weight).movedim(dim, 0).flatten(1))
                             .square()
                             .to(at::kDouble);
  const Tensor kept = squares.cumsum(0) / squares.sum();
  return std::min<int64_t>((kept < energy - 1e-12).sum().item<int64_t>() + 1, squares.numel());
}

}  // namespace tonnage
