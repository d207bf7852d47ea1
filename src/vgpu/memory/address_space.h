// The order in which a real driver hands out device addresses.
//
// It matters: PyTorch's allocator breaks ties between equal free blocks by address, so it decides what later steps reuse.
// The rule (found from recorded segment events, checked on a real card with random sequences, docs/exactness.md): the driver
// reserves regions of whole 32 MiB downwards from the top of the address space, puts an allocation (2 MiB granules) at the
// start of one and keeps the rest as a fragment; a request is served from the newest fragment that is large enough before a
// new region is reserved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tonnage::vgpu {

inline constexpr uint64_t kGranule = 2ull << 20;        // what the driver takes from the card at a time
inline constexpr uint64_t kRegion = 32ull << 20;

// Hands out whole 32 MiB regions downwards from `top`. One for the process: all devices share one address space.
class RegionSource {
 public:
  // [bottom, top), both multiples of kRegion.
  RegionSource(uint64_t bottom, uint64_t top) : bottom_(bottom), top_(top), next_(top), low_(bottom) {}
  // The start of `bytes` (rounded up to whole regions); 0 when the address space is used up.
  uint64_t take(uint64_t bytes);
  // The same from the other end, for what must not disturb the order of allocations (modules' variables, pools' bookkeeping).
  uint64_t take_low(uint64_t bytes);
  bool contains(uint64_t address) const { return address >= bottom_ && address < top_; }
  uint64_t bottom() const { return bottom_; }
  uint64_t top() const { return top_; }

 private:
  uint64_t bottom_, top_, next_;  // [bottom_, low_) and [next_, top_) are taken
  uint64_t low_;
};

// Addresses of one device. Not thread-safe.
class AddressSpace {
 public:
  explicit AddressSpace(RegionSource* regions) : regions_(regions) {}
  // `bytes` is rounded up to granules; 0 when the address space is used up.
  uint64_t allocate(uint64_t bytes);
  void release(uint64_t address, uint64_t bytes);

 private:
  struct Fragment {
    uint64_t address, bytes;
  };
  RegionSource* regions_;
  std::vector<Fragment> fragments_;  // oldest first
};

constexpr uint64_t round_up(uint64_t n, uint64_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace tonnage::vgpu
