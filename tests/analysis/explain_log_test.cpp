// What a message alone tells: every collected one against its diagnosis, and the figures that
// follow from it.
#include <gtest/gtest.h>

#include <fstream>

#include "analysis/diagnosis/oom_log.h"
#include "sources/messages/log_reader.h"

namespace tonnage::analysis {
namespace {

constexpr double kGiB = 1 << 30;

struct Expected {
  Cause cause;
  double outside = -1, slack = -1;  // GiB, where they are known from elsewhere
  Cause second = Cause::kUnknown;   // another finding that must be there
};

// By line of tests/data/logs/oom_messages.txt.
const std::vector<Expected> kExpected = {
    {Cause::kDriverError},                                   // 1
    {Cause::kDriverError},                                   // 2
    {Cause::kDriverError},                                   // 3
    {Cause::kNotCapacity},                                   // 4: 9.28 GiB free, 12.5 MiB wanted
    {Cause::kCapacity},                                      // 5
    {Cause::kNotCapacity},                                   // 6: 8.20 GiB free, 8.13 wanted
    {Cause::kCapacity},                                      // 7
    {Cause::kOutsideAllocator, 5.73, -1, Cause::kCapacity},  // 8
    {Cause::kCapacity},                                      // 9
    {Cause::kCapacity},                                      // 10
    {Cause::kFragmentation, -1, 4.94},                       // 11: 2.87 GiB wanted, 4.94 cached
    {Cause::kCapacity},                                      // 12
    {Cause::kCapacity},                // 13: GPT-2 XL; the state alone exceeds the card
    {Cause::kOutsideAllocator, 4.85},  // 14
    {Cause::kCapacity},                // 15
    {Cause::kCapacity},                // 16
    {Cause::kNotCapacity},             // 17
    {Cause::kNotCapacity},             // 18: 16.48 GiB free
    {Cause::kActivations, -1, 5.02},   // 19: 8 GiB wanted, 5.71 cached and free: not fragmentation
    {Cause::kCapacity},                // 20
    {Cause::kOutsideAllocator, 5.02, -1, Cause::kCapacity},  // 21: both must surface
    {Cause::kActivations},                                   // 22: 4.98 of 14.75 GiB in one tensor
    {Cause::kActivations},                                   // 23: the cap is the card
    {Cause::kCapacity},             // 24: the only process is this one, by its host number
    {Cause::kFragmentation},        // 25
    {Cause::kOversubscribed},       // 26: 22.44 GiB on 8
    {Cause::kCapacity},             // 27
    {Cause::kOtherProcess, 72.30},  // 28
    {Cause::kActivations},          // 29
    {Cause::kOtherProcess},         // 30
    {Cause::kNotCapacity},          // 31
    {Cause::kMemoryFraction},       // 32: 1.05 GiB allowed
    {Cause::kNotCapacity},          // 33: 203 GiB free, 2 MiB wanted
    {Cause::kOutsideAllocator},     // 34: MPS, other allocations
    {Cause::kOutsideAllocator},     // 35
    {Cause::kRequestTooLarge},      // 36
    {Cause::kLibrary},              // 37
    {Cause::kDriverError},          // 38
    {Cause::kNccl},                 // 39
    {Cause::kNccl},                 // 40
    {Cause::kActivations},          // 41
    {Cause::kActivations},          // 42
    {Cause::kActivations},          // 43
    {Cause::kHarmless},             // 44
    {Cause::kCapacity},             // 45
    {Cause::kCapacity},             // 46
    {Cause::kCapacity},             // 47
};

TEST(ExplainLog, EveryCollectedMessage) {
  std::ifstream file(std::string(TONNAGE_SOURCE_DIR) + "/tests/data/logs/oom_messages.txt");
  std::string line;
  size_t number = 0;
  while (std::getline(file, line)) {
    ASSERT_LT(number, kExpected.size());
    const Expected& expected = kExpected[number++];
    const auto oom = sources::parse_oom_message(line);
    ASSERT_TRUE(oom.has_value()) << number;
    const auto findings = diagnose(*oom);
    ASSERT_FALSE(findings.empty()) << number;
    EXPECT_EQ(findings[0].cause, expected.cause) << number << " " << cause_name(findings[0].cause);
    EXPECT_TRUE(findings[0].primary);
    for (size_t i = 1; i < findings.size(); ++i) EXPECT_FALSE(findings[i].primary) << number;
    for (const Finding& finding : findings) {
      EXPECT_FALSE(finding.text.empty()) << number;
      EXPECT_FALSE(finding.advice.empty()) << number;
      EXPECT_FALSE(finding.evidence.empty()) << number;
    }
    const LogFigures figures = log_figures(*oom);
    if (expected.outside >= 0) {
      EXPECT_NEAR(static_cast<double>(*figures.outside) / kGiB, expected.outside, 0.011) << number;
    }
    if (expected.slack >= 0) {
      EXPECT_NEAR(static_cast<double>(*figures.slack) / kGiB, expected.slack, 0.011) << number;
    }
    if (expected.second != Cause::kUnknown) {
      EXPECT_TRUE(std::any_of(findings.begin(), findings.end(), [&](const Finding& f) {
        return f.cause == expected.second;
      })) << number;
    }
  }
  EXPECT_EQ(number, kExpected.size());
}

TEST(ExplainLog, ATensorFlowPoolWithHoles) {
  const auto oom = sources::parse_oom_message(
      "Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.00GiB (rounded to "
      "1073741824)requested by op x\nStats:\nLimit: 16000000000\nInUse: 12000000000\nMaxInUse: "
      "13000000000\n");
  ASSERT_TRUE(oom.has_value());
  const auto findings = diagnose(*oom);
  EXPECT_EQ(findings[0].cause, Cause::kFragmentation);
  EXPECT_NE(findings[0].advice.at(0).text.find("driver's own pool"), std::string::npos);
}

TEST(ExplainLog, TheMessagesOwnHintIsNotEchoed) {
  // Full, and the message suggests expandable segments: 0.8 % of slack is no reason for it.
  std::ifstream file(std::string(TONNAGE_SOURCE_DIR) + "/tests/data/logs/oom_messages.txt");
  std::string line;
  for (int i = 0; i < 27; ++i) std::getline(file, line);
  for (const Finding& finding : diagnose(*sources::parse_oom_message(line)))
    for (const Advice& advice : finding.advice)
      EXPECT_EQ(advice.setting.find("expandable"), std::string::npos);
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
    EXPECT_NE(explanation.summary.find("train.py:71"), std::string::npos) << explanation.summary;
  }
}

TEST(ExplainLog, NothingFound) {
  auto input = sources::Input::from_memory("epoch 1\nepoch 2\n", "train.log");
  auto log = sources::read_log(**input);
  const Explanation explanation = explain(*log);
  EXPECT_TRUE(explanation.failures.empty());
  EXPECT_NE(explanation.summary.find("2 lines"), std::string::npos);
}

}  // namespace
}  // namespace tonnage::analysis
