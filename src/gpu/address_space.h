// The order in which a real driver hands out device addresses.
//
// Addresses matter: PyTorch's allocator chooses between free blocks of equal size by address. So
// the order of addresses decides what later steps reuse. The rules were found on an H200 (driver
// 580) with random sequences of allocations and frees; they give every address of these sequences
// (tools/device/addresses.cpp, docs/exactness.md):
//   - The driver reserves regions of the host's address space: multiples of 32 MiB, aligned to 32
//     MiB.
//   - An allocation (multiples of 2 MiB) goes into the newest region that has room, there into the
//     smallest free piece that is large enough, and among equal pieces into the lowest.
//   - Freed neighbours merge. A region that is completely free goes back to the host.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>

#include "gpu/free_ranges.h"

namespace tonnage::gpu {

inline constexpr uint64_t kAllocationGranularity =
    2ull << 20;  // what the driver takes from the card at a time
inline constexpr uint64_t kRegion = 32ull << 20;

constexpr uint64_t round_up(uint64_t n, uint64_t unit) { return (n + unit - 1) / unit * unit; }

// Where regions come from. Sizes and addresses are multiples of kRegion.
class RegionSource {
 public:
  virtual ~RegionSource() = default;
  virtual uint64_t take(uint64_t bytes) = 0;  // 0: used up
  virtual void give_back(uint64_t address, uint64_t bytes) = 0;
};

// Addresses of one process, which all its devices share. Thread-safe.
class AddressSpace {
 public:
  // `low` gives the regions of virtual ranges (cuMemAddressReserve), `high` all others.
  AddressSpace(RegionSource* high, RegionSource* low) : high_(high), low_(low) {}
  // `bytes` is rounded up to the allocation granularity; 0 when the address space is used up.
  uint64_t allocate(uint64_t bytes);
  uint64_t reserve(uint64_t bytes);
  // A range as one of the above returned it.
  void release(uint64_t address);

  // Seen on an H200: a new context has a region of 96 MiB, of which the last 24 are free behind
  // things of the driver's own, and one of 416 MiB for the device heap, of which the last 2 are
  // free. When the first module comes that can print or assert, the heap moves to a region of its
  // own; its place becomes free, or goes back to the host if nothing is in those 2 MiB. Returns the
  // heap's place; 0: there was no room.
  uint64_t prepare_context();
  // The block at `address` gets another place, of `bytes`; its old one is free afterwards. Returns
  // the new address.
  uint64_t move(uint64_t address, uint64_t bytes);
  // A further device's context takes for itself what the first one had in a region apart.
  void prepare_further_context();
  int contexts() const { return contexts_; }  // that were prepared

 private:
  struct Region {
    uint64_t start, bytes;
    RegionSource* source;
    FreeRanges free;
  };
  struct Piece {
    std::list<Region>::iterator region;
    uint64_t bytes;
  };
  uint64_t allocate_from(RegionSource* source, uint64_t bytes);
  void release_locked(uint64_t address);
  uint64_t carve(std::list<Region>::iterator region, FreeRanges::Piece piece, uint64_t bytes);

  std::mutex mutex_;
  std::atomic<int> contexts_{0};
  RegionSource* high_;
  RegionSource* low_;
  std::list<Region> regions_;  // newest first
  std::map<uint64_t, Piece> live_;
};

}  // namespace tonnage::gpu
