// Memory pools: the functions that other entry points need.
#pragma once

#include "driver/state.h"

namespace tonnage::driver {

// Pools give memory above their release threshold back when the host waits. Null context: all.
void trim_pools_at_synchronise(Context* context);
// Gives back the free memory of pools. Tried before a request is refused.
void release_unused_pool_memory(Device* device);
// Frees memory that came from a pool, as cuMemFree may (no stream). INVALID_VALUE if it did not.
CUresult free_pool_memory(CUdeviceptr address);

}  // namespace tonnage::driver
