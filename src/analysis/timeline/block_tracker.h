// BlockTracker: plays the events of PyTorch's caching allocator and knows the exact block behind
// each allocation.
//
// The events carry what was *requested*; PyTorch counts the *block* that it hands out
// (`allocated_bytes`). Which block that is follows from the allocator's rules for rounding,
// splitting and merging (c10/cuda/CUDACachingAllocator.cpp, unchanged from PyTorch 2.1 to 2.13):
// sizes are rounded to 512 B (or by roundup_power2_divisions); the front of a free block is handed
// out and the rest becomes a free block if it is large enough, else it stays part of the
// allocation; freed blocks merge with free neighbours in their segment. Because events have
// addresses, no search is needed: the block is the free one at that address.
//
// Example: a request of 1,500,000 B at the start of a fresh 2,500,096 B free block of the large
// pool gets the whole block, since the rest (999,936 B) is not more than 1 MiB: 2,500,096 B are
// allocated.
//
// One tracker follows one process on one device. Nothing here throws; events that contradict the
// rules are counted.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "record/record.h"

namespace tonnage::analysis {

inline constexpr uint64_t kMinBlockBytes = 512;
inline constexpr uint64_t kSmallPoolLimitBytes =
    1 << 20;  // rounded requests up to this come from the small pool

// What PyTorch makes of a requested size. divisions: 16 entries (1 MiB … 64 GiB) or empty.
uint64_t round_request(uint64_t requested_bytes, const std::vector<uint32_t>& divisions);

class BlockTracker {
 public:
  using Tag = uint32_t;  // the caller's number for an allocation
  static constexpr Tag kNoTag = UINT32_MAX;

  struct Block {
    uint64_t size_bytes = 0;
    uint64_t requested_bytes = 0;  // live and pending blocks
    uint64_t segment = 0;          // blocks merge only within one segment
    Tag tag = kNoTag;
    enum class State : uint8_t { kFree, kLive, kPending } state = State::kFree;
    bool expandable = false;
    bool size_assumed = false;  // older than the history, block size not known for certain
    bool front_assumed =
        false;  // free block behind such a one: its start may really lie further on
  };

  struct Placed {
    uint64_t block_bytes = 0;
    bool consistent =
        true;  // false: no free block was known at this address; the rounded size was taken
  };

  explicit BlockTracker(const record::AllocatorSettings& settings);

  void segment_alloc(uint64_t address, uint64_t size_bytes);
  void segment_free(uint64_t address, uint64_t size_bytes);
  void segment_map(uint64_t address, uint64_t size_bytes, uint64_t stream);
  void segment_unmap(uint64_t address, uint64_t size_bytes, uint64_t stream);

  Placed alloc(uint64_t address, uint64_t requested_bytes, Tag tag);
  // The block as it was; nullopt if nothing is live at the address (counted as an inconsistency).
  std::optional<Block> free_requested(uint64_t address);
  std::optional<Block> free_completed(uint64_t address);

  // Blocks that are older than the history, put into segments that were added before. block_bytes
  // 0: not known.
  void add_old_block(uint64_t address, uint64_t requested_bytes, uint64_t block_bytes, bool pending,
                     Tag tag);
  // After the last add_old_block: gaps of up to 1 MiB behind old blocks of the large pool can only
  // be part of them.
  void settle_old_blocks();
  // Old blocks whose size a later event told: address -> block size. Play the history again with
  // these for exact figures.
  const std::map<uint64_t, uint64_t>& corrections() const { return corrections_; }

  // The live or pending allocation that contains the address; kNoTag if none.
  Tag find(uint64_t address) const;
  const std::map<uint64_t, Block>& blocks() const { return blocks_; }  // by address, free ones too
  const std::map<uint64_t, Block>& loose() const {
    return loose_;
  }  // allocations outside every known segment

  uint64_t allocated_bytes() const { return allocated_bytes_; }
  uint64_t active_bytes() const { return allocated_bytes_ + pending_bytes_; }
  uint64_t pending_bytes() const { return pending_bytes_; }
  uint64_t reserved_bytes() const { return reserved_bytes_; }
  uint64_t requested_bytes() const {
    return requested_bytes_;
  }  // of live and pending ones, as PyTorch counts it
  uint64_t inconsistencies() const { return inconsistencies_; }

 private:
  using Blocks = std::map<uint64_t, Block>;
  bool splits(uint64_t rounded_bytes, uint64_t rest_bytes, bool expandable) const;
  Blocks::iterator containing(uint64_t address);
  void release(Blocks::iterator it);
  Blocks::iterator merge_neighbours(Blocks::iterator it);
  void drop_range(uint64_t address, uint64_t size_bytes);
  bool correct_front(Blocks::iterator free_block, uint64_t address);

  record::AllocatorSettings settings_;
  Blocks blocks_;
  Blocks loose_;
  std::map<uint64_t, uint64_t> corrections_;
  uint64_t allocated_bytes_ = 0, pending_bytes_ = 0, reserved_bytes_ = 0, requested_bytes_ = 0,
           inconsistencies_ = 0;
};

// What existed when the history began: the end state of a snapshot, played backwards. Empty for
// Tonnage's own records.
struct InitialState {
  struct Segment {
    uint64_t address = 0, size_bytes = 0, stream = 0;
    bool expandable = false;
  };
  struct OldBlock {
    uint64_t address = 0, requested_bytes = 0;
    uint64_t block_bytes = 0;  // 0: not known
    uint32_t stack = abi::kNoId;
    bool pending = false;
  };
  std::vector<Segment> segments;
  std::vector<OldBlock> blocks;
};

// Puts segments and old blocks into a fresh tracker. tags: one for each of state.blocks, or null.
void apply_initial_state(const InitialState& state, BlockTracker& tracker,
                         const std::vector<BlockTracker::Tag>* tags);

// Feeds an allocator event to the tracker; others are ignored.
void play(const abi::MemoryEvent& event, BlockTracker& tracker);

// By device. Cost: one pass over the events, a second one if blocks of unknown size remain.
std::map<int, InitialState> initial_states(const record::Record& record);

}  // namespace tonnage::analysis
