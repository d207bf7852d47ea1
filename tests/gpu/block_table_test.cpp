#include "gpu/block_table.h"

#include <gtest/gtest.h>

#include <random>
#include <unordered_map>

namespace tonnage::gpu {
namespace {

TEST(BlockTable, KnowsLiveBlocksByTheirBeginning) {
  BlockTable blocks;
  EXPECT_EQ(blocks.bytes_at(0x1000), 0u);
  blocks.add(0x1000, 513);
  EXPECT_EQ(blocks.bytes_at(0x1000), 1024u);
  EXPECT_EQ(blocks.bytes_at(0x1200), 0u);  // inside: not its beginning
  blocks.add(0x1000, 512);                 // taken anew, smaller
  EXPECT_EQ(blocks.bytes_at(0x1000), 512u);
  blocks.remove(0x1000);
  EXPECT_EQ(blocks.bytes_at(0x1000), 0u);
  blocks.remove(0x1000);
}

TEST(BlockTable, FindsTheBlockAroundAnAddress) {
  BlockTable blocks;
  blocks.add(0x1000, 513);
  blocks.add(0x1400, 100);
  EXPECT_EQ(blocks.containing(0x13ff), (std::pair<uint64_t, uint64_t>(0x1000, 1024)));
  EXPECT_EQ(blocks.containing(0x1400), (std::pair<uint64_t, uint64_t>(0x1400, 512)));
  EXPECT_EQ(blocks.containing(0x1600), (std::pair<uint64_t, uint64_t>(0, 0)));
  EXPECT_EQ(blocks.containing(0xfff), (std::pair<uint64_t, uint64_t>(0, 0)));
}

TEST(BlockTable, AgreesWithAMapUnderRandomUse) {
  BlockTable blocks;
  std::unordered_map<uint64_t, uint64_t> expected;
  std::mt19937_64 random(7);
  for (int i = 0; i < 200000; i++) {
    const uint64_t address = 0x7f0000000000 + 512 * (random() % 4000);
    if (random() % 2) {
      const uint64_t bytes = 512 * (1 + random() % 100);
      blocks.add(address, bytes);
      expected[address] = bytes;
    } else {
      blocks.remove(address);
      expected.erase(address);
    }
    const uint64_t probe = 0x7f0000000000 + 512 * (random() % 4000);
    const auto found = expected.find(probe);
    ASSERT_EQ(blocks.bytes_at(probe), found == expected.end() ? 0 : found->second);
  }
}

}  // namespace
}  // namespace tonnage::gpu
