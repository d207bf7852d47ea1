#include "analysis/block_lives.h"

#include <algorithm>
#include <map>

namespace tonnage::analysis {
namespace {

using abi::EventKind;
using abi::MemoryEvent;
using State = BlockTracker::Block::State;

uint64_t end_of(uint64_t address, uint64_t size) {
  return address > UINT64_MAX - size ? UINT64_MAX : address + size;
}

// Watches a replay: after each event, the blocks and segments that it touched are compared with
// what was known of them.
class Watcher {
 public:
  Watcher(BlockLives& lives, const Replay& replay) : lives_(lives), replay_(replay) {}

  void start() {
    for (const auto& segment : replay_.initial().segments)
      add_segment(segment.address, segment.size_bytes, segment.stream, segment.expandable, 0);
    for (const auto& [address, block] : replay_.tracker().blocks()) {
      if (block.state != State::kFree) add_block(address, block, 0);
    }
  }

  void after(uint32_t index, const MemoryEvent& event) {
    switch (event.kind) {
      case EventKind::kAlloc: after_alloc(index, event); break;
      case EventKind::kFreeRequested:
      case EventKind::kFreeCompleted: look_at(event.address, index); break;
      case EventKind::kSegmentAlloc:
      case EventKind::kSegmentMap:
        cut(event.address, event.size_bytes, index);
        if (event.size_bytes > 0)
          add_segment(event.address, event.size_bytes, event.stream,
                      event.kind == EventKind::kSegmentMap, index);
        break;
      case EventKind::kSegmentFree:
      case EventKind::kSegmentUnmap: cut(event.address, event.size_bytes, index); break;
      default: break;
    }
  }

 private:
  void after_alloc(uint32_t index, const MemoryEvent& event) {
    const auto& blocks = replay_.tracker().blocks();
    const auto found = blocks.find(event.address);
    if (found == blocks.end()) return;  // outside every known segment
    if (found != blocks.begin())
      look_at(std::prev(found)->first, index);  // an old block may turn out to be larger
    if (found->second.state != State::kLive || found->second.tag != index ||
        open_.contains(event.address))
      return;
    add_block(event.address, found->second, index);
  }

  // What became of the block that was at the address.
  void look_at(uint64_t address, uint32_t index) {
    const auto known = open_.find(address);
    if (known == open_.end()) return;
    const auto& blocks = replay_.tracker().blocks();
    const auto now = blocks.find(address);
    const bool there = now != blocks.end() && now->second.state != State::kFree;
    BlockLife& life = lives_.blocks[known->second];
    if (there && now->second.state == State::kPending && life.freed == kNever) life.freed = index;
    if (there && now->second.size_bytes == life.size_bytes) return;
    life.gone = index;
    open_.erase(known);
    if (there) add_block(address, now->second, index);
  }

  // Blocks and segments in the range are gone, if they are.
  void cut(uint64_t address, uint64_t size, uint32_t index) {
    const uint64_t end = end_of(address, size);
    std::vector<uint64_t> touched;
    auto at = open_.upper_bound(address);
    if (at != open_.begin()) --at;
    for (; at != open_.end() && at->first < end; ++at) touched.push_back(at->first);
    for (const uint64_t block : touched) look_at(block, index);

    auto range = ranges_.upper_bound(address);
    if (range != ranges_.begin()) --range;
    while (range != ranges_.end() && range->first < end) {
      const SegmentLife old = lives_.segments[range->second];
      const uint64_t old_end = end_of(old.address, old.size_bytes);
      if (old_end <= address) {
        ++range;
        continue;
      }
      lives_.segments[range->second].to = index;
      range = ranges_.erase(range);
      if (old.address < address) put_range(old, old.address, address, index);
      if (old_end > end) put_range(old, end, old_end, index);
    }
  }

  void put_range(SegmentLife like, uint64_t address, uint64_t end, uint32_t index) {
    like.address = address;
    like.size_bytes = end - address;
    like.from = index;
    like.to = kNever;
    ranges_[address] = lives_.segments.size();
    lives_.segments.push_back(like);
  }

  void add_segment(uint64_t address, uint64_t size, uint64_t stream, bool expandable,
                   uint32_t index) {
    SegmentLife life;
    life.stream = stream;
    life.group = expandable ? stream : address;
    life.expandable = expandable;
    put_range(life, address, end_of(address, size), index);
  }

  void add_block(uint64_t address, const BlockTracker::Block& block, uint32_t index) {
    BlockLife life;
    life.address = address;
    life.size_bytes = block.size_bytes;
    life.requested_bytes = block.requested_bytes;
    life.from = index;
    if (block.state == State::kPending) life.freed = index;
    replay_.origin(block, life.alloc_event, life.stack);
    open_[address] = lives_.blocks.size();
    lives_.blocks.push_back(life);
  }

  BlockLives& lives_;
  const Replay& replay_;
  std::map<uint64_t, size_t> open_;    // address -> index of a block that is there
  std::map<uint64_t, size_t> ranges_;  // address -> index of a segment that is there
};

}  // namespace

BlockLives block_lives(const Timeline& timeline, int device, uint32_t process) {
  BlockLives lives;
  lives.device = device;
  lives.process = process;
  Replay replay(timeline.record(), device, process);
  Watcher watcher(lives, replay);
  watcher.start();
  replay.run(UINT64_MAX,
             [&](uint32_t index, const MemoryEvent& event) { watcher.after(index, event); });
  return lives;
}

SegmentMap map_of(const BlockLives& lives, uint64_t event) {
  SegmentMap map;
  map.device = lives.device;
  map.process = lives.process;
  map.event = event;
  const auto there = [event](const auto& life, uint32_t until) {
    return life.from <= event && (until == kNever || event < until);
  };
  std::vector<const SegmentLife*> ranges;
  std::vector<const BlockLife*> blocks;
  for (const SegmentLife& life : lives.segments) {
    if (there(life, life.to)) ranges.push_back(&life);
  }
  for (const BlockLife& life : lives.blocks) {
    if (there(life, life.gone)) blocks.push_back(&life);
  }
  const auto by_address = [](const auto* a, const auto* b) { return a->address < b->address; };
  std::sort(ranges.begin(), ranges.end(), by_address);
  std::sort(blocks.begin(), blocks.end(), by_address);

  auto next = blocks.begin();
  for (size_t i = 0; i < ranges.size();) {
    MapSegment segment;
    segment.address = ranges[i]->address;
    segment.stream = ranges[i]->stream;
    segment.expandable = ranges[i]->expandable;
    const uint64_t group = ranges[i]->group;
    uint64_t end = segment.address;
    for (; i < ranges.size() && ranges[i]->address == end && ranges[i]->group == group &&
           ranges[i]->expandable == segment.expandable;
         ++i)
      end += ranges[i]->size_bytes;
    segment.size_bytes = end - segment.address;
    segment.small_pool = !segment.expandable && segment.size_bytes == kSmallSegmentBytes;
    uint64_t at = segment.address;
    const auto add_free = [&](uint64_t until) {
      if (until <= at) return;
      MapBlock hole;
      hole.address = at;
      hole.size_bytes = until - at;
      segment.free_bytes += hole.size_bytes;
      segment.largest_free_bytes = std::max(segment.largest_free_bytes, hole.size_bytes);
      segment.blocks.push_back(hole);
    };
    while (next != blocks.end() && (*next)->address < segment.address) ++next;
    for (; next != blocks.end() && (*next)->address < end; ++next) {
      const BlockLife& life = **next;
      add_free(life.address);
      MapBlock block;
      block.address = life.address;
      block.size_bytes = life.size_bytes;
      block.requested_bytes = life.requested_bytes;
      block.state = life.freed != kNever && life.freed <= event ? State::kPending : State::kLive;
      block.alloc_event = life.alloc_event;
      block.stack = life.stack;
      (block.state == State::kLive ? segment.live_bytes : segment.pending_bytes) +=
          block.size_bytes;
      segment.blocks.push_back(block);
      at = life.address + life.size_bytes;
    }
    add_free(end);
    map.segments.push_back(std::move(segment));
  }
  return map;
}

}  // namespace tonnage::analysis
