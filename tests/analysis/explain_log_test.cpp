// What a message alone tells: every collected one against its diagnosis, and the figures that
// follow from it.
#include <gtest/gtest.h>

#include <fstream>

#include "analysis/diagnosis/oom_log.h"
#include "report/words/words.h"
#include "sources/messages/log_reader.h"

namespace tonnage::analysis {
namespace {

constexpr double kGiB = 1 << 30;

// Figures that are known from elsewhere, by line of tests/data/logs/oom_messages.txt. The diagnoses
// are data: tests/cases/collected_messages.
struct Known {
  size_t line;
  double outside, slack;  // GiB; below 0: not known
};
constexpr Known kKnown[] = {{8, 5.73, -1},  {11, -1, 4.94}, {14, 4.85, -1},
                            {19, -1, 5.02}, {21, 5.02, -1}, {28, 72.30, -1}};

TEST(ExplainLog, FiguresThatFollowFromTheMessage) {
  std::ifstream file(std::string(TONNAGE_SOURCE_DIR) + "/tests/data/logs/oom_messages.txt");
  std::string line;
  size_t number = 0, checked = 0;
  while (std::getline(file, line)) {
    ++number;
    const auto oom = sources::parse_oom_message(line);
    ASSERT_TRUE(oom.has_value()) << number;
    const auto findings = diagnose(*oom);
    ASSERT_FALSE(findings.empty()) << number;
    EXPECT_TRUE(findings[0].primary);
    for (size_t i = 1; i < findings.size(); ++i) EXPECT_FALSE(findings[i].primary) << number;
    const LogFigures figures = log_figures(*oom);
    for (const Known& known : kKnown) {
      if (known.line != number) continue;
      ++checked;
      if (known.outside >= 0) {
        EXPECT_NEAR(static_cast<double>(*figures.outside) / kGiB, known.outside, 0.011) << number;
      }
      if (known.slack >= 0) {
        EXPECT_NEAR(static_cast<double>(*figures.slack) / kGiB, known.slack, 0.011) << number;
      }
    }
  }
  EXPECT_EQ(number, 47u);
  EXPECT_EQ(checked, std::size(kKnown));
}

TEST(ExplainLog, ATensorFlowPoolWithHoles) {
  const auto oom = sources::parse_oom_message(
      "Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.00GiB (rounded to "
      "1073741824)requested by op x\nStats:\nLimit: 16000000000\nInUse: 12000000000\nMaxInUse: "
      "13000000000\n");
  ASSERT_TRUE(oom.has_value());
  const auto findings = diagnose(*oom);
  EXPECT_EQ(findings[0].cause, Cause::kFragmentation);
  EXPECT_NE(report::words_of(findings[0].advice.at(0)).text.find("driver's own pool"),
            std::string::npos);
}

TEST(ExplainLog, TheMessagesOwnHintIsNotEchoed) {
  // Full, and the message suggests expandable segments: 0.8 % of slack is no reason for it.
  std::ifstream file(std::string(TONNAGE_SOURCE_DIR) + "/tests/data/logs/oom_messages.txt");
  std::string line;
  for (int i = 0; i < 27; ++i) std::getline(file, line);
  for (const Finding& finding : diagnose(*sources::parse_oom_message(line)))
    for (const Advice& advice : finding.advice)
      EXPECT_EQ(report::words_of(advice).setting.find("expandable"), std::string::npos);
}

TEST(ExplainLog, TheTracebackNamesLineAndPhase) {
  const std::string message =
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.00 MiB. GPU 0 has a total "
      "capacity of 23.65 GiB of which 11.06 MiB is free. "
      "Of the allocated memory 22.90 GiB is allocated by PyTorch, and 19.87 MiB is reserved by "
      "PyTorch but unallocated.\n";
  struct Case {
    const char* frame;
    Cause cause;
  };
  for (const Case& c : std::initializer_list<Case>{
           {"  File \"/v/site-packages/torch/optim/adam.py\", line 178, in _init_group\n",
            Cause::kOptimizerFirstStep},
           {"  File \"/v/site-packages/torch/optim/adam.py\", line 500, in _multi_tensor_adam\n",
            Cause::kModelState},
           {"  File \"/v/site-packages/torch/nn/functional.py\", line 3504, in cross_entropy\n",
            Cause::kLogits},
           {"  File \"/v/site-packages/torch/autograd/graph.py\", line 800, in "
            "_engine_run_backward\n",
            Cause::kActivations},
           {"  File \"/v/site-packages/torch/nn/modules/module.py\", line 1370, in convert\n",
            Cause::kModelState},
       }) {
    const std::string text = std::string(
                                 "Traceback (most recent call last):\n  File \"/home/u/train.py\", "
                                 "line 71, in main\n    run()\n") +
                             c.frame + "    x\n" + message;
    auto input = sources::Input::from_memory(text, "train.log");
    auto log = sources::read_log(**input);
    ASSERT_TRUE(log.has_value());
    const Explanation explanation = explain(*log);
    ASSERT_EQ(explanation.failures.size(), 1u);
    EXPECT_EQ(explanation.findings.at(0).cause, c.cause) << c.frame;
    ASSERT_TRUE(explanation.findings.at(0).site.has_value());
    EXPECT_EQ(explanation.findings.at(0).site->line.line, 71u);
    EXPECT_NE(report::summary_of(explanation).find("train.py:71"), std::string::npos)
        << report::summary_of(explanation);
  }
}

TEST(ExplainLog, NothingFound) {
  auto input = sources::Input::from_memory("epoch 1\nepoch 2\n", "train.log");
  auto log = sources::read_log(**input);
  const Explanation explanation = explain(*log);
  EXPECT_TRUE(explanation.failures.empty());
  EXPECT_NE(report::summary_of(explanation).find("2 lines"), std::string::npos);
}

}  // namespace
}  // namespace tonnage::analysis
