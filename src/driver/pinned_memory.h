// Pinned host memory (cuMemHostAlloc). A real driver takes its addresses from where device memory
// gets its own, so it also decides where later allocations lie. Seen on an H200, driver 580: more
// than 1 MiB gets granules of its own; the rest shares blocks of one granule, placed at multiples
// of 512 bytes into the smallest gap that is large enough.
#pragma once

#include "driver/state.h"

namespace tonnage::driver {

// Readable and writable zeroed memory; null if there is none.
void* take_pinned(Device* device, size_t bytes);
// As take_pinned returned it.
void give_back_pinned(void* memory);

}  // namespace tonnage::driver
