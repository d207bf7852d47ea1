// Ranges of device addresses that are reserved without memory behind them: reservations of the virtual memory API, chunks of
// pools, memory of graphs, memory opened from other processes.
#pragma once

#include <cstdint>

#include "vgpu/driver/state.h"

namespace tonnage::vgpu {

// Physical memory behind pools and graphs is taken from the card in pieces of this size. Source: what
// CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT shows after a first small allocation on current drivers (33554432).
inline constexpr uint64_t kPoolChunk = 32ull << 20;
// Allocations inside a pool are aligned to and counted in this unit. Assumed: what cuMemAlloc guarantees is 256, pools use 512.
inline constexpr uint64_t kPoolUnit = 512;

// The one place that decides where such ranges lie: like cuMemAlloc's regions they are taken downwards from the top, in whole
// 32 MiB; a released range of the same size is used again first (newest first). `bytes` is a multiple of kGranule, `alignment`
// a power of two or 0. Returns 0 when the address space is used up. Takes memory_mutex.
uint64_t reserve_range(uint64_t bytes, uint64_t alignment = 0);
void release_range(uint64_t address, uint64_t bytes);

// Gives back what pools hold without needing it; tried before the card is found full (pool.cpp).
void pools_release_unused(Device* device);

}  // namespace tonnage::vgpu
