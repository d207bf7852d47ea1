// cuMemAlloc of less than a granule: several share one 2 MiB block, as on a real card.
#pragma once

#include "driver/state.h"

namespace tonnage::driver {

inline constexpr size_t kSmallLimit =
    1ull << 20;  // requests below this share blocks; 1 MiB and more take whole granules

CUresult allocate_small(Context* context, size_t bytes, CUdeviceptr* out);
CUresult free_small(const Allocation& allocation);

}  // namespace tonnage::driver
