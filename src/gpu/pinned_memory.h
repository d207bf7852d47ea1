// Pinned host memory (cuMemHostAlloc). A real driver takes its addresses from the same regions as
// those of device memory. So it also decides the addresses of later allocations. Measured on an
// H200, driver 580: an allocation of more than 1 MiB gets whole ranges of 2 MiB. Smaller ones share
// blocks of 2 MiB, at multiples of 512 bytes, in the smallest gap that is large enough.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "gpu/address_space.h"

namespace tonnage::gpu {

// The host's memory behind such addresses.
class HostPages {
 public:
  virtual ~HostPages() = default;
  // Zeroed memory that can be read and written is at [address, address + bytes) from now on.
  virtual bool commit(uint64_t address, uint64_t bytes) = 0;
  virtual void decommit(uint64_t address, uint64_t bytes) = 0;
};

// Of all devices together. Thread-safe.
class PinnedMemory {
 public:
  PinnedMemory(AddressSpace* addresses, HostPages* pages) : addresses_(addresses), pages_(pages) {}
  // Pieces of at most this share blocks.
  static constexpr uint64_t kLargestShared = 1ull << 20;
  // 0: there is none. Pieces of shared blocks hold what their last user left.
  uint64_t allocate(int device, uint64_t bytes);
  // As allocate returned it; others are ignored.
  void release(uint64_t address);

 private:
  static constexpr uint64_t kUnit = 512;

  // A range of its own, or a block that small pieces share.
  struct Range {
    int device = 0;
    uint64_t bytes = 0;
    bool shared = false;
    FreeRanges gaps;                      // shared: addresses
    std::map<uint64_t, uint64_t> pieces;  // shared: address -> bytes
  };
  uint64_t map_range(uint64_t bytes);
  uint64_t allocate_shared(int device, uint64_t bytes);

  AddressSpace* addresses_;
  HostPages* pages_;
  std::mutex mutex_;
  std::map<uint64_t, Range> ranges_;  // by address
};

}  // namespace tonnage::gpu
