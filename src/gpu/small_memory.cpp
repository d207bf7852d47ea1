#include "gpu/small_memory.h"

namespace tonnage::gpu {

using abi::DeviceMemoryKind;

uint64_t SmallMemory::allocate(const void* owner, uint64_t bytes, bool* made_block) {
  *made_block = false;
  const uint64_t size = taken(bytes);
  std::lock_guard lock(mutex_);
  for (auto& [base, block] : blocks_) {
    if (block.owner != owner) continue;
    const auto piece = block.free.first_fit(size);
    if (piece == block.free.end()) continue;
    block.used_bytes += size;
    return base + block.free.take(piece, size);
  }
  if (!card_->charge(kAllocationGranularity)) return 0;
  const uint64_t base = addresses_->allocate(kAllocationGranularity);
  if (!base) {
    card_->refund(kAllocationGranularity);
    return 0;
  }
  card_->tell_of_alloc(base, kAllocationGranularity, DeviceMemoryKind::kPlain);
  *made_block = true;
  Block& block = blocks_[base];
  block.owner = owner;
  block.used_bytes = size;
  return base + block.free.take(block.free.begin(), size);
}

bool SmallMemory::release(uint64_t address, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  auto it = blocks_.upper_bound(address);
  if (it == blocks_.begin()) return false;
  --it;
  const uint64_t base = it->first;
  if (address >= base + kAllocationGranularity) return false;
  Block& block = it->second;
  block.used_bytes -= taken(bytes);
  block.free.give_back(address - base, taken(bytes));
  if (block.used_bytes > 0) return true;
  blocks_.erase(it);
  card_->tell_of_free(base, kAllocationGranularity, DeviceMemoryKind::kPlain);
  addresses_->release(base);
  card_->refund(kAllocationGranularity);
  return true;
}

}  // namespace tonnage::gpu
