// Kernel launches: by the API functions, and when graphs run.
#pragma once

#include "driver/state.h"

namespace tonnage::driver {

// A launch as cuLaunchKernelEx takes it. `params`/`extra` as there; only read during the call.
struct KernelLaunch {
  CUfunction function = nullptr;  // a CUfunction or a CUkernel, as the host gave it
  unsigned grid[3] = {1, 1, 1};
  unsigned block[3] = {1, 1, 1};
  unsigned shared_bytes = 0;
  void** params = nullptr;
  void** extra = nullptr;
  const CUlaunchAttribute* attributes = nullptr;
  size_t attribute_count = 0;
  bool cooperative = false;
};

// Runs the kernel now on the stream, as an uncaptured launch would (virtual time, counters, code
// that becomes resident, content behind its pointers unknown). The stream is not capturing.
CUresult run_kernel(Stream* stream, const KernelLaunch& launch, bool in_graph);

}  // namespace tonnage::driver
