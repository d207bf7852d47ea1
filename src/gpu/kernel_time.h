// How long kernels take on the virtual clock.
//
// Every kernel takes one tick, and the clock shows whole units of eight ticks (clock.h). So
// libraries that time several algorithms see equal times, and keep their first choice.
//
// There is one exception, because it changes memory: matrix products of a half or TF32 type whose
// rows are not aligned for wide loads. For these cuBLAS takes CUTLASS kernels named "…align1" or
// "…align2". On an H200 they were 1.5 to 7.9 times slower than the product of padded operands (492
// products, timed with an earlier form of tools/device/products.py). torch.compile times both, and
// then pads the operands into larger tensors.
#pragma once

#include <cstdint>

namespace tonnage::gpu {

// What a kernel's name tells of its speed.
enum class KernelSpeed : uint8_t { kNotLooked, kOrdinary, kUnalignedProduct };
KernelSpeed find_kernel_speed(const char* name);

// Ticks of an unaligned product of an m by k and a k by n matrix.
uint64_t count_product_ticks(int32_t m, int32_t n, int32_t k);

}  // namespace tonnage::gpu
