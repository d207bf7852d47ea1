#include "vgpu/memory/block_table.h"

#include <gtest/gtest.h>

namespace tonnage::vgpu {
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

}  // namespace
}  // namespace tonnage::vgpu
