// Reads and writes the shadow memory of device tensors (gpu/shadow_memory.h) as CPU tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "recorder/observe/operator_info.h"

namespace tonnage::recorder {

// Device address of the first element.
uint64_t address_of(const at::Tensor& tensor);
// Bytes from the first element to behind the last one, gaps of strided tensors included.
uint64_t span_bytes(const at::Tensor& tensor);

// Small enough to be computed: integers and booleans by bytes, other types by elements.
bool small_enough(at::ScalarType type, int64_t elements);
bool small_enough(const at::Tensor& tensor);
// Small enough to be computed by this operator; needs_budget: if there is time for it (budget.h).
bool small_enough(const OpInfo& info, const at::Tensor& tensor);
bool needs_budget(const OpInfo& info, const at::Tensor& tensor);

inline at::TensorOptions host_options(at::ScalarType type) {
  return at::TensorOptions().dtype(type).device(at::kCPU);
}
// An uninitialised CPU tensor of the same shape, strides and type.
at::Tensor cpu_like(const at::Tensor& device);
// A CPU copy of the content, same strides where possible; undefined if any of it is unknown.
at::Tensor load(const at::Tensor& device);
// A CPU copy in which unknown elements are `stand_in`.
at::Tensor load_or(const at::Tensor& device, int stand_in);
// Makes `value` (a CPU tensor of the same shape and type) the content; false (content unknown now)
// if it does not fit.
bool store(const at::Tensor& device, const at::Tensor& value);
// Makes the elements in which two results agree the content; the others become unknown.
void store_agreeing(const at::Tensor& device, const at::Tensor& one, const at::Tensor& other);
void forget(const at::Tensor& device);

// Calls f(element offset, elements, run) for every run of adjacent elements; false if there are too
// many runs.
template <class F>
bool for_each_run(const at::Tensor& t, F f) {
  constexpr int64_t kMostRuns = 1 << 16;
  int64_t run = 1;
  int64_t inner = t.dim();
  while (inner > 0 && (t.size(inner - 1) == 1 || t.stride(inner - 1) == run))
    run *= t.size(--inner);
  int64_t count = 1;
  for (int64_t d = 0; d < inner; d++) count *= t.size(d);
  if (count > kMostRuns) return false;
  std::vector<int64_t> index(static_cast<size_t>(inner), 0);
  for (int64_t i = 0; i < count; i++) {
    int64_t offset = 0;
    for (int64_t d = 0; d < inner; d++) offset += index[static_cast<size_t>(d)] * t.stride(d);
    f(offset, run, i);
    for (int64_t d = inner - 1; d >= 0 && ++index[static_cast<size_t>(d)] == t.size(d); d--)
      index[static_cast<size_t>(d)] = 0;
  }
  return true;
}

}  // namespace tonnage::recorder
