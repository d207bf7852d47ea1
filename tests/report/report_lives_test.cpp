// The lives of blocks as the page holds them: read back, they give the map of every moment.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "analysis/analysis_builder.h"
#include "analysis/block_lives.h"
#include "analysis/timeline/breakdown.h"
#include "report/html.h"

namespace tonnage::report {
namespace {

using analysis::testing::EventKind;
using analysis::testing::kMiB;
using analysis::testing::PlainAllocator;
using analysis::testing::RecordBuilder;
using nlohmann::json;

class Reader {
 public:
  explicit Reader(const std::string& base64) {
    uint32_t word = 0;
    int bits = 0;
    for (const char c : base64) {
      const int digit = c >= 'A' && c <= 'Z'   ? c - 'A'
                        : c >= 'a' && c <= 'z' ? c - 'a' + 26
                        : c >= '0' && c <= '9' ? c - '0' + 52
                        : c == '+'             ? 62
                        : c == '/'             ? 63
                                               : -1;
      if (digit < 0) break;
      word = word << 6 | static_cast<uint32_t>(digit);
      if ((bits += 6) < 8) continue;
      bits -= 8;
      bytes_ += static_cast<char>(word >> bits);
    }
  }
  bool more() const { return at_ < bytes_.size(); }
  uint64_t next() {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(bytes_.at(at_++));
      value |= uint64_t{byte & 127u} << shift;
      if (byte < 128) return value;
    }
  }
  int64_t next_signed() {
    const uint64_t value = next();
    return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
  }

 private:
  std::string bytes_;
  size_t at_ = 0;
};

// A program of steps that repeat themselves, with a few sizes that change.
RecordBuilder program(int steps) {
  RecordBuilder out;
  PlainAllocator allocator(out);
  std::mt19937 random(3);
  const uint32_t line = out.stack({{"/home/u/train.py", 12, "main"}});
  out.from(line);
  for (int step = 0; step < steps; ++step) {
    std::vector<uint64_t> live;
    for (int i = 0; i < 12; ++i)
      live.push_back(allocator.alloc(i < 10 ? static_cast<uint64_t>(1 + i) * 700'001
                                            : 1 + random() % (8 * kMiB)));
    for (const uint64_t address : live) allocator.release(address);
  }
  return out;
}

json data_of(const RecordBuilder& builder, const HtmlLimits& limits = {}) {
  return json::parse(
      html_data({analysis::explain(std::make_shared<const record::Record>(builder.record))},
                limits))["explanations"][0];
}

TEST(HtmlLives, GiveTheMapOfEveryMoment) {
  const RecordBuilder builder = program(20);
  const json data = data_of(builder);
  const json& chart = data["charts"][0];
  ASSERT_EQ(chart["lives"].size(), 1u);
  const json& lives = chart["lives"][0];
  const uint64_t unit = lives["unit"];
  analysis::BlockLives back;
  const auto until = [](uint64_t from, uint64_t life) {
    return life == 0 ? analysis::kNever : static_cast<uint32_t>(from + life - 1);
  };
  uint64_t from = 0;
  int64_t address = 0;
  for (Reader in(lives["segments"]); in.more();) {
    analysis::SegmentLife segment;
    segment.from = static_cast<uint32_t>(from += in.next());
    segment.to = until(from, in.next());
    segment.address = segment.group = static_cast<uint64_t>(address += in.next_signed()) * unit;
    segment.size_bytes = in.next() * unit;
    const uint64_t kind = in.next();
    segment.stream = lives["streams"][kind / 2];
    EXPECT_EQ(kind % 2, 0u);
    address += static_cast<int64_t>(segment.size_bytes / unit);
    back.segments.push_back(segment);
  }
  struct Shape {
    uint64_t address, size, rounding, category, site;
  };
  std::vector<Shape> shapes;
  address = 0;
  for (Reader in(lives["shapes"]); in.more();) {
    const auto at = static_cast<uint64_t>(address += in.next_signed()) * unit;
    const uint64_t size = in.next() * unit, rounding = in.next(), category = in.next(),
                   site = in.next();
    shapes.push_back({at, size, rounding, category, site});
    EXPECT_LT(category, data["category_order"].size());
    const size_t text = chart["sites"]["text"].at(site - 1);
    EXPECT_EQ(data["tables"]["strings"].at(text), "train.py:12");
  }
  from = 0;
  int64_t which = 0;
  for (Reader in(lives["blocks"]); in.more();) {
    analysis::BlockLife block;
    block.from = static_cast<uint32_t>(from += in.next());
    block.freed = until(block.from, in.next());
    const uint64_t wait = in.next();
    block.gone = block.freed == analysis::kNever ? analysis::kNever : until(block.freed, wait);
    const Shape& shape = shapes.at(static_cast<size_t>(which += in.next_signed()));
    block.address = shape.address;
    block.size_bytes = shape.size;
    block.requested_bytes = shape.size - shape.rounding;
    back.blocks.push_back(block);
  }
  EXPECT_EQ(back.blocks.size(), 20u * 12);
  EXPECT_LT(shapes.size(), back.blocks.size() / 2);
  const analysis::Timeline timeline(builder.record);
  for (uint64_t event = 0; event < builder.record.events.size(); ++event) {
    const auto made = analysis::map_of(back, event),
               truth = analysis::segment_map_at(timeline, 0, 0, event);
    ASSERT_EQ(made.segments.size(), truth.segments.size()) << event;
    for (size_t s = 0; s < made.segments.size(); ++s) {
      ASSERT_EQ(made.segments[s].address, truth.segments[s].address);
      ASSERT_EQ(made.segments[s].blocks.size(), truth.segments[s].blocks.size()) << event;
      for (size_t b = 0; b < made.segments[s].blocks.size(); ++b) {
        const auto &x = made.segments[s].blocks[b], &y = truth.segments[s].blocks[b];
        ASSERT_TRUE(x.address == y.address && x.size_bytes == y.size_bytes &&
                    x.requested_bytes == y.requested_bytes && x.state == y.state)
            << event;
      }
    }
  }
}

TEST(HtmlLives, TooMuchForThePageIsLeftOutAndSaid) {
  const RecordBuilder builder = program(200);
  const json whole = data_of(builder), cut = data_of(builder, {1000});
  EXPECT_FALSE(whole["charts"][0]["lives"].is_null());
  EXPECT_TRUE(cut["charts"][0]["lives"].is_null());
  // Then one is stored near whatever moment the reader chooses.
  EXPECT_EQ(cut["charts"][0]["maps"].size(), kMapMoments);
  EXPECT_LT(whole["charts"][0]["maps"].size(), kMapMoments);
  EXPECT_NE(render_html({}).find("The page does not hold every moment of this history"),
            std::string::npos);
}

TEST(HtmlLives, EventsThatContradictEachOtherGetNoInventedMaps) {
  RecordBuilder builder = program(2);
  const uint64_t live = 0x7f5500000000;
  builder.segment(live, 20 * kMiB);
  builder.alloc(live + 4 * kMiB, 12 * kMiB);
  builder.add(abi::EventKind::kSegmentFree, live + 8 * kMiB,
              2 * kMiB);  // in the middle of a live block
  const json data = data_of(builder);
  EXPECT_TRUE(data["charts"][0]["lives"].is_null());
}

// Whatever events a file holds: where a map of the lives is not what a replay gives, there are none.
TEST(HtmlLives, NonsenseIsSurvived) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    RecordBuilder out;
    std::mt19937_64 random(seed);
    out.record.settings.expandable_segments = seed % 2 == 1;
    const EventKind kinds[] = {EventKind::kAlloc,         EventKind::kFreeRequested,
                               EventKind::kFreeCompleted, EventKind::kSegmentAlloc,
                               EventKind::kSegmentFree,   EventKind::kSegmentMap,
                               EventKind::kSegmentUnmap};
    const uint64_t base = seed % 3 == 0 ? UINT64_MAX - 12 * kMiB : 0x7f0000000000;
    for (int i = 0; i < 150; ++i)
      out.add(kinds[random() % std::size(kinds)], base + random() % 16 * kMiB,
              random() % 8 == 0 ? random() : random() % 9 * kMiB);
    EXPECT_FALSE(data_of(out)["charts"].empty());
    const analysis::Timeline timeline(out.record);
    const auto lives = analysis::block_lives(timeline, 0, 0);
    for (uint64_t event = 0; event < 150; event += 30) analysis::map_of(lives, event);
  }
}

TEST(HtmlLives, AMillionEventsStaySmall) {
  const RecordBuilder builder = program(2000);  // 72,000 events
  const json data = data_of(builder);
  size_t bytes = 0;
  for (const char* part : {"segments", "shapes", "blocks"})
    bytes += data["charts"][0]["lives"][0][part].get_ref<const std::string&>().size();
  // 30 MB for a million events, with the rest of the page.
  EXPECT_LT(bytes * 1'000'000 / builder.record.events.size(), 20u << 20);
}

}  // namespace
}  // namespace tonnage::report
