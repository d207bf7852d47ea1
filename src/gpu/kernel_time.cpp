#include "gpu/kernel_time.h"

#include <string.h>

#include <algorithm>

#include "gpu/clock.h"

namespace tonnage::gpu {
namespace {

// Measured on an H200: half-type products of 1024³ to 8192x4096x30522 in kernels of this class ran
// at 63 to 287 TFLOP/s.
constexpr double kFlopsPerNanosecond = 120e3;
// A unit of the clock for each of these: about what padding two operands of such a product takes.
constexpr double kNanosecondsPerUnit = 8000;
constexpr double kMostUnits = 1u << 20;

}  // namespace

KernelSpeed find_kernel_speed(const char* name) {
  if (!strstr(name, "cutlass") || !strstr(name, "tensorop") || !strstr(name, "gemm_"))
    return KernelSpeed::kOrdinary;
  const char* alignment = strstr(name, "_align");
  if (!alignment) return KernelSpeed::kOrdinary;
  const char digit = alignment[6], next = digit ? alignment[7] : '\0';
  const bool narrow = (digit == '1' || digit == '2') && !(next >= '0' && next <= '9');
  return narrow ? KernelSpeed::kUnalignedProduct : KernelSpeed::kOrdinary;
}

uint64_t count_product_ticks(int32_t m, int32_t n, int32_t k) {
  const double flops = 2.0 * m * n * k;
  const double units = std::min(flops / kFlopsPerNanosecond / kNanosecondsPerUnit, kMostUnits);
  return 1 + static_cast<uint64_t>(units) * kTicksPerUnit;
}

}  // namespace tonnage::gpu
