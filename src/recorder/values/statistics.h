// Statistics of unknown tensors (minimum, maximum, mean, median, quantiles, deviation, sorted
// order). The recorder keeps which tensor each describes, so that the values that a program reads
// later are consistent (assumed.h).
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "recorder/observe/operator_info.h"

namespace tonnage::recorder {

// What is needed of a call's arguments at its end: PyTorch no longer has them then.
struct PendingStatistic {
  uint64_t storage = 0, version = 0;  // of the tensor
  std::vector<float> quantiles;
  bool list_of_quantiles = false;
  int64_t dim = 0, size = 1;  // of the dimension that is sorted
  int64_t k = 1;
  bool descending = false;
};

// Null if the call is none that is followed, or its tensor is known.
std::unique_ptr<PendingStatistic> begin_statistic(const OpInfo& info,
                                                  c10::ArrayRef<const c10::IValue> inputs);
// The results are unknown: what they are is kept.
void end_statistic(const OpInfo& info, const PendingStatistic& pending,
                   c10::ArrayRef<const c10::IValue> outputs);

}  // namespace tonnage::recorder
