// Checks that tensors are on the right device. A tensor on the wrong one costs a copy in each step,
// or throws from deep inside an operator.
//
//   tonnage::assert_on_device(*model, torch::kCUDA);          // parameters, buffers and gradients
//   tonnage::assert_on_device(optimizer, torch::kCUDA);       // parameters and states
//   tonnage::assert_on_device({{"images", x}, {"labels", y}}, torch::kCUDA);
//
// A device without an index (torch::kCUDA) accepts every index of its type. Undefined tensors are
// passed over. Threads: any, while nobody moves the tensors. Owns: nothing. Error: c10::Error that
// lists what is elsewhere (the first ten), with shapes, and how to move it. Nothing is moved.
#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <string>
#include <utility>
#include <vector>

namespace tonnage {

void assert_on_device(const std::vector<std::pair<std::string, ::torch::Tensor>>& tensors,
                      c10::Device device);
void assert_on_device(const ::torch::nn::Module& module, c10::Device device);
void assert_on_device(const ::torch::optim::Optimizer& optimizer, c10::Device device);

}  // namespace tonnage
