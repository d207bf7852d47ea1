// One tensor in several places of a model, and parameters that do not train.
//
//   struct Gpt : torch::nn::Module {
//     torch::nn::Embedding tokens = register_module("tokens", torch::nn::Embedding(50257, 768));
//     torch::nn::Linear head = register_module(
//         "head", torch::nn::Linear(torch::nn::LinearOptions(768, 50257).bias(false)));
//     Gpt() { tonnage::share_parameter(*tokens, "weight", *head, "weight", head->weight); }
//   };
//   tonnage::FusedAdamW optimizer(tonnage::unique_parameters(gpt), options);
//
// Whole layers are shared by using one module handle in several places; torch::nn counts its
// parameters once per place, and unique_parameters() once.
//
// Memory: a shared parameter exists once: parameter, gradient and optimizer state of the others are
// not there. A frozen parameter has no gradient and no state, and what only its gradient would need
// is not saved in the forward pass.
//
// Devices, types: any. Threads: not while forward or backward passes run. Owns: modules own their
// parameters.
//
// Source of the method: Press and Wolf, "Using the Output Embedding to Improve Language Models",
// EACL 2017 (tied weights); Lan et al., "ALBERT", ICLR 2020 (shared layers).
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tonnage {

// Makes `to`'s parameter `to_name` the same tensor as `from`'s parameter `from_name`. `to_field` is
// the member of `to` that holds it (head->weight), which C++ modules use in forward(). The old
// tensor of `to` is dropped; optimizers that hold it must be made anew. Later to() on either module
// moves both. Loading a checkpoint writes the tensor once per name. Errors: c10::Error, with
// nothing changed, if a name is missing, to_field is not that parameter, or shape, type or device
// differ.
void share_parameter(const ::torch::nn::Module& from, const std::string& from_name,
                     ::torch::nn::Module& to, const std::string& to_name,
                     ::torch::Tensor& to_field);

// The module's parameters, each tensor once, in the order of parameters().
std::vector<::torch::Tensor> unique_parameters(const ::torch::nn::Module& module);

// Bytes of the module's parameters, each storage once.
int64_t parameter_bytes(const ::torch::nn::Module& module);

// Chooses parameters by their full name ("layer1.0.conv1.weight").
using ParameterFilter =
    std::function<bool(const std::string& name, const ::torch::Tensor& parameter)>;

// The chosen parameters (default: all) no longer require a gradient, and their gradients are freed.
// Returns the number of elements that were frozen by this call. Buffers (running statistics) still
// change in training mode: call eval() on those modules.
int64_t freeze(::torch::nn::Module& module, const ParameterFilter& filter = nullptr);

// The reverse. Returns the number of elements that train again.
int64_t unfreeze(::torch::nn::Module& module, const ParameterFilter& filter = nullptr);

}  // namespace tonnage
