// Ranges of device addresses that are reserved without memory behind them: reservations of the
// virtual memory API, and memory opened from other processes.
#pragma once

#include <cstdint>

namespace tonnage::driver {

// `bytes` is a multiple of the allocation granularity, `alignment` a power of two or 0. Returns 0
// when the address space is used up.
uint64_t reserve_range(uint64_t bytes, uint64_t alignment = 0);
// As reserve_range returned it; others are ignored.
void release_range(uint64_t address);

}  // namespace tonnage::driver
