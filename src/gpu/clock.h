// Virtual time. The clock is coarse on purpose: libraries that time several algorithms see equal
// times, and keep their first choice.
#pragma once

#include <cstdint>

namespace tonnage::gpu {

// A kernel or copy takes one tick. The clock shows whole units.
inline constexpr uint64_t kTicksPerUnit = 8;
inline constexpr double kMillisecondsPerUnit = 0.4;

// The time between two moments, as the clock shows it: whole units, begun ones included. A moment
// after another on an idle stream is still a little later.
inline float shown_milliseconds(uint64_t start_ticks, uint64_t end_ticks) {
  const auto ticks = static_cast<int64_t>(end_ticks) - static_cast<int64_t>(start_ticks);
  const auto unit = static_cast<int64_t>(kTicksPerUnit);
  const int64_t units = ticks > 0 ? (ticks + unit - 1) / unit : ticks / unit;
  if (units == 0) return 0.002f;
  return static_cast<float>(static_cast<double>(units) * kMillisecondsPerUnit);
}

}  // namespace tonnage::gpu
