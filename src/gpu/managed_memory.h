// Managed memory (cuMemAllocManaged): which part of it is on which card.
//
// It begins on the host. When a device uses it (a kernel that gets its address, a memset, a copy, a
// prefetch), it moves there in blocks of 2 MiB. The card is charged for it until it moves away or
// is freed. It never makes a card run out of memory: if there is no room, the managed memory that
// was used longest ago goes back to the host. If that is not enough, the memory stays where it is.
// Accesses of the host are not seen, so they move nothing. Source: CUDA Programming Guide, "Unified
// Memory Programming".
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "gpu/address_space.h"
#include "gpu/card_memory.h"

namespace tonnage::gpu {

// Of one process. Thread-safe.
class ManagedMemory {
 public:
  static constexpr int kNowhere = -2, kHost = -1;  // as CU_DEVICE_INVALID and CU_DEVICE_CPU

  void add(uint64_t address, uint64_t bytes);
  // What is on a card comes off its account. Others than add had are ignored.
  void remove(uint64_t address);
  // Whether there is any: one load, for calls that come often.
  bool any() const { return count_.load(std::memory_order_relaxed) > 0; }

  // A device uses the allocation that `address` lies in; nothing happens if it lies in none.
  void use(uint64_t address, CardMemory* card);
  // [address, address + bytes) moves to the card; null: to the host. `device` as the API numbers it.
  void prefetch(uint64_t address, uint64_t bytes, CardMemory* card, int device);
  // cuMemAdvise: where it shall stay; kNowhere takes it back.
  void prefer(uint64_t address, int device);
  // Moves what was used longest ago to the host until `bytes` of the card are free, or no more is
  // there. Returns whether anything moved.
  bool make_room(CardMemory* card, uint64_t bytes);

  int preferred(uint64_t address);
  int last_prefetched(uint64_t address);

 private:
  struct Allocation {
    uint64_t bytes = 0;
    CardMemory* card = nullptr;  // that has some of it; null: all is on the host
    std::vector<bool> on_card;   // by block
    uint64_t resident = 0;       // bytes of blocks on the card
    uint64_t last_use = 0;
    int preferred = kNowhere, prefetched = kNowhere;
  };
  using Entry = std::pair<const uint64_t, Allocation>;

  Entry* find(uint64_t address);
  void move_to_card(Entry& entry, size_t first_block, size_t last_block, CardMemory* card);
  void move_to_host(Entry& entry, size_t first_block, size_t last_block);
  void change_resident(Entry& entry, uint64_t resident);
  bool make_room_locked(CardMemory* card, uint64_t bytes, const Entry* but);

  std::mutex mutex_;
  std::map<uint64_t, Allocation> allocations_;  // by address
  std::atomic<size_t> count_{0};
  uint64_t uses_ = 0;
};

}  // namespace tonnage::gpu
