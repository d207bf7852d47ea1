// Memory: the functions that other entry points need.
#pragma once

#include "driver/state.h"

namespace tonnage::driver {

// Frees memory that is not somebody else's to free, by what it is.
CUresult free_allocation(Allocation allocation);

}  // namespace tonnage::driver
