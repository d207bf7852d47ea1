// Small allocations (cuMemAlloc of less than 2 MiB): several of them share one block of 2 MiB, as
// on a real card.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "gpu/address_space.h"
#include "gpu/card_memory.h"

namespace tonnage::gpu {

// Requests below this share blocks; 1 MiB and more take whole ones.
inline constexpr uint64_t kSmallLimit = 1ull << 20;

// One device's. Thread-safe.
class SmallMemory {
 public:
  SmallMemory(CardMemory* card, AddressSpace* addresses) : card_(card), addresses_(addresses) {}
  // Blocks are shared within one owner (a context). 0: the card is full. Says whether it made a
  // block.
  uint64_t allocate(const void* owner, uint64_t bytes, bool* made_block);
  // `bytes` as they were asked for. False: not an address of these blocks.
  bool release(uint64_t address, uint64_t bytes);

  // What an allocation of so many bytes takes of a block.
  static uint64_t taken(uint64_t bytes) { return round_up(bytes, kAlignment); }

 private:
  static constexpr uint64_t kAlignment = 512;
  struct Block {
    const void* owner = nullptr;
    FreeRanges free{0, kAllocationGranularity};  // offsets
    uint64_t used_bytes = 0;
  };

  CardMemory* card_;
  AddressSpace* addresses_;
  std::mutex mutex_;
  std::map<uint64_t, Block> blocks_;  // by address
};

}  // namespace tonnage::gpu
