// Growth: which lines belong together, and what only fills a cache. Each history is the smallest
// one that shows the kind; the programs behind them were run, with a snapshot and a record of each
// (tests/e2e/test_explain.py has the main ones).
#include <gtest/gtest.h>

#include <functional>

#include "analysis/diagnosis/findings.h"
#include "analysis/explain_program.h"
#include "report/words/words.h"

namespace tonnage::analysis {
namespace {

using testing::kMiB;
using testing::Program;

constexpr const char* kTorch = "/venv/lib/python3.11/site-packages/torch/";

std::vector<Finding> growth(const Explanation& explanation) {
  std::vector<Finding> out;
  for (const Finding& finding : explanation.findings) {
    if (finding.bytes_per_step) out.push_back(finding);
  }
  return out;
}

bool says(const Finding& finding, const std::string& part) {
  const report::FindingWords words = report::words_of(finding);
  std::string all = words.title + "\n" + words.text;
  for (const std::string& evidence : words.evidence) all += "\n" + evidence;
  for (const report::AdviceWords& advice : words.advice)
    all += "\n" + advice.text + " " + advice.setting;
  return all.find(part) != std::string::npos;
}

// A line of the program's own loop, outside every module.
uint32_t loop_line(Program& p, uint32_t line, const char* function = "main") {
  return p.out.stack({{"/home/u/train.py", line, function}, {"/home/u/train.py", 140, "<module>"}});
}

struct Step {
  Program& p;
  uint64_t number;  // from 1
  uint64_t keep(Phase phase, uint32_t stack, uint64_t size, const std::string& op = "") {
    if (!op.empty()) p.out.op(op);
    const uint64_t address = p.make(phase, stack, size);
    p.out.now.op = abi::kNoId;
    return address;
  }
};

// A training run: extra(step) is called before the forward pass, after(step) when the backward pass
// is over.
Explanation run(int steps, const std::function<void(Step&)>& before,
                const std::function<void(Step&)>& after = {}) {
  Program p;
  p.add_parameters(10 * kMiB, 4);
  for (int number = 1; number <= steps; ++number) {
    Step step{p, static_cast<uint64_t>(number)};
    if (before) before(step);
    std::vector<uint64_t> live;
    for (int i = 0; i < 4; ++i)
      live.push_back(p.make(Phase::kForward, p.forward, 12 * kMiB, Category::kActivation));
    if (p.gradients.empty()) {
      for (size_t i = 0; i < p.parameters.size(); ++i)
        p.gradients.push_back(p.make(Phase::kBackward, 0, 10 * kMiB, Category::kGradient));
    }
    for (auto it = live.rbegin(); it != live.rend(); ++it) p.drop(Phase::kBackward, *it);
    if (after) after(step);
    p.out.in(Phase::kOther).from(0);
    p.out.add(abi::EventKind::kStep, 0, 0, step.number);
  }
  return p.explain();
}

// The graph of an auxiliary pass that a kept loss refers to: tensors of two sizes, four of each.
void keep_graph(Step& step) {
  for (int i = 0; i < 4; ++i) {
    step.keep(Phase::kForward, step.p.forward, 12 * kMiB);
    step.keep(Phase::kForward, step.p.forward, 3 * kMiB);
  }
}

// --- Which lines belong together ---

TEST(GrowthTogether, AGraphWithWhatItsPassWasGiven) {
  const auto found = growth(run(10, [](Step& step) {
    step.keep(Phase::kForward, loop_line(step.p, 88), 12 * kMiB, "aten::randn");
    keep_graph(step);
  }));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].bytes_per_step, 72u * kMiB);
  EXPECT_EQ(found[0].site->line.line, 90u);
  EXPECT_GT(found[0].confidence, 0.9);
  EXPECT_TRUE(says(found[0], "of it 12.0 MiB a step at train.py:88, 1 tensor: inputs of the pass"));
}

// Tonnage's records give backward passes the line of the forward pass: forty tensors of one line
// are not "made by backward passes".
TEST(GrowthTogether, AGraphAndTheBackwardPassThatKeptIt) {
  const auto found = growth(run(10, [](Step& step) {
    keep_graph(step);
    for (int i = 0; i < 6; ++i) step.keep(Phase::kBackward, step.p.forward, 12 * kMiB);
    step.keep(Phase::kBackward, 0, 20 * kMiB);  // without a line
  }));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(report::words_of(found[0].title),
            "Every step leaves a whole autograd graph behind, and its backward pass");
  EXPECT_EQ(found[0].bytes_per_step, (60u + 72 + 20) * kMiB);
  EXPECT_EQ(found[0].site->line.line, 90u);
  EXPECT_TRUE(says(found[0], "92.0 MiB of it were made by a backward pass"));
  EXPECT_TRUE(says(found[0], "of it 72.0 MiB a step at model.py:21"));
  EXPECT_TRUE(says(found[0], "set_to_none=True"));
}

TEST(GrowthTogether, AnotherCauseStaysApart) {
  const auto found = growth(run(
      10, [](Step& step) { keep_graph(step); },
      [](Step& step) {
        step.keep(Phase::kForward, loop_line(step.p, 97), 12 * kMiB, "aten::zeros");
      }));
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].bytes_per_step, 60u * kMiB);
  EXPECT_EQ(found[0].site->line.line, 90u);
  EXPECT_EQ(found[1].bytes_per_step, 12u * kMiB);
  EXPECT_EQ(found[1].site->line.line, 97u);
}

TEST(GrowthTogether, WhatOneFunctionPutsAside) {
  const auto found = growth(run(10, {}, [](Step& step) {
    step.keep(Phase::kOther, loop_line(step.p, 20, "remember"), 14 * kMiB);
    step.keep(Phase::kOther, loop_line(step.p, 21, "remember"), 16 * kMiB);
    step.keep(Phase::kOther, loop_line(step.p, 22, "remember"), 512);
    step.keep(Phase::kOther, loop_line(step.p, 60, "other"), 12 * kMiB);
  }));
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].bytes_per_step, 30u * kMiB);
  EXPECT_EQ(found[0].site->line.line, 21u);
  EXPECT_TRUE(says(found[0], "made at 2 lines that belong together"));
  EXPECT_TRUE(says(found[0], "of it 14.0 MiB a step at train.py:20"));
  EXPECT_EQ(found[1].bytes_per_step, 12u * kMiB);
}

TEST(GrowthTogether, ATensorAndItsGradient) {
  const auto found = growth(run(10, [](Step& step) {
    step.keep(Phase::kForward, loop_line(step.p, 88), 2 * kMiB, "aten::randn");
    step.keep(Phase::kBackward, 0, 2 * kMiB, "aten::add");
  }));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(report::words_of(found[0].title), "Every step leaves a tensor and its gradient behind");
  EXPECT_EQ(found[0].site->line.line, 88u);
  EXPECT_EQ(found[0].bytes_per_step, 4u * kMiB);
}

// Autograd tells of leaves that they are parameters. Those of the model have names.
TEST(GrowthTogether, AnInputThatGetsAGradientIsNoParameter) {
  const auto told = [](const std::string& name) {
    return growth(run(10, [&](Step& step) {
      const uint64_t address =
          step.keep(Phase::kForward, loop_line(step.p, 88), 2 * kMiB, "aten::randn");
      step.p.out.add(abi::EventKind::kLabel, address, 0,
                     static_cast<uint64_t>(Category::kParameter), name);
      if (name.empty()) step.p.out.record.events.back().name = abi::kNoId;
    }));
  };
  EXPECT_EQ(told("").size(), 1u);
  EXPECT_EQ(told("layers.0.weight").size(), 0u);
}

TEST(GrowthTogether, WhatIsMadeOfAQueueGrowsWithIt) {
  uint64_t joined = 0;
  const auto found = growth(run(12, {}, [&](Step& step) {
    step.keep(Phase::kOther, loop_line(step.p, 20, "remember"), 4 * kMiB);
    const uint64_t next =
        step.keep(Phase::kOther, loop_line(step.p, 31, "scores"), step.number * 2 * kMiB);
    if (joined) step.p.drop(Phase::kOther, joined);
    joined = next;
  }));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].site->line.line, 20u);
  EXPECT_EQ(found[0].bytes_per_step, 6u * kMiB);
  EXPECT_TRUE(says(found[0],
                   "of it 2.0 MiB a step at train.py:31, 1 tensor: made from kept tensors, and "
                   "larger each time"));
}

// --- Caches ---

TEST(GrowthCaches, OneThatIsFillingIsSaidToBePossible) {
  const auto found = growth(
      run(16, [](Step& step) { step.keep(Phase::kOther, loop_line(step.p, 88), 2 * kMiB); }));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_LE(found[0].confidence, 0.6);
  EXPECT_TRUE(
      says(found[0], "It may also be a cache, a replay buffer or a queue that is not full yet"));
  EXPECT_TRUE(says(found[0], "How to find out"));
  EXPECT_TRUE(says(found[0], "choose its capacity for this card"));
  // A graph is none.
  const auto graph = growth(run(16, [](Step& step) { keep_graph(step); }));
  ASSERT_EQ(graph.size(), 1u);
  EXPECT_GT(graph[0].confidence, 0.9);
  EXPECT_FALSE(says(graph[0], "cache"));
}

TEST(GrowthCaches, EverFewerTensorsAreNoLeak) {
  // Samples that are cached by their number: most of a batch is new at first, ever less later.
  const auto kept = [](uint64_t number) {
    return number <= 4 ? 8 : number <= 8 ? 4 : number <= 12 ? 2 : 1;
  };
  EXPECT_EQ(growth(run(16,
                       [&](Step& step) {
                         for (int i = 0; i < kept(step.number); ++i)
                           step.keep(Phase::kOther, loop_line(step.p, 88), 2 * kMiB);
                       }))
                .size(),
            0u);
  // The same number of ever smaller ones is a leak all the same.
  EXPECT_EQ(growth(run(16,
                       [&](Step& step) {
                         step.keep(Phase::kOther, loop_line(step.p, 88),
                                   (40 - 2 * step.number) * kMiB);
                       }))
                .size(),
            1u);
}

TEST(GrowthCaches, AQueueThatHasJustBecomeFullIsNoLeak) {
  for (const size_t capacity : {13u, 100u}) {
    std::vector<uint64_t> queue;
    const auto found = growth(run(16, [&](Step& step) {
      if (step.number == 1)
        step.keep(Phase::kOther, loop_line(step.p, 88), 1 * kMiB);  // stays for good
      queue.push_back(step.keep(Phase::kOther, loop_line(step.p, 88), 2 * kMiB));
      if (queue.size() <= capacity) return;
      step.p.drop(Phase::kOther, queue.front());
      queue.erase(queue.begin());
    }));
    EXPECT_EQ(found.size(), capacity == 13 ? 0u : 1u) << capacity;
  }
}

// A cycle that the collector frees at the end makes no queue of what leaks beside it.
TEST(GrowthCaches, YoungOnesThatGoMakeNoQueue) {
  std::vector<uint64_t> cycles;
  const auto found = growth(run(16, [&](Step& step) {
    step.keep(Phase::kOther, loop_line(step.p, 88), 2 * kMiB);
    cycles.push_back(step.keep(Phase::kOther, loop_line(step.p, 88), 2 * kMiB));
    if (step.number % 5 != 0) return;
    for (const uint64_t address : cycles) step.p.drop(Phase::kOther, address);
    cycles.clear();
  }));
  EXPECT_EQ(found.size(), 1u);
}

TEST(GrowthCaches, OneTensorForEachSize) {
  const auto by_shape = [](bool always) {
    return growth(run(16,
                      [&](Step& step) {
                        if (!always && step.number % 6 == 0)
                          return;  // a length that was there before
                        step.keep(Phase::kOther, loop_line(step.p, 88), step.number * kMiB);
                      }))
        .size();
  };
  EXPECT_EQ(by_shape(false), 0u);
  EXPECT_EQ(by_shape(true), 1u);
}

TEST(GrowthCaches, StepsThatMadeNothingAreEvidence) {
  const auto found = growth(run(16, [](Step& step) {
    if (step.number % 6 != 0) step.keep(Phase::kOther, loop_line(step.p, 88), 2 * kMiB);
  }));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_TRUE(says(found[0], "in 2 of the steps this line made nothing"));
}

TEST(GrowthCaches, KeysAndValuesOfOneGeneration) {
  for (const char* function : {"generate", "train"}) {
    const auto found = growth(run(16, [&](Step& step) {
      const uint32_t keys =
          step.p.out.stack({{"/home/u/model.py", 40, "forward"},
                            {std::string(kTorch) + "nn/modules/module.py", 1790, "_call_impl"},
                            {"/home/u/serve.py", 12, function}});
      step.keep(Phase::kForward, keys, 2 * kMiB);
    }));
    EXPECT_EQ(found.size(), function == std::string("generate") ? 0u : 1u) << function;
  }
}

TEST(GrowthCaches, AtAFailureItsBoundIsTooHigh) {
  Program p;
  p.add_parameters(10 * kMiB, 4);
  const uint32_t line = loop_line(p, 88);
  for (uint64_t step = 1; step <= 10; ++step) {
    p.make(Phase::kOther, line, 40 * kMiB);
    p.train_step(step, 4, 12 * kMiB);
  }
  p.fail(Phase::kForward, p.forward, 40 * kMiB, 10 * kMiB);
  const Explanation explanation = p.explain();
  ASSERT_NE(testing::primary(explanation), nullptr);
  EXPECT_EQ(testing::primary(explanation)->cause, Cause::kKeptAcrossSteps);
  EXPECT_GT(testing::primary(explanation)->confidence, 0.9);
  EXPECT_TRUE(says(*testing::primary(explanation), "its limit is higher than the card's memory"));
}

}  // namespace
}  // namespace tonnage::analysis
