// fill_ and arange: their results follow from the arguments alone. PyTorch's own CPU operators run
// only once or twice in a step, so with a cold cache; that takes a hundred times longer.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>

#include "recorder/observe/operator_info.h"

namespace tonnage::recorder {

struct ThreadState;

struct PendingFormula {
  at::Tensor target;
  uint32_t pattern = 0;  // fill_: bytes that repeat, as many as `width`
  unsigned width = 0;    // 0: a range of whole numbers
  int64_t start = 0, step = 0;
};

// Null where the result does not follow in this way.
std::unique_ptr<PendingFormula> formula_of(const OpInfo& info,
                                           c10::ArrayRef<const c10::IValue> inputs);
void store_formula(ThreadState& thread, const PendingFormula& formula);

}  // namespace tonnage::recorder
