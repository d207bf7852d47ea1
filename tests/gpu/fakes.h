// A host and a card for tests of the virtual card's parts.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "gpu/address_space.h"
#include "gpu/card_memory.h"
#include "gpu/pinned_memory.h"

namespace tonnage::gpu {

// A host whose address space is empty below `top`: regions go into the highest gap that is longer
// by the alignment, as the kernel and the driver place them.
class EmptyHost : public RegionSource {
 public:
  explicit EmptyHost(uint64_t top) { gaps_[0] = top; }
  uint64_t take(uint64_t bytes) override {
    for (auto gap = gaps_.rbegin(); gap != gaps_.rend(); ++gap) {
      if (gap->second < bytes + kRegion) continue;
      gap->second -= bytes;
      return gap->first + gap->second;
    }
    return 0;
  }
  void give_back(uint64_t address, uint64_t bytes) override {
    auto next = gaps_.lower_bound(address);
    if (next != gaps_.end() && next->first == address + bytes) {
      bytes += next->second;
      next = gaps_.erase(next);
    }
    if (next != gaps_.begin()) {
      auto before = std::prev(next);
      if (before->first + before->second == address) {
        before->second += bytes;
        return;
      }
    }
    gaps_[address] = bytes;
  }

 private:
  std::map<uint64_t, uint64_t> gaps_;  // start -> bytes
};

// Keeps count of what is taken of it.
class FakeCard : public CardMemory {
 public:
  explicit FakeCard(uint64_t total = 64ull << 30) : total_(total) {}
  bool charge(uint64_t bytes) override {
    if (try_charge(bytes)) return true;
    refusals++;
    return false;
  }
  bool try_charge(uint64_t bytes) override {
    if (bytes > total_ - used) return false;
    used += bytes;
    return true;
  }
  void refund(uint64_t bytes) override { used -= bytes; }
  uint64_t free_bytes() override { return total_ - used; }
  uint64_t total_bytes() const override { return total_; }
  void tell_of_alloc(uint64_t address, uint64_t bytes, abi::DeviceMemoryKind) override {
    live[address] = bytes;
  }
  void tell_of_free(uint64_t address, uint64_t, abi::DeviceMemoryKind) override {
    live.erase(address);
  }
  bool charge_driver(uint64_t bytes, abi::DriverMemory what, std::string_view name) override {
    if (!charge(bytes)) return false;
    by_purpose[what] += bytes;
    last_name = name;
    return true;
  }

  uint64_t used = 0;
  int refusals = 0;
  std::map<uint64_t, uint64_t> live;
  std::map<abi::DriverMemory, uint64_t> by_purpose;
  std::string last_name;

 private:
  uint64_t total_;
};

// Host memory that is not there.
class FakePages : public HostPages {
 public:
  bool commit(uint64_t, uint64_t bytes) override {
    if (bytes > room) return false;
    committed += bytes;
    return true;
  }
  void decommit(uint64_t, uint64_t bytes) override { committed -= bytes; }
  uint64_t committed = 0, room = ~0ull;
};

// What a device's parts share in a test.
struct TestAddresses {
  EmptyHost high{1ull << 46}, low{1ull << 40};
  AddressSpace space{&high, &low};
};

}  // namespace tonnage::gpu
