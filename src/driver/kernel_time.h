// How long kernels take on the virtual clock, where it decides something.
//
// Every kernel takes one tick, and the clock shows whole units of eight (state.h), so libraries
// that time alternatives see them equal and keep their own first choice. One difference is too
// large to leave out, and changes memory: matrix products of a half or TF32 type whose rows are not
// aligned for the wide loads. cuBLAS then takes CUTLASS kernels named "…align1" or "…align2"; on an
// H200 all of them were slower than the product of the padded operands, by 1.5 to 7.9 times (492
// products timed with an earlier form of tools/device/products.py). torch.compile times just that,
// and pads the operands into larger tensors.
#pragma once

#include <cstdint>

#include "driver/api/module.h"

namespace tonnage::driver {

KernelSpeed speed_of_name(const char* name);

// Ticks of a launch. `params` as cuLaunchKernel takes them; may be null.
uint64_t kernel_ticks(Function* function, void** params);

}  // namespace tonnage::driver
