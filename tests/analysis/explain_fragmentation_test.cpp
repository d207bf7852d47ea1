// Segment maps and the smallest set of blocks that would have to move, held against a plain search.
#include <gtest/gtest.h>

#include "analysis/analysis_builder.h"
#include "analysis/diagnosis/fragmentation.h"

namespace tonnage::analysis {
namespace {

using testing::kMiB;
using testing::PlainAllocator;
using testing::random_program;
using testing::RecordBuilder;
using State = BlockTracker::Block::State;

TEST(Fragmentation, MapAndSumsAreTheAllocatorsOwn) {
  for (unsigned seed = 1; seed <= 10; ++seed) {
    RecordBuilder out;
    PlainAllocator allocator(out);
    random_program(allocator, seed, 600, [] {});
    const Timeline timeline(out.record);
    const SegmentMap map = segment_map_at(timeline, 0, 0, out.last());
    const Fragmentation sums = measure_fragmentation(map);
    EXPECT_EQ(sums.reserved, allocator.reserved);
    EXPECT_EQ(sums.requested + sums.rounding, allocator.allocated);
    EXPECT_EQ(sums.requested + sums.rounding + sums.pending + sums.cached + sums.pinned,
              sums.reserved);
    auto piece = allocator.pieces.begin();
    for (const MapSegment& segment : map.segments) {
      uint64_t end = segment.address;
      for (const MapBlock& block : segment.blocks) {
        ASSERT_NE(piece, allocator.pieces.end());
        EXPECT_EQ(block.address, piece->first);
        EXPECT_EQ(block.address, end);
        EXPECT_EQ(block.size_bytes, piece->second.size);
        EXPECT_EQ(block.state == State::kLive, piece->second.used);
        if (block.state == State::kLive) {
          ASSERT_NE(block.alloc_event, kNever);
          EXPECT_EQ(out.record.events[block.alloc_event].address, block.address);
        }
        end += block.size_bytes;
        ++piece;
      }
      EXPECT_EQ(end, segment.address + segment.size_bytes);
    }
    EXPECT_EQ(piece, allocator.pieces.end());
  }
}

TEST(Fragmentation, SegmentRequests) {
  EXPECT_EQ(segment_request(512), 2 * kMiB);
  EXPECT_EQ(segment_request(kMiB), 2 * kMiB);
  EXPECT_EQ(segment_request(kMiB + 512), 20 * kMiB);
  EXPECT_EQ(segment_request(10 * kMiB - 512), 20 * kMiB);
  EXPECT_EQ(segment_request(10 * kMiB), 10 * kMiB);
  EXPECT_EQ(segment_request(154927104), 148 * kMiB);  // as PyTorch 2.11 printed it
  EXPECT_EQ(segment_request(UINT64_MAX - 10), UINT64_MAX - 10);
}

// Every run of neighbouring blocks, the slow way.
uint64_t cheapest_window(const SegmentMap& map, uint64_t request) {
  uint64_t best = UINT64_MAX;
  for (const MapSegment& segment : map.segments) {
    if (segment.small_pool) continue;
    for (size_t i = 0; i < segment.blocks.size(); ++i) {
      uint64_t length = 0, live = 0;
      for (size_t j = i; j < segment.blocks.size(); ++j) {
        length += segment.blocks[j].size_bytes;
        if (segment.blocks[j].state != State::kFree) live += segment.blocks[j].size_bytes;
        if (length >= request) best = std::min(best, live);
      }
    }
  }
  return best;
}

TEST(Fragmentation, SmallestMoveIsNeverWorseThanOneWindow) {
  int plans = 0;
  for (unsigned seed = 1; seed <= 40; ++seed) {
    RecordBuilder out;
    PlainAllocator allocator(out);
    random_program(allocator, seed, 400, [] {});
    const Timeline timeline(out.record);
    const SegmentMap map = segment_map_at(timeline, 0, 0, out.last());
    for (const uint64_t request : {4 * kMiB, 15 * kMiB, 60 * kMiB}) {
      const auto plan = smallest_move(map, request, 0, 0);
      const uint64_t window = cheapest_window(map, request);
      if (!plan) continue;
      ++plans;
      EXPECT_LE(plan->move_bytes, window) << seed;
      uint64_t moved = 0;
      for (const MapBlock& block : plan->blocks) {
        EXPECT_NE(block.state, State::kFree);
        moved += block.size_bytes;
      }
      EXPECT_EQ(moved, plan->move_bytes);
      EXPECT_GE(plan->gained_bytes, request);
      if (plan->empties_segments) {
        EXPECT_LT(plan->move_bytes, window);
      } else {
        EXPECT_EQ(plan->move_bytes, window);
      }
    }
  }
  EXPECT_GT(plans, 20);
}

TEST(Fragmentation, HolesBetweenPins) {
  RecordBuilder out;
  PlainAllocator allocator(out);
  std::vector<uint64_t> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(allocator.alloc(2 * kMiB));  // one 20 MiB segment
  for (int i = 0; i < 10; i += 2) allocator.release(blocks[i]);
  const Timeline timeline(out.record);
  const SegmentMap map = segment_map_at(timeline, 0, 0, out.last());
  const FreePieces pieces = free_pieces(map, 6 * kMiB, 0);
  EXPECT_EQ(pieces.count, 5u);
  EXPECT_EQ(pieces.total_bytes, 10 * kMiB);
  EXPECT_EQ(pieces.largest_bytes, 2 * kMiB);
  EXPECT_EQ(free_pieces(map, 6 * kMiB, 7).count, 0u);  // another stream's
  const auto plan = smallest_move(map, 6 * kMiB, 0, 0);
  ASSERT_TRUE(plan.has_value());
  EXPECT_FALSE(plan->empties_segments);
  EXPECT_EQ(plan->move_bytes, 2 * kMiB);  // free, pin, free
  EXPECT_EQ(plan->gained_bytes, 6 * kMiB);
  const Fragmentation sums = measure_fragmentation(map);
  EXPECT_EQ(sums.pinned, 10 * kMiB);
  EXPECT_EQ(sums.pinned_segments, 1u);
  EXPECT_EQ(sums.cached, 0u);
  EXPECT_FALSE(smallest_move(map, 12 * kMiB, 0, 0).has_value());  // not even if everything moved
}

}  // namespace
}  // namespace tonnage::analysis
