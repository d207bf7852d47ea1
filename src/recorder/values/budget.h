// How much computing on the CPU a program's known values are worth: about a tenth of its own time.
//
// Time is estimated from sizes and from the number of operators that the thread has called, never
// measured, so that two runs of one program decide alike. What was computed once is computed again:
// steps that are alike stay alike.
#pragma once

#include <cstdint>
#include <unordered_set>

#include "recorder/observe/operator_info.h"

namespace tonnage::recorder {

class ComputeBudget {
 public:
  // `operators`: that the thread has called so far.
  bool admits(uint64_t operators, uint64_t kind, uint64_t cost_ns);

 private:
  std::unordered_set<uint64_t> admitted_;
  uint64_t spent_ns_ = 0;
};

// The estimated time of an operator with these inputs and results.
uint64_t estimate_cost_ns(const OpInfo& info, c10::ArrayRef<const c10::IValue> inputs,
                          c10::ArrayRef<const c10::IValue> outputs);

}  // namespace tonnage::recorder
