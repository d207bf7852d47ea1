// What is made of the command table: it knows every command and option of the command line.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "cards/catalogue.h"
#include "cli/command_table.h"
#include "cli/commands.h"
#include "cli/completion.h"
#include "cli/man_page.h"
#include "cli/output.h"

namespace tonnage::cli {
namespace {

class Reference : public testing::Test {
 protected:
  Reference() {
    add_commands(app_, exit_code_);
    commands_ = read_commands(app_);
  }
  const CommandRow& command(const std::string& name) const {
    return *std::ranges::find(commands_, name, &CommandRow::name);
  }
  const OptionRow& option(const std::string& of, const std::string& name) const {
    return *std::ranges::find_if(command(of).options, [&](const OptionRow& row) {
      return std::ranges::find(row.names, name) != row.names.end();
    });
  }
  CLI::App app_;
  int exit_code_ = 0;
  std::vector<CommandRow> commands_;
};

TEST_F(Reference, TheTableSaysWhatAnOptionTakes) {
  EXPECT_EQ(option("run", "--gpu").takes, Takes::kGpu);
  EXPECT_EQ(option("run", "--gpu").value, "NAME[xN]");
  EXPECT_EQ(option("run", "--record").takes, Takes::kFile);
  EXPECT_EQ(option("run", "--memory").takes, Takes::kText);
  EXPECT_EQ(option("run", "--json").takes, Takes::kNothing);
  EXPECT_EQ(option("run", "-q").names.size(), 2u);
  EXPECT_EQ(option("check", "--metric").words,
            (std::vector<std::string>{"device", "reserved", "allocated"}));
  EXPECT_TRUE(command("run").runs_command);
  EXPECT_FALSE(command("explain").runs_command);
  EXPECT_TRUE(command("explain").arguments.at(0).many);
  EXPECT_FALSE(command("explain").arguments.at(0).required);
  EXPECT_TRUE(command("check").arguments.at(0).required);
}

TEST_F(Reference, EveryCommandHasExamplesAndEveryOptionSaysWhatItDoes) {
  EXPECT_GE(commands_.size(), 10u);
  for (const CommandRow& row : commands_) {
    EXPECT_FALSE(row.examples.empty()) << row.name;
    for (const std::string& example : row.examples)
      EXPECT_NE(example.find("tonnage "), std::string::npos) << example;
    for (const OptionRow& one : row.options) EXPECT_FALSE(one.about.empty()) << one.names.front();
  }
  EXPECT_EQ(std::ranges::count(commands_, "man", &CommandRow::name), 0);  // hidden
}

TEST_F(Reference, EverythingIsInEveryShellsCompletions) {
  const auto gpus = gpu_names();
  for (const std::string& text :
       {bash_completion(commands_, gpus), zsh_completion(commands_, gpus)}) {
    for (const CommandRow& row : commands_) {
      for (const OptionRow& one : row.options) {
        for (const std::string& name : one.names)
          EXPECT_NE(text.find(name), std::string::npos) << row.name << " " << name;
      }
    }
    EXPECT_NE(text.find("'RTX 3060'"), std::string::npos);
  }
  const std::string fish = fish_completion(commands_, gpus);
  EXPECT_NE(fish.find("-l no-keep"), std::string::npos);
  EXPECT_NE(fish.find("-s q"), std::string::npos);
}

TEST_F(Reference, EveryGpuNameFindsItsCard) {
  const auto names = gpu_names();
  EXPECT_GT(names.size(), 100u);
  for (const std::string& name : names) EXPECT_TRUE(cards::find_card(name)) << name;
}

TEST_F(Reference, ManPagesAreRoffAndNothingElse) {
  CommandRow row;
  row.name = "try";
  row.about = "What .begins and 'quotes' do";
  row.notes = {".TH is no request here.", "A back\\slash stays one."};
  row.examples = {"tonnage try -- 'a b'"};
  const std::string page = man_page_of(row, "2026-01-02");
  EXPECT_NE(page.find("A back\\eslash stays one."), std::string::npos);
  EXPECT_NE(page.find("\\&.TH is no request here."), std::string::npos);
  EXPECT_NE(page.find("tonnage try \\-\\- \\(aqa b\\(aq"), std::string::npos);
  EXPECT_EQ(page.find("\n.TH is"), std::string::npos);
}

TEST(ShellWord, IsReadBackAsItWas) {
  EXPECT_EQ(shell_word("run.tonnage"), "run.tonnage");
  EXPECT_EQ(shell_word("a b"), "'a b'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word(""), "''");
  EXPECT_EQ(shell_word("~x"), "'~x'");
  EXPECT_EQ(explain_command("last"), "tonnage explain");
}

}  // namespace
}  // namespace tonnage::cli
