#include "record/format.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <random>
#include <vector>

#include "record/record_decoder.h"

namespace tonnage::record {
namespace {

// The worked example at the top of record/format.h, byte for byte.
const std::vector<uint8_t> kExample = {0x01, 0x01, 0x04, 0x78, 0x2e, 0x70, 0x79,  // strings
                                       0x01, 0x01, 0x01, 0x00, 0x01, 0x07,        // stacks
                                       0x02,                                      // events
                                       0x14, 0xe1, 0x08, 0xd0, 0x0f, 0x80, 0xc0, 0x03, 0x80, 0x04,
                                       0x01, 0x16, 0xe1, 0x08, 0xe8, 0x07, 0x00, 0x80, 0x04, 0x00};

TEST(RecordFormat, CrcIsZlibs) {
  std::mt19937 random(1);
  std::vector<uint8_t> bytes(1000);
  for (auto& b : bytes) b = static_cast<uint8_t>(random());
  for (size_t n = 0; n <= bytes.size(); n += 7) {
    EXPECT_EQ(crc32(0, bytes.data(), n), ::crc32(0, bytes.data(), static_cast<uInt>(n))) << n;
  }
  EXPECT_EQ(crc32(crc32(0, bytes.data(), 13), bytes.data() + 13, 500), crc32(0, bytes.data(), 513));
}

TEST(RecordFormat, ZigzagKeepsEveryDifference) {
  for (const uint64_t d : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}, uint64_t{1} << 63,
                           (uint64_t{1} << 63) - 1, uint64_t{4096}}) {
    EXPECT_EQ(unzigzag(zigzag(d)), d);
  }
  EXPECT_EQ(zigzag(0 - uint64_t{1}), 1u);
  EXPECT_EQ(zigzag(1), 2u);
}

TEST(RecordFormat, PackingGivesTheExamplesBytes) {
  std::vector<uint8_t> out(4 * kMaxPackedEventBytes);
  PackState state;
  abi::MemoryEvent event;
  event.kind = abi::EventKind::kAlloc;
  event.time_ns = 1000;
  event.address = 0x7000;
  event.size_bytes = 512;
  event.stack = 1;
  uint8_t* end = pack_event(out.data(), event, state);
  event.kind = abi::EventKind::kFreeCompleted;
  event.time_ns = 1500;
  event.stack = 0;
  end = pack_event(end, event, state);
  out.resize(static_cast<size_t>(end - out.data()));
  EXPECT_EQ(out, std::vector<uint8_t>(kExample.begin() + 14, kExample.end()));
}

TEST(RecordFormat, DecodingTheExampleGivesTwoEvents) {
  record::MemoryBudget budget(1 << 20);
  record::RecordDecoder decoder(budget);
  ChunkHeader header;
  header.event_count = 2;
  header.stream = 5;
  header.pid = 77;
  ASSERT_TRUE(decoder.add_chunk(header, kExample));
  record::Record record;
  ASSERT_TRUE(decoder.finish(record));
  ASSERT_EQ(record.events.size(), 2u);
  const abi::MemoryEvent& alloc = record.events[0];
  EXPECT_EQ(alloc.kind, abi::EventKind::kAlloc);
  EXPECT_EQ(alloc.time_ns, 1000u);
  EXPECT_EQ(alloc.address, 0x7000u);
  EXPECT_EQ(alloc.size_bytes, 512u);
  ASSERT_LT(alloc.stack, record.stacks.size());
  ASSERT_EQ(record.stacks[alloc.stack].size(), 1u);
  EXPECT_EQ(record.string(record.stacks[alloc.stack][0].file), "x.py");
  EXPECT_EQ(record.stacks[alloc.stack][0].line, 7u);
  EXPECT_EQ(record.events[1].kind, abi::EventKind::kFreeCompleted);
  EXPECT_EQ(record.events[1].time_ns, 1500u);
  EXPECT_EQ(record.events[1].address, 0x7000u);
  EXPECT_EQ(record.events[1].stack, 0u);
  EXPECT_EQ(record.processes.at(0).pid, 77);
}

TEST(RecordFormat, ADamagedPayloadLeavesNothingBehind) {
  for (size_t cut = 0; cut < kExample.size(); ++cut) {
    record::MemoryBudget budget(1 << 20);
    record::RecordDecoder decoder(budget);
    ChunkHeader header;
    header.event_count = 2;
    EXPECT_FALSE(decoder.add_chunk(header, std::span(kExample).first(cut))) << cut;
    record::Record record;
    ASSERT_TRUE(decoder.finish(record));
    EXPECT_TRUE(record.events.empty()) << cut;
    EXPECT_FALSE(record.processes.at(0).ended);
  }
}

}  // namespace
}  // namespace tonnage::record
