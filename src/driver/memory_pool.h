// A pool of stream-ordered memory (cuMemAllocAsync). Plain bookkeeping; locked by the caller
// (pool.cpp).
//
// As an H200's driver (580) shows by its addresses and attributes: a pool has one range of
// addresses; memory comes under it in chunks of 32 MiB, as low as possible, and a block may lie
// across chunks. Chunks without a block can be given back one by one.
#pragma once

#include <map>
#include <vector>

#include "driver/api/virtual_memory.h"
#include "driver/shared_block.h"

namespace tonnage::driver {

struct MemoryPool {
  Device* device = nullptr;
  CUmemPoolProps props = {};
  bool is_default = false, imported = false, destroyed = false;
  int reuse_follow_events = 1, reuse_opportunistic = 1, reuse_internal = 1;
  uint64_t release_threshold = 0;
  uint64_t reserved = 0, reserved_high = 0, used = 0, used_high = 0;
  std::map<uint64_t, uint64_t> blocks;      // handed out: address, bytes counted
  std::map<int, CUmemAccess_flags> access;  // of other devices
  SharedBlock* shared = nullptr;
  int fd = -1;

  // Memory of `bytes`. OUT_OF_MEMORY when neither the card nor maxSize allow another chunk.
  CUresult allocate(uint64_t bytes, uint64_t* address);
  // False: not handed out by this pool.
  bool release(uint64_t address);
  // Gives unused chunks back, as long as at least `keep_bytes` stay reserved. Returns what it gave
  // back.
  uint64_t trim(uint64_t keep_bytes);
  // Lets go of the addresses; nothing is handed out any more.
  void close();

 private:
  bool open();
  uint64_t find_backed(
      uint64_t size) const;  // the smallest free piece with memory under all of it; 0: none
  uint64_t find_lowest(uint64_t size) const;   // the lowest free addresses, with memory or without
  bool back(uint64_t address, uint64_t size);  // takes the chunks that are missing there

  uint64_t base_ = 0, bytes_ = 0;
  std::vector<bool> backed_;  // by chunk
  std::map<uint64_t, uint64_t>
      free_;  // address, bytes: merged; all addresses that are not in a block
};

}  // namespace tonnage::driver
