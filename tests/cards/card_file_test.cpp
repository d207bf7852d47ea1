// Card files: what the catalogue holds is consistent, a user's own file is read, and what is wrong
// with one is named.
#include "cards/card_json.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "cards/attributes.h"
#include "cards/catalogue.h"
#include "cards/cluster.h"
#include "cards/embedded.h"

namespace tonnage::cards {
namespace {

const Catalogue& catalogue() { return Catalogue::standard().value(); }

std::string h200_text() {
  for (const EmbeddedFile& file : embedded_files()) {
    if (file.name == "h200.json") return std::string(file.text);
  }
  return {};
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string problem_with(const std::string& text) {
  const auto card = parse_card(text, "my.json", catalogue().architectures());
  return card ? "none" : card.error().text();
}

TEST(CardFiles, TheCatalogueIsLargeAndItsNamesAreUnique) {
  size_t slices = 0;
  std::set<std::string> keys, aliases;
  for (const Card& card : catalogue().cards()) {
    EXPECT_TRUE(keys.insert(card.key).second) << card.key;
    slices += card.mig.size();
  }
  EXPECT_GE(catalogue().cards().size(), 40u);
  EXPECT_GE(slices, 20u);
}

TEST(CardFiles, EveryCardIsConsistent) {
  for (const Card& card : catalogue().cards()) {
    SCOPED_TRACE(card.key);
    const auto desc = to_desc(card, 0);
    EXPECT_STREQ(desc.name, card.name.c_str());
    EXPECT_LE(card.total_bytes, card.nvml_total_bytes);
    EXPECT_LE(card.nvml_total_bytes, card.nominal_bytes + (card.nominal_bytes >> 4));
    EXPECT_GT(card.total_bytes, card.nominal_bytes / 100 * 90);
    EXPECT_GT(desc.context_bytes, 50ull << 20);
    EXPECT_EQ(desc.attributes[kMultiprocessorCount], card.sms);
    EXPECT_EQ(desc.attributes[kComputeMajor], desc.cc_major);
    EXPECT_EQ(desc.attributes[10], 32);     // warp size
    EXPECT_EQ(desc.attributes[82], 65536);  // registers of an SM
    EXPECT_EQ(desc.max_clusters[1], card.architecture.largest_cluster > 0 ? card.sms : 0);
    EXPECT_EQ(desc.attributes[120], card.architecture.largest_cluster > 0 ? 1 : 0);
    EXPECT_GT(desc.register_allocation_unit, 0);
    EXPECT_GT(desc.shared_allocation_unit, 0);
    EXPECT_GE(
        desc.attributes[81],
        desc.attributes[97] + desc.attributes[111]);  // shared memory: SM >= one block + reserved
    // Bandwidth is what bus and clock give, within what data sheets round.
    const double derived = 2.0 * card.memory_clock_khz * 1e3 * card.memory_bus_bits / 8;
    EXPECT_NEAR(card.memory_bytes_per_s / derived, 1.0, 0.05);
    // 256 FP32 operations per SM and clock at most, and clocks that exist.
    EXPECT_LT(card.peak.at("fp32"), card.sms * 256.0 * 2.8e9);
    EXPECT_FALSE(source_of(card, "memory.total_bytes").empty());
    if (card.architecture.cc_major >= 8) {
      EXPECT_GT(desc.peak_flops_bf16, 0);
      EXPECT_GT(desc.attributes[kMaxPersistingL2], 0);
    }
    for (const MigProfile& profile : card.mig) {
      const Card slice = slice_of(card, profile);
      const auto slice_desc = to_desc(slice, 0);
      EXPECT_EQ(slice_desc.is_mig, 1);
      EXPECT_EQ(slice_desc.attributes[kMultiprocessorCount], profile.sms);
      EXPECT_LE(slice.total_bytes * static_cast<uint64_t>(profile.max_instances), card.total_bytes);
      EXPECT_LE(profile.sms * profile.max_instances, card.sms) << profile.name;
      EXPECT_EQ(slice_desc.nvlink_links, 0);
    }
  }
}

TEST(CardFiles, EveryCardIsFoundByItsKeyItsNameOrSaysWhatElseHasTheName) {
  for (const Card& card : catalogue().cards()) {
    const auto by_key = find_card(card.key);
    ASSERT_TRUE(by_key) << card.key;
    EXPECT_EQ(by_key->key, card.key);
    const auto by_name = find_card(card.name);
    if (by_name)
      EXPECT_EQ(by_name->name, card.name);
    else
      EXPECT_EQ(by_name.error().code, ErrorCode::kUsage) << by_name.error().text();
    for (const MigProfile& profile : card.mig) {
      const auto slice = find_card(card.key + " mig " + profile.name);
      ASSERT_TRUE(slice) << slice.error().text();
      EXPECT_EQ(slice->total_bytes, profile.total_bytes);
    }
  }
}

TEST(CardFiles, WrittenAndReadAgainIsTheSameCard) {
  for (const Card& card : catalogue().cards()) {
    const std::string text = card_to_json(card);
    const auto again = parse_card(text, card.key, catalogue().architectures());
    ASSERT_TRUE(again) << again.error().text();
    EXPECT_EQ(card_to_json(*again), text);
    const auto a = to_desc(card, 2), b = to_desc(*again, 2);
    EXPECT_EQ(std::memcmp(&a, &b, sizeof a), 0) << card.key;
  }
}

TEST(CardFiles, ProblemsAreNamed) {
  const std::string good = h200_text();
  EXPECT_EQ(problem_with(good), "none");
  EXPECT_NE(problem_with("{").find("my.json: not JSON"), std::string::npos);
  EXPECT_NE(problem_with("[]").find("expected an object"), std::string::npos);
  EXPECT_NE(problem_with(replaced(good, "\"sms\": 132", "\"sms\": \"many\""))
                .find("\"sms\": expected an integer"),
            std::string::npos);
  EXPECT_NE(
      problem_with(replaced(good, "\"sms\": 132", "\"sms\": 131")).find("the groups have 132 SMs"),
      std::string::npos);
  EXPECT_NE(problem_with(replaced(good, "\"total_bytes\": 150109880320", "\"total_bytes\": -1"))
                .find("\"memory.total_bytes\""),
            std::string::npos);
  EXPECT_NE(problem_with(replaced(good, "\"compute_capability\": \"9.0\"",
                                  "\"compute_capability\": \"9.9\""))
                .find("Known: 6.0"),
            std::string::npos);
  EXPECT_NE(problem_with(replaced(good, "\"chip\"", "\"chop\"")).find("\"chip\": missing"),
            std::string::npos);
  EXPECT_NE(problem_with(replaced(good, "\"ECC_ENABLED\"", "\"ECC_ENABLE\""))
                .find("no such device attribute"),
            std::string::npos);
  EXPECT_NE(problem_with(replaced(good, "\"family\": \"data-centre\"", "\"family\": \"toaster\""))
                .find("expected geforce"),
            std::string::npos);
  EXPECT_NE(
      problem_with(replaced(good, "\"schema\": 1", "\"schema\": 2")).find("Use a newer Tonnage"),
      std::string::npos);
  EXPECT_NE(problem_with(replaced(good, "\"mig\": [", "\"mug\": [")).find("unknown key"),
            std::string::npos);
  EXPECT_NE(problem_with(replaced(good, "\"data sheet: NVIDIA H200", "\"hearsay: NVIDIA H200"))
                .find("KIND is one of"),
            std::string::npos);
  EXPECT_NE(problem_with(std::string(2 << 20, ' ')).find("larger than 1 MiB"), std::string::npos);
  EXPECT_NE(
      problem_with(replaced(good, "\"key\": \"h200\"", "\"key\": \"H 200\"")).find("lower-case"),
      std::string::npos);
}

// Any change of one byte gives a card or an error, never anything else.
TEST(CardFiles, DamagedFilesAreRefusedOrRead) {
  const std::string good = h200_text();
  int refused = 0;
  for (size_t at = 0; at < good.size(); at += 7) {
    for (const char byte : {'\0', '9', '"', '{', ']', '\xff'}) {
      std::string damaged = good;
      damaged[at] = byte;
      const auto card = parse_card(damaged, "damaged", catalogue().architectures());
      refused += card ? 0 : 1;
      if (card) to_desc(*card, 0);
    }
  }
  EXPECT_GT(refused, 500);
}

TEST(CardFiles, AUsersOwnFileIsACard) {
  const std::string path =
      std::filesystem::temp_directory_path() / ("own_card_" + std::to_string(getpid()) + ".json");
  std::ofstream(path) << replaced(replaced(h200_text(), "\"key\": \"h200\"", "\"key\": \"mine\""),
                                  "\"total_bytes\": 150109880320", "\"total_bytes\": 150000000000");
  const auto card = find_card(path);
  ASSERT_TRUE(card) << card.error().text();
  EXPECT_EQ(card->key, "mine");
  EXPECT_EQ(card->total_bytes, 150000000000u);
  const auto several = parse_gpu_spec(path + "x2");
  ASSERT_TRUE(several) << several.error().text();
  EXPECT_EQ(several->size(), 2u);
  std::filesystem::remove(path);
  const auto missing = find_card(path);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(missing.error().where, path);
}

TEST(CardFiles, ADirectoryReplacesCards) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("cards_" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  std::ofstream(folder / "h200.json")
      << replaced(h200_text(), "\"power_limit_watts\": 700", "\"power_limit_watts\": 123");
  Catalogue own = *Catalogue::builtin();
  const size_t before = own.cards().size();
  ASSERT_TRUE(own.add_directory(folder));
  EXPECT_EQ(own.cards().size(), before);
  EXPECT_EQ(own.find("h200")->power_limit_watts, 123);
  std::ofstream(folder / "bad.json") << "{}";
  const auto bad = own.add_directory(folder);
  ASSERT_FALSE(bad);
  EXPECT_NE(bad.error().where.find("bad.json"), std::string::npos);
  std::filesystem::remove_all(folder);
  EXPECT_FALSE(own.add_directory(folder));
}

}  // namespace
}  // namespace tonnage::cards
