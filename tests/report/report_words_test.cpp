// Every statement and every remedy has its words, once, and the words ask for figures in order.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "report/words/tables.h"
#include "report/words/words.h"

namespace tonnage::report {
namespace {

using analysis::Remedy;
using analysis::Statement;

// The highest figure that the words ask for; -1: none. Only {0} to {9}, with a form of one letter.
int highest_figure(const std::string& text) {
  int highest = -1;
  for (size_t at = text.find('{'); at != std::string::npos; at = text.find('{', at + 1)) {
    const size_t end = text.find('}', at);
    EXPECT_NE(end, std::string::npos) << text;
    const std::string inside = text.substr(at + 1, end - at - 1);
    EXPECT_TRUE(inside.size() == 1 || (inside.size() == 3 && inside[1] == ':')) << text;
    EXPECT_TRUE(inside[0] >= '0' && inside[0] <= '9') << text;
    highest = std::max(highest, inside[0] - '0');
  }
  return highest;
}

TEST(Words, EveryStatementHasItsWordsOnce) {
  std::set<Statement> seen;
  for (const auto rows : {out_of_memory_words(), growth_words(), library_words()}) {
    for (const StatementRow& row : rows) {
      EXPECT_TRUE(seen.insert(row.statement).second) << row.text;
      const int highest = highest_figure(row.text);
      for (int figure = 0; figure <= highest; ++figure)
        EXPECT_NE(std::string(row.text).find("{" + std::to_string(figure)), std::string::npos)
            << row.text;
    }
  }
  for (auto i = static_cast<uint16_t>(Statement::kNothing) + 1;
       i < static_cast<uint16_t>(Statement::kStatementCount); ++i)
    EXPECT_TRUE(seen.count(static_cast<Statement>(i))) << i;
}

TEST(Words, EveryRemedyHasItsWordsOnce) {
  std::set<Remedy> seen;
  for (const RemedyRow& row : remedy_words()) {
    EXPECT_TRUE(seen.insert(row.remedy).second) << row.text;
    EXPECT_NE(std::string(row.text), "");
    // The summary puts the full stop.
    EXPECT_NE(std::string(row.text).back(), '.') << row.text;
  }
  for (auto i = static_cast<uint16_t>(Remedy::kNothing) + 1;
       i < static_cast<uint16_t>(Remedy::kRemedyCount); ++i)
    EXPECT_TRUE(seen.count(static_cast<Remedy>(i))) << i;
}

TEST(Words, EveryLibraryHasItsName) {
  for (int i = 0; i <= static_cast<int>(sources::LogFramework::kOpenCl); ++i) {
    const auto framework = static_cast<sources::LogFramework>(i);
    EXPECT_NE(std::string(library_title(framework)), "");
    if (framework != sources::LogFramework::kUnknown) {
      EXPECT_NE(std::string(sources::log_framework_name(framework)), "unknown") << i;
    }
  }
}

TEST(Words, TheUsersLineComesFirst) {
  analysis::Site site;
  site.user_line = {"/home/u/train.py", 9, "main"};
  site.line = {"/v/site-packages/timm/layers/mlp.py", 45, "forward"};
  EXPECT_EQ(at_text(site), "at train.py:9 (in mlp.py:45)");
  site.line = site.user_line;
  EXPECT_EQ(at_text(site), "at train.py:9");
}

}  // namespace
}  // namespace tonnage::report
