// Failures: which out-of-memory events of a record belong together, and which of them ended
// anything.
//
// One failure of a program may be many events: cuDNN's convolutions try one algorithm after the
// other, each refused its workspace, inside one call; and where one of them gets along with what
// there is, the program never hears of it.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/timeline/stacks.h"
#include "record/record.h"

namespace tonnage::analysis {

struct OomAttempts {
  uint32_t first = 0, last = 0;  // kOom or kDeviceOom events of one call
  uint32_t count = 1;
  bool overcome = false;  // the call went on with less: no error reached the program
};

// In order of the events. Cost: one pass.
std::vector<OomAttempts> find_oom_attempts(const record::Record& record, const Stacks& stacks);

}  // namespace tonnage::analysis
