// What values/ needs to know of the device: which tensors are on it, which operators have kernels
// for it, what its random generators draw next. device_cuda.cpp implements it for CUDA; a test with
// CPU tensors has its own implementation.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKey.h>

#include <cstdint>

namespace tonnage::recorder::device {

bool is(const c10::Device& device);
// The tensor says that it is on the device, whatever kind of tensor it is.
bool has(const at::Tensor& tensor);
// A plain tensor: dense memory of the device; no subclass, no functorch wrapper, not fake, sparse
// or quantised.
bool plain(const at::Tensor& tensor);

c10::DispatchKey kernel_key();
c10::DispatchKey sparse_kernel_key();

// Kernels that this thread launches are recorded into a graph instead of run: values computed now
// hold once only.
bool capturing();

// A generator about to be drawn from, and the card that draws: its size decides the order.
struct RandomState {
  uint64_t seed = 0, offset = 0;
  uint64_t multiprocessors = 0, threads_per_multiprocessor = 0;
  bool known = false;
};
// `given`: undefined for the device's own generator.
RandomState random_state(const c10::Device& device, const at::Generator& given);

}  // namespace tonnage::recorder::device
