#include "passthrough/overhead.h"

#include <gtest/gtest.h>

namespace tonnage::passthrough {
namespace {

constexpr uint64_t kMiB = 1 << 20;

TEST(Overhead, IsWhatTheContextTook) {
  Overhead overhead;
  EXPECT_EQ(500 * kMiB, overhead.context_made(1300 * kMiB, 1800 * kMiB, 1500 * kMiB));
  // The other 1,000 MiB belong to other processes.
  EXPECT_EQ(0u, overhead.grew(1500 * kMiB, 0));
  EXPECT_EQ(0u, overhead.grew(3500 * kMiB, 2000 * kMiB));
  EXPECT_EQ(64 * kMiB, overhead.grew(3564 * kMiB, 2000 * kMiB));
  EXPECT_EQ(0u, overhead.grew(3564 * kMiB, 2000 * kMiB)) << "said once";
  EXPECT_EQ(0u, overhead.grew(1500 * kMiB, 0)) << "code does not go";
  EXPECT_EQ(2 * kMiB, overhead.grew(1566 * kMiB, 0));
}

TEST(Overhead, WithoutNvmlItIsAllThatIsInUse) {
  Overhead overhead;
  EXPECT_EQ(1500 * kMiB, overhead.context_made(std::nullopt, std::nullopt, 1500 * kMiB));
  EXPECT_EQ(10 * kMiB, overhead.grew(1610 * kMiB, 100 * kMiB));
}

TEST(Overhead, FiguresThatMakeNoSenseAddNothing) {
  Overhead overhead;
  EXPECT_EQ(0u, overhead.grew(100, 0)) << "no context yet";
  EXPECT_EQ(300u, overhead.context_made(500, 900, 300));
  EXPECT_EQ(0u, overhead.grew(100, 400));
  EXPECT_EQ(0u, overhead.grew(0, 0));
}

}  // namespace
}  // namespace tonnage::passthrough
