// The memory of a pool (cuMemAllocAsync). Bookkeeping only; the caller holds the lock.
//
// The rules follow from the addresses and attributes that an H200's driver (580) gives. A pool has
// one range of addresses. Memory is mapped into it in chunks of 32 MiB, at the lowest free address.
// A block may cross chunks. A chunk without a block can be given back by itself.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "gpu/address_space.h"
#include "gpu/card_memory.h"

namespace tonnage::gpu {

// Physical memory behind pools and graphs is taken from the card in pieces of this size (H200,
// driver 580).
inline constexpr uint64_t kPoolChunk = 32ull << 20;
// Blocks of pools start at multiples of this and are counted in it (assumed; multiples of 512 KiB
// were measured).
inline constexpr uint64_t kPoolUnit = 512;

class MemoryPool {
 public:
  // `most_bytes` it may hold; 0: as much as the card has.
  MemoryPool(CardMemory* card, AddressSpace* addresses, uint64_t most_bytes = 0)
      : card_(card), addresses_(addresses), most_bytes_(most_bytes) {}

  // The address of `bytes`; 0: neither the card nor the limit allow another chunk.
  uint64_t allocate(uint64_t bytes);
  // False: not handed out by this pool.
  bool release(uint64_t address);
  // Gives unused chunks back, as long as at least `keep_bytes` stay reserved. Returns what it gave
  // back.
  uint64_t trim(uint64_t keep_bytes);
  // Lets go of the addresses; nothing is handed out any more.
  void close();

  uint64_t reserved = 0, reserved_high = 0, used = 0, used_high = 0;
  std::map<uint64_t, uint64_t> blocks;  // handed out: address, bytes counted

 private:
  bool open();
  // The smallest free piece with memory under all of it; 0: none.
  uint64_t find_backed(uint64_t size) const;
  // The lowest free addresses, with memory or without.
  uint64_t find_lowest(uint64_t size) const;
  bool back(uint64_t address, uint64_t size);  // takes the chunks that are missing there

  CardMemory* card_;
  AddressSpace* addresses_;
  uint64_t most_bytes_;
  uint64_t base_ = 0;
  std::vector<bool> backed_;           // by chunk
  std::map<uint64_t, uint64_t> free_;  // address, bytes: merged; all that are not in a block
};

}  // namespace tonnage::gpu
