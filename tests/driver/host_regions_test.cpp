// Device addresses among the host's.
#include "driver/host_regions.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <utility>

namespace tonnage::driver {
namespace {

using gpu::kRegion;

TEST(HostRegions, AreAlignedReservedAndFaultOnTouch) {
  HostRegions regions;
  const uint64_t first = regions.take(kRegion), second = regions.take(3 * kRegion);
  ASSERT_NE(first, 0u);
  ASSERT_NE(second, 0u);
  EXPECT_EQ(first % kRegion, 0u);
  EXPECT_EQ(second % kRegion, 0u);
  EXPECT_TRUE(HostRegions::contains(first));
  EXPECT_TRUE(HostRegions::contains(second + 3 * kRegion - 1));
  EXPECT_FALSE(HostRegions::contains(reinterpret_cast<uint64_t>(&regions)));
  EXPECT_DEATH(*reinterpret_cast<volatile char*>(first) = 1, "");
  regions.give_back(first, kRegion);
  EXPECT_FALSE(HostRegions::contains(first));
  regions.give_back(second, 3 * kRegion);
}

TEST(RegionPages, PinnedMemoryAmongThemIsTheHosts) {
  HostRegions regions;
  RegionPages pages;
  const uint64_t region = regions.take(kRegion);
  ASSERT_NE(region, 0u);
  ASSERT_TRUE(pages.commit(region, gpu::kAllocationGranularity));
  EXPECT_FALSE(HostRegions::contains(region));
  EXPECT_TRUE(HostRegions::contains(region + gpu::kAllocationGranularity));
  auto* memory = reinterpret_cast<volatile char*>(region);
  EXPECT_EQ(memory[100], 0);
  memory[100] = 1;
  pages.decommit(region, gpu::kAllocationGranularity);
  EXPECT_TRUE(HostRegions::contains(region));
  regions.give_back(region, kRegion);
}

TEST(FillHostPages, ShowsThePatternAndTakesNoMemory) {
  constexpr size_t kBytes = 64ull << 30;  // more than most machines have
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const auto start = reinterpret_cast<uint64_t>(memory);
  auto* bytes = static_cast<volatile unsigned char*>(memory);
  for (const auto& [pattern, width] :
       {std::pair{0u, 1u}, {0xabu, 1u}, {0x1234u, 2u}, {0xdeadbeefu, 4u}}) {
    ASSERT_TRUE(fill_host_pages(start + 8, pattern, width, kBytes - 20));
    for (size_t place : {size_t{8}, size_t{4095}, size_t{4096}, kBytes / 2 + 13, kBytes - 13})
      EXPECT_EQ(bytes[place], (pattern >> (place % width * 8)) & 0xff) << place;
  }
  bytes[kBytes / 2] = 1;  // still the program's own, to write
  EXPECT_EQ(bytes[kBytes / 2], 1);
  munmap(memory, kBytes);
}

TEST(RegionPages, AreRefusedWhereTheHostHasNotSoMuch) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer leaves no 32 TiB of addresses in one piece";
#endif
  HostRegions regions;
  RegionPages pages;
  constexpr uint64_t kBytes = 1ull << 45;
  const uint64_t region = regions.take(kBytes);
  ASSERT_NE(region, 0u);
  EXPECT_FALSE(pages.commit(region, kBytes));
  EXPECT_TRUE(pages.commit(region, 4ull << 20));
  pages.decommit(region, 4ull << 20);
  regions.give_back(region, kBytes);
}

}  // namespace
}  // namespace tonnage::driver
