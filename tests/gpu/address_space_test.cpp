// The order of device addresses, against what a real H200 handed out (tests/data/addresses).
#include "gpu/address_space.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <random>
#include <string>

#include "gpu/fakes.h"

namespace tonnage::gpu {
namespace {

class RealSequence : public testing::TestWithParam<const char*> {};

TEST_P(RealSequence, EveryAddressIsTheRealOne) {
  constexpr uint64_t kTop = 1ull << 46;
  EmptyHost host(kTop), low(1ull << 40);
  AddressSpace space(&host, &low);
  space.prepare_context();
  std::ifstream file(std::string(TONNAGE_SOURCE_DIR) + "/tests/data/addresses/" + GetParam());
  ASSERT_TRUE(file) << GetParam();
  std::string kind;
  int line = 0, allocations = 0;
  while (file >> kind) {
    line++;
    if (kind == "+") {
      long long size = 0, below = 0;
      file >> size >> below;
      const uint64_t bytes =
          size < 0 ? static_cast<uint64_t>(-size) : static_cast<uint64_t>(size) << 12;
      ASSERT_EQ(space.allocate(bytes), kTop - (static_cast<uint64_t>(below) << 12))
          << GetParam() << " line " << line;
      allocations++;
    } else {
      long long below = 0;
      file >> below;
      space.release(kTop - (static_cast<uint64_t>(below) << 12));
    }
  }
  EXPECT_GT(allocations, 300);
}
INSTANTIATE_TEST_SUITE_P(H200, RealSequence,
                         testing::Values("h200-torch-11.txt", "h200-torch-12.txt",
                                         "h200-mid-11.txt", "h200-big-11.txt", "h200-big-12.txt"));

// Two devices in a process take from one space. Their contexts' regions lie apart by what else the
// host had there, so the addresses may differ by two constants from the real ones: one for each
// context.
class RealPair : public testing::TestWithParam<const char*> {};

TEST_P(RealPair, EveryAddressIsTheRealOneButForTheContextsPlaces) {
  EmptyHost host(1ull << 46), low(1ull << 40);
  AddressSpace space(&host, &low);
  std::ifstream file(std::string(TONNAGE_SOURCE_DIR) + "/tests/data/addresses/" + GetParam());
  ASSERT_TRUE(file) << GetParam();
  std::map<uint64_t, uint64_t> ours;  // by the real address
  std::map<uint64_t, int> differences;
  std::string kind;
  while (file >> kind) {
    uint64_t device = 0, mebibytes = 0, real = 0;
    if (kind == "context") {
      file >> device;
      if (device != 0) space.prepare_further_context();
      space.prepare_context();
    } else if (kind == "+") {
      file >> device >> mebibytes >> std::hex >> real >> std::dec;
      ours[real] = space.allocate(mebibytes << 20);
      differences[real - ours[real]]++;
    } else {
      file >> std::hex >> real >> std::dec;
      space.release(ours.at(real));
    }
  }
  EXPECT_GT(ours.size(), 100u);
  EXPECT_LE(differences.size(), 2u);
}
INSTANTIATE_TEST_SUITE_P(H200, RealPair,
                         testing::Values("h200-two-devices-early.txt",
                                         "h200-two-devices-late.txt"));

TEST(AddressSpace, TortureAgainstAPlainAccount) {
  EmptyHost host(1ull << 46), low(1ull << 40);
  AddressSpace space(&host, &low);
  std::map<uint64_t, uint64_t> live;
  std::mt19937_64 random(7);
  for (int i = 0; i < 20000; i++) {
    if (live.size() > 200 || (!live.empty() && random() % 3 == 0)) {
      auto victim = live.begin();
      std::advance(victim, static_cast<long>(random() % live.size()));
      space.release(victim->first);
      live.erase(victim);
      continue;
    }
    const uint64_t bytes =
        (1 + random() % 100) * kAllocationGranularity - random() % kAllocationGranularity;
    const uint64_t address = random() % 5 ? space.allocate(bytes) : space.reserve(bytes);
    ASSERT_NE(address, 0u);
    ASSERT_EQ(address % kAllocationGranularity, 0u);
    auto after = live.lower_bound(address);
    if (after != live.end()) {
      ASSERT_LE(address + bytes, after->first) << "overlaps the next block";
    }
    if (after != live.begin()) {
      const auto before = std::prev(after);
      ASSERT_LE(before->first + before->second, address) << "overlaps the block before";
    }
    live[address] = bytes;
  }
}

// A new context: 96 MiB at the top, whose last 24 are free, and below them 416 for the device heap,
// whose last 2 are free.
TEST(AddressSpace, TheDeviceHeapMovesAndLeavesRoom) {
  EmptyHost host(1ull << 46), low(1ull << 40);
  AddressSpace space(&host, &low);
  const uint64_t place = space.prepare_context();
  const uint64_t heap = (1ull << 46) - (512ull << 20);
  EXPECT_EQ(place, heap);
  EXPECT_EQ(space.allocate(kAllocationGranularity), heap + (414ull << 20))
      << "as the first machine code does";
  space.move(place, 506ull << 20);
  EXPECT_EQ(space.allocate(48ull << 20), heap)
      << "the heap's old place is the newest room that is large enough";
}

TEST(AddressSpace, TheDeviceHeapsPlaceGoesBackIfNothingIsBesideIt) {
  EmptyHost host(1ull << 46), low(1ull << 40);
  AddressSpace space(&host, &low);
  const uint64_t place = space.prepare_context();
  const uint64_t heap = (1ull << 46) - (512ull << 20);
  EXPECT_EQ(space.allocate(20ull << 20), heap + (488ull << 20));
  space.move(place, 506ull << 20);
  EXPECT_EQ(space.allocate(32ull << 20), heap + (384ull << 20))
      << "a new region, at the top of the gap that the old one left";
}

}  // namespace
}  // namespace tonnage::gpu
