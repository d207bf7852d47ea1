#include "analysis/timeline/block_tracker.h"

#include <gtest/gtest.h>

#include "analysis/analysis_builder.h"

namespace tonnage::analysis {
namespace {

using testing::EventKind;
using testing::kMiB;
using testing::PlainAllocator;
using testing::random_program;
using testing::RecordBuilder;

constexpr uint64_t kBase = 0x7f0000000000;

TEST(RoundRequest, IsMultipleOf512) {
  EXPECT_EQ(round_request(1, {}), 512u);
  EXPECT_EQ(round_request(512, {}), 512u);
  EXPECT_EQ(round_request(513, {}), 1024u);
  EXPECT_EQ(round_request(1000, {}), 1024u);
  EXPECT_EQ(round_request(5 * kMiB, {}), 5 * kMiB);
}

TEST(RoundRequest, PowerOfTwoDivisions) {
  const std::vector<uint32_t> four(16, 4);
  // Between 1024 and 2048 bytes the steps are 256, but 512 * 4 is the least size that they apply to.
  EXPECT_EQ(round_request(1200, four), 1536u);
  // Between 8 MiB and 16 MiB the steps are 2 MiB.
  EXPECT_EQ(round_request(9 * kMiB, four), 10 * kMiB);
  EXPECT_EQ(round_request(10 * kMiB, four), 10 * kMiB);
  EXPECT_EQ(round_request(10 * kMiB + 1, four), 12 * kMiB);
  EXPECT_EQ(round_request(16 * kMiB, four), 16 * kMiB);
  // Each power of two has its own entry: 4 MiB … 8 MiB is entry 2.
  std::vector<uint32_t> only_4_mib(16, 0);
  only_4_mib[2] = 2;
  EXPECT_EQ(round_request(5 * kMiB, only_4_mib), 6 * kMiB);
  EXPECT_EQ(round_request(9 * kMiB, only_4_mib), 9 * kMiB);
}

TEST(RoundRequest, HostileSizesDoNotWrap) {
  EXPECT_GE(round_request(UINT64_MAX - 5, {}), UINT64_MAX - 600);
}

TEST(BlockTracker, SmallPoolSplitsFrom512) {
  BlockTracker tracker({});
  tracker.segment_alloc(kBase, 2 * kMiB);
  EXPECT_EQ(tracker.alloc(kBase, 100, 0).block_bytes, 512u);
  EXPECT_EQ(tracker.alloc(kBase + 512, 1000, 1).block_bytes, 1024u);
  EXPECT_EQ(tracker.allocated_bytes(), 1536u);
  EXPECT_EQ(tracker.requested_bytes(), 1100u);
  EXPECT_EQ(tracker.reserved_bytes(), 2 * kMiB);
  EXPECT_EQ(tracker.inconsistencies(), 0u);
}

TEST(BlockTracker, LargePoolKeepsRestsOfUpToOneMiB) {
  BlockTracker tracker({});
  tracker.segment_alloc(kBase, 20 * kMiB);
  // The rest is exactly 1 MiB: not split.
  EXPECT_EQ(tracker.alloc(kBase, 19 * kMiB, 0).block_bytes, 20 * kMiB);
  tracker.free_requested(kBase);
  tracker.free_completed(kBase);
  // One 512-byte unit more of rest: split.
  EXPECT_EQ(tracker.alloc(kBase, 19 * kMiB - 512, 1).block_bytes, 19 * kMiB - 512);
  EXPECT_EQ(tracker.inconsistencies(), 0u);
}

TEST(BlockTracker, RequestsAboveMaxSplitSizeTakeTheWholeBlock) {
  record::AllocatorSettings settings;
  settings.max_split_size_bytes = 32 * kMiB;
  BlockTracker tracker(settings);
  tracker.segment_alloc(kBase, 48 * kMiB);
  EXPECT_EQ(tracker.alloc(kBase, 33 * kMiB, 0).block_bytes, 48 * kMiB);
}

TEST(BlockTracker, ExpandableSegmentsSplitFrom512AndGrow) {
  record::AllocatorSettings settings;
  settings.expandable_segments = true;
  BlockTracker tracker(settings);
  tracker.segment_map(kBase, 20 * kMiB, 7);
  EXPECT_EQ(tracker.alloc(kBase, 19 * kMiB + 512, 0).block_bytes, 19 * kMiB + 512);
  tracker.segment_map(kBase + 20 * kMiB, 20 * kMiB, 7);
  // The free rest of the first page and the new one are one block.
  EXPECT_EQ(tracker.alloc(kBase + 19 * kMiB + 512, 20 * kMiB, 1).block_bytes, 20 * kMiB);
  tracker.free_requested(kBase + 19 * kMiB + 512);
  tracker.free_completed(kBase + 19 * kMiB + 512);
  tracker.segment_unmap(kBase + 20 * kMiB, 20 * kMiB, 7);
  EXPECT_EQ(tracker.reserved_bytes(), 20 * kMiB);
  EXPECT_EQ(tracker.allocated_bytes(), 19 * kMiB + 512);
  EXPECT_EQ(tracker.inconsistencies(), 0u);
}

TEST(BlockTracker, PendingBlocksStayActiveUntilCompleted) {
  BlockTracker tracker({});
  tracker.segment_alloc(kBase, 2 * kMiB);
  tracker.alloc(kBase, 1000, 3);
  ASSERT_TRUE(tracker.free_requested(kBase));
  EXPECT_EQ(tracker.allocated_bytes(), 0u);
  EXPECT_EQ(tracker.active_bytes(), 1024u);
  EXPECT_EQ(tracker.find(kBase + 700), 3u);
  ASSERT_TRUE(tracker.free_completed(kBase));
  EXPECT_EQ(tracker.active_bytes(), 0u);
  EXPECT_EQ(tracker.find(kBase + 700), BlockTracker::kNoTag);
  EXPECT_EQ(tracker.blocks().size(), 1u);  // merged again
}

TEST(BlockTracker, ContradictionsAreCountedAndDoNotBreakTheSums) {
  BlockTracker tracker({});
  EXPECT_FALSE(tracker.free_requested(kBase));  // never allocated
  tracker.alloc(kBase, 1000, 0);                // outside every segment
  EXPECT_EQ(tracker.allocated_bytes(), 1024u);
  tracker.segment_free(kBase + 64 * kMiB, 2 * kMiB);  // never made
  EXPECT_EQ(tracker.inconsistencies(), 3u);
  EXPECT_TRUE(tracker.free_requested(kBase));
  EXPECT_EQ(tracker.allocated_bytes(), 0u);
  tracker.segment_alloc(kBase, 2 * kMiB);
  tracker.alloc(kBase + 4096, 512, 1);  // in the middle of a free block
  EXPECT_EQ(tracker.allocated_bytes(), 512u);
  tracker.segment_free(kBase, 2 * kMiB);  // with a live block in it
  EXPECT_EQ(tracker.allocated_bytes(), 0u);
  EXPECT_EQ(tracker.reserved_bytes(), 0u);
  EXPECT_GT(tracker.inconsistencies(), 4u);
}

class AgainstPlainAllocator : public ::testing::TestWithParam<std::tuple<unsigned, uint64_t>> {};

TEST_P(AgainstPlainAllocator, EveryBlockAndSumIsExact) {
  const auto [seed, max_split] = GetParam();
  RecordBuilder builder;
  PlainAllocator allocator(builder, max_split);
  record::AllocatorSettings settings;
  settings.max_split_size_bytes = max_split;
  BlockTracker tracker(settings);
  size_t played = 0;
  random_program(allocator, seed, 3000, [&] {
    for (; played < builder.record.events.size(); ++played)
      play(builder.record.events[played], tracker);
    ASSERT_EQ(tracker.allocated_bytes(), allocator.allocated);
    ASSERT_EQ(tracker.reserved_bytes(), allocator.reserved);
    ASSERT_EQ(tracker.inconsistencies(), 0u);
  });
  ASSERT_EQ(tracker.blocks().size(), allocator.pieces.size());
  for (const auto& [address, piece] : allocator.pieces) {
    auto it = tracker.blocks().find(address);
    ASSERT_NE(it, tracker.blocks().end());
    EXPECT_EQ(it->second.size_bytes, piece.size);
    EXPECT_EQ(it->second.state == BlockTracker::Block::State::kFree, !piece.used);
  }
}

// The history begins in the middle: what came before is found from the end state.
TEST_P(AgainstPlainAllocator, HistoriesThatBeginInTheMiddleEndExact) {
  const auto [seed, max_split] = GetParam();
  RecordBuilder builder;
  PlainAllocator allocator(builder, max_split);
  random_program(allocator, seed, 1500, [] {});
  record::Record whole = builder.record;
  for (size_t cut : {whole.events.size() / 3, whole.events.size() * 9 / 10}) {
    record::Record record = whole;
    record.kind = record::Record::Kind::kSnapshot;
    record.settings.max_split_size_bytes = max_split;
    record.events.erase(record.events.begin(), record.events.begin() + static_cast<long>(cut));
    record.final_segments = allocator.segments();
    auto states = initial_states(record);
    ASSERT_EQ(states.size(), 1u);
    BlockTracker tracker(record.settings);
    apply_initial_state(states[0], tracker, nullptr);
    for (const auto& event : record.events) play(event, tracker);
    EXPECT_EQ(tracker.inconsistencies(), 0u);
    EXPECT_EQ(tracker.reserved_bytes(), allocator.reserved);
    EXPECT_EQ(tracker.allocated_bytes(), allocator.allocated);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, AgainstPlainAllocator,
                         ::testing::Combine(::testing::Range(1u, 9u),
                                            ::testing::Values(UINT64_MAX, 24 * kMiB)));

TEST(InitialState, LearnsAnOldBlocksSizeFromItsNeighbour) {
  // An old block of 3 MiB that really holds 3.5 MiB: a later allocation behind it gives it away.
  RecordBuilder builder;
  builder.alloc(kBase + 3 * kMiB + kMiB / 2, 2 * kMiB);
  builder.release(kBase, 3 * kMiB);
  record::Record& record = builder.record;
  record.kind = record::Record::Kind::kSnapshot;
  record::SegmentState segment;
  segment.address = kBase;
  segment.total_bytes = 20 * kMiB;
  using State = record::BlockState::State;
  segment.blocks.push_back({kBase, 3 * kMiB + kMiB / 2, 0, State::kInactive, 0});
  segment.blocks.push_back({kBase + 3 * kMiB + kMiB / 2, 2 * kMiB, 2 * kMiB, State::kActive, 0});
  segment.blocks.push_back(
      {kBase + 5 * kMiB + kMiB / 2, 14 * kMiB + kMiB / 2, 0, State::kInactive, 0});
  record.final_segments.push_back(segment);
  auto states = initial_states(record);
  ASSERT_EQ(states[0].blocks.size(), 1u);
  EXPECT_EQ(states[0].blocks[0].block_bytes, 3 * kMiB + kMiB / 2);
}

}  // namespace
}  // namespace tonnage::analysis
