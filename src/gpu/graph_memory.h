// Memory that graphs own (allocation and free nodes): its addresses, and what it takes of the card.
//
// An allocation node's address is fixed when the node is made. Allocations of one graph share an
// address where one is freed before the other begins. The card's memory is taken when the graph is
// first uploaded or launched, in chunks, and stays reserved until it is trimmed. Graphs run one
// after another here, so all of them share the same memory, except for allocations that outlive
// their launch. Sources: CUDA Programming Guide, "Graph Memory Nodes"; the figures of an H200
// (driver 580).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <unordered_set>
#include <vector>

#include "gpu/address_space.h"
#include "gpu/card_memory.h"

namespace tonnage::gpu {

// The addresses of one graph's allocations. Locked by the caller.
class GraphAddresses {
 public:
  // The address of `bytes` for a new use. `is_over` says of an earlier use whether it has certainly
  // been freed when the new one begins. 0: no addresses are left.
  uint64_t allocate(AddressSpace* addresses, uint64_t bytes, uint64_t use,
                    const std::function<bool(uint64_t use)>& is_over);
  // The use is forgotten; addresses that nobody uses go back.
  void release(AddressSpace* addresses, uint64_t use);
  bool empty() const { return ranges_.empty(); }
  // How much memory a launch needs so that this use has its part: uses that are over before it may
  // have had the same, whatever their addresses are.
  uint64_t extent_of(uint64_t use) const;

 private:
  struct Use {
    uint64_t id, offset, bytes;
  };
  struct Range {
    uint64_t bytes = 0;
    std::vector<Use> uses;
  };
  // The lowest place in the range where only uses that are over lie; its end if there is none.
  static uint64_t find_place(const Range& range, uint64_t bytes,
                             const std::function<bool(uint64_t)>& is_over);
  std::map<uint64_t, Range> ranges_;  // by address
  Range memory_{~0ull >> 1, {}};      // the memory behind them, as one piece
};

// The card's memory behind the graphs of one device. Locked by the caller.
class GraphMemory {
 public:
  GraphMemory(CardMemory* card, AddressSpace* addresses) : card_(card), addresses_(addresses) {}

  // Before a launch that needs `bytes` of its own. False: the card is full.
  bool prepare(const void* graph, uint64_t bytes);
  void forget(const void* graph);  // it is gone
  // Allocations that outlive their launch.
  void add_live(uint64_t bytes) { live_ += bytes; }
  void end_live(uint64_t bytes) { live_ -= bytes; }
  // Gives back what no allocation needs now.
  void trim();

  uint64_t used() const;
  uint64_t used_high() const { return used_high_; }
  uint64_t reserved() const { return reserved_; }
  uint64_t reserved_high() const { return reserved_high_; }
  void reset_used_high() { used_high_ = used(); }
  void reset_reserved_high() { reserved_high_ = reserved_; }

 private:
  CardMemory* card_;
  AddressSpace* addresses_;
  std::vector<uint64_t> chunks_;  // of kPoolChunk each
  uint64_t reserved_ = 0, reserved_high_ = 0, used_high_ = 0;
  uint64_t live_ = 0;
  uint64_t peak_ = 0;  // most that a launch needed, while a graph that launched is still there
  std::unordered_set<const void*> mapped_;
};

}  // namespace tonnage::gpu
