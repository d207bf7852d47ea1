#include "gpu/pinned_memory.h"

namespace tonnage::gpu {

uint64_t PinnedMemory::map_range(uint64_t bytes) {
  const uint64_t address = addresses_->allocate(bytes);
  if (address == 0) return 0;
  if (pages_->commit(address, bytes)) return address;
  addresses_->release(address);
  return 0;
}

uint64_t PinnedMemory::allocate_shared(int device, uint64_t bytes) {
  Range* best = nullptr;
  FreeRanges::Piece gap;
  for (auto& [address, range] : ranges_) {
    if (!range.shared || range.device != device) continue;
    const auto piece = range.gaps.best_fit(bytes);
    if (piece == range.gaps.end() || (best && piece->second >= gap->second)) continue;
    best = &range;
    gap = piece;
  }
  if (!best) {
    const uint64_t address = map_range(kAllocationGranularity);
    if (address == 0) return 0;
    best = &ranges_[address];
    *best = {device, kAllocationGranularity, true, {address, kAllocationGranularity}, {}};
    gap = best->gaps.begin();
  }
  const uint64_t address = best->gaps.take(gap, bytes);
  best->pieces[address] = bytes;
  return address;
}

uint64_t PinnedMemory::allocate(int device, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  if (bytes <= kLargestShared) return allocate_shared(device, round_up(bytes, kUnit));
  const uint64_t size = round_up(bytes, kAllocationGranularity);
  if (size < bytes) return 0;
  const uint64_t address = map_range(size);
  if (address) ranges_[address] = {device, size, false, {}, {}};
  return address;
}

void PinnedMemory::release(uint64_t address) {
  std::lock_guard lock(mutex_);
  auto it = ranges_.upper_bound(address);
  if (it == ranges_.begin()) return;
  --it;
  Range& range = it->second;
  if (range.shared) {
    const auto piece = range.pieces.find(address);
    if (piece == range.pieces.end()) return;
    range.gaps.give_back(address, piece->second);
    range.pieces.erase(piece);
    if (!range.pieces.empty()) return;
  } else if (it->first != address) {
    return;
  }
  pages_->decommit(it->first, range.bytes);
  addresses_->release(it->first);
  ranges_.erase(it);
}

}  // namespace tonnage::gpu
