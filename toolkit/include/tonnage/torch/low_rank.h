// Trained Linear and Conv2d layers as products of smaller ones.
//
//   auto small = tonnage::low_rank_linear(linear, 64);       // in -> 64 -> out
//   auto smaller = tonnage::tucker_conv2d(conv, 32, 48);     // 1x1 to 32, kxk to 48, 1x1 to out
//   // both are a torch::nn::Sequential
//
// Memory, in elements: rank * (in + out) instead of in * out; for a convolution C*ri + ri*ro*k*k +
// ro*out instead of C*out*k*k, and the same for gradients and optimizer state. Two more activations
// (of ri and ro channels) are saved in training.
//
// The result is the best approximation of that rank for Linear (truncated SVD, in the Frobenius
// norm), and for convolutions the higher-order SVD's, which is within a factor sqrt(2) of the best
// Tucker-2. At full rank it is the layer itself up to rounding. The new layers own new parameters,
// trainable, on the trained layer's device and of its type (computed in float for half types); the
// trained layer is not changed. Errors: c10::Error for ranks out of range, grouped or transposed
// convolutions, padding modes other than zeros. Threads: any.
//
// Source of the methods: Denton et al., "Exploiting Linear Structure Within Convolutional
// Networks", NIPS 2014 (SVD); Kim et al., "Compression of Deep Convolutional Neural Networks for
// Fast and Low Power Mobile Applications", ICLR 2016 (Tucker-2).
#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>

namespace tonnage {

// 1 <= rank <= min(in, out). Two Linear layers; the second has the bias.
::torch::nn::Sequential low_rank_linear(const ::torch::nn::Linear& trained, int64_t rank);

// Three Conv2d; 1 <= input_rank <= C, 1 <= output_rank <= out. The last has the bias, the middle
// one stride, padding and dilation.
::torch::nn::Sequential tucker_conv2d(const ::torch::nn::Conv2d& trained, int64_t input_rank,
                                      int64_t output_rank);

// The smallest rank that keeps `energy` (0 < energy <= 1) of the sum of squares of the weight, seen
// as the matrix (size of dimension `dim`, everything else): dim 0 for outputs, 1 for inputs.
int64_t rank_for_energy(const ::torch::Tensor& weight, double energy, int64_t dim = 0);

}  // namespace tonnage
