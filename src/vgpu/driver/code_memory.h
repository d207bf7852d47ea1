// What machine code and modules' variables take of a card: modelled (docs/exactness.md), since the driver's own heap for them
// cannot be run here. Marked as modelled wherever it is shown.
#pragma once

#include "vgpu/driver/state.h"

namespace tonnage::vgpu {

struct Function;

// An address for a module's variable, in memory of the module's own that is not on PyTorch's books.
CUresult place_variable(Context* context, Device* device, size_t bytes, CUdeviceptr* out);
void release_variable(Device* device, CUdeviceptr address);

}  // namespace tonnage::vgpu
