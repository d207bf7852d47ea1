// The host's address space as the virtual card uses it: where device memory has its addresses, and
// the host memory that lies among them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "gpu/address_space.h"
#include "gpu/pinned_memory.h"

namespace tonnage::driver {

// Address ranges of this process: mapped without access, so that a host access faults as on a real
// machine, at no cost in memory. As with a real driver, the kernel places them into the highest
// gap.
class HostRegions : public gpu::RegionSource {
 public:
  // hint 0: the kernel's choice, downwards from the top; else upwards from about there, for ranges
  // that must not disturb the order of allocations.
  explicit HostRegions(uint64_t hint = 0) : hint_(hint) {}
  uint64_t take(uint64_t bytes) override;
  void give_back(uint64_t address, uint64_t bytes) override;

  // Whether an address is device memory: it belongs to a region of any source of this process and
  // is not host memory that was placed there. Lock-free.
  static bool contains(uint64_t address);
  // Parts of a region (multiples of the allocation granularity) that hold pinned host memory, from
  // now on or no longer.
  static void set_host_memory(uint64_t address, uint64_t bytes, bool is_host);

 private:
  uint64_t hint_;
};

// Fills memory that the driver mapped itself with a repeated pattern of `width` bytes (1, 2 or 4):
// whole pages are mapped to one small piece that has it, so that any size costs the host a few
// megabytes. False: the system refused. Then a plain fill has to set all of it.
bool fill_host_pages(uint64_t address, uint32_t pattern, unsigned width, size_t n);

// Pinned memory among the device addresses of this process. Refused where it is more than the host
// has.
class RegionPages : public gpu::HostPages {
 public:
  bool commit(uint64_t address, uint64_t bytes) override;
  void decommit(uint64_t address, uint64_t bytes) override;
  bool has_room(uint64_t bytes) const { return bytes <= limit() - committed_.load(); }
  static uint64_t limit();  // what the host, or the container, has

 private:
  std::atomic<uint64_t> committed_{0};
};

}  // namespace tonnage::driver
