#include "analysis/report.h"

#include <gtest/gtest.h>

#include "analysis/analysis_builder.h"

namespace tonnage::analysis {
namespace {

using abi::Phase;
using testing::EventKind;
using testing::kMiB;
using testing::RecordBuilder;

constexpr uint64_t kBase = 0x7f0000000000;

// One step that peaks in backward, on a 1 GiB card.
RecordBuilder one_step() {
  RecordBuilder b;
  b.add(EventKind::kContext, 0, 64 * kMiB);
  b.in(Phase::kForward).op("aten::mm").from(b.stack({{"train.py", 9, "main"}}));
  b.segment(kBase, 200 * kMiB);
  b.alloc(kBase, 100 * kMiB);
  b.in(Phase::kBackward).from(b.stack({{"train.py", 10, "main"}}));
  b.alloc(kBase + 100 * kMiB, 50 * kMiB);
  b.release(kBase + 100 * kMiB, 50 * kMiB);
  b.release(kBase, 100 * kMiB);
  b.add(EventKind::kKernelCount, 0, 0, 1234);
  b.add(EventKind::kStep, 0, 0, 1);
  return b;
}

TEST(Report, PeaksHaveTheirMoment) {
  const auto b = one_step();
  const Report report = make_report(b.record);
  ASSERT_EQ(report.devices.size(), 1u);
  const DeviceReport& device = report.devices[0];
  EXPECT_EQ(device.allocated->bytes, 150 * kMiB);
  EXPECT_EQ(device.reserved->bytes, 200 * kMiB);
  EXPECT_EQ(device.device->bytes, 264 * kMiB);
  EXPECT_EQ(device.context_bytes, 64 * kMiB);
  EXPECT_EQ(device.allocated->moment.phase, Phase::kBackward);
  EXPECT_EQ(device.allocated->moment.step, 1u);
  EXPECT_EQ(device.allocated->moment.site.line.line, 10u);
  EXPECT_EQ(device.allocated->moment.site.op, "aten::mm");
  EXPECT_EQ(report.verdict, Verdict::kFits);
  EXPECT_EQ(device.headroom_bytes, (1024 - 264) * kMiB);
  ASSERT_EQ(device.steps.size(), 1u);
  EXPECT_EQ(device.steps[0].peak_allocated, 150 * kMiB);
  EXPECT_EQ(device.steps[0].allocated_after, 0u);
  EXPECT_EQ(device.steps[0].launches, 1234u);
  EXPECT_EQ(report.launches, 1234u);
  EXPECT_TRUE(report.messages.empty());
  EXPECT_EQ(report.inconsistencies, 0u);
}

TEST(Report, TheDevicesPeakIsReadWhenItsMemoryIsInUse) {
  // The peak of the device lasts from the segment's making on; its breakdown is that of the fullest
  // moment in that time.
  const auto b = one_step();
  const Report report = make_report(b.record);
  EXPECT_EQ(report.devices[0].device->breakdown.allocated_bytes, 150 * kMiB);
}

TEST(Report, OutOfMemoryDoesNotFit) {
  auto b = one_step();
  b.add(EventKind::kDeviceOom, 0, 900 * kMiB, 700 * kMiB);
  b.add(EventKind::kOom, 0, 900 * kMiB, 700 * kMiB);
  const Report report = make_report(b.record);
  const DeviceReport& device = report.devices[0];
  EXPECT_EQ(report.verdict, Verdict::kDoesNotFit);
  ASSERT_EQ(device.out_of_memory.size(), 1u);  // the driver's refusal is part of PyTorch's error
  EXPECT_EQ(device.out_of_memory[0].request_bytes, 900 * kMiB);
  EXPECT_EQ(device.out_of_memory[0].free_bytes, 700 * kMiB);
  EXPECT_FALSE(device.out_of_memory[0].went_on);
  EXPECT_EQ(device.retries, 0u);
}

TEST(Report, OutOfMemoryThatTheProgramSurvivesFits) {
  auto b = one_step();
  b.add(EventKind::kOom, 0, 900 * kMiB, 700 * kMiB);
  b.alloc(kBase, kMiB);
  EXPECT_EQ(make_report(b.record).verdict, Verdict::kDoesNotFit);  // no whole step after it
  b.add(EventKind::kStep, 0, 0, 2);
  b.alloc(kBase + 2 * kMiB, 2 * kMiB);
  b.add(EventKind::kStep, 0, 0, 3);
  const Report report = make_report(b.record);
  EXPECT_TRUE(report.devices[0].out_of_memory[0].went_on);
  EXPECT_EQ(report.verdict, Verdict::kFits);
}

TEST(Report, ARefusalThatPyTorchRecoversFromIsARetry) {
  auto b = one_step();
  b.add(EventKind::kDeviceOom, 0, 900 * kMiB, 700 * kMiB);
  b.add(EventKind::kDeviceOom, 0, 900 * kMiB, 800 * kMiB);
  b.alloc(kBase, 3 * kMiB);
  const Report report = make_report(b.record);
  EXPECT_EQ(report.devices[0].retries, 1u);
  EXPECT_TRUE(report.devices[0].out_of_memory.empty());
  EXPECT_EQ(report.verdict, Verdict::kFits);
}

TEST(Report, PlainCudaProgram) {
  RecordBuilder b;
  b.op("").from(b.stack({{"saxpy.cu", 40, "main"}}));
  b.add(EventKind::kContext, 0, 64 * kMiB);
  for (uint64_t i = 0; i < 3; ++i) b.add(EventKind::kDeviceAlloc, kBase + i * 64 * kMiB, 32 * kMiB);
  b.add(EventKind::kDeviceAlloc, kBase + 512 * kMiB, 100 * kMiB,
        static_cast<uint64_t>(abi::DeviceMemoryKind::kManaged));
  b.add(EventKind::kDeviceOom, 0, 900 * kMiB, 500 * kMiB);
  const Report report = make_report(b.record);
  const DeviceReport& device = report.devices[0];
  EXPECT_FALSE(device.uses_pytorch);
  EXPECT_FALSE(device.allocated);
  EXPECT_EQ(device.device->bytes, 260 * kMiB);
  EXPECT_EQ(device.device_bytes_by_kind.at("plain"), 96 * kMiB);
  EXPECT_EQ(device.device_bytes_by_kind.at("managed"), 100 * kMiB);
  ASSERT_EQ(device.largest.size(), 2u);
  EXPECT_EQ(device.largest[0].kind, "managed");
  EXPECT_EQ(device.largest[1].count, 3u);
  EXPECT_EQ(device.largest[1].site.line.file, "saxpy.cu");
  ASSERT_EQ(device.out_of_memory.size(), 1u);
  EXPECT_FALSE(device.out_of_memory[0].from_pytorch);
  EXPECT_EQ(report.verdict, Verdict::kDoesNotFit);
}

TEST(Report, LargestGroupsAlikeTensors) {
  auto b = one_step();
  b.in(Phase::kInit).op("aten::empty");
  b.add(EventKind::kSegmentAlloc, kBase + 1024 * kMiB, 800 * kMiB);
  for (uint64_t i = 0; i < 24; ++i) b.alloc(kBase + (1024 + i * 16) * kMiB, 16 * kMiB);
  b.alloc(kBase + (1024 + 24 * 16) * kMiB, 300 * kMiB);
  ReportOptions options;
  options.largest_count = 2;
  const Report report = make_report(b.record, options);
  ASSERT_EQ(report.devices[0].largest.size(), 2u);
  EXPECT_EQ(report.devices[0].largest[0].count, 24u);
  EXPECT_EQ(report.devices[0].largest[0].size_bytes, 16 * kMiB);
  EXPECT_EQ(report.devices[0].largest[1].size_bytes, 300 * kMiB);
}

TEST(Report, PyTorchsCountersAreHeldAgainstOurs) {
  auto b = one_step();
  b.add(EventKind::kCounter, 0, 0, 150 * kMiB, "allocated_bytes.all.peak");
  b.add(EventKind::kCounter, 0, 0, 201 * kMiB, "reserved_bytes.all.peak");
  b.add(EventKind::kCounter, 0, 0, 3, "num_alloc_retries");
  const Report report = make_report(b.record);
  std::map<std::string, CounterCheck> checks;
  for (const auto& check : report.devices[0].counters) checks[check.name] = check;
  EXPECT_TRUE(checks.at("allocated_bytes.all.peak").equal());
  EXPECT_FALSE(checks.at("reserved_bytes.all.peak").equal());
  EXPECT_EQ(checks.at("reserved_bytes.all.peak").ours, 200 * kMiB);
  EXPECT_FALSE(checks.at("num_alloc_retries").ours.has_value());
}

TEST(Report, CountsWhatIsDoubtful) {
  auto b = one_step();
  b.record.processes[0].ended = false;
  b.record.notes.push_back("stacks are missing");
  b.add(EventKind::kStubCall, 0, 0, 0, "cuMulticastCreate");
  b.add(EventKind::kMessage, 0, 0, 1, "recorder: no modules seen");
  b.add(EventKind::kMessage, 0, 0, 1, "recorder: no modules seen");
  b.op("aten::item");
  for (int i = 0; i < 3; ++i) b.add(EventKind::kUnknownRead, 0, 4, 0, "aten::item");
  b.add(EventKind::kAssumedSize, 0, 4096, 2048, "aten::nonzero");
  const Report report = make_report(b.record);
  EXPECT_EQ(report.stub_calls, std::vector<std::string>{"cuMulticastCreate"});
  ASSERT_EQ(report.messages.size(), 2u);
  EXPECT_EQ(report.messages[1].count, 2u);
  ASSERT_EQ(report.unknown_reads.size(), 1u);
  EXPECT_EQ(report.unknown_reads[0].count, 3u);
  EXPECT_EQ(report.unknown_reads[0].bytes, 12u);
  EXPECT_EQ(report.assumed_sizes[0].taken, 2048u);
  EXPECT_FALSE(report.processes[0].ended);
}

TEST(Report, HostileRecordsAreNoTrouble) {
  // Numbers that point nowhere: strings, stacks, processes, devices, kinds.
  std::mt19937_64 random(5);
  for (int round = 0; round < 50; ++round) {
    record::Record record;
    if (round % 2 == 1) record.kind = record::Record::Kind::kSnapshot;
    record.settings.roundup_power2_divisions.assign(round % 3, 7);
    for (int i = 0; i < 300; ++i) {
      abi::MemoryEvent event;
      event.kind = static_cast<EventKind>(random() % 60);
      event.device = static_cast<uint8_t>(random() % 3 * 127);
      event.phase = static_cast<Phase>(random() % 9);
      event.flags = static_cast<uint8_t>(random());
      event.process = static_cast<uint32_t>(random() % 2 == 0 ? 0 : random());
      event.address = random() % 4 == 0 ? random() : kBase + random() % 8 * 4096;
      event.size_bytes = random() % 4 == 0 ? random() : random() % 100000;
      event.value = random() % 2 == 0 ? random() % 12 : random();
      event.stack = static_cast<uint32_t>(random());
      event.name = static_cast<uint32_t>(random());
      event.op = static_cast<uint32_t>(random());
      event.stream = random();
      record.events.push_back(event);
      if (i % 20 == 0 && round % 2 == 1) {
        record::SegmentState segment;
        segment.device = static_cast<int>(random() % 4) - 1;
        segment.address = random();
        segment.total_bytes = random();
        segment.is_expandable = random() % 2 == 0;
        segment.blocks.push_back(
            {random(), random(), random(), record::BlockState::State::kActive, 99});
        record.final_segments.push_back(segment);
      }
    }
    const Report report = make_report(record);
    EXPECT_EQ(report.events, 300u);
  }
}

TEST(Report, AnEmptyRecordSaysNothing) {
  const Report report = make_report(record::Record{});
  EXPECT_TRUE(report.devices.empty());
  EXPECT_EQ(report.verdict, Verdict::kUnknown);
  EXPECT_FALSE(report.launches.has_value());
}

}  // namespace
}  // namespace tonnage::analysis
