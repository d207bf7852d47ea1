// The blocks that PyTorch's caching allocator has handed out: their sizes, by start address.
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace tonnage::gpu {

// A hash table with linear probing: every tensor of the program enters and leaves it, so it
// allocates nothing on the way.
class BlockTable {
 public:
  // An address that is there already gets the new size. Address 0 is no block.
  void add(uint64_t address, uint64_t bytes) {
    if (address == 0) return;
    std::lock_guard lock(mutex_);
    if (2 * (live_ + 1) > slots_.size()) grow();
    Slot& slot = slots_[place_of(address)];
    live_ += slot.address == 0;
    slot = {address, bytes};
  }

  void remove(uint64_t address) {
    std::lock_guard lock(mutex_);
    if (live_ == 0 || address == 0) return;
    size_t hole = place_of(address);
    if (slots_[hole].address == 0) return;
    live_--;
    // What follows moves up unless it would come before its own place: no search ever meets a gap.
    for (size_t i = next(hole); slots_[i].address != 0; i = next(i)) {
      const size_t home = home_of(slots_[i].address);
      if (((i - home) & mask()) < ((i - hole) & mask())) continue;
      slots_[hole] = slots_[i];
      hole = i;
    }
    slots_[hole] = {};
  }

  // Bytes of the live block that begins at `address`, rounded up as PyTorch rounds; 0 if none does.
  uint64_t bytes_at(uint64_t address) const {
    std::lock_guard lock(mutex_);
    if (live_ == 0 || address == 0) return 0;
    const Slot& slot = slots_[place_of(address)];
    return slot.address == 0 ? 0 : (slot.bytes + kRound - 1) / kRound * kRound;
  }

  // The live block that an address lies in: where it begins, and its bytes; {0, 0} if in none.
  // Looks through all blocks.
  std::pair<uint64_t, uint64_t> containing(uint64_t address) const {
    std::lock_guard lock(mutex_);
    for (const Slot& slot : slots_)
      if (slot.address != 0 && slot.address <= address &&
          address - slot.address < (slot.bytes + kRound - 1) / kRound * kRound)
        return {slot.address, (slot.bytes + kRound - 1) / kRound * kRound};
    return {0, 0};
  }

 private:
  static constexpr uint64_t kRound = 512;
  struct Slot {
    uint64_t address = 0, bytes = 0;
  };

  size_t mask() const { return slots_.size() - 1; }
  size_t next(size_t i) const { return (i + 1) & mask(); }
  size_t home_of(uint64_t address) const {
    return static_cast<size_t>((address * 0x9e3779b97f4a7c15ull) >> 32) & mask();
  }
  // Where the address is, or the free slot where it belongs.
  size_t place_of(uint64_t address) const {
    size_t i = home_of(address);
    while (slots_[i].address != 0 && slots_[i].address != address) i = next(i);
    return i;
  }
  void grow() {
    std::vector<Slot> old(slots_.empty() ? 1024 : 2 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old)
      if (slot.address != 0) slots_[place_of(slot.address)] = slot;
  }

  mutable std::mutex mutex_;
  std::vector<Slot> slots_;  // a power of two of them, at most half in use
  size_t live_ = 0;
};

}  // namespace tonnage::gpu
