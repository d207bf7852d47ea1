// The catalogue: cards are found by loose names, specs give devices, and the H200 answers as a real
// one did.
#include "cards/catalogue.h"

#include <gtest/gtest.h>

#include <fstream>

#include "cards/attributes.h"
#include "cards/card_json.h"

namespace tonnage::cards {
namespace {

std::string key_of(std::string_view name) {
  const auto card = find_card(name);
  return card ? card->key : "error: " + card.error().text();
}

TEST(DeviceCatalogue, FindsCardsByLooseNames) {
  EXPECT_EQ(key_of("h200"), "h200");
  EXPECT_EQ(key_of("NVIDIA H200"), "h200");
  EXPECT_EQ(key_of("3060"), "rtx-3060-12gb");
  EXPECT_EQ(key_of("rtx3060"), "rtx-3060-12gb");
  EXPECT_EQ(key_of("RTX 3060"), "rtx-3060-12gb");
  EXPECT_EQ(key_of("geforce-rtx-3060"), "rtx-3060-12gb");
  EXPECT_EQ(key_of("H100"), "h100-sxm");
  EXPECT_EQ(key_of("a100-80gb"), "a100-80gb-sxm");
  EXPECT_EQ(key_of("h100 mig 1g.10gb"), "h100-sxm-mig-1g.10gb");
  EXPECT_EQ(key_of("H100-SXM-MIG-1g.10gb"), "h100-sxm-mig-1g.10gb");
  EXPECT_EQ(key_of("a100-40gb 3g.20gb"), "a100-40gb-sxm-mig-3g.20gb");
}

TEST(DeviceCatalogue, H200AnswersEveryAttributeAsMeasured) {
  const auto card = find_card("h200");
  ASSERT_TRUE(card);
  const auto desc = to_desc(*card, 0);
  std::ifstream file(std::string(TONNAGE_SOURCE_DIR) + "/tests/data/h200-attributes.txt");
  int number = 0, value = 0, seen = 0;
  while (file >> number >> value) {
    ++seen;
    EXPECT_EQ(desc.attributes[number], value) << attribute_name(number);
  }
  EXPECT_EQ(seen, 147);
}

TEST(DeviceCatalogue, H200HasTheMeasuredActiveClusters) {
  const auto card = find_card("h200");
  ASSERT_TRUE(card);
  const auto desc = to_desc(*card, 0);
  const int measured[] = {0, 132, 66, 39, 30, 22, 17, 15, 15, 9, 7, 7, 7, 7, 7, 7, 7, 2, 2, 0, 0};
  for (int size = 0; size <= 20; ++size) EXPECT_EQ(desc.max_clusters[size], measured[size]) << size;
}

TEST(DeviceSpec, GivesOneCardPerDevice) {
  const auto keys = [](std::string_view spec) {
    const auto cards = parse_gpu_spec(spec);
    if (!cards) return "error: " + cards.error().text();
    std::string out;
    for (const Card& card : *cards) out += card.key + " ";
    return out;
  };
  EXPECT_EQ(keys("a100-80gbx4"), "a100-80gb-sxm a100-80gb-sxm a100-80gb-sxm a100-80gb-sxm ");
  EXPECT_EQ(keys("RTX 3060"), "rtx-3060-12gb ");
  EXPECT_EQ(keys("h100:2"), "h100-sxm h100-sxm ");
  EXPECT_EQ(keys("2x h200, rtx3060"), "h200 h200 rtx-3060-12gb ");
  EXPECT_EQ(keys("h100 mig 1g.10gb x2"), "h100-sxm-mig-1g.10gb h100-sxm-mig-1g.10gb ");
}

}  // namespace
}  // namespace tonnage::cards
