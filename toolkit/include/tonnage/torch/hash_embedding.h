// An embedding whose table is smaller than its vocabulary: each id is a weighted sum of a few rows
// chosen by hash functions.
//
//   tonnage::HashEmbedding words(tonnage::HashEmbeddingOptions(1'000'000, 300).buckets(50'000));
//   y = words(ids);                                                       // (...) -> (..., 300)
//
// Two ids share a vector only if all their rows collide and their weights are equal, which training
// pulls apart.
//
// Memory, in elements: buckets * width + count * hashes instead of count * width, and the same for
// gradient and optimizer state. With own_weights(false) the second term is gone, and vectors are
// plain sums. The hash functions take no memory: ids are multiplied and shifted (in 64 bits), with
// constants from `seed`.
//
// Shapes: ids int64 of any shape, in [0, count); output (ids..., width). Parameters: table
// (buckets, width), importance (count, hashes). Errors: c10::Error for sizes below 1 and for ids of
// another type; ids out of range are found as at::embedding finds them. Without own_weights any
// int64 is an id. Devices: where the module was moved to; ids must be there too. Threads: like
// torch::nn's modules.
//
// Source of the method: Svenstrup, Hansen, Winther, "Hash Embeddings for Efficient Word
// Representations", NIPS 2017; the hash is Dietzfelbinger et al.'s multiply-shift, 1997.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <cstdint>
#include <vector>

namespace tonnage {

struct HashEmbeddingOptions {
  HashEmbeddingOptions(int64_t number_of_ids, int64_t vector_width)
      : count_(number_of_ids), width_(vector_width) {}
  TORCH_ARG(int64_t, count);
  TORCH_ARG(int64_t, width);
  TORCH_ARG(int64_t, buckets) = 0;  // 0: count / 20, at least 1
  TORCH_ARG(int64_t, hashes) = 2;
  TORCH_ARG(bool, own_weights) = true;
  TORCH_ARG(uint64_t,
            seed) = 0x746f6e6e616765ull;  // part of the model: the same for loading a checkpoint
};

class HashEmbeddingImpl : public ::torch::nn::Module {
 public:
  explicit HashEmbeddingImpl(HashEmbeddingOptions options);
  ::torch::Tensor forward(const ::torch::Tensor& ids);
  // The rows of the table that each id uses: (ids..., hashes), int64.
  ::torch::Tensor rows(const ::torch::Tensor& ids) const;

  HashEmbeddingOptions options;
  ::torch::Tensor table, importance;

 private:
  std::vector<int64_t> multipliers_, addends_;
};
TORCH_MODULE(HashEmbedding);

}  // namespace tonnage
