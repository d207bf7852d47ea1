#include "abi/driver_memory.h"
#include "analysis/beside_pytorch.h"
#include "analysis/timeline/timeline.h"

#include <gtest/gtest.h>

#include <set>

#include "analysis/analysis_builder.h"
#include "analysis/timeline/breakdown.h"
#include "analysis/timeline/categories.h"

namespace tonnage::analysis {
namespace {

using abi::DeviceMemoryKind;
using testing::EventKind;
using testing::kMiB;
using testing::PlainAllocator;
using testing::random_program;
using testing::RecordBuilder;

constexpr uint64_t kBase = 0x7f0000000000;

uint64_t sum_of_rows(const Breakdown& breakdown) {
  uint64_t sum = 0;
  for (const BreakdownRow& row : breakdown.rows) sum += row.bytes;
  return sum;
}

uint64_t row(const Breakdown& breakdown, Category category) {
  for (const BreakdownRow& r : breakdown.rows) {
    if (r.category == category) return r.bytes;
  }
  return 0;
}

TEST(Timeline, LiveSetAndSamplesAgreeWithAPlainCountAtEveryEvent) {
  RecordBuilder builder;
  builder.add(EventKind::kContext, 0, 300 * kMiB);
  PlainAllocator allocator(builder);
  std::vector<std::pair<uint64_t, uint64_t>>
      truth;  // allocated and reserved after each event; holes repeat
  truth.resize(1, {0, 0});
  random_program(allocator, 42, 2000, [&] {
    truth.resize(builder.record.events.size(), {allocator.allocated, allocator.reserved});
  });
  const Timeline timeline(builder.record);
  EXPECT_EQ(timeline.inconsistencies(), 0u);
  std::set<uint64_t> live;
  uint64_t peak = 0;
  for (uint32_t i = 0; i < builder.record.events.size(); ++i) {
    const auto& event = builder.record.events[i];
    if (event.kind == EventKind::kAlloc) live.insert(event.address);
    if (event.kind == EventKind::kFreeRequested) live.erase(event.address);
    if (event.kind == EventKind::kFreeCompleted || event.kind == EventKind::kAlloc) {
      ASSERT_EQ(timeline.devices().at(0).at(i)->allocated_bytes, truth[i].first);
      peak = std::max(peak, truth[i].first);
    }
    if (i % 37 != 0) continue;
    std::set<uint64_t> seen;
    timeline.for_each_live(
        0, i, [&](const Allocation& a) { EXPECT_TRUE(seen.insert(a.address).second); });
    ASSERT_EQ(seen, live) << "at event " << i;
  }
  const DeviceTimeline& device = timeline.devices().at(0);
  EXPECT_EQ(device.samples[device.allocated_peak].allocated_bytes, peak);
  EXPECT_EQ(timeline.live_set(0, builder.last()).size(), live.size());
}

TEST(Breakdown, RowsAddUpToTheDeviceTotalAtEveryEvent) {
  RecordBuilder builder;
  builder.add(EventKind::kContext, 0, 300 * kMiB);
  builder.add(EventKind::kDeviceAlloc, 0x1000, 5 * kMiB);  // not PyTorch's
  PlainAllocator allocator(builder);
  unsigned n = 0;
  random_program(allocator, 7, 800, [&] {
    // Labels of all kinds, also for addresses inside a block and for memory that is not live.
    if (!allocator.pieces.empty() && ++n % 5 == 0) {
      auto it = std::next(allocator.pieces.begin(), n % allocator.pieces.size());
      builder.add(EventKind::kLabel, it->first + it->second.size / 2, 0, n % 9);
    }
    if (n % 50 == 0) builder.add(EventKind::kModuleLoad, 0, 12345);
  });
  Timeline timeline(builder.record);
  infer_categories(timeline);
  for (uint32_t i = 0; i < builder.record.events.size(); ++i) {
    const Breakdown breakdown = breakdown_at(timeline, 0, i);
    ASSERT_EQ(sum_of_rows(breakdown), breakdown.total_bytes) << "at event " << i;
    const Sample& sample = *timeline.devices().at(0).at(i);
    ASSERT_EQ(breakdown.total_bytes, sample.device_bytes);
    ASSERT_EQ(breakdown.allocated_bytes, sample.allocated_bytes);
    uint64_t requested = 0;
    timeline.for_each_live(0, i, [&](const Allocation& a) { requested += a.requested_bytes; });
    ASSERT_EQ(row(breakdown, Category::kRounding), sample.allocated_bytes - requested);
    ASSERT_EQ(row(breakdown, Category::kContext), timeline.context_bytes(0, i));
    // In the middle of a segment's making or end the driver and PyTorch disagree for one event.
    if (builder.record.events[i].kind == EventKind::kAlloc) {
      ASSERT_EQ(row(breakdown, Category::kOther), 5 * kMiB);
      ASSERT_EQ(row(breakdown, Category::kCached), sample.reserved_bytes - sample.allocated_bytes);
    }
  }
}

TEST(Breakdown, ASnapshotsTotalIsReserved) {
  RecordBuilder builder;
  builder.record.kind = record::Record::Kind::kSnapshot;
  builder.add(EventKind::kSegmentAlloc, kBase, 2 * kMiB);
  builder.alloc(kBase, 1000);
  const Timeline timeline(builder.record);
  const Breakdown breakdown = breakdown_at(timeline, 0, builder.last());
  EXPECT_FALSE(breakdown.total_is_device);
  EXPECT_EQ(breakdown.total_bytes, 2 * kMiB);
  EXPECT_EQ(row(breakdown, Category::kUnknown), 1000u);
  EXPECT_EQ(row(breakdown, Category::kRounding), 24u);
  EXPECT_EQ(row(breakdown, Category::kCached), 2 * kMiB - 1024);
  EXPECT_EQ(sum_of_rows(breakdown), breakdown.total_bytes);
}

TEST(Breakdown, PendingMemoryIsPartOfCached) {
  RecordBuilder builder;
  builder.segment(kBase, 2 * kMiB);
  builder.alloc(kBase, 512 * 10);
  builder.add(EventKind::kFreeRequested, kBase, 512 * 10);
  const uint32_t requested = builder.last();
  builder.add(EventKind::kFreeCompleted, kBase, 512 * 10);
  const Timeline timeline(builder.record);
  EXPECT_EQ(breakdown_at(timeline, 0, requested).pending_bytes, 5120u);
  EXPECT_EQ(breakdown_at(timeline, 0, builder.last()).pending_bytes, 0u);
}

TEST(Timeline, TheFirstLabelHoldsForTheWholeLife) {
  RecordBuilder builder;
  builder.segment(kBase, 2 * kMiB);
  builder.alloc(kBase, 4096);
  const uint32_t made = builder.last();
  builder.add(EventKind::kLabel, kBase + 100, 0, static_cast<uint64_t>(Category::kParameter),
              "weight");
  builder.add(EventKind::kLabel, kBase, 0, static_cast<uint64_t>(Category::kGradient), "other");
  builder.release(kBase, 4096);
  builder.alloc(kBase, 4096);  // the same address, another tensor
  Timeline timeline(builder.record);
  infer_categories(timeline);
  EXPECT_EQ(row(breakdown_at(timeline, 0, made), Category::kParameter), 4096u);
  EXPECT_EQ(builder.record.string(timeline.allocations()[0].name), "weight");
  EXPECT_NE(timeline.allocations()[1].category, Category::kParameter);
}

// The recorder names addresses, which are unique in a process, and does not say on which device
// they are.
TEST(Timeline, ALabelFindsItsBlockOnAnyDeviceOfTheProcess) {
  RecordBuilder builder;
  builder.record.devices.push_back({1, "Second GPU", 1024 * kMiB, 64 * kMiB});
  builder.segment(kBase, 2 * kMiB);
  builder.alloc(kBase, 1024);
  builder.device(1);
  builder.segment(kBase + 1024 * kMiB, 2 * kMiB);
  builder.alloc(kBase + 1024 * kMiB, 4096);
  builder.device(0);
  builder.add(EventKind::kLabel, kBase + 1024 * kMiB, 0,
              static_cast<uint64_t>(Category::kParameter), "weight");
  const uint32_t labelled = builder.last();
  Timeline timeline(builder.record);
  infer_categories(timeline);
  EXPECT_EQ(row(breakdown_at(timeline, 1, labelled), Category::kParameter), 4096u);
  EXPECT_EQ(row(breakdown_at(timeline, 0, labelled), Category::kParameter), 0u);
}

TEST(Timeline, SeveralProcessesShareADevice) {
  RecordBuilder builder;
  builder.record.processes.push_back({101, "python worker.py", true});
  builder.segment(kBase, 2 * kMiB);
  builder.alloc(kBase, 1024);
  builder.process(1);
  builder.add(EventKind::kContext, 0, 100 * kMiB);
  builder.segment(kBase, 4 * kMiB);  // the same address in another process
  builder.alloc(kBase, 3 * kMiB);
  const uint32_t both = builder.last();
  builder.add(EventKind::kProcessEnd);
  const uint32_t ended = builder.last();
  const Timeline timeline(builder.record);
  const DeviceTimeline& device = timeline.devices().at(0);
  EXPECT_EQ(device.at(both)->device_bytes, 106 * kMiB);
  EXPECT_EQ(device.at(both)->reserved_bytes, 6 * kMiB);
  EXPECT_EQ(device.at(ended)->device_bytes, 2 * kMiB);
  EXPECT_EQ(device.at(ended)->allocated_bytes, 1024u);
  EXPECT_EQ(timeline.live_set(0, ended).size(), 1u);
  EXPECT_EQ(timeline.processes().at({1, 0}).allocated,
            4 * kMiB);  // the block is not split: its rest is 1 MiB
  EXPECT_EQ(sum_of_rows(breakdown_at(timeline, 0, ended)), 2 * kMiB);
  EXPECT_EQ(sum_of_rows(breakdown_at(timeline, 0, both)), 106 * kMiB);
}

TEST(Timeline, AContextThatEndsGivesItsMemoryBack) {
  RecordBuilder builder;
  builder.add(EventKind::kContext, 0, 100 * kMiB);
  builder.add(EventKind::kModuleLoad, 0, 2 * kMiB);
  builder.add(EventKind::kContextEnd, 0, 102 * kMiB);
  const uint32_t ended = builder.last();
  builder.add(EventKind::kContext, 0, 100 * kMiB);
  builder.add(EventKind::kContextEnd, 0, UINT64_MAX);  // of a damaged record
  const Timeline timeline(builder.record);
  EXPECT_EQ(timeline.devices().at(0).at(ended)->device_bytes, 0u);
  EXPECT_EQ(timeline.context_bytes(0, ended), 0u);
  const DeviceTimeline& device = timeline.devices().at(0);
  EXPECT_EQ(device.samples[device.device_peak].device_bytes, 102 * kMiB);
  EXPECT_EQ(device.samples.back().device_bytes, 0u);
}

TEST(Timeline, LocalAndManagedMemoryHaveTheirRows) {
  RecordBuilder builder;
  const auto local = static_cast<uint64_t>(abi::DriverMemory::kLocalMemory);
  builder.add(EventKind::kContext, 0, 100 * kMiB);
  builder.add(EventKind::kModuleLoad, 0, 2 * kMiB, 0, "small");
  builder.from(builder.stack({{"train.py", 7, "main"}}));
  builder.add(EventKind::kModuleLoad, 0, 30 * kMiB, local, "small");
  builder.add(EventKind::kModuleLoad, 0, 50 * kMiB, local, "large");
  builder.from(builder.stack({{"train.py", 9, "main"}}));
  builder.add(EventKind::kDeviceAlloc, kBase, 8 * kMiB,
              static_cast<uint64_t>(DeviceMemoryKind::kManaged));
  builder.add(EventKind::kDeviceAlloc, kBase + 64 * kMiB, 4 * kMiB,
              static_cast<uint64_t>(DeviceMemoryKind::kPlain));
  const uint32_t all = builder.last();
  builder.add(EventKind::kContextEnd, 0, 182 * kMiB);
  const uint32_t ended = builder.last();
  const Timeline timeline(builder.record);
  const Breakdown breakdown = breakdown_at(timeline, 0, all);
  EXPECT_EQ(row(breakdown, Category::kLocalMemory), 80 * kMiB);
  EXPECT_EQ(row(breakdown, Category::kContext), 102 * kMiB);
  EXPECT_EQ(row(breakdown, Category::kManaged), 8 * kMiB);
  EXPECT_EQ(row(breakdown, Category::kOther), 4 * kMiB);
  EXPECT_EQ(sum_of_rows(breakdown), breakdown.total_bytes);
  EXPECT_EQ(row(breakdown_at(timeline, 0, ended), Category::kLocalMemory), 0u);
  const auto groups = largest_beside_pytorch(timeline, 0, all, 10);
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[0].name, "large");
  EXPECT_EQ(groups[0].site.line.line, 7u);
  EXPECT_EQ(groups[1].name, "small");
  EXPECT_EQ(groups[2].category, Category::kManaged);
  EXPECT_EQ(groups[2].site.line.line, 9u);
}

// What a process gave back just before it was killed is not in its record.
TEST(Timeline, NeverMoreThanTheAccountSaw) {
  RecordBuilder builder;
  builder.record.processes.push_back({101, "python other.py", false});
  builder.record.end.device_peak_bytes = {900 * kMiB};
  builder.add(EventKind::kDeviceAlloc, kBase, 800 * kMiB);
  builder.process(1);
  builder.add(EventKind::kDeviceAlloc, kBase, 700 * kMiB);
  builder.add(EventKind::kDeviceAlloc, kBase + 700 * kMiB, 100 * kMiB);
  builder.process(0);
  builder.add(EventKind::kProcessEnd);
  builder.process(1);
  builder.add(EventKind::kDeviceAlloc, kBase + 800 * kMiB, 50 * kMiB);
  const Timeline timeline(builder.record);
  const DeviceTimeline& device = timeline.devices().at(0);
  EXPECT_EQ(device.samples[device.device_peak].device_bytes, 850 * kMiB);
  EXPECT_EQ(sum_of_rows(breakdown_at(timeline, 0, device.samples[device.device_peak].event)),
            850 * kMiB);
}

TEST(Timeline, IpcMappingsAndHostMemoryTakeNoDeviceMemory) {
  RecordBuilder builder;
  builder.add(EventKind::kDeviceAlloc, kBase, kMiB,
              static_cast<uint64_t>(DeviceMemoryKind::kPlain));
  builder.add(EventKind::kDeviceAlloc, kBase + kMiB, kMiB,
              static_cast<uint64_t>(DeviceMemoryKind::kIpc));
  builder.add(EventKind::kHostAlloc, 0x500, 7 * kMiB,
              static_cast<uint64_t>(DeviceMemoryKind::kHostPinned));
  builder.add(EventKind::kHostFree, 0x500, 7 * kMiB);
  builder.add(EventKind::kDeviceFree, kBase + kMiB, kMiB);
  const Timeline timeline(builder.record);
  EXPECT_EQ(timeline.devices().at(0).samples.back().device_bytes, kMiB);
  EXPECT_EQ(timeline.processes().at({0, 0}).pinned, 7 * kMiB);
}

TEST(Steps, ToldStepsGiveThePeakOfEach) {
  RecordBuilder builder;
  builder.segment(kBase, 2 * kMiB);
  for (uint64_t step = 1; step <= 3; ++step) {
    builder.alloc(kBase, 512 * step);
    builder.release(kBase, 512 * step);
    builder.add(EventKind::kStep, 0, 0, step);
  }
  builder.alloc(kBase, 100);
  const Timeline timeline(builder.record);
  ASSERT_EQ(timeline.steps().size(), 4u);
  EXPECT_FALSE(timeline.steps()[3].complete);
  for (uint32_t i = 0; i < 3; ++i) {
    const Step& step = timeline.steps()[i];
    EXPECT_EQ(timeline.peak_between(0, step.first_event, step.end_event).allocated, 512 * (i + 1));
    EXPECT_EQ(step_at(timeline.steps(), 0, step.first_event)->number, i + 1);
  }
  EXPECT_EQ(step_at(timeline.steps(), 1, 0), nullptr);
}

TEST(Steps, AStepsPeakIncludesWhatWasThereBefore) {
  RecordBuilder builder;
  builder.segment(kBase, 2 * kMiB);
  builder.alloc(kBase, 4096);
  builder.add(EventKind::kStep, 0, 0, 1);
  builder.release(kBase, 4096);
  builder.alloc(kBase, 512);
  builder.add(EventKind::kStep, 0, 0, 2);
  const Timeline timeline(builder.record);
  const StepPeak peak =
      timeline.peak_between(0, timeline.steps()[1].first_event, timeline.steps()[1].end_event);
  EXPECT_EQ(peak.allocated, 4096u);
  EXPECT_EQ(peak.allocated_after, 512u);
}

TEST(Steps, ASnapshotsStepsComeFromAnnotationsOrPeriods) {
  RecordBuilder builder;
  builder.record.kind = record::Record::Kind::kSnapshot;
  builder.add(EventKind::kSegmentAlloc, kBase, 2 * kMiB);
  for (int step = 0; step < 4; ++step) {
    for (uint32_t line = 1; line <= 3; ++line) {
      builder.from(builder.stack({{"train.py", line, "step"}}));
      builder.alloc(kBase + 4096 * line, 1000 * line);
    }
    for (uint32_t line = 1; line <= 3; ++line) builder.release(kBase + 4096 * line, 1000 * line);
  }
  // Stacks are interned by the reader; here equal ones must be made equal.
  for (auto& event : builder.record.events) {
    if (event.stack > 3) event.stack = (event.stack - 1) % 3 + 1;
  }
  const Stacks stacks(builder.record);
  const auto steps = find_steps(builder.record, stacks);
  ASSERT_GE(steps.size(), 3u);
  EXPECT_EQ(steps[0].source, StepSource::kPeriod);

  builder.add(EventKind::kAnnotation, 0, 0, 0, "Optimizer.step#AdamW.step");
  builder.add(EventKind::kAnnotation, 0, 0, 1, "Optimizer.step#AdamW.step");
  const auto annotated = find_steps(builder.record, stacks);
  ASSERT_EQ(annotated.size(), 1u);
  EXPECT_EQ(annotated[0].source, StepSource::kAnnotation);
}

TEST(Series, KeepsThePeaksExactly) {
  RecordBuilder builder;
  PlainAllocator allocator(builder);
  random_program(allocator, 3, 3000, [] {});
  Timeline timeline(builder.record);
  infer_categories(timeline);
  const DeviceTimeline& device = timeline.devices().at(0);
  const Series series = sample_series(timeline, 0, 40);
  ASSERT_EQ(series.allocated.size(), 40u);
  EXPECT_EQ(*std::max_element(series.allocated.begin(), series.allocated.end()),
            device.samples[device.allocated_peak].allocated_bytes);
  EXPECT_EQ(*std::max_element(series.reserved.begin(), series.reserved.end()),
            device.samples[device.reserved_peak].reserved_bytes);
  for (const CategoryPoint& point : category_series(timeline, 0, 40)) {
    uint64_t sum = 0;
    for (uint64_t bytes : point.by_category) sum += bytes;
    EXPECT_EQ(sum, point.allocated_bytes);
    const Breakdown breakdown = breakdown_at(timeline, 0, point.event);
    EXPECT_EQ(row(breakdown, Category::kTemporary),
              point.by_category[static_cast<size_t>(Category::kTemporary)]);
  }
}

TEST(Timeline, AnEmptyRecordIsNoError) {
  const record::Record empty;
  Timeline timeline(empty);
  infer_categories(timeline);
  EXPECT_TRUE(timeline.devices().empty());
  EXPECT_EQ(breakdown_at(timeline, 0, 0).total_bytes, 0u);
  EXPECT_TRUE(sample_series(timeline, 0, 10).event.empty());
}

}  // namespace
}  // namespace tonnage::analysis
