#include "analysis/true_need.h"

#include <gtest/gtest.h>

#include <optional>

#include "analysis/analysis_builder.h"
#include "analysis/timeline/categories.h"

namespace tonnage::analysis {
namespace {

using testing::EventKind;
using testing::kMiB;
using testing::RecordBuilder;

constexpr uint64_t kBase = 0x7f0000000000;
constexpr uint64_t kLimitless = 1ull << 40;

// Steps that each reach 300 MiB of PyTorch's and 64 MiB of context; `more` comes on top in the last.
RecordBuilder training(int steps, uint64_t more = 0) {
  RecordBuilder b;
  b.add(EventKind::kContext, 0, 64 * kMiB);
  b.in(Phase::kInit).from(b.stack({{"train.py", 3, "main"}}));
  b.segment(kBase, 100 * kMiB);
  b.alloc(kBase, 100 * kMiB);
  for (int step = 1; step <= steps; ++step) {
    b.in(Phase::kForward).from(b.stack({{"train.py", 9, "main"}}));
    if (step == 1) b.segment(kBase + 1024 * kMiB, 200 * kMiB);
    b.alloc(kBase + 1024 * kMiB, 200 * kMiB);
    if (step == steps && more > 0) b.segment(kBase + 4096 * kMiB, more);
    b.release(kBase + 1024 * kMiB, 200 * kMiB);
    b.add(EventKind::kStep, 0, 0, static_cast<uint64_t>(step));
  }
  return b;
}

record::TrueNeed need_of(const RecordBuilder& b, uint64_t card_bytes) {
  Timeline timeline(b.record);
  infer_categories(timeline);
  return measure_need(timeline, {card_bytes}, kLimitless);
}

TEST(TrueNeed, IsThePeakOfTheDevice) {
  const record::TrueNeed need = need_of(training(3), 256 * kMiB);
  ASSERT_EQ(need.devices.size(), 1u);
  EXPECT_EQ(need.devices[0].device_bytes, 364 * kMiB);
  EXPECT_EQ(need.devices[0].allocated_bytes, 300 * kMiB);
  EXPECT_EQ(need.devices[0].reserved_bytes, 300 * kMiB);
  EXPECT_EQ(need.steps, 3u);
  EXPECT_TRUE(need.repeats);
  EXPECT_FALSE(need.takes_share);
}

TEST(TrueNeed, APeakThatStillGrowsDoesNotRepeat) {
  EXPECT_FALSE(need_of(training(1), 256 * kMiB).repeats);
  EXPECT_FALSE(need_of(training(3, 50 * kMiB), 256 * kMiB).repeats);
  auto b = training(1);
  b.record.end.known = true;  // it came to its end by itself: there is no more
  EXPECT_TRUE(need_of(b, 256 * kMiB).repeats);
}

TEST(TrueNeed, AShareOfTheCardIsNoNeed) {
  RecordBuilder b;
  b.add(EventKind::kDeviceAlloc, kBase, kLimitless / 10 * 9);
  EXPECT_TRUE(need_of(b, 256 * kMiB).takes_share);
}

TEST(TrueNeed, WhatARemedyLeavesIsCounted) {
  const record::TrueNeed need = need_of(training(3), 300 * kMiB);
  ASSERT_FALSE(need.remedies.empty());
  const record::Remedy& batch = need.remedies.front();
  ASSERT_EQ(batch.kinds.size(), 1u);
  EXPECT_EQ(batch.kinds[0], record::Remedy::Kind::kSmallerBatch);
  EXPECT_TRUE(batch.enough);
  EXPECT_GT(batch.batch_share, 0.3);
  EXPECT_LT(batch.batch_share, 0.9);
  EXPECT_LE(batch.needs_bytes, 300 * kMiB);
}

// The optimizer's temporaries are as large with any batch, and more than a small one's activations.
TEST(TrueNeed, WhatTheOptimizerNeedsStaysWithASmallerBatch) {
  auto b = training(0);
  for (int step = 1; step <= 3; ++step) {
    b.in(Phase::kForward).from(b.stack({{"train.py", 9, "main"}}));
    if (step == 1) b.segment(kBase + 1024 * kMiB, 400 * kMiB);
    b.alloc(kBase + 1024 * kMiB, 400 * kMiB);
    b.release(kBase + 1024 * kMiB, 400 * kMiB);
    b.in(Phase::kOptimizer).from(b.stack({{"/site-packages/torch/optim/adamw.py", 3, "step"}}));
    b.alloc(kBase + 1024 * kMiB, 150 * kMiB);
    b.release(kBase + 1024 * kMiB, 150 * kMiB);
    b.add(EventKind::kStep, 0, 0, static_cast<uint64_t>(step));
  }
  const auto smaller_batch = [&](uint64_t card) -> std::optional<record::Remedy> {
    for (const record::Remedy& remedy : need_of(b, card).remedies) {
      if (remedy.kinds == std::vector{record::Remedy::Kind::kSmallerBatch}) return remedy;
    }
    return std::nullopt;
  };
  // 64 of context, 100 that stays, 150 of the optimizer's: no batch fits into less.
  EXPECT_FALSE(smaller_batch(300 * kMiB).has_value());
  const auto fits = smaller_batch(500 * kMiB);
  ASSERT_TRUE(fits.has_value());
  EXPECT_TRUE(fits->enough);
  EXPECT_GT(fits->batch_share, 0.5);
  EXPECT_LT(fits->batch_share, 0.85);
}

// A buffer that no category tells, made before the first step.
TEST(TrueNeed, WhatOutlivesAStepStaysWithASmallerBatch) {
  RecordBuilder b;
  b.add(EventKind::kContext, 0, 64 * kMiB);
  b.from(b.stack({{"train.py", 2, "main"}})).segment(kBase, 100 * kMiB);
  b.alloc(kBase, 100 * kMiB);
  for (int step = 1; step <= 3; ++step) {
    b.in(Phase::kForward).from(b.stack({{"train.py", 9, "main"}}));
    if (step == 1) b.segment(kBase + 1024 * kMiB, 200 * kMiB);
    b.alloc(kBase + 1024 * kMiB, 200 * kMiB);
    b.release(kBase + 1024 * kMiB, 200 * kMiB);
    b.add(EventKind::kStep, 0, 0, static_cast<uint64_t>(step));
  }
  // 164 stay, and a part of the 200 must fit into 300 - 164 - 40 with one eighth more.
  const record::TrueNeed need = need_of(b, 300 * kMiB);
  ASSERT_FALSE(need.remedies.empty());
  EXPECT_TRUE(need.remedies.front().enough);
  EXPECT_NEAR(need.remedies.front().batch_share, 96.0 / 225, 0.01);
  EXPECT_TRUE(need_of(b, 180 * kMiB).remedies.empty());
}

// A quarter of what PyTorch had was free pieces: so it is taken to be with less, too.
TEST(TrueNeed, FreePiecesKeepTheirShare) {
  auto b = training(0);
  for (int step = 1; step <= 3; ++step) {
    b.in(Phase::kForward).from(b.stack({{"train.py", 9, "main"}}));
    if (step == 1) b.segment(kBase + 1024 * kMiB, 300 * kMiB);
    b.alloc(kBase + 1024 * kMiB, 200 * kMiB);
    b.release(kBase + 1024 * kMiB, 200 * kMiB);
    b.add(EventKind::kStep, 0, 0, static_cast<uint64_t>(step));
  }
  const record::TrueNeed need = need_of(b, 350 * kMiB);
  ASSERT_FALSE(need.remedies.empty());
  const double share = need.remedies.front().batch_share;
  EXPECT_NEAR((100 + 200 * share) * 4 / 3 + 25 * share, 350 - 64 - 40, 1);
  EXPECT_NEAR(static_cast<double>(need.remedies.front().needs_bytes) / static_cast<double>(kMiB),
              64 + (100 + 200 * share) * 4 / 3, 1);
}

TEST(TrueNeed, WhereTheRestAloneIsTooLargeNoBatchHelps) {
  for (const record::Remedy& remedy : need_of(training(3), 60 * kMiB).remedies)
    EXPECT_FALSE(remedy.enough);
}

}  // namespace
}  // namespace tonnage::analysis
