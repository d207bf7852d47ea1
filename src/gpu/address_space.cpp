#include "gpu/address_space.h"

namespace tonnage::gpu {
uint64_t AddressSpace::carve(std::list<Region>::iterator region, FreeRanges::Piece piece,
                             uint64_t bytes) {
  const uint64_t address = region->free.take(piece, bytes);
  live_[address] = {region, bytes};
  return address;
}

uint64_t AddressSpace::allocate(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  return allocate_from(high_, bytes);
}

uint64_t AddressSpace::reserve(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  return allocate_from(low_, bytes);
}

void AddressSpace::release(uint64_t address) {
  std::lock_guard lock(mutex_);
  release_locked(address);
}

uint64_t AddressSpace::allocate_from(RegionSource* source, uint64_t bytes) {
  const uint64_t size = round_up(bytes, kAllocationGranularity);
  if (size < bytes || size == 0) return 0;
  for (auto region = regions_.begin(); region != regions_.end(); ++region) {
    const auto piece = region->free.best_fit(size);
    if (piece != region->free.end()) return carve(region, piece, size);
  }
  const uint64_t region_bytes = round_up(size, kRegion);
  const uint64_t start = source->take(region_bytes);
  if (start == 0) return 0;
  regions_.push_front({start, region_bytes, source, {start, region_bytes}});
  return carve(regions_.begin(), regions_.begin()->free.begin(), size);
}

void AddressSpace::release_locked(uint64_t address) {
  const auto found = live_.find(address);
  if (found == live_.end()) return;
  const auto region = found->second.region;
  const uint64_t free = region->free.give_back(address, found->second.bytes);
  live_.erase(found);
  if (free < region->bytes) return;
  region->source->give_back(region->start, region->bytes);
  regions_.erase(region);
}

void AddressSpace::prepare_further_context() {
  std::lock_guard lock(mutex_);
  for (uint64_t mebibytes : {4, 2, 2, 2, 4, 4, 2, 2, 2, 6}) allocate_from(high_, mebibytes << 20);
}

uint64_t AddressSpace::prepare_context() {
  std::lock_guard lock(mutex_);
  contexts_++;
  constexpr uint64_t kMiB = 1ull << 20;
  const uint64_t own = high_->take(96 * kMiB);
  if (own == 0) return 0;
  regions_.push_front({own, 96 * kMiB, high_, {own + 72 * kMiB, 24 * kMiB}});
  live_[own] = {regions_.begin(), 72 * kMiB};
  const uint64_t heap = high_->take(416 * kMiB);
  if (heap == 0) return 0;
  regions_.push_front({heap, 416 * kMiB, high_, {heap + 414 * kMiB, 2 * kMiB}});
  live_[heap] = {regions_.begin(), 414 * kMiB};
  return heap;
}

uint64_t AddressSpace::move(uint64_t address, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  const uint64_t moved = allocate_from(high_, bytes);
  release_locked(address);
  return moved;
}

}  // namespace tonnage::gpu
