// Memory pools: the functions that other entry points need.
#pragma once

#include "driver/state.h"

namespace tonnage::driver {

// Pools give memory above their release threshold back when the host waits. Null context: all.
void trim_pools_at_synchronise(Context* context);
// Gives back what pools hold without needing it; tried before the card is found full.
void release_unused_pool_memory(Device* device);
// Frees memory that came from a pool, as cuMemFree may (no stream). INVALID_VALUE if it did not.
CUresult free_pool_memory(CUdeviceptr address);

}  // namespace tonnage::driver
