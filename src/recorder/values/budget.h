// How much time the CPU may spend on known values: about a tenth of the program's own time.
//
// The time is estimated from sizes and from the number of operators that the thread has called. It
// is never measured, so two runs of one program decide in the same way. An operator that was
// computed once is computed again, so equal steps stay equal.
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
