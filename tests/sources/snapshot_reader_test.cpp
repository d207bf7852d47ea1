// Snapshots: every layout, real histories, damaged and hostile files.
#include <gtest/gtest.h>
#include <lzma.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

#include "sources/pickle_writer.h"
#include "sources/snapshot/snapshot_reader.h"

namespace {

using namespace tonnage;
using namespace tonnage::sources;
using tonnage::abi::EventKind;
using namespace std::string_literals;
using test::pickle_dict;
using test::pickle_list;
using test::pickle_number;
using test::pickle_program;
using test::pickle_text;

std::string data_path(const std::string& name) {
  return std::string(TONNAGE_SOURCE_DIR) + "/tests/data/" + name;
}

std::string file_bytes(const std::string& name) {
  std::ifstream file(data_path(name), std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string decompressed(const std::string& name) {
  auto input = Input::open(data_path(name));
  EXPECT_TRUE(input.has_value());
  std::string all;
  char chunk[65536];
  for (;;) {
    auto got = (*input)->read(chunk, sizeof chunk);
    EXPECT_TRUE(got.has_value());
    if (!got || *got == 0) return all;
    all.append(chunk, *got);
  }
}

Result<record::Record> read_bytes(const std::string& bytes) {
  auto input = Input::from_memory(bytes);
  if (!input) return input.error();
  return read_snapshot(**input);
}

std::string describe(const record::Record& record) {
  std::ostringstream out;
  for (const auto& event : record.events) {
    out << static_cast<int>(event.kind) << ' ' << static_cast<int>(event.device) << ' '
        << event.time_ns << ' ' << event.address << ' ' << event.size_bytes << ' ' << event.value
        << ' ' << record.string(event.name);
    for (const auto& frame : record.stacks[event.stack])
      out << ' ' << record.string(frame.function) << '|' << record.string(frame.file) << '|'
          << frame.line;
    out << '\n';
  }
  for (const auto& segment : record.final_segments) {
    out << "segment " << segment.device << ' ' << segment.address << ' ' << segment.total_bytes
        << ' ' << segment.is_large << ' ' << segment.is_expandable << ' ' << segment.pool_second
        << ' ' << record.stacks[segment.stack].size() << '\n';
    for (const auto& block : segment.blocks)
      out << "block " << block.address << ' ' << block.size_bytes << ' ' << block.requested_bytes
          << ' ' << static_cast<int>(block.state) << '\n';
  }
  return out.str();
}

size_t count_kind(const record::Record& record, tonnage::abi::EventKind kind) {
  return static_cast<size_t>(
      std::count_if(record.events.begin(), record.events.end(),
                    [kind](const tonnage::abi::MemoryEvent& event) { return event.kind == kind; }));
}

bool has_note(const record::Record& record, const std::string& part) {
  return std::any_of(record.notes.begin(), record.notes.end(),
                     [&](const std::string& note) { return note.find(part) != std::string::npos; });
}

constexpr uint64_t kBase = 0x7F0000000000;

TEST(SnapshotReader, ModernLayout) {
  auto record = read_snapshot(data_path("pickles/protocol4.pickle"));
  ASSERT_TRUE(record.has_value()) << record.error().text();
  EXPECT_EQ(record->kind, record::Record::Kind::kSnapshot);
  ASSERT_EQ(record->events.size(), 10u);  // 8 of two devices and 2 annotations, merged by time
  const auto& first = record->events[0];
  EXPECT_EQ(first.kind, tonnage::abi::EventKind::kSegmentAlloc);
  EXPECT_EQ(first.address, kBase);
  EXPECT_EQ(first.size_bytes, 2u << 20);
  ASSERT_EQ(record->stacks[first.stack].size(), 2u);
  EXPECT_EQ(record->string(record->stacks[first.stack][0].function), "forward");
  EXPECT_EQ(record->string(record->stacks[first.stack][0].file), "/home/user/train.py");
  EXPECT_EQ(record->stacks[first.stack][0].line, 12u);
  EXPECT_EQ(first.time_ns, 0u);
  EXPECT_EQ(record->info["start_time_us"], "1000");
  const auto oom = std::find_if(
      record->events.begin(), record->events.end(),
      [](const tonnage::abi::MemoryEvent& e) { return e.kind == tonnage::abi::EventKind::kOom; });
  ASSERT_NE(oom, record->events.end());
  EXPECT_EQ(oom->value, (1ull << 63) + 5);  // must not pass through a double
  EXPECT_EQ(oom->size_bytes, 1ull << 40);
  EXPECT_EQ(oom->time_ns, 20000u);
  EXPECT_EQ(count_kind(*record, tonnage::abi::EventKind::kAnnotation), 2u);
  ASSERT_EQ(record->devices.size(), 2u);
  EXPECT_EQ(record->devices[1].index, 1);
  ASSERT_EQ(record->final_segments.size(), 2u);
  EXPECT_EQ(record->final_segments[1].pool_second, 7);
  EXPECT_TRUE(record->final_segments[1].is_expandable);
  EXPECT_EQ(record->final_segments[1].blocks[0].state, record::BlockState::State::kPendingFree);
  EXPECT_EQ(record->settings.text, "max_split_size_mb:128");
  EXPECT_EQ(record->settings.max_split_size_bytes, 128u << 20);
  EXPECT_DOUBLE_EQ(record->settings.garbage_collection_threshold, 0.5);
  EXPECT_TRUE(record->settings.expandable_segments);
  ASSERT_EQ(record->settings.roundup_power2_divisions.size(), 16u);
  EXPECT_EQ(record->settings.roundup_power2_divisions[8], 0u);
  EXPECT_EQ(record->settings.roundup_power2_divisions[9], 4u);
  EXPECT_FALSE(record->history_truncated);
  EXPECT_TRUE(record->notes.empty()) << record->notes[0];
}

TEST(SnapshotReader, AllProtocolsGiveTheSame) {
  auto expected = read_snapshot(data_path("pickles/protocol4.pickle"));
  ASSERT_TRUE(expected.has_value());
  for (const char* name :
       {"protocol0", "protocol1", "protocol2", "protocol3", "protocol5", "optimized"}) {
    auto record = read_snapshot(data_path("pickles/"s + name + ".pickle"));
    ASSERT_TRUE(record.has_value()) << name << record.error().text();
    EXPECT_EQ(describe(*record), describe(*expected)) << name;
  }
}

TEST(SnapshotReader, OldLayouts) {
  auto record = read_snapshot(data_path("pickles/old.pickle"));
  ASSERT_TRUE(record.has_value()) << record.error().text();
  ASSERT_EQ(record->final_segments.size(), 1u);
  const auto& blocks = record->final_segments[0].blocks;
  ASSERT_EQ(blocks.size(), 2u);
  EXPECT_EQ(blocks[0].address, 4096u);
  EXPECT_EQ(blocks[0].requested_bytes, 1000u);
  EXPECT_EQ(record->stacks[blocks[0].stack].size(), 2u);
  EXPECT_EQ(blocks[1].address, 5120u);
  EXPECT_TRUE(has_note(*record, "history is empty"));

  record = read_snapshot(data_path("pickles/old_trace.pickle"));
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(count_kind(*record, tonnage::abi::EventKind::kFreeRequested), 1u);
  EXPECT_EQ(count_kind(*record, tonnage::abi::EventKind::kFreeCompleted), 1u);
  EXPECT_FALSE(record->history_truncated);
}

TEST(SnapshotReader, CyclicStructuresAreNotFollowed) {
  auto expected = read_snapshot(data_path("pickles/protocol4.pickle"));
  auto record = read_snapshot(data_path("pickles/cyclic.pickle"));
  ASSERT_TRUE(record.has_value()) << record.error().text();
  EXPECT_EQ(describe(*record), describe(*expected));
  EXPECT_TRUE(has_note(*record, "unknown form"));
}

TEST(SnapshotReader, OneDictThreeTimesIsThreeEvents) {
  auto record = read_snapshot(data_path("pickles/shared.pickle"));
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(count_kind(*record, tonnage::abi::EventKind::kAlloc), 4u);
}

TEST(SnapshotReader, OtherPicklesAreNamedAsSuch) {
  auto record = read_snapshot(data_path("pickles/not_a_snapshot.pickle"));
  ASSERT_FALSE(record.has_value());
  EXPECT_EQ(record.error().code, ErrorCode::kCorrupt);
  EXPECT_NE(record.error().message.find("not a memory snapshot"), std::string::npos);
  for (const std::string& program : {"N."s, "K\x05."s, "]."s, "](K\x01K\x02"s + "e.", "}."s,
                                     "\x8c\x08segments."s, "(lp0\n(dp1\na."s}) {
    auto other = read_bytes(program);
    ASSERT_FALSE(other.has_value()) << testing::PrintToString(program);
  }
}

// What PyTorch's C++ writer makes: protocol 2, and every list in one piece (MARK … APPENDS without
// batches).
TEST(SnapshotReader, UnbatchedWriter) {
  std::vector<std::string> events;
  for (uint64_t i = 0; i < 5000; ++i)
    events.push_back(pickle_dict({{"action", pickle_text(i % 2 ? "free_completed" : "alloc")},
                                  {"addr", pickle_number(i % 100 + 1)},
                                  {"size", pickle_number(64)}}));
  auto record =
      read_bytes(pickle_program(pickle_dict({{"segments", pickle_list({})},
                                             {"device_traces", pickle_list({pickle_list(events)})},
                                             {"allocator_settings", pickle_dict({})}})));
  ASSERT_TRUE(record.has_value()) << record.error().text();
  EXPECT_EQ(record->events.size(), 5000u);
  EXPECT_EQ(count_kind(*record, tonnage::abi::EventKind::kAlloc), 2500u);
}

TEST(SnapshotReader, BlocksOlderThanTheHistory) {
  const auto event = [](const char* action, uint64_t address) {
    return pickle_dict({{"action", pickle_text(action)},
                        {"addr", pickle_number(address)},
                        {"size", pickle_number(64)}});
  };
  const std::string block = pickle_dict({{"address", pickle_number(4096)},
                                         {"size", pickle_number(512)},
                                         {"state", pickle_text("active_allocated")}});
  const std::string segment = pickle_dict({{"address", pickle_number(4096)},
                                           {"total_size", pickle_number(4096)},
                                           {"blocks", pickle_list({block})}});
  // One block lives on from before, another is freed without ever having been allocated.
  auto record = read_bytes(pickle_program(pickle_dict(
      {{"segments", pickle_list({segment})},
       {"device_traces",
        pickle_list({pickle_list({event("free_requested", 8192), event("free_completed", 8192),
                                  event("alloc", 8192), event("free_requested", 8192),
                                  event("free_completed", 8192)})})}})));
  ASSERT_TRUE(record.has_value()) << record.error().text();
  EXPECT_TRUE(record->history_truncated);
  EXPECT_EQ(record->info["blocks_before_history"], "2");
  EXPECT_TRUE(has_note(*record, "2 allocations are older than the history"));
}

// A ring that was overwritten begins after annotations that are still there: they stay before its
// first event.
TEST(SnapshotReader, AnnotationsOlderThanTheRing) {
  const auto annotation = [](const char* stage, uint64_t time) {
    return pickle_dict({{"stage", pickle_text(stage)},
                        {"name", pickle_text("Optimizer.step#Adam.step")},
                        {"device", pickle_number(0)},
                        {"time_us", pickle_number(time)}});
  };
  const std::string event = pickle_dict({{"action", pickle_text("alloc")},
                                         {"addr", pickle_number(4096)},
                                         {"size", pickle_number(64)},
                                         {"time_us", pickle_number(300)}});
  auto record = read_bytes(pickle_program(pickle_dict(
      {{"device_traces", pickle_list({pickle_list({event})})},
       {"external_annotations", pickle_list({annotation("START", 100), annotation("END", 200),
                                             annotation("START", 400)})}})));
  ASSERT_TRUE(record.has_value()) << record.error().text();
  ASSERT_EQ(record->events.size(), 4u);
  EXPECT_EQ(record->events[0].value, 0u);
  EXPECT_EQ(record->events[1].kind, tonnage::abi::EventKind::kAnnotation);
  EXPECT_EQ(record->events[1].value, 1u);
  EXPECT_EQ(record->events[2].kind, tonnage::abi::EventKind::kAlloc);
  EXPECT_EQ(record->events[3].kind, tonnage::abi::EventKind::kAnnotation);
}

TEST(SnapshotReader, UnknownActionsAreCounted) {
  const std::string event = pickle_dict({{"action", pickle_text("teleport")},
                                         {"addr", pickle_number(1)},
                                         {"size", pickle_number(64)}});
  auto record = read_bytes(
      pickle_program(pickle_dict({{"device_traces", pickle_list({pickle_list({event, event})})}})));
  ASSERT_TRUE(record.has_value());
  EXPECT_TRUE(record->events.empty());
  EXPECT_TRUE(has_note(*record, "2 events of the unknown kind \"teleport\""));
}

struct RealCase {
  const char* name;
  size_t allocs, frees, ooms, segments;
};

TEST(SnapshotReader, RealHistories) {
  for (const auto& real : std::initializer_list<RealCase>{{"leak_loss", 2268, 1700, 0, 151},
                                                          {"oom_activations_exp", 375, 219, 1, 3},
                                                          {"oom_fragment", 803, 535, 1, 174},
                                                          {"oom_optimizer", 1976, 930, 1, 261},
                                                          {"streams_expandable", 255, 232, 0, 3}}) {
    auto record = read_snapshot(data_path("snapshots/"s + real.name + ".pickle.xz"));
    ASSERT_TRUE(record.has_value()) << real.name << record.error().text();
    EXPECT_EQ(count_kind(*record, tonnage::abi::EventKind::kAlloc), real.allocs) << real.name;
    EXPECT_EQ(count_kind(*record, tonnage::abi::EventKind::kFreeCompleted), real.frees)
        << real.name;
    EXPECT_EQ(count_kind(*record, tonnage::abi::EventKind::kOom), real.ooms) << real.name;
    EXPECT_EQ(record->final_segments.size(), real.segments) << real.name;
    EXPECT_FALSE(record->history_truncated) << real.name;
    EXPECT_TRUE(record->notes.empty()) << real.name << record->notes[0];
  }
}

TEST(SnapshotReader, EveryTruncationGivesAnErrorOrAPartialAnswer) {
  for (const char* name :
       {"pickles/protocol4.pickle", "pickles/protocol0.pickle", "pickles/protocol2.pickle"}) {
    const std::string bytes = file_bytes(name);
    const auto whole = read_bytes(bytes);
    ASSERT_TRUE(whole.has_value());
    size_t partial = 0;
    for (size_t size = 0; size < bytes.size(); ++size) {
      auto record = read_bytes(bytes.substr(0, size));
      if (!record) {
        EXPECT_EQ(record.error().code, ErrorCode::kCorrupt) << size;
        continue;
      }
      ++partial;
      EXPECT_EQ(record->info["partial"], "1") << name << size;
      EXPECT_TRUE(has_note(*record, "partial")) << name << size;
      EXPECT_LE(record->events.size(), whole->events.size()) << name << size;
      for (const auto& event : record->events)
        EXPECT_NE(event.kind, tonnage::abi::EventKind::kNone) << name << size;
    }
    EXPECT_GT(partial, bytes.size() / 4) << name;
  }
}

TEST(SnapshotReader, TruncatedRealHistoryKeepsItsWholeEvents) {
  const std::string bytes = decompressed("snapshots/oom_fragment.pickle.xz");
  const auto whole = read_bytes(bytes);
  ASSERT_TRUE(whole.has_value());
  size_t last = 0;
  for (size_t size = 60000; size < bytes.size(); size += 7919) {
    auto record = read_bytes(bytes.substr(0, size));
    ASSERT_TRUE(record.has_value()) << size << record.error().text();
    ASSERT_GE(record->events.size(), last);
    last = record->events.size();
    for (size_t i = 0; i < last; ++i) {
      ASSERT_EQ(record->events[i].address, whole->events[i].address) << size << ' ' << i;
      ASSERT_EQ(record->events[i].size_bytes, whole->events[i].size_bytes) << size << ' ' << i;
      ASSERT_EQ(record->events[i].kind, whole->events[i].kind) << size << ' ' << i;
    }
  }
  EXPECT_GT(last, whole->events.size() / 2);
}

TEST(SnapshotReader, Compressions) {
  const std::string bytes = file_bytes("pickles/protocol4.pickle");
  auto expected = read_bytes(bytes);
  ASSERT_TRUE(expected.has_value());

  std::string zstd(ZSTD_compressBound(bytes.size()), '\0');
  zstd.resize(ZSTD_compress(zstd.data(), zstd.size(), bytes.data(), bytes.size(), 3));
  std::string xz(bytes.size() + 1000, '\0');
  size_t xz_size = 0;
  ASSERT_EQ(lzma_easy_buffer_encode(6, LZMA_CHECK_CRC64, nullptr,
                                    reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(),
                                    reinterpret_cast<uint8_t*>(xz.data()), &xz_size, xz.size()),
            LZMA_OK);
  xz.resize(xz_size);
  std::string gzip(bytes.size() + 1000, '\0');
  z_stream stream{};
  ASSERT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(gzip.data());
  stream.avail_out = static_cast<uInt>(gzip.size());
  ASSERT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  gzip.resize(stream.total_out);
  deflateEnd(&stream);

  for (const std::string& packed : {zstd, xz, gzip}) {
    auto record = read_bytes(packed);
    ASSERT_TRUE(record.has_value()) << record.error().text();
    EXPECT_EQ(describe(*record), describe(*expected));
    for (size_t size = 9; size < packed.size(); size += 13) {
      auto cut = read_bytes(packed.substr(0, size));
      if (cut) {
        EXPECT_EQ(cut->info["partial"], "1");
      }
    }
    std::string damaged = packed;
    damaged[packed.size() / 2] ^= 0x55;
    auto record_damaged =
        read_bytes(damaged);  // an error or a partial answer; the check sums notice
    if (record_damaged) {
      EXPECT_EQ(record_damaged->info["partial"], "1");
    }
  }
}

TEST(SnapshotReader, FilesThatAreSomethingElse) {
  struct Case {
    std::string bytes;
    ErrorCode code;
    std::string part;
  };
  for (const auto& [bytes, code, part] : std::initializer_list<Case>{
           {"", ErrorCode::kCorrupt, "empty"},
           {"PK\x03\x04rest of a zip", ErrorCode::kUnsupported, "zip"},
           {"\x04\x22\x4d\x18rest", ErrorCode::kUnsupported, "lz4"},
           {"\x1f\x8b garbage that is no gzip", ErrorCode::kCorrupt, "gzip"},
           {"Traceback (most recent call last):\n", ErrorCode::kCorrupt, "not a pickle"}}) {
    auto record = read_bytes(bytes);
    ASSERT_FALSE(record.has_value()) << part;
    EXPECT_EQ(record.error().code, code) << record.error().text();
    EXPECT_NE(record.error().message.find(part), std::string::npos) << record.error().text();
  }
  EXPECT_EQ(read_snapshot("/nonexistent/file.pickle").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(read_snapshot("/").error().code, ErrorCode::kIo);
}

TEST(SnapshotReader, WrongTypesDoNotMatter) {
  // Every field with a value of the wrong type: nothing to report, nothing to crash on.
  for (const std::string& value :
       {"N"s, "\x88"s, "K\x05"s, "J\xff\xff\xff\xff"s, "\x8c\x03xyz"s, "]"s, "}"s, ")"s,
        "G\x7f\xf0\0\0\0\0\0\0"s, "C\x02zz"s, "\x8a\x10zzzzzzzzzzzzzzzz"s}) {
    std::vector<std::pair<std::string, std::string>> items;
    for (const char* key : {"action",
                            "addr",
                            "size",
                            "stream",
                            "time_us",
                            "frames",
                            "device_free",
                            "user_metadata",
                            "compile_context",
                            "address",
                            "total_size",
                            "blocks",
                            "state",
                            "device",
                            "is_expandable",
                            "segment_pool_id",
                            "history",
                            "name",
                            "stage",
                            "filename",
                            "line",
                            "max_split_size",
                            "PYTORCH_CUDA_ALLOC_CONF",
                            "roundup_power2_divisions",
                            "garbage_collection_threshold",
                            "trace_alloc_overflowed"})
      items.emplace_back(key, value);
    const std::string dict = pickle_dict(items);
    const std::string segment = pickle_dict({{"address", pickle_number(4096)},
                                             {"total_size", pickle_number(4096)},
                                             {"blocks", pickle_list({dict, value})}});
    const std::string alloc = pickle_dict({{"action", pickle_text("alloc")},
                                           {"addr", value},
                                           {"size", value},
                                           {"frames", pickle_list({dict, value})}});
    for (const std::string& traces :
         {pickle_list({pickle_list({dict, alloc, value}), value}), value})
      for (const std::string& segments : {pickle_list({segment, dict, value}), value}) {
        auto record = read_bytes(
            pickle_program(pickle_dict({{"segments", segments},
                                        {"device_traces", traces},
                                        {"allocator_settings", dict},
                                        {"external_annotations", pickle_list({dict, value})}})));
        if (!record) {
          EXPECT_EQ(record.error().code, ErrorCode::kCorrupt) << record.error().text();
          continue;
        }
        for (const auto& event : record->events)
          EXPECT_EQ(event.kind, tonnage::abi::EventKind::kAlloc);
      }
  }
}

TEST(SnapshotReader, LooksLikePickle) {
  EXPECT_TRUE(looks_like_pickle("\x80\x04\x95"));
  EXPECT_TRUE(looks_like_pickle("(dp0\n"));
  EXPECT_TRUE(looks_like_pickle("}q\x01"));
  EXPECT_FALSE(looks_like_pickle("RuntimeError: CUDA out of memory"));
  EXPECT_FALSE(looks_like_pickle("{\"a\": 1}"));
  EXPECT_FALSE(looks_like_pickle(""));
}

}  // namespace
