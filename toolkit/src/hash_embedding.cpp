#include "tonnage/torch/hash_embedding.h"

#include <torch/torch.h>

namespace tonnage {
namespace {

using ::torch::Tensor;

// splitmix64 (Steele, Lea, Flood 2014): well mixed constants from a counter.
uint64_t next_constant(uint64_t& state) {
  uint64_t z = state += 0x9e3779b97f4a7c15ull;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return z ^ z >> 31;
}

}  // namespace

HashEmbeddingImpl::HashEmbeddingImpl(HashEmbeddingOptions embedding) : options(embedding) {
  if (options.buckets() == 0) options.buckets(std::max<int64_t>(1, options.count() / 20));
  TORCH_CHECK(
      options.count() > 0 && options.width() > 0 && options.buckets() > 0 && options.hashes() > 0,
      "HashEmbedding: count, width, buckets and hashes must be positive; they are ",
      options.count(), ", ", options.width(), ", ", options.buckets(), ", ", options.hashes());
  uint64_t state = options.seed();
  for (int64_t i = 0; i < options.hashes(); i++) {
    multipliers_.push_back(static_cast<int64_t>(next_constant(state) | 1));
    addends_.push_back(static_cast<int64_t>(next_constant(state)));
  }
  table = register_parameter("table", at::randn({options.buckets(), options.width()}).mul_(0.1));
  if (options.own_weights())
    importance =
        register_parameter("importance", at::randn({options.count(), options.hashes()})
                                             .mul_(0.1)
                                             .add_(1.0 / static_cast<double>(options.hashes())));
}

Tensor HashEmbeddingImpl::rows(const Tensor& ids) const {
  TORCH_CHECK(ids.scalar_type() == at::kLong, "HashEmbedding: ids are ", ids.dtype(),
              "; they must be int64");
  std::vector<Tensor> rows;
  for (size_t i = 0; i < multipliers_.size(); i++)
    rows.push_back((ids * multipliers_[i] + addends_[i])
                       .bitwise_right_shift(33)
                       .bitwise_and(0x7fffffff)
                       .remainder(options.buckets()));
  return at::stack(rows, -1);
}

Tensor HashEmbeddingImpl::forward(const Tensor& ids) {
  const Tensor vectors = at::embedding(table, rows(ids));  // (..., hashes, width)
  if (!importance.defined()) return vectors.sum(-2);
  return at::matmul(at::embedding(importance, ids).unsqueeze(-2), vectors).squeeze(-2);
}

}  // namespace tonnage
