// The recorded histories of a real card: what the tracker and the timeline find must be what
// PyTorch itself counted.
#include <gtest/gtest.h>

#include "analysis/timeline/breakdown.h"
#include "analysis/timeline/categories.h"
#include "analysis/timeline/timeline.h"
#include "sources/snapshot/snapshot_reader.h"

namespace tonnage::analysis {
namespace {

// PyTorch's own counts (torch.cuda.memory_stats) when the history was recorded on an H200 with
// torch 2.11.0.
struct Case {
  const char* name;
  uint64_t peak_allocated, peak_reserved, peak_requested, reserved, allocated;
};

constexpr Case kCases[] = {
    {"leak_loss", 821048320, 851443712, 809509028, 851443712, 701362176},
    {"oom_activations_exp", 7439660544, 7457472512, 7439649184, 7436500992, 419409408},
    {"oom_fragment", 6819938304, 8279556096, 6773800960, 8162115584, 3988783104},
    {"oom_optimizer", 5225456128, 5247074304, 5225455620, 5247074304, 5225456128},
    {"streams_expandable", 742597120, 903872512, 751509508, 903872512, 605192192},
};

class RecordedHistory : public ::testing::TestWithParam<Case> {
 protected:
  static record::Record load(const char* name) {
    auto record = sources::read_snapshot(std::string(TONNAGE_SOURCE_DIR "/tests/data/snapshots/") +
                                         name + ".pickle.xz");
    if (!record) {
      ADD_FAILURE() << record.error().text();
      return {};
    }
    return std::move(record).value();
  }
};

TEST_P(RecordedHistory, CountsAreExact) {
  const record::Record record = load(GetParam().name);
  const Timeline timeline(record);
  ASSERT_EQ(timeline.processes().size(), 1u);
  const ProcessPeak& peak = timeline.processes().begin()->second;
  EXPECT_EQ(peak.allocated, GetParam().peak_allocated);
  EXPECT_EQ(peak.reserved, GetParam().peak_reserved);
  EXPECT_EQ(peak.requested, GetParam().peak_requested);
  EXPECT_EQ(peak.reserved_end, GetParam().reserved);
  EXPECT_EQ(peak.allocated_end, GetParam().allocated);
  EXPECT_EQ(timeline.inconsistencies(), 0u);
}

TEST_P(RecordedHistory, TheEndStateIsTheSnapshotsOwn) {
  const record::Record record = load(GetParam().name);
  const Timeline timeline(record);
  std::map<uint64_t, uint64_t> live;  // address -> block size
  timeline.for_each_live(0, record.events.size(),
                         [&](const Allocation& a) { live[a.address] = a.block_bytes; });
  size_t blocks = 0;
  for (const auto& segment : record.final_segments) {
    for (const auto& block : segment.blocks) {
      if (block.state != record::BlockState::State::kActive) continue;
      ++blocks;
      ASSERT_EQ(live[block.address], block.size_bytes) << block.address;
    }
  }
  EXPECT_EQ(live.size(), blocks);
}

TEST_P(RecordedHistory, BreakdownsAddUp) {
  const record::Record record = load(GetParam().name);
  Timeline timeline(record);
  infer_categories(timeline);
  for (size_t i = 0; i < record.events.size(); i += 11) {
    const Breakdown breakdown = breakdown_at(timeline, 0, i);
    uint64_t sum = 0;
    for (const BreakdownRow& row : breakdown.rows) sum += row.bytes;
    ASSERT_EQ(sum, breakdown.total_bytes);
    ASSERT_EQ(breakdown.total_bytes, breakdown.reserved_bytes);
  }
}

// The same history without its beginning, as if the ring had been full. What PyTorch reserved is
// exact from the first event kept.
TEST_P(RecordedHistory, WithoutItsBeginningTheEndIsTheSame) {
  record::Record record = load(GetParam().name);
  record.events.erase(record.events.begin(),
                      record.events.begin() + static_cast<long>(record.events.size() / 2));
  record.history_truncated = true;
  const Timeline timeline(record);
  const ProcessPeak& peak = timeline.processes().begin()->second;
  EXPECT_EQ(peak.reserved_end, GetParam().reserved);
  EXPECT_EQ(peak.allocated_end, GetParam().allocated);
  EXPECT_EQ(timeline.inconsistencies(), 0u);
  EXPECT_GT(timeline.devices().at(0).initial_reserved_bytes, 0u);
}

INSTANTIATE_TEST_SUITE_P(Traces, RecordedHistory, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tonnage::analysis
