#include "driver/reserved_ranges.h"

#include <map>
#include <mutex>

#include "driver/recording.h"
#include "driver/state.h"

namespace tonnage::driver {
namespace {

struct Ranges {
  std::mutex mutex;
  std::map<uint64_t, uint64_t> bases;  // by address: as the address space gave it
};
Ranges& ranges() {
  static Ranges& all = *new Ranges;
  return all;
}

}  // namespace

uint64_t reserve_range(uint64_t bytes, uint64_t alignment) {
  const uint64_t size = gpu::round_up(bytes, gpu::kAllocationGranularity);
  const bool aligned = alignment > gpu::kAllocationGranularity;
  const uint64_t taken = aligned ? size + alignment : size;
  if (size < bytes || taken < size) return 0;
  std::lock_guard lock(ranges().mutex);
  const uint64_t base = driver()->addresses.reserve(taken);
  if (!base) {
    record_host_refusal(taken);
    return 0;
  }
  const uint64_t address = aligned ? gpu::round_up(base, alignment) : base;
  ranges().bases[address] = base;
  return address;
}

void release_range(uint64_t address) {
  std::lock_guard lock(ranges().mutex);
  const auto it = ranges().bases.find(address);
  if (it == ranges().bases.end()) return;
  driver()->addresses.release(it->second);
  ranges().bases.erase(it);
}

}  // namespace tonnage::driver
