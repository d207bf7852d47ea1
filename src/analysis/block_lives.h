// Where every block and every segment of one process on one device was, and from when until when.
// With it the page makes the segment map of any moment without replaying the history. A test
// compares it with segment_map_at (fragmentation.h).
#pragma once

#include <vector>

#include "analysis/diagnosis/fragmentation.h"

namespace tonnage::analysis {

// A piece of memory that the driver gave, or the rest of one after a part went back. Neighbours of
// one expandable segment are one.
struct SegmentLife {
  uint64_t address = 0, size_bytes = 0, stream = 0;
  uint64_t group = 0;              // neighbours of one group belong together
  uint32_t from = 0, to = kNever;  // events: there after `from`, gone after `to`
  bool expandable = false;
};

struct BlockLife {
  uint64_t address = 0, size_bytes = 0, requested_bytes = 0;
  uint32_t from = 0;        // event; 0 where it is older than the record
  uint32_t freed = kNever;  // from then on it waits for another stream
  uint32_t gone = kNever;
  uint32_t alloc_event = kNever;  // kNever: older than the record
  uint32_t stack = abi::kNoId;
};

struct BlockLives {
  int device = 0;
  uint32_t process = 0;
  std::vector<SegmentLife> segments;  // by `from`
  std::vector<BlockLife> blocks;      // by `from`
};

// Cost: one replay of the device's allocator events.
BlockLives block_lives(const Timeline& timeline, int device, uint32_t process);

// The map after the event. Cost: one pass over the lives.
SegmentMap map_of(const BlockLives& lives, uint64_t event);

}  // namespace tonnage::analysis
