#include "vgpu/memory/address_space.h"

namespace tonnage::vgpu {

uint64_t RegionSource::take(uint64_t bytes) {
  const uint64_t size = round_up(bytes, kRegion);
  if (size < bytes || size > next_ - low_) return 0;
  next_ -= size;
  return next_;
}

uint64_t RegionSource::take_low(uint64_t bytes) {
  const uint64_t size = round_up(bytes, kRegion);
  if (size < bytes || size > next_ - low_) return 0;
  low_ += size;
  return low_ - size;
}

uint64_t AddressSpace::allocate(uint64_t bytes) {
  const uint64_t size = round_up(bytes, kGranule);
  for (size_t i = fragments_.size(); i-- > 0;) {
    Fragment& fragment = fragments_[i];
    if (fragment.bytes < size) continue;
    const uint64_t address = fragment.address;
    fragment.address += size;
    fragment.bytes -= size;
    if (fragment.bytes == 0) fragments_.erase(fragments_.begin() + static_cast<long>(i));
    return address;
  }
  const uint64_t address = regions_->take(size);
  if (address == 0) return 0;
  const uint64_t rest = round_up(size, kRegion) - size;
  if (rest > 0) fragments_.push_back({address + size, rest});
  return address;
}

void AddressSpace::release(uint64_t address, uint64_t bytes) {
  fragments_.push_back({address, round_up(bytes, kGranule)});
}

}  // namespace tonnage::vgpu
