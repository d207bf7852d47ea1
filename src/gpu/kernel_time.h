// How long kernels take on the virtual clock, where it decides something.
//
// Every kernel takes one tick, and the clock shows whole units of eight (clock.h), so libraries
// that time alternatives see them equal and keep their own first choice. One difference is too
// large to leave out, and changes memory: matrix products of a half or TF32 type whose rows are not
// aligned for the wide loads. cuBLAS then takes CUTLASS kernels named "…align1" or "…align2"; on an
// H200 all of them were slower than the product of the padded operands, by 1.5 to 7.9 times (492
// products timed with an earlier form of tools/device/products.py). torch.compile times just that,
// and pads the operands into larger tensors.
#pragma once

#include <cstdint>

namespace tonnage::gpu {

// What a kernel's name tells of its speed.
enum class KernelSpeed : uint8_t { kNotLooked, kOrdinary, kUnalignedProduct };
KernelSpeed find_kernel_speed(const char* name);

// Ticks of an unaligned product of an m by k and a k by n matrix.
uint64_t count_product_ticks(int32_t m, int32_t n, int32_t k);

}  // namespace tonnage::gpu
