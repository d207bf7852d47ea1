// The lives of blocks, as the HTML report carries them, against a replay of the allocator up to
// each moment.
#include <gtest/gtest.h>

#include <random>

#include "analysis/analysis_builder.h"
#include "analysis/block_lives.h"
#include "sources/snapshot/snapshot_reader.h"

namespace tonnage::analysis {
namespace {

using testing::kMiB;
using testing::PlainAllocator;
using testing::RecordBuilder;

std::string text_of(const SegmentMap& map) {
  std::string out;
  for (const MapSegment& segment : map.segments) {
    out += "segment " + std::to_string(segment.address) + " " + std::to_string(segment.size_bytes) +
           " stream " + std::to_string(segment.stream) + (segment.expandable ? " expandable" : "") +
           (segment.small_pool ? " small" : "") + " live " + std::to_string(segment.live_bytes) +
           " pending " + std::to_string(segment.pending_bytes) + " free " +
           std::to_string(segment.free_bytes) + " largest " +
           std::to_string(segment.largest_free_bytes) + "\n";
    for (const MapBlock& block : segment.blocks)
      out += "  " + std::to_string(block.address) + " " + std::to_string(block.size_bytes) + " " +
             std::to_string(block.requested_bytes) + " " +
             std::to_string(static_cast<int>(block.state)) + " " +
             std::to_string(block.alloc_event) + " " + std::to_string(block.stack) + "\n";
  }
  return out;
}

void compare(const record::Record& record, int device, uint32_t process, uint64_t stride) {
  const Timeline timeline(record);
  const BlockLives lives = block_lives(timeline, device, process);
  for (uint64_t event = 0; event < record.events.size() + 2; event += stride)
    ASSERT_EQ(text_of(map_of(lives, event)),
              text_of(segment_map_at(timeline, device, process, event)))
        << "event " << event;
}

TEST(BlockLives, EveryMomentOfARandomProgram) {
  RecordBuilder out;
  PlainAllocator allocator(out);
  std::mt19937 random(7);
  std::vector<uint64_t> live;
  for (int i = 0; i < 600; ++i) {
    if (live.empty() || random() % 5 < 3) {
      live.push_back(
          allocator.alloc(random() % 3 == 0 ? 1 + random() % (40 * kMiB) : 1 + random() % 100'000));
    } else {
      const size_t which = random() % live.size();
      allocator.release(live[which]);
      live.erase(live.begin() + static_cast<ptrdiff_t>(which));
    }
    if (i % 150 == 149) allocator.empty_cache();
  }
  compare(out.record, 0, 0, 1);
}

TEST(BlockLives, BlocksThatWaitForAStream) {
  RecordBuilder out;
  out.segment(0x7f0000000000, 20 * kMiB);
  out.alloc(0x7f0000000000, 3 * kMiB);
  out.alloc(0x7f0000000000 + 3 * kMiB, 2 * kMiB);
  out.add(abi::EventKind::kFreeRequested, 0x7f0000000000, 3 * kMiB);
  out.alloc(0x7f0000000000 + 5 * kMiB, 2 * kMiB);
  out.add(abi::EventKind::kFreeCompleted, 0x7f0000000000, 3 * kMiB);
  out.alloc(0x7f0000000000, 1 * kMiB + 7);
  compare(out.record, 0, 0, 1);
}

TEST(BlockLives, ExpandableSegmentsGrowAndShrink) {
  RecordBuilder out;
  out.record.settings.expandable_segments = true;
  constexpr uint64_t kBase = 0x7f0000000000;
  const auto pages = [&](abi::EventKind kind, uint64_t at, uint64_t size) {
    out.add(kind, kBase + at * kMiB, size * kMiB);
  };
  pages(abi::EventKind::kSegmentMap, 0, 20);
  out.alloc(kBase, 18 * kMiB);
  pages(abi::EventKind::kSegmentMap, 20, 20);
  out.alloc(kBase + 18 * kMiB, 20 * kMiB);
  out.release(kBase, 18 * kMiB);
  pages(abi::EventKind::kSegmentUnmap, 0, 16);  // the middle of what was mapped stays
  pages(abi::EventKind::kSegmentMap, 4, 8);
  out.alloc(kBase + 4 * kMiB, 4 * kMiB);
  compare(out.record, 0, 0, 1);
}

TEST(BlockLives, RecordedHistories) {
  for (const char* name : {"streams_expandable", "leak_loss", "oom_fragment"}) {
    auto record = sources::read_snapshot(std::string(TONNAGE_SOURCE_DIR) +
                                         "/tests/data/snapshots/" + name + ".pickle.xz");
    ASSERT_TRUE(record.has_value()) << name;
    compare(*record, 0, 0, record->events.size() / 29 + 1);
    // The history's end is the beginning of nothing: what is older than a part of it is there all
    // the same.
    record->events.erase(
        record->events.begin(),
        record->events.begin() + static_cast<ptrdiff_t>(record->events.size() / 2));
    record->history_truncated = true;
    compare(*record, 0, 0, record->events.size() / 13 + 1);
  }
}

}  // namespace
}  // namespace tonnage::analysis
