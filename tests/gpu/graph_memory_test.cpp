// Addresses and memory of graphs' allocations.
#include "gpu/graph_memory.h"

#include <gtest/gtest.h>

#include <set>

#include "gpu/fakes.h"
#include "gpu/memory_pool.h"

namespace tonnage::gpu {
namespace {

constexpr uint64_t kMiB = 1ull << 20;

TEST(GraphAddresses, AreSharedWhereOneUseIsOverBeforeTheNext) {
  TestAddresses addresses;
  GraphAddresses graph;
  std::set<uint64_t> over;
  const auto is_over = [&](uint64_t use) { return over.count(use) > 0; };
  const uint64_t first = graph.allocate(&addresses.space, 64 * kMiB, 1, is_over);
  ASSERT_NE(first, 0u);
  const uint64_t beside = graph.allocate(&addresses.space, 64 * kMiB, 2, is_over);
  EXPECT_NE(beside, first);
  over = {1};
  EXPECT_EQ(graph.allocate(&addresses.space, 64 * kMiB, 3, is_over), first);
  EXPECT_NE(graph.allocate(&addresses.space, 64 * kMiB, 4, is_over), first) << "3 is there";
  EXPECT_EQ(graph.extent_of(1), 64 * kMiB);
  EXPECT_EQ(graph.extent_of(2), 128 * kMiB);
  EXPECT_EQ(graph.extent_of(3), 64 * kMiB);
  EXPECT_EQ(graph.extent_of(4), 192 * kMiB);
  // What does not fit there has an address of its own, but can have the memory.
  over = {1, 2, 3, 4};
  EXPECT_NE(graph.allocate(&addresses.space, 80 * kMiB, 5, is_over), first);
  EXPECT_EQ(graph.extent_of(5), 80 * kMiB);
}

TEST(GraphAddresses, SmallerOnesShareALargerOnesPlace) {
  TestAddresses addresses;
  GraphAddresses graph;
  const auto is_over = [](uint64_t use) { return use == 1; };
  const uint64_t large = graph.allocate(&addresses.space, 64 * kMiB, 1, is_over);
  EXPECT_EQ(graph.allocate(&addresses.space, 30 * kMiB, 2, is_over), large);
  EXPECT_EQ(graph.allocate(&addresses.space, 30 * kMiB, 3, is_over), large + 30 * kMiB);
  const uint64_t outside = graph.allocate(&addresses.space, 30 * kMiB, 4, is_over);
  EXPECT_TRUE(outside < large || outside >= large + 64 * kMiB);
  for (uint64_t use : {1, 2, 3}) graph.release(&addresses.space, use);
  EXPECT_FALSE(graph.empty());
  graph.release(&addresses.space, 4);
  EXPECT_TRUE(graph.empty());
}

TEST(GraphMemory, IsSharedByGraphsAndKeptUntilItIsTrimmed) {
  TestAddresses addresses;
  FakeCard card(256 * kMiB);
  GraphMemory memory(&card, &addresses.space);
  int a = 0, b = 0;
  EXPECT_TRUE(memory.prepare(&a, 100 * kMiB));
  EXPECT_EQ(card.used, 128 * kMiB);
  EXPECT_TRUE(memory.prepare(&b, 120 * kMiB));
  EXPECT_EQ(card.used, 128 * kMiB);
  memory.add_live(20 * kMiB);
  EXPECT_FALSE(memory.prepare(&b, 250 * kMiB));
  EXPECT_EQ(card.refusals, 1);
  memory.forget(&a);
  memory.forget(&b);
  memory.trim();
  EXPECT_EQ(card.used, kPoolChunk) << "an allocation outlives its launch";
  memory.end_live(20 * kMiB);
  memory.trim();
  EXPECT_EQ(card.used, 0u);
  EXPECT_TRUE(card.live.empty());
  EXPECT_EQ(memory.reserved_high(), 128 * kMiB);
}

}  // namespace
}  // namespace tonnage::gpu
