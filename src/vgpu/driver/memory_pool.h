// A pool of stream-ordered memory (cuMemAllocAsync). Plain bookkeeping over chunks that are taken from the card; locked by the
// caller (pool.cpp).
#pragma once

#include <map>

#include "vgpu/driver/shared_block.h"
#include "vgpu/driver/virtual_memory.h"

namespace tonnage::vgpu {

struct MemoryPool {
  Device* device = nullptr;
  CUmemPoolProps props = {};
  bool is_default = false, imported = false, destroyed = false;
  int reuse_follow_events = 1, reuse_opportunistic = 1, reuse_internal = 1;
  uint64_t release_threshold = 0;
  uint64_t reserved = 0, reserved_high = 0, used = 0, used_high = 0;
  std::map<uint64_t, uint64_t> chunks;     // address, bytes: whole pieces taken from the card
  std::map<uint64_t, uint64_t> free_blocks;  // address, bytes: merged within their chunk
  std::map<uint64_t, uint64_t> blocks;     // handed out: address, bytes counted
  std::map<int, CUmemAccess_flags> access;  // of other devices
  SharedBlock* shared = nullptr;
  int fd = -1;

  // Memory of `bytes`, from what is free or from a new chunk. OUT_OF_MEMORY when neither card nor maxSize allow it.
  CUresult allocate(uint64_t bytes, uint64_t* address);
  // False: not handed out by this pool.
  bool release(uint64_t address);
  // Gives whole unused chunks back while more than `keep_bytes` stays reserved. Returns what it gave back.
  uint64_t trim(uint64_t keep_bytes);

 private:
  bool take_free(uint64_t size, uint64_t* address);
  bool grow(uint64_t bytes);
};

}  // namespace tonnage::vgpu
