// Tables in logs, patterns of messages, and the index of their beginnings.
#include "sources/messages/log_tables.h"

#include <gtest/gtest.h>

#include "sources/messages/log_scan.h"
#include "sources/messages/message_table.h"
#include "sources/messages/trigger_index.h"

namespace tonnage::sources {
namespace {

constexpr uint64_t kMiB = 1 << 20;

TEST(SmiTable, CardsAndTheirProcesses) {
  SmiTable table;
  uint64_t number = 0;
  for (const char* line :
       {"|   0  NVIDIA GeForce RTX 3060   Off | 00000000:01:00.0  On |     N/A |",
        "|  0%   45C    P8   12W / 170W |  11900MiB / 12288MiB |   0%   Default |",
        "|   1  Tesla T4   Off | 00000000:02:00.0 Off |   0 |",
        "| N/A   40C    P8    9W /  70W |      3MiB / 15360MiB |   0%   Default |",
        "|    0   N/A  N/A    4711      C   python                  8191MiB |",
        "|    0      4712      C+G   /usr/bin/x                     3500MiB |"})
    table.line(line, ++number);
  const std::vector<LogCard> cards = table.take();
  ASSERT_EQ(cards.size(), 2u);
  EXPECT_EQ(cards[0].used.bytes, 11900 * kMiB);
  EXPECT_EQ(cards[0].total.bytes, 12288 * kMiB);
  ASSERT_EQ(cards[0].processes.size(), 2u);
  EXPECT_EQ(cards[0].processes[0].pid, 4711u);
  EXPECT_EQ(cards[0].processes[0].name, "python");
  EXPECT_EQ(cards[0].processes[1].used->bytes, 3500 * kMiB);
  EXPECT_EQ(cards[1].index, 1u);
  EXPECT_TRUE(cards[1].processes.empty());
}

TEST(SmiTable, OtherTablesAreNone) {
  SmiTable table;
  for (const char* line : {"| epoch | loss |", "| 1 | 0.5 |", "|  9216 MiB |  10240 MiB |", "||||"})
    table.line(line, 1);
  EXPECT_TRUE(table.take().empty());
}

TEST(MessagePattern, FieldsOptionalPartsAndWhatIsBetween) {
  LogOom oom;
  EXPECT_TRUE(
      match_pattern("x  wants\n1,024 bytes of 2.5gib left", "wants <req> bytes of <free>", oom));
  EXPECT_EQ(oom.requested->bytes, 1024u);
  EXPECT_EQ(oom.free->bytes, 5 * kMiB * 512);
  EXPECT_TRUE(match_pattern("at /a/b/THCStorage.cu:58", "at [[<*>/]]THC<detail>", oom));
  EXPECT_EQ(oom.detail, "Storage.cu:58");
  EXPECT_TRUE(match_pattern("at THCStorage.cu:58", "at [[<*>/]]THC<detail>", oom));
  EXPECT_FALSE(match_pattern("wants nothing", "wants <req>", oom));
}

TEST(MessagePattern, EveryRowBeginsWithALiteral) {
  for (const MessageRow& row : message_rows())
    EXPECT_GE(first_literal(row.pattern).size(), 3u) << row.pattern;
}

TEST(TriggerIndex, AnyRunOfWhiteSpace) {
  const TriggerIndex index({"out of memory", "Cannot allocate"});
  EXPECT_TRUE(index.occurs_in("CUDA out  of\tmemory."));
  EXPECT_TRUE(index.occurs_in("Cannot allocate"));
  EXPECT_FALSE(index.occurs_in("out of mem"));
  EXPECT_FALSE(index.occurs_in(""));
}

TEST(LogScan, GroupsOfThousands) {
  EXPECT_EQ(LogScan("7,270,534,144 bytes").size()->bytes, 7270534144u);
  EXPECT_FALSE(LogScan("16,1124 MB").size().has_value());
  EXPECT_EQ(*LogScan("12,345").grouped_number(), 12345u);
}

}  // namespace
}  // namespace tonnage::sources
