// Pruning: weights that are set to zero and stay there while the rest trains on.
//
//   tonnage::Pruner pruner;
//   pruner.magnitude(*model, 0.8);  // the smallest 80 % of the chosen weights of all layers
//   loss.backward();
//   optimizer.step();
//   pruner.apply();                 // after every step: momentum and weight decay change zeros
//
//   pruner.two_of_four(*model);     // of every 4 along the input the 2 largest stay: the pattern
//                                   // of NVIDIA's sparse tensor cores
//
// Memory: a mask takes 1 byte per weight of the chosen parameters, on their device. Pruning by
// itself does not shrink a dense weight: compact_bytes() says what a compressed 2:4 weight would
// take.
//
// Chosen by default: parameters with two or more dimensions. A parameter may have one mask; pruning
// it again keeps its zeros. Errors: c10::Error, with no weight changed, for shares out of [0, 1), a
// filter that chooses nothing, an input size that is no multiple of 4. Owns: masks and handles to
// the parameters. Threads: one at a time.
//
// Source of the methods: Han et al., "Learning both Weights and Connections for Efficient Neural
// Networks", NIPS 2015; Mishra et al., "Accelerating Sparse Deep Neural Networks", 2021 (2:4).
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tonnage/torch/share.h"

namespace tonnage {

class Pruner {
 public:
  enum class Scope { kGlobal, kPerParameter };

  // Zeroes the `share` of weights with the smallest magnitude: exactly floor(share * n) of them, of
  // all chosen parameters together or of each. Ties are broken by position.
  void magnitude(::torch::nn::Module& module, double share, Scope scope = Scope::kGlobal,
                 const ParameterFilter& filter = nullptr);

  // Keeps the two largest magnitudes of every four neighbours along the input (dimension 1; for
  // convolutions over (C*kH*kW) of the flattened weight).
  void two_of_four(::torch::nn::Module& module, const ParameterFilter& filter = nullptr);

  // Zeroes what is masked. masked_gradients: also in the gradients that exist, so that norms and
  // moments do not see them.
  void apply(bool masked_gradients = false);

  // Weights stay as they are (zeros included); the masks go.
  void forget();

  struct Entry {
    std::string name;
    ::torch::Tensor parameter;
    ::torch::Tensor mask;  // bool, of the parameter's shape: true where the weight stays
  };
  const std::vector<Entry>& entries() const { return entries_; }

  double sparsity() const;        // share of zeros in the masks, 0 without masks
  int64_t mask_bytes() const;     // on the devices
  int64_t compact_bytes() const;  // of 2:4 weights: half the values and 2 bits of position for each
 private:
  std::vector<Entry> entries_;
};

}  // namespace tonnage
