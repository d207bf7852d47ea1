// Perfetto's format, by a reader of protocol buffers that shares nothing with the writer.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "report/trace/perfetto_format.h"
#include "report/trace/proto.h"

namespace tonnage::report::trace {
namespace {

struct Fields {
  std::multimap<uint32_t, uint64_t> numbers;
  std::multimap<uint32_t, std::string> texts;
  uint64_t number(uint32_t field) const {
    const auto found = numbers.find(field);
    return found == numbers.end() ? 0 : found->second;
  }
  std::string text(uint32_t field) const {
    const auto found = texts.find(field);
    return found == texts.end() ? "" : found->second;
  }
};

uint64_t read_varint(const std::string& bytes, size_t& at) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes.at(at++));
    value |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
}

Fields read_fields(const std::string& bytes) {
  Fields out;
  for (size_t at = 0; at < bytes.size();) {
    const uint64_t tag = read_varint(bytes, at);
    if ((tag & 7) == 0) {
      out.numbers.emplace(tag >> 3, read_varint(bytes, at));
    } else {
      EXPECT_EQ(tag & 7, 2u);
      const uint64_t size = read_varint(bytes, at);
      out.texts.emplace(tag >> 3, bytes.substr(at, size));
      at += size;
    }
  }
  return out;
}

TEST(Proto, NumbersAndTexts) {
  Message message;
  message.number(1, 150);
  message.number(300, UINT64_MAX);
  message.text(2, "testing");
  EXPECT_EQ(message.bytes().substr(0, 3), "\x08\x96\x01");  // the example of the specification
  const Fields fields = read_fields(message.bytes());
  EXPECT_EQ(fields.number(1), 150u);
  EXPECT_EQ(fields.number(300), UINT64_MAX);
  EXPECT_EQ(fields.text(2), "testing");
}

TEST(Proto, WhatIsNoTextBecomesOne) {
  const std::pair<std::string, std::string> cases[] = {
      {"ü€𝄞", "ü€𝄞"},
      {"a\xff z", "a\xef\xbf\xbd z"},
      {"\xc0\x80", "\xef\xbf\xbd\xef\xbf\xbd"},                  // too long a form
      {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},  // half of a pair
      {"\xe2\x82", "\xef\xbf\xbd\xef\xbf\xbd"},                  // cut off
  };
  for (const auto& [given, wanted] : cases) {
    Message message;
    message.text(1, given);
    EXPECT_EQ(read_fields(message.bytes()).text(1), wanted);
  }
}

struct Written {
  std::string bytes;
  int pieces = 0;
  Sink sink = [this](std::string_view piece) {
    bytes += piece;
    ++pieces;
    return true;
  };
  std::vector<Fields> packets() const {
    std::vector<Fields> out;
    for (const auto& [field, packet] : read_fields(bytes).texts) {
      EXPECT_EQ(field, 1u);
      out.push_back(read_fields(packet));
    }
    return out;
  }
};

TEST(PerfettoFormat, SlicesThatCrossGetRowsAndRowsAreUsedAgain) {
  Written written;
  PerfettoFormat format(written.sink);
  format.begin_source();
  format.group(1, "GPU 0");
  const std::pair<uint64_t, uint64_t> slices[] = {{0, 10}, {5, 20}, {10, 30}, {20, 25}};
  for (const auto& [from, to] : slices)
    format.crossing_slice(1, "block", "train.py:1", from, to, {});
  ASSERT_TRUE(format.finish());
  std::map<uint64_t, uint64_t> end_of_row;
  int begun = 0;
  uint64_t open = 0;
  for (const Fields& packet : written.packets()) {
    EXPECT_EQ(packet.number(10), 1u);
    if (packet.text(11).empty()) continue;
    const Fields event = read_fields(packet.text(11));
    const uint64_t row = event.number(11);
    if (event.number(9) == 1) {
      EXPECT_LE(end_of_row[row], packet.number(8));
      open = row;
      ++begun;
    } else if (event.number(9) == 2) {
      EXPECT_EQ(row, open);
      end_of_row[row] = packet.number(8);
    }
  }
  EXPECT_EQ(begun, 4);
  EXPECT_EQ(end_of_row.size(), 2u);
}

TEST(PerfettoFormat, CountersAreWrittenWhenTheyChange) {
  Written written;
  PerfettoFormat format(written.sink);
  format.group(1, "GPU 0");
  CounterKinds kinds;
  kinds.allocator = true;
  analysis::CategoryPoint point;
  for (const uint64_t bytes : {0u, 5u, 5u, 5u, 7u}) {
    point.allocated_bytes = bytes;
    format.counters(1, 100 * bytes, point, kinds);
  }
  ASSERT_TRUE(format.finish());
  std::vector<uint64_t> values;
  uint64_t track = 0;
  for (const Fields& packet : written.packets()) {
    if (const Fields descriptor = read_fields(packet.text(60)); descriptor.text(2) == "allocated")
      track = descriptor.number(1);
    const Fields event = read_fields(packet.text(11));
    if (event.number(9) == 4 && event.number(11) == track) values.push_back(event.number(30));
  }
  EXPECT_EQ(values, (std::vector<uint64_t>{0, 5, 7}));
}

TEST(PerfettoFormat, StringsAreWrittenOnceAndInPieces) {
  Written written;
  PerfettoFormat format(written.sink);
  format.group(1, "GPU 0");
  const std::string stack(1000, 's');
  for (uint64_t i = 0; i < 20'000; ++i) {
    const Argument arguments[] = {{"stack", StackText{7, stack}}, {"bytes", i}};
    format.crossing_slice(1, "block", "train.py:1", i, i + 1, arguments);
  }
  ASSERT_TRUE(format.finish());
  EXPECT_GT(written.pieces, 3);
  EXPECT_LT(written.bytes.size(), 20'000u * 80);
  EXPECT_EQ(written.bytes.find(stack), written.bytes.rfind(stack));
}

}  // namespace
}  // namespace tonnage::report::trace
