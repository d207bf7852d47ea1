// Known values: operators whose inputs are known and whose results are small are computed by
// PyTorch's own CPU operators, and the result becomes the content of the device tensor. Everything
// else makes its outputs unknown.
//
// before_operator looks at the inputs and dismisses most calls at once; after_operator computes or
// forgets.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <vector>

#include "recorder/observe/operators.h"
#include "recorder/state.h"
#include "recorder/values/philox.h"

namespace tonnage::recorder {

// A call that may be computed. What it reads only is loaded when it is known that the result is
// small enough; what it writes is loaded before it runs.
struct PendingCompute {
  std::vector<c10::IValue> inputs;  // the call's own
  std::vector<c10::IValue>
      arguments;  // the CPU operator's: device tensors replaced by copies; empty until prepared
  struct Written {
    size_t argument;
    int element;  // in a list; -1: the argument itself
    at::Tensor device;
    at::Tensor copy;  // what was in it before; after computing, what is in it now
  };
  std::vector<Written> written;
  std::vector<c10::IValue> results;  // computed already (operators with data-dependent sizes)
  bool has_results = false;
  bool may_stand_in =
      false;  // unknown arguments that are only moved (OpInfo::may_be_unknown) need not stop it
  bool partial = false;  // there are such: worked out twice, with different stand-ins for them
  int stand_in = 0;
  RandomState random;  // what the generator was about to draw
};

// Loads what is not loaded yet; false if some content turns out to be unknown.
bool prepare(const OpInfo& info, PendingCompute& pending);

void before_operator(ThreadState& thread, OpFrame& frame);
void after_operator(ThreadState& thread, OpFrame& frame);

// A dense CUDA tensor that is what it seems: no subclass, no functorch wrapper, not fake, not
// sparse or quantised.
bool plain_cuda(const at::Tensor& tensor);
// Device address of the first element.
uint64_t address_of(const at::Tensor& tensor);
// Bytes from the first element to behind the last one, gaps of strided tensors included.
uint64_t span_bytes(const at::Tensor& tensor);

// Small enough to be computed: integers and booleans by bytes, other types by elements.
bool small_enough(at::ScalarType type, int64_t elements);
bool small_enough(const at::Tensor& tensor);
// Small enough to be computed by this operator.
bool small_enough(const OpInfo& info, const at::Tensor& tensor);
// A CPU copy of the content, same strides where possible; undefined if any of it is unknown.
at::Tensor load(const at::Tensor& device);
// Makes `value` (a CPU tensor of the same shape and type) the content; false (content unknown now)
// if it does not fit.
bool store(const at::Tensor& device, const at::Tensor& value);
void forget(const at::Tensor& device);

// Runs the CPU operator on `arguments`; false if it failed (counted, and given up after a few times).
bool compute(const OpInfo& info, std::vector<c10::IValue>& arguments);

}  // namespace tonnage::recorder
