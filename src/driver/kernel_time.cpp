#include "driver/kernel_time.h"

#include <string.h>

#include <algorithm>

#include "driver/state.h"

namespace tonnage::driver {
namespace {

// Measured on an H200: half-type products of 1024³ to 8192x4096x30522 in kernels of this class ran
// at 63 to 287 TFLOP/s.
constexpr double kFlopsPerNanosecond = 120e3;
// A unit of the clock for each of these: about what padding two operands of such a product takes.
constexpr double kNanosecondsPerUnit = 8000;
constexpr uint64_t kMostUnits = 1u << 20;

// Of a CUTLASS 2 kernel's parameters the first three words are the product's extents m, n, k.
bool product_extents(const Function& function, void** params, int32_t extents[3]) {
  if (!params || function.info->params.empty() || function.info->params[0].size_bytes < 12 ||
      !params[0])
    return false;
  memcpy(extents, params[0], 12);
  return extents[0] > 0 && extents[1] > 0 && extents[2] > 0;
}

}  // namespace

KernelSpeed speed_of_name(const char* name) {
  if (!strstr(name, "cutlass") || !strstr(name, "tensorop") || !strstr(name, "gemm_"))
    return KernelSpeed::kOrdinary;
  const char* alignment = strstr(name, "_align");
  if (!alignment) return KernelSpeed::kOrdinary;
  const char digit = alignment[6], next = digit ? alignment[7] : '\0';
  const bool narrow = (digit == '1' || digit == '2') && !(next >= '0' && next <= '9');
  return narrow ? KernelSpeed::kUnalignedProduct : KernelSpeed::kOrdinary;
}

uint64_t kernel_ticks(Function* function, void** params) {
  KernelSpeed speed = function->speed.load(std::memory_order_relaxed);
  if (speed == KernelSpeed::kNotLooked) {
    speed = speed_of_name(function->name);
    function->speed.store(speed, std::memory_order_relaxed);
  }
  if (speed == KernelSpeed::kOrdinary) return 1;
  int32_t extents[3];
  if (!product_extents(*function, params, extents)) return 1;
  const double flops = 2.0 * extents[0] * extents[1] * extents[2];
  const double units =
      std::min(flops / kFlopsPerNanosecond / kNanosecondsPerUnit, static_cast<double>(kMostUnits));
  return 1 + static_cast<uint64_t>(units) * kTicksPerUnit;
}

}  // namespace tonnage::driver
