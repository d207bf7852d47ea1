// From active clusters back to the groups of SMs, and what `tonnage gpus` prints.
#include "cards/measure.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <sstream>

#include "cards/cluster.h"
#include "cli/gpus.h"

namespace tonnage::cards {
namespace {

std::vector<int> clusters_of(const std::vector<int>& groups) {
  std::vector<int> out = {0};
  for (int size = 1; size <= abi::kMaxClusterSize; ++size)
    out.push_back(cards::max_active_clusters(groups.data(), groups.size(), size));
  return out;
}

TEST(SmGroups, FollowFromWhatAnH200Answers) {
  std::vector<int> measured = {0, 132, 66, 39, 30, 22, 17, 15, 15, 9, 7, 7, 7, 7, 7, 7, 7, 2, 2};
  measured.resize(abi::kMaxClusterSize + 1);
  EXPECT_EQ(groups_from_clusters(measured),
            (std::vector<int>{18, 18, 16, 16, 16, 16, 16, 8, 2, 2, 2, 2}));
}

TEST(SmGroups, AnyGroupingIsFoundAgain) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<int> groups(1 + random() % 12);
    for (int& sms : groups) sms = 1 + static_cast<int>(random() % 20);
    std::sort(groups.rbegin(), groups.rend());
    EXPECT_EQ(groups_from_clusters(clusters_of(groups)), groups);
  }
}

TEST(SmGroups, ImpossibleNumbersHaveNone) {
  EXPECT_TRUE(groups_from_clusters({0, 3, 2}).empty());  // three SMs cannot hold two pairs
  EXPECT_TRUE(groups_from_clusters({0, 1 << 30}).empty());
}

TEST(Clusters, SeveralBlocksOfAnSm) {
  const int groups[] = {16, 18, 2};
  EXPECT_EQ(cards::max_active_clusters(groups, 3, 4), 4 + 4);
  EXPECT_EQ(cards::max_active_clusters(groups, 3, 4, 2), 8 + 9 + 1);
  EXPECT_EQ(cards::max_active_clusters(groups, 3, 0), 0);
  EXPECT_EQ(cards::max_active_clusters(groups, 3, 1), 36);
}

TEST(Measure, SaysThatThereIsNoDriver) {
  const auto measured = measure_card("/nonexistent/libcuda.so.1", 0, Catalogue::standard().value());
  ASSERT_FALSE(measured);
  EXPECT_EQ(measured.error().code, ErrorCode::kNotFound);
}

// The virtual driver's own library is refused, or does not start without a session: never measured.
TEST(Measure, RefusesTheVirtualDriver) {
  const auto measured =
      measure_card(TONNAGE_BINARY_DIR "/lib/vgpu/libcuda.so.1", 0, Catalogue::standard().value());
  EXPECT_FALSE(measured);
}

TEST(GpusCommand, LinesHaveEightyColumns) {
  const auto& cards = Catalogue::standard().value().cards();
  std::string all = cli::gpus_table(cards);
  for (const Card& card : cards) all += cli::gpus_detail(card) + cli::gpus_attributes(card);
  std::istringstream lines(all);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 80u) << line;
    EXPECT_FALSE(line.ends_with(' ')) << line;
  }
}

}  // namespace
}  // namespace tonnage::cards
