// Where pinned memory lies: the sequence that an H200 answered, each piece at the same offset of
// the same block.
#include "gpu/pinned_memory.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "gpu/fakes.h"

namespace tonnage::gpu {
namespace {

TEST(PinnedMemory, IsPlacedAsOnARealCard) {
  std::ifstream file(std::string(TONNAGE_SOURCE_DIR) + "/tests/data/addresses/h200-pinned.txt");
  ASSERT_TRUE(file);
  TestAddresses addresses;
  addresses.space.prepare_context();
  FakePages pages;
  PinnedMemory memory(&addresses.space, &pages);
  std::map<uint64_t, uint64_t> blocks;  // the card's -> ours
  std::map<uint64_t, uint64_t> host;    // by the card's address
  int compared = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string kind, result, address;
    uint64_t size = 0, flags = 0;
    words >> kind;
    if (kind == "dev") {
      words >> size;
      addresses.space.allocate(size);
    } else if (kind == "host") {
      words >> size >> flags >> result >> address;
      const uint64_t real = std::stoull(address, nullptr, 16), ours = memory.allocate(0, size);
      host[real] = ours;
      EXPECT_EQ(ours % kAllocationGranularity, real % kAllocationGranularity) << line;
      if (size > PinnedMemory::kLargestShared) continue;
      const auto known =
          blocks.emplace(real / kAllocationGranularity, ours / kAllocationGranularity).first;
      EXPECT_EQ(known->second, ours / kAllocationGranularity) << line;
      compared++;
    } else if (kind == "freehost") {
      words >> result >> address;
      const auto known = host.find(std::stoull(address, nullptr, 16));
      ASSERT_NE(known, host.end()) << line;
      memory.release(known->second);
      host.erase(known);
    }
  }
  EXPECT_GT(compared, 70);
  for (const auto& [real, ours] : host) memory.release(ours);
  EXPECT_EQ(pages.committed, 0u);
}

TEST(PinnedMemory, IsRefusedWhereTheHostHasNone) {
  TestAddresses addresses;
  FakePages pages;
  pages.room = 16ull << 20;
  PinnedMemory memory(&addresses.space, &pages);
  EXPECT_EQ(memory.allocate(0, 32ull << 20), 0u);
  EXPECT_EQ(memory.allocate(0, ~0ull - 5), 0u);
  const uint64_t fits = memory.allocate(0, 16ull << 20);
  EXPECT_NE(fits, 0u);
  memory.release(fits + 512);  // not one of its addresses
  EXPECT_EQ(pages.committed, 16ull << 20);
}

}  // namespace
}  // namespace tonnage::gpu
