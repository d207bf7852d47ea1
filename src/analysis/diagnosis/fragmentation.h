// Fragmentation: the segments of one process on one device at one moment, and which blocks prevent
// a request.
//
// PyTorch returns memory to the driver by whole segments only, and a request needs one piece.
// Reserved memory therefore splits into
//   requested
//   + rounding  blocks are larger than requests
//   + pending   freed, but another stream may still use it
//   + cached    free segments
//   + pinned    free pieces of segments that hold something live
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "analysis/timeline/block_tracker.h"
#include "analysis/timeline/timeline.h"

namespace tonnage::analysis {

struct MapBlock {
  uint64_t address = 0, size_bytes = 0, requested_bytes = 0;
  BlockTracker::Block::State state = BlockTracker::Block::State::kFree;
  uint32_t alloc_event = kNever;  // kNever: older than the record, or free
  uint32_t stack = abi::kNoId;
};

struct MapSegment {
  uint64_t address = 0, size_bytes = 0, stream = 0;
  bool expandable = false;  // one mapped run of an expandable segment
  bool small_pool =
      false;  // 2 MiB segments for requests up to 1 MiB (not known for expandable ones)
  uint64_t live_bytes = 0, pending_bytes = 0, free_bytes = 0, largest_free_bytes = 0;
  std::vector<MapBlock> blocks;  // by address, without gaps
};

struct SegmentMap {
  int device = 0;
  uint32_t process = 0;
  uint64_t event = 0;
  std::vector<MapSegment> segments;  // by address
};

inline constexpr uint64_t kSmallSegmentBytes = 2 << 20;

// Plays the allocator's events of one process on one device, from the state before the first on.
class Replay {
 public:
  Replay(const record::Record& record, int device, uint32_t process);
  // Up to `end`, which is left out; after(index, event) is called after each.
  template <class After>
  void run(uint64_t end, After&& after);
  const BlockTracker& tracker() const { return tracker_; }
  const InitialState& initial() const { return initial_; }
  uint64_t stream_of(uint64_t segment) const;
  // Where a block that is not free came from; left as they are: not known.
  void origin(const BlockTracker::Block& block, uint32_t& alloc_event, uint32_t& stack) const;

 private:
  void apply(uint32_t index, const abi::MemoryEvent& event);
  const record::Record& record_;
  int device_;
  uint32_t process_;
  BlockTracker tracker_;
  InitialState initial_;
  std::unordered_map<uint64_t, uint64_t> streams_;  // segment address -> stream
};

// After the event. Cost: one replay of the device's allocator events.
SegmentMap segment_map_at(const Timeline& timeline, int device, uint32_t process, uint64_t event);

struct Fragmentation {
  uint64_t reserved = 0, requested = 0, rounding = 0, pending = 0, cached = 0,
           pinned = 0;  // add up to reserved
  uint64_t segments = 0, pinned_segments = 0;
};
Fragmentation measure_fragmentation(const SegmentMap& map);

// What PyTorch asks the driver for when no block fits: 2 MiB, 20 MiB or a multiple of 2 MiB.
uint64_t segment_request(uint64_t rounded_request);

// Free pieces that could serve a request on the stream.
struct FreePieces {
  uint64_t total_bytes = 0, largest_bytes = 0, count = 0;
};
FreePieces free_pieces(const SegmentMap& map, uint64_t request_bytes, uint64_t stream);

// The smallest set of live blocks that would have to move so that the request fits: in one segment,
// or by emptying segments so that the driver can hand the memory out again. Exact within one
// segment; for emptied segments an upper bound (greedy).
struct MovePlan {
  bool empties_segments = false;
  uint64_t move_bytes = 0;
  uint64_t gained_bytes = 0;       // size of the hole, or of the emptied segments
  std::vector<MapBlock> blocks;    // that would move, largest first
  std::vector<uint64_t> segments;  // addresses
};
// headroom: what the driver would still give out. Nothing if even moving everything does not help.
std::optional<MovePlan> smallest_move(const SegmentMap& map, uint64_t request_bytes,
                                      uint64_t stream, uint64_t headroom_bytes);

// Tags with this bit are indices into the initial state's blocks; events beyond are not played.
inline constexpr BlockTracker::Tag kOldTag = 1u << 31;

template <class After>
void Replay::run(uint64_t end, After&& after) {
  end = std::min<uint64_t>(end, std::min<uint64_t>(record_.events.size(), kOldTag));
  for (uint32_t i = 0; i < end; ++i) {
    const abi::MemoryEvent& event = record_.events[i];
    if (event.device != device_ || event.process != process_) continue;
    apply(i, event);
    after(i, event);
  }
}

}  // namespace tonnage::analysis
