// Where managed memory is.
#include "gpu/managed_memory.h"

#include <gtest/gtest.h>

#include "gpu/fakes.h"

namespace tonnage::gpu {
namespace {

constexpr uint64_t kMiB = 1ull << 20;

TEST(ManagedMemory, IsOnTheCardThatUsesIt) {
  FakeCard first(64 * kMiB), second(64 * kMiB);
  ManagedMemory memory;
  EXPECT_FALSE(memory.any());
  memory.add(0x10000000, 5 * kMiB);
  EXPECT_EQ(first.used, 0u);
  memory.use(0x10000000 + 100, &first);
  EXPECT_EQ(first.used, 6 * kMiB);
  EXPECT_EQ(first.live.at(0x10000000), 6 * kMiB);
  memory.use(0x10000000 + 5 * kMiB, &first);  // behind its end
  memory.use(0x10000000, &second);
  EXPECT_EQ(first.used, 0u);
  EXPECT_TRUE(first.live.empty());
  EXPECT_EQ(second.used, 6 * kMiB);
  memory.remove(0x10000000);
  EXPECT_EQ(second.used, 0u);
  EXPECT_TRUE(second.live.empty());
}

TEST(ManagedMemory, IsPrefetchedByBlocks) {
  FakeCard card(64 * kMiB);
  ManagedMemory memory;
  const uint64_t start = 0x10000000;
  memory.add(start, 8 * kMiB);
  memory.prefetch(start + 3 * kMiB, 2 * kMiB, &card, 0);  // in the second and the third
  EXPECT_EQ(card.used, 4 * kMiB);
  EXPECT_EQ(memory.last_prefetched(start), 0);
  memory.prefetch(start, 4 * kMiB, nullptr, ManagedMemory::kHost);
  EXPECT_EQ(card.used, 2 * kMiB);
  EXPECT_EQ(card.live.at(start), 2 * kMiB);
  memory.prefetch(start, ~0ull, &card, 0);
  EXPECT_EQ(card.used, 8 * kMiB);
}

TEST(ManagedMemory, StaysWhereItIsAdvisedTo) {
  FakeCard card(64 * kMiB);
  ManagedMemory memory;
  memory.add(0x10000000, 4 * kMiB);
  memory.prefer(0x10000000, ManagedMemory::kHost);
  EXPECT_EQ(memory.preferred(0x10000000), ManagedMemory::kHost);
  memory.use(0x10000000, &card);
  EXPECT_EQ(card.used, 0u);
  memory.prefer(0x10000000, ManagedMemory::kNowhere);
  memory.use(0x10000000, &card);
  EXPECT_EQ(card.used, 4 * kMiB);
}

TEST(ManagedMemory, NeverFillsTheCard) {
  FakeCard card(16 * kMiB);
  ManagedMemory memory;
  for (uint64_t i = 1; i <= 3; i++) memory.add(i << 30, 8 * kMiB);
  memory.use(1ull << 30, &card);
  memory.use(2ull << 30, &card);
  memory.use(1ull << 30, &card);
  memory.use(3ull << 30, &card);  // in place of the second, which was used longest ago
  EXPECT_EQ(card.used, 16 * kMiB);
  EXPECT_TRUE(card.live.count(1ull << 30));
  EXPECT_FALSE(card.live.count(2ull << 30));
  EXPECT_EQ(card.refusals, 0);
  memory.add(9ull << 30, 32 * kMiB);  // larger than the card: it stays on the host
  memory.use(9ull << 30, &card);
  EXPECT_EQ(card.refusals, 0);
  EXPECT_FALSE(card.live.count(9ull << 30));
  card.used = 16 * kMiB;  // others' memory
  for (uint64_t i : {1, 2, 3}) memory.remove(i << 30);
}

TEST(ManagedMemory, MakesRoomForOthers) {
  FakeCard card(16 * kMiB);
  ManagedMemory memory;
  memory.add(1ull << 30, 8 * kMiB);
  memory.use(1ull << 30, &card);
  EXPECT_FALSE(memory.make_room(&card, 4 * kMiB)) << "there is room";
  EXPECT_TRUE(memory.make_room(&card, 12 * kMiB));
  EXPECT_EQ(card.used, 0u);
  EXPECT_FALSE(memory.make_room(&card, 20 * kMiB));
}

}  // namespace
}  // namespace tonnage::gpu
