#include "record/alloc_conf.h"

#include <gtest/gtest.h>

namespace tonnage::record {
namespace {

using Divisions = std::vector<uint32_t>;

TEST(RecordAllocConf, EveryKeyThatDecidesIsRead) {
  const auto s = parse_alloc_conf(
      "max_split_size_mb:128, "
      "garbage_collection_threshold:0.8,expandable_segments:True,backend:native");
  EXPECT_EQ(s.max_split_size_bytes, 128ull << 20);
  EXPECT_EQ(s.garbage_collection_threshold, 0.8);
  EXPECT_TRUE(s.expandable_segments);
  EXPECT_TRUE(s.roundup_power2_divisions.empty());
  EXPECT_EQ(s.text,
            "max_split_size_mb:128, "
            "garbage_collection_threshold:0.8,expandable_segments:True,backend:native");
}

TEST(RecordAllocConf, NothingMeansPyTorchsDefaults) {
  for (const char* text :
       {"", ",,,", "max_split_size_mb", "max_split_size_mb:", "max_split_size_mb:many",
        "garbage_collection_threshold:7", "expandable_segments:true",
        "roundup_power2_divisions:[256]", "roundup_power2_divisions:[0:1]", "[", "]", ":"}) {
    const auto s = parse_alloc_conf(text);
    EXPECT_EQ(s.max_split_size_bytes, UINT64_MAX) << text;
    EXPECT_EQ(s.garbage_collection_threshold, 0) << text;
    EXPECT_FALSE(s.expandable_segments) << text;
    EXPECT_TRUE(s.roundup_power2_divisions.empty()) << text;
  }
}

TEST(RecordAllocConf, DivisionsForAllSizesOrBySize) {
  EXPECT_EQ(parse_alloc_conf("roundup_power2_divisions:4").roundup_power2_divisions,
            Divisions(16, 4));
  // The first key fills what lies below, ">" what lies above; a size between that is not named
  // stays 0.
  EXPECT_EQ(
      parse_alloc_conf("roundup_power2_divisions:[256:1,512:2,1024:4,>:8],max_split_size_mb:64")
          .roundup_power2_divisions,
      (Divisions{1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8}));
  EXPECT_EQ(parse_alloc_conf("roundup_power2_divisions:[64:8,1024:2]").roundup_power2_divisions,
            (Divisions{8, 8, 8, 8, 8, 8, 8, 0, 0, 0, 2, 0, 0, 0, 0, 0}));
  EXPECT_EQ(
      parse_alloc_conf("roundup_power2_divisions:[1048576:2]").roundup_power2_divisions.back(), 2u);
  EXPECT_EQ(
      parse_alloc_conf("roundup_power2_divisions:[64:8],max_split_size_mb:64").max_split_size_bytes,
      64ull << 20);
}

}  // namespace
}  // namespace tonnage::record
