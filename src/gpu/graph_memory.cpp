#include "gpu/graph_memory.h"

#include <algorithm>

#include "gpu/memory_pool.h"

namespace tonnage::gpu {

uint64_t GraphAddresses::find_place(const Range& range, uint64_t bytes,
                                    const std::function<bool(uint64_t)>& is_over) {
  // The ends of uses that are not over, and the beginning, are all that has to be tried.
  uint64_t place = 0;
  for (bool moved = true; moved && place + bytes <= range.bytes;) {
    moved = false;
    for (const Use& use : range.uses) {
      const bool apart = use.offset >= place + bytes || use.offset + use.bytes <= place;
      if (apart || is_over(use.id)) continue;
      place = use.offset + use.bytes;
      moved = true;
    }
  }
  return place + bytes <= range.bytes ? place : range.bytes;
}

uint64_t GraphAddresses::allocate(AddressSpace* addresses, uint64_t bytes, uint64_t use,
                                  const std::function<bool(uint64_t)>& is_over) {
  const uint64_t size = round_up(bytes, kAllocationGranularity);
  if (size < bytes) return 0;
  std::pair<const uint64_t, Range>* best = nullptr;
  uint64_t best_place = 0;
  for (auto& entry : ranges_) {
    if (entry.second.bytes < size || (best && entry.second.bytes >= best->second.bytes)) continue;
    const uint64_t place = find_place(entry.second, size, is_over);
    if (place == entry.second.bytes) continue;
    best = &entry;
    best_place = place;
  }
  if (!best) {
    const uint64_t address = addresses->reserve(size);
    if (!address) return 0;
    best = &*ranges_.try_emplace(address, Range{size, {}}).first;
  }
  best->second.uses.push_back({use, best_place, size});
  const uint64_t counted = round_up(bytes, kPoolUnit);
  memory_.uses.push_back({use, find_place(memory_, counted, is_over), counted});
  return best->first + best_place;
}

void GraphAddresses::release(AddressSpace* addresses, uint64_t use) {
  std::erase_if(memory_.uses, [&](const Use& part) { return part.id == use; });
  for (auto it = ranges_.begin(); it != ranges_.end();) {
    auto& uses = it->second.uses;
    std::erase_if(uses, [&](const Use& part) { return part.id == use; });
    if (!uses.empty()) {
      ++it;
      continue;
    }
    addresses->release(it->first);
    it = ranges_.erase(it);
  }
}

uint64_t GraphAddresses::extent_of(uint64_t use) const {
  for (const Use& part : memory_.uses)
    if (part.id == use) return part.offset + part.bytes;
  return 0;
}

uint64_t GraphMemory::used() const {
  return std::min(reserved_, round_up(std::max(live_, peak_), kPoolChunk));
}

bool GraphMemory::prepare(const void* graph, uint64_t bytes) {
  const uint64_t needed = live_ + bytes;
  if (needed > reserved_) {
    const uint64_t more = round_up(needed, kPoolChunk) - reserved_;
    if (!card_->charge(more)) return false;
    for (uint64_t taken = 0; taken < more; taken += kPoolChunk) {
      // Known to the record by addresses of their own; those of the allocations in it are the nodes'.
      const uint64_t address = addresses_->reserve(kPoolChunk);
      chunks_.push_back(address);
      reserved_ += kPoolChunk;
      card_->tell_of_alloc(address, kPoolChunk, abi::DeviceMemoryKind::kGraph);
    }
  }
  mapped_.insert(graph);
  peak_ = std::max(peak_, needed);
  reserved_high_ = std::max(reserved_high_, reserved_);
  used_high_ = std::max(used_high_, used());
  return true;
}

void GraphMemory::forget(const void* graph) {
  mapped_.erase(graph);
  if (mapped_.empty()) peak_ = 0;
}

void GraphMemory::trim() {
  mapped_.clear();  // nothing runs now; the next launch takes what it needs
  peak_ = 0;
  while (!chunks_.empty() && reserved_ - kPoolChunk >= live_) {
    const uint64_t address = chunks_.back();
    chunks_.pop_back();
    reserved_ -= kPoolChunk;
    card_->tell_of_free(address, kPoolChunk, abi::DeviceMemoryKind::kGraph);
    addresses_->release(address);
    card_->refund(kPoolChunk);
  }
}

}  // namespace tonnage::gpu
