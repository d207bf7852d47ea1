#include "record/record_reader.h"

#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>

#include "record/record_helpers.h"

namespace tonnage::record {
namespace {

using record::ChunkHeader;
using record::ChunkKind;
using record::TempRecord;
using record::Writer;

using Bytes = std::vector<uint8_t>;

// A record of several chunks; where each begins.
struct Sample {
  Bytes bytes;
  std::vector<size_t> starts;
};

Sample sample(int chunks = 5) {
  TempRecord file;
  {
    Writer writer;
    EXPECT_TRUE(writer.open(file.path().c_str(), 0));
    for (int c = 0; c < chunks; ++c) {
      for (int i = 0; i < 20; ++i) {
        auto e = record::alloc_event(static_cast<uint64_t>(c * 100 + i + 1) * 512, 64,
                                     static_cast<uint64_t>(c * 1000 + i + 1));
        e.op = writer.intern_string(("op" + std::to_string(c)).c_str());
        writer.emit(e);
      }
      writer.flush();
    }
  }
  Sample out{file.bytes(), {}};
  for (size_t at = 0; at < out.bytes.size();) {
    ChunkHeader header;
    std::memcpy(&header, out.bytes.data() + at, sizeof header);
    out.starts.push_back(at);
    at += sizeof header + header.payload_bytes;
  }
  return out;
}

// The chunk in which byte `at` lies.
size_t chunk_of(const Sample& s, size_t at) {
  return static_cast<size_t>(std::upper_bound(s.starts.begin(), s.starts.end(), at) -
                             s.starts.begin()) -
         1;
}

void reseal(Bytes& bytes, size_t at, const std::function<void(ChunkHeader&)>& change) {
  ChunkHeader header;
  std::memcpy(&header, bytes.data() + at, sizeof header);
  change(header);
  header.header_crc = record::crc32(0, &header, offsetof(ChunkHeader, header_crc));
  std::memcpy(bytes.data() + at, &header, sizeof header);
}

Bytes chunk(ChunkHeader header, const Bytes& payload) {
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  if (header.compression == record::Compression::kNone)
    header.uncompressed_bytes = header.payload_bytes;
  header.payload_crc = record::crc32(0, payload.data(), payload.size());
  header.header_crc = record::crc32(0, &header, offsetof(ChunkHeader, header_crc));
  Bytes out(sizeof header + payload.size());
  std::memcpy(out.data(), &header, sizeof header);
  std::memcpy(out.data() + sizeof header, payload.data(), payload.size());
  return out;
}

bool note_has(const Record& record, const std::string& text) {
  for (const auto& note : record.notes) {
    if (note.find(text) != std::string::npos) return true;
  }
  return false;
}

TEST(RecordReader, SessionSaysDevicesCommandAndSettings) {
  const Sample s = sample(1);
  auto record = read_record_bytes(s.bytes, "r");
  ASSERT_TRUE(record);
  ASSERT_EQ(record->devices.size(), 1u);
  EXPECT_EQ(record->devices[0].name, "Test GPU");
  EXPECT_EQ(record->devices[0].total_bytes, 1000u);
  EXPECT_EQ(record->devices[0].context_bytes, 10u);
  EXPECT_EQ(record->info.at("command"), "python train.py");
  EXPECT_EQ(record->settings.text, "expandable_segments:True");
  EXPECT_TRUE(record->settings.expandable_segments);
  EXPECT_EQ(record->source, "r");
  EXPECT_EQ(record->kind, Record::Kind::kTonnage);
}

TEST(RecordReader, FactsOfAProcessAreKept) {
  TempRecord file;
  {
    Writer writer;
    ASSERT_TRUE(writer.open(file.path().c_str(), 0));
    for (const char* fact : {"torch_version=2.11.0+cu130", "alloc_conf=max_split_size_mb:64", "odd",
                             "=x", "gpu=a=b"}) {
      abi::MemoryEvent e;
      e.kind = abi::EventKind::kFact;
      e.name = writer.intern_string(fact);
      writer.emit(e);
    }
  }
  const Record record = file.read();
  EXPECT_EQ(record.torch_version, "2.11.0+cu130");
  EXPECT_EQ(record.settings.max_split_size_bytes, 64ull << 20);
  EXPECT_FALSE(record.settings.expandable_segments);  // the session's own setting was replaced
  EXPECT_EQ(record.info.at("gpu"), "a=b");
  EXPECT_EQ(record.info.count("odd"), 0u);
}

TEST(RecordReader, TheDeadEndWhereTheyWereFound) {
  TempRecord file;
  const auto say = [](Writer& writer, abi::EventKind kind, uint64_t value, uint64_t time_ns) {
    abi::MemoryEvent e;
    e.kind = kind;
    e.value = value;
    e.time_ns = time_ns;
    writer.emit(e);
  };
  Writer dead, other;
  ASSERT_TRUE(dead.open(file.path().c_str(), 0));
  ASSERT_TRUE(other.open(file.path().c_str(), 0));
  say(dead, abi::EventKind::kSlot, 0x10001, 100);
  dead.emit(record::alloc_event(512, 64, 200));
  dead.flush();
  say(other, abi::EventKind::kSlot, 0x10002, 150);
  say(other, abi::EventKind::kSlotGone, 0x10001, 300);
  say(other, abi::EventKind::kSlotGone, 0x10002, 310);  // itself: makes no sense
  say(other, abi::EventKind::kSlotGone, 0x90001, 320);  // nobody that is in the record
  other.flush();
  const Record record = file.read();
  std::vector<std::pair<uint32_t, uint64_t>> ends;
  for (const abi::MemoryEvent& event : record.events) {
    if (event.kind == abi::EventKind::kProcessEnd) ends.emplace_back(event.process, event.time_ns);
  }
  EXPECT_EQ(ends, (std::vector<std::pair<uint32_t, uint64_t>>{{0, 300}}));
  EXPECT_FALSE(record.processes[0].ended);  // it did not say so itself
}

TEST(RecordReader, CutOffAtEveryLengthGivesTheWholeChunksBeforeIt) {
  const Sample s = sample();
  for (size_t n = 0; n <= s.bytes.size(); ++n) {
    auto record = read_record_bytes(std::span(s.bytes).first(n), "cut");
    const size_t whole = chunk_of(s, n) + (n == s.bytes.size() ? 1 : 0);  // chunks
    if (n < s.starts[1]) {
      ASSERT_FALSE(record) << n;
      EXPECT_EQ(record.error().code, ErrorCode::kCorrupt);
      continue;
    }
    ASSERT_TRUE(record) << n << ": " << record.error().text();
    const bool at_boundary = n == s.bytes.size() || s.starts[chunk_of(s, n)] == n;
    EXPECT_EQ(note_has(*record, "in the middle of a chunk"), !at_boundary) << n;
    EXPECT_EQ(record->notes.size(), at_boundary ? 0u : 1u) << n;
    const size_t chunks = whole - 1;  // the first is the session
    EXPECT_EQ(record::program_events(*record).size(), std::min<size_t>(5, chunks) * 20) << n;
    for (const auto& process : record->processes)
      EXPECT_EQ(process.ended, n == s.bytes.size()) << n;
  }
}

TEST(RecordReader, AnyByteChangedIsSeenAndCostsAtMostItsChunk) {
  const Sample s = sample();
  const size_t all = record::program_events(*read_record_bytes(s.bytes, "r")).size();
  for (size_t at = s.starts[1]; at < s.bytes.size(); ++at) {
    Bytes bytes = s.bytes;
    bytes[at] ^= 0x41;
    const auto record = read_record_bytes(bytes, "changed");
    ASSERT_TRUE(record) << at;
    const size_t kept = record::program_events(*record).size();
    const size_t in_chunk = at - s.starts[chunk_of(s, at)];
    if (in_chunk >= offsetof(ChunkHeader, reserved) && in_chunk < sizeof(ChunkHeader))
      continue;  // says nothing
    EXPECT_FALSE(record->notes.empty()) << at;
    EXPECT_GE(kept + 20, all) << at;
    EXPECT_FALSE(record->processes[0].ended) << at;
  }
}

TEST(RecordReader, ATornChunkBetweenOthersIsSkipped) {
  const Sample s = sample();
  Bytes bytes(s.bytes.begin(), s.bytes.begin() + static_cast<ptrdiff_t>(s.starts[3] - 7));
  bytes.insert(bytes.end(), s.bytes.begin() + static_cast<ptrdiff_t>(s.starts[3]), s.bytes.end());
  const auto record = read_record_bytes(bytes, "torn");
  ASSERT_TRUE(record);
  EXPECT_TRUE(note_has(*record, "damaged in 1 place"));
  EXPECT_TRUE(note_has(*record, "is missing"));
  EXPECT_EQ(record::program_events(*record).size(), 80u);
  EXPECT_FALSE(record->processes[0].ended);
}

TEST(RecordReader, AMissingChunkLeavesLaterIdsRight) {
  const Sample s = sample();
  Bytes bytes(s.bytes.begin(), s.bytes.begin() + static_cast<ptrdiff_t>(s.starts[2]));
  bytes.insert(bytes.end(), s.bytes.begin() + static_cast<ptrdiff_t>(s.starts[3]), s.bytes.end());
  const auto record = read_record_bytes(bytes, "missing");
  ASSERT_TRUE(record);
  EXPECT_TRUE(note_has(*record, "is missing"));
  EXPECT_FALSE(record->processes[0].ended);
  const auto events = record::program_events(*record);
  ASSERT_EQ(events.size(), 80u);
  EXPECT_EQ(record->string(events.front().op), "op0");
  EXPECT_EQ(record->string(events[20].op), "op2");
  EXPECT_EQ(record->string(events.back().op), "op4");
}

TEST(RecordReader, OtherVersionsSayWhichSideIsWrong) {
  for (const uint16_t version :
       {uint16_t{0}, static_cast<uint16_t>(record::kNewestReadableVersion + 1), uint16_t{999}}) {
    Bytes bytes = sample(1).bytes;
    reseal(bytes, 0, [&](ChunkHeader& h) { h.version = version; });
    const auto record = read_record_bytes(bytes, "r");
    ASSERT_FALSE(record);
    EXPECT_EQ(record.error().code, version == 0 ? ErrorCode::kTooOld : ErrorCode::kTooNew);
    EXPECT_NE(record.error().message.find("format " + std::to_string(version)), std::string::npos);
  }
}

TEST(RecordReader, OtherFilesAreRefused) {
  for (const std::string text : {"", "\x80\x02}q", "hello", "TNG", "TNGRxxxxxxxx"}) {
    const auto record = read_record_bytes(
        std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size()), "f");
    EXPECT_FALSE(record) << text;
  }
  EXPECT_EQ(read_record("/nonexistent").error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(read_record("/"));
  EXPECT_FALSE(read_record("/dev/zero"));
}

TEST(RecordReader, LengthsAreNotTrusted) {
  const Sample s = sample(2);
  const Bytes session(s.bytes.begin(), s.bytes.begin() + static_cast<ptrdiff_t>(s.starts[1]));
  const std::vector<Bytes> payloads = {
      {},
      {1, 0xff, 0xff, 0xff, 0xff, 0x0f},     // 2^32-1 strings
      {1, 1, 0xff, 0xff, 0xff, 0x7f},        // a string of 256 MiB
      {0xff, 0xff, 0xff, 0x07, 0, 1, 0, 0},  // strings begin at id 2^24-1
      {1, 0, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1},  // 2^64-1 stacks
      {1, 0, 1, 1, 0, 0, 0, 0, 0},                 // a node that is its own parent
      {1, 0, 1, 1, 2, 0, 0, 0, 0},                 // a node whose parent has a negative id
      {1, 0, 1, 0, 0xff, 0xff, 0xff, 0xff, 0x0f},  // 2^32-1 events
      {1, 0, 1, 0, 1, 20, 0x80, 0x80, 0x01},       // an unknown field
      {1, 0, 1, 0, 1, 20, 0x02, 0x80, 0x02},       // device 256
      {1, 0, 1, 0, 1, 20, 0x01, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
       0x7f},              // a varint beyond 64 bits
      {1, 0, 1, 0, 0, 9},  // bytes left over
  };
  for (size_t i = 0; i < payloads.size(); ++i) {
    ChunkHeader header;
    header.stream = 42;
    header.event_count = 1;
    Bytes bytes = session;
    const Bytes bad = chunk(header, payloads[i]);
    bytes.insert(bytes.end(), bad.begin(), bad.end());
    const auto record = read_record_bytes(bytes, "hostile");
    ASSERT_TRUE(record) << i;
    EXPECT_TRUE(note_has(*record, "make no sense")) << i;
    EXPECT_TRUE(record->events.empty()) << i;
  }
}

TEST(RecordReader, OddValuesInsideAnEventAreMadeHarmless) {
  ChunkHeader header;
  header.event_count = 1;
  // kind 200, device 9, phase 99, and ids of strings and a stack that do not exist
  const auto record = read_record_bytes(
      chunk(header, {1, 0, 1, 0, 1, 200, 0x86, 0x3c, 9, 99, 50, 51, 52, 53}), "odd");
  ASSERT_TRUE(record) << record.error().text();
  ASSERT_EQ(record->events.size(), 1u);
  const auto& e = record->events[0];
  EXPECT_EQ(e.phase, abi::Phase::kOther);
  EXPECT_EQ(e.stack, 0u);
  EXPECT_EQ(e.op, 0u);
  EXPECT_EQ(e.name, 0u);
  EXPECT_EQ(record->devices.size(), 10u);  // every event's device has an entry
}

TEST(RecordReader, MemoryIsBounded) {
  const Sample s = sample(5);
  const auto record = read_record_bytes(s.bytes, "r", ReadOptions{.memory_limit_bytes = 10'000});
  ASSERT_FALSE(record);
  EXPECT_EQ(record.error().code, ErrorCode::kLimit);
}

TEST(RecordReader, HeadersThatLieDoNotTakeForever) {
  // 20,000 headers, each of which claims all that follows and has a wrong checksum of it.
  Bytes bytes;
  constexpr size_t kHeaders = 20'000;
  for (size_t i = 0; i < kHeaders; ++i) {
    ChunkHeader header;
    header.payload_bytes = header.uncompressed_bytes =
        static_cast<uint32_t>((kHeaders - 1 - i) * sizeof header);
    header.payload_crc = 1;
    header.header_crc = record::crc32(0, &header, offsetof(ChunkHeader, header_crc));
    const auto* p = reinterpret_cast<const uint8_t*>(&header);
    bytes.insert(bytes.end(), p, p + sizeof header);
  }
  const auto record = read_record_bytes(bytes, "liar");
  ASSERT_FALSE(record);
  EXPECT_EQ(record.error().code, ErrorCode::kCorrupt);
}

TEST(RecordReader, ProcessesAreMergedInTimeAndKeepTheirOwnOrder) {
  // Process 0 has a time that goes back; process 1 lies between.
  Bytes bytes;
  const auto add = [&](uint64_t stream,
                       const std::vector<std::pair<uint64_t, uint64_t>>& time_and_address) {
    Bytes payload = {1, 0, 1, 0, static_cast<uint8_t>(time_and_address.size())};
    record::PackState state;
    for (const auto& [time, address] : time_and_address) {
      uint8_t packed[record::kMaxPackedEventBytes];
      const uint8_t* end = record::pack_event(packed, record::alloc_event(address, 1, time), state);
      payload.insert(payload.end(), packed, const_cast<uint8_t*>(end));
    }
    ChunkHeader header;
    header.stream = stream;
    header.event_count = static_cast<uint32_t>(time_and_address.size());
    const Bytes whole = chunk(header, payload);
    bytes.insert(bytes.end(), whole.begin(), whole.end());
  };
  add(1, {{10, 1}, {30, 2}, {20, 3}, {40, 4}});
  add(2, {{15, 5}, {25, 6}, {30, 7}, {35, 8}});
  const auto record = read_record_bytes(bytes, "two");
  ASSERT_TRUE(record);
  std::vector<uint64_t> order;
  for (const auto& e : record->events) order.push_back(e.address);
  EXPECT_EQ(order, (std::vector<uint64_t>{1, 5, 6, 2, 3, 7, 8, 4}));
}

TEST(RecordReader, RandomDamageNeverBreaksIt) {
  const Sample s = sample();
  std::mt19937_64 random(11);
  for (int round = 0; round < 3000; ++round) {
    Bytes bytes = s.bytes;
    const int changes = 1 + static_cast<int>(random() % 8);
    for (int c = 0; c < changes; ++c) {
      switch (random() % 3) {
        case 0: bytes[random() % bytes.size()] = static_cast<uint8_t>(random()); break;
        case 1: bytes.erase(bytes.begin() + static_cast<ptrdiff_t>(random() % bytes.size())); break;
        default: {
          // Valid headers with wrong contents reach further.
          const size_t at = s.starts[random() % s.starts.size()];
          if (at + sizeof(ChunkHeader) > bytes.size()) break;
          reseal(bytes, at, [&](ChunkHeader& h) {
            reinterpret_cast<uint8_t*>(&h)[6 + random() % 34] = static_cast<uint8_t>(random());
          });
        }
      }
    }
    const auto record =
        read_record_bytes(bytes, "random", ReadOptions{.memory_limit_bytes = 64 << 20});
    if (record) {
      for (const auto& e : record->events) {
        ASSERT_LT(e.process, record->processes.size());
        ASSERT_LT(e.stack, record->stacks.size());
        ASSERT_LT(std::max({e.op, e.module, e.name}), record->strings.size());
      }
    }
  }
}

}  // namespace
}  // namespace tonnage::record
