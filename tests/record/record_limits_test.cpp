// Small files that unpack to a great deal.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <zstd.h>

#include <cstring>

#include "record/format.h"
#include "record/record_helpers.h"

namespace tonnage::record {
namespace {

// A chunk with `count` events of two bytes each, all fields as before.
std::vector<uint8_t> chunk_of_empty_events(uint32_t count, uint32_t sequence) {
  std::vector<uint8_t> payload(64 + size_t{count} * 2);
  uint8_t* out = payload.data();
  for (const uint64_t number : {1u, 0u, 1u, 0u, count}) out = put_varint(out, number);
  for (uint32_t i = 0; i < count; ++i) {
    *out++ = static_cast<uint8_t>(abi::EventKind::kAlloc);
    *out++ = 0;
  }
  payload.resize(static_cast<size_t>(out - payload.data()));
  std::vector<uint8_t> chunk(sizeof(ChunkHeader) + ZSTD_compressBound(payload.size()));
  const size_t packed =
      ZSTD_compress(chunk.data() + sizeof(ChunkHeader), chunk.size() - sizeof(ChunkHeader),
                    payload.data(), payload.size(), 19);
  chunk.resize(sizeof(ChunkHeader) + packed);
  ChunkHeader header;
  header.compression = Compression::kZstd;
  header.pid = 1;
  header.sequence = sequence;
  header.stream = 7;
  header.payload_bytes = static_cast<uint32_t>(packed);
  header.uncompressed_bytes = static_cast<uint32_t>(payload.size());
  header.event_count = count;
  header.payload_crc = crc32(0, chunk.data() + sizeof header, packed);
  header.header_crc = crc32(0, &header, offsetof(ChunkHeader, header_crc));
  std::memcpy(chunk.data(), &header, sizeof header);
  return chunk;
}

uint64_t most_memory_kib() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss);
}

TEST(RecordLimits, ASmallFileTakesLittleMemory) {
  std::vector<uint8_t> bytes;
  for (uint32_t i = 0; i < 8; ++i) {
    const std::vector<uint8_t> chunk = chunk_of_empty_events(8'000'000, i);
    bytes.insert(bytes.end(), chunk.begin(), chunk.end());
  }
  ASSERT_LT(bytes.size(), 64u << 10);
  const uint64_t before = most_memory_kib();
  const auto record = read_record_bytes(bytes, "bomb");
  ASSERT_FALSE(record);
  EXPECT_EQ(ErrorCode::kLimit, record.error().code);
  EXPECT_LT(most_memory_kib() - before, 512u << 10);
}

TEST(RecordLimits, HonestRecordsAreFarBelow) {
  const TempRecord file;
  Writer writer;
  ASSERT_TRUE(writer.open(file.path().c_str(), 0));
  for (uint64_t i = 0; i < 500'000; ++i) {  // as regular as can be
    abi::MemoryEvent event = alloc_event(0x7000, 512, 1000 * (i + 1));
    writer.emit(event);
  }
  writer.finish();
  EXPECT_EQ(500'000u, program_events(file.read()).size());
}

}  // namespace
}  // namespace tonnage::record
