// The blocks that PyTorch's caching allocator has handed out: their sizes by where they begin. Thread-safe.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace tonnage::vgpu {

class BlockTable {
 public:
  void add(uint64_t address, uint64_t bytes) {
    std::lock_guard lock(mutex_);
    blocks_[address] = bytes;
  }
  void remove(uint64_t address) {
    std::lock_guard lock(mutex_);
    blocks_.erase(address);
  }
  // Bytes of the live block that begins at `address`, rounded up as PyTorch rounds; 0 if none does.
  uint64_t bytes_at(uint64_t address) const {
    std::lock_guard lock(mutex_);
    const auto found = blocks_.find(address);
    return found == blocks_.end() ? 0 : (found->second + kRound - 1) / kRound * kRound;
  }

 private:
  static constexpr uint64_t kRound = 512;
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, uint64_t> blocks_;
};

}  // namespace tonnage::vgpu
