#include "gpu/free_ranges.h"

#include <gtest/gtest.h>

#include <iterator>

namespace tonnage::gpu {
namespace {

TEST(FreeRanges, FirstAndBestFitDiffer) {
  FreeRanges free(0, 100);
  EXPECT_EQ(free.take(free.begin(), 40), 0u);
  EXPECT_EQ(free.take(free.begin(), 10), 40u);
  EXPECT_EQ(free.give_back(0, 40), 40u);  // 0 to 40 and 50 to 100 are free
  EXPECT_EQ(free.first_fit(20)->first, 0u);
  EXPECT_EQ(free.best_fit(45)->first, 50u);
  EXPECT_EQ(free.best_fit(20)->first, 0u) << "40 is the smaller one";
  EXPECT_EQ(free.first_fit(51), free.end());
  EXPECT_EQ(free.best_fit(51), free.end());
}

TEST(FreeRanges, MergesWithBothNeighbours) {
  FreeRanges free(1000, 300);
  for (uint64_t start : {1000u, 1100u, 1200u}) EXPECT_EQ(free.take(free.begin(), 100), start);
  EXPECT_EQ(free.begin(), free.end());
  EXPECT_EQ(free.give_back(1000, 100), 100u);
  EXPECT_EQ(free.give_back(1200, 100), 100u);
  EXPECT_EQ(free.give_back(1100, 100), 300u);
  EXPECT_EQ(free.begin()->first, 1000u);
  EXPECT_EQ(std::next(free.begin()), free.end());
}

}  // namespace
}  // namespace tonnage::gpu
