#include "gpu/managed_memory.h"

#include <algorithm>

namespace tonnage::gpu {
namespace {

constexpr uint64_t kBlock = kAllocationGranularity;
using abi::DeviceMemoryKind;

}  // namespace

void ManagedMemory::add(uint64_t address, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  Allocation& allocation = allocations_[address];
  allocation = {};
  allocation.bytes = bytes;
  allocation.on_card.assign(round_up(bytes, kBlock) / kBlock, false);
  count_.store(allocations_.size());
}

void ManagedMemory::remove(uint64_t address) {
  std::lock_guard lock(mutex_);
  const auto it = allocations_.find(address);
  if (it == allocations_.end()) return;
  move_to_host(*it, 0, it->second.on_card.size() - 1);
  allocations_.erase(it);
  count_.store(allocations_.size());
}

ManagedMemory::Entry* ManagedMemory::find(uint64_t address) {
  auto it = allocations_.upper_bound(address);
  if (it == allocations_.begin()) return nullptr;
  --it;
  return address - it->first < it->second.bytes ? &*it : nullptr;
}

// The record has one row for an allocation, as large as what the card has of it now.
void ManagedMemory::change_resident(Entry& entry, uint64_t resident) {
  auto& [address, allocation] = entry;
  if (resident == allocation.resident) return;
  if (allocation.resident)
    allocation.card->tell_of_free(address, allocation.resident, DeviceMemoryKind::kManaged);
  allocation.resident = resident;
  if (resident)
    allocation.card->tell_of_alloc(address, resident, DeviceMemoryKind::kManaged);
  else
    allocation.card = nullptr;
}

void ManagedMemory::move_to_host(Entry& entry, size_t first_block, size_t last_block) {
  Allocation& allocation = entry.second;
  uint64_t moved = 0;
  for (size_t i = first_block; i <= last_block; i++) {
    moved += allocation.on_card[i] ? kBlock : 0;
    allocation.on_card[i] = false;
  }
  if (moved == 0) return;
  CardMemory* const card = allocation.card;
  change_resident(entry, allocation.resident - moved);
  card->refund(moved);
}

void ManagedMemory::move_to_card(Entry& entry, size_t first_block, size_t last_block,
                                 CardMemory* card) {
  Allocation& allocation = entry.second;
  allocation.last_use = ++uses_;
  if (allocation.card && allocation.card != card)
    move_to_host(entry, 0, allocation.on_card.size() - 1);
  uint64_t missing = 0;
  for (size_t i = first_block; i <= last_block; i++) missing += allocation.on_card[i] ? 0 : kBlock;
  if (missing == 0) return;
  if (!card->try_charge(missing)) {
    make_room_locked(card, missing, &entry);
    if (!card->try_charge(missing)) return;
  }
  for (size_t i = first_block; i <= last_block; i++) allocation.on_card[i] = true;
  allocation.card = card;
  change_resident(entry, allocation.resident + missing);
}

void ManagedMemory::use(uint64_t address, CardMemory* card) {
  if (!any()) return;
  std::lock_guard lock(mutex_);
  Entry* entry = find(address);
  if (!entry) return;
  // A device reads and writes what shall stay on the host over the bus.
  if (entry->second.preferred == kHost) return;
  move_to_card(*entry, 0, entry->second.on_card.size() - 1, card);
}

void ManagedMemory::prefetch(uint64_t address, uint64_t bytes, CardMemory* card, int device) {
  std::lock_guard lock(mutex_);
  Entry* entry = find(address);
  if (!entry || bytes == 0) return;
  entry->second.prefetched = device;
  const uint64_t offset = address - entry->first;
  const uint64_t end = offset + std::min(bytes, entry->second.bytes - offset);
  const size_t first = offset / kBlock, last = (end - 1) / kBlock;
  if (card)
    move_to_card(*entry, first, last, card);
  else
    move_to_host(*entry, first, last);
}

void ManagedMemory::prefer(uint64_t address, int device) {
  std::lock_guard lock(mutex_);
  if (Entry* entry = find(address)) entry->second.preferred = device;
}

int ManagedMemory::preferred(uint64_t address) {
  std::lock_guard lock(mutex_);
  const Entry* entry = find(address);
  return entry ? entry->second.preferred : kNowhere;
}

int ManagedMemory::last_prefetched(uint64_t address) {
  std::lock_guard lock(mutex_);
  const Entry* entry = find(address);
  return entry ? entry->second.prefetched : kNowhere;
}

bool ManagedMemory::make_room_locked(CardMemory* card, uint64_t bytes, const Entry* but) {
  bool moved = false;
  while (card->free_bytes() < bytes) {
    Entry* oldest = nullptr;
    for (Entry& entry : allocations_)
      if (entry.second.card == card && &entry != but &&
          (!oldest || entry.second.last_use < oldest->second.last_use))
        oldest = &entry;
    if (!oldest) return moved;
    move_to_host(*oldest, 0, oldest->second.on_card.size() - 1);
    moved = true;
  }
  return moved;
}

bool ManagedMemory::make_room(CardMemory* card, uint64_t bytes) {
  if (!any()) return false;
  std::lock_guard lock(mutex_);
  return make_room_locked(card, bytes, nullptr);
}

}  // namespace tonnage::gpu
