// Ranges of device addresses that are reserved without memory behind them: reservations of the
// virtual memory API, chunks of pools, memory of graphs, memory opened from other processes.
#pragma once

#include <cstdint>

#include "driver/state.h"

namespace tonnage::driver {

// Physical memory behind pools and graphs is taken from the card in pieces of this size (H200,
// driver 580).
inline constexpr uint64_t kPoolChunk = 32ull << 20;
// Blocks of pools start at multiples of this and are counted in it (assumed; multiples of 512 KiB
// were measured).
inline constexpr uint64_t kPoolUnit = 512;

// The one place that decides where such ranges lie (memory/address_space.h). `bytes` is a multiple
// of kAllocationGranularity, `alignment` a power of two or 0. Returns 0 when the address space is
// used up. Takes memory_mutex.
uint64_t reserve_range(uint64_t bytes, uint64_t alignment = 0);
void release_range(uint64_t address, uint64_t bytes);

// Gives back what pools hold without needing it; tried before the card is found full (pool.cpp).
void pools_release_unused(Device* device);

}  // namespace tonnage::driver
