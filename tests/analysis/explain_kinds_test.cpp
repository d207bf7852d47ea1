// Kinds of failures and of growth that look like another kind at first sight. Each history is the
// smallest one that shows the kind.
#include <gtest/gtest.h>

#include "analysis/diagnosis/findings.h"
#include "analysis/explain_program.h"
#include "analysis/timeline/failures.h"
#include "report/words/words.h"
#include "sources/messages/log_reader.h"

namespace tonnage::analysis {
namespace {

using abi::EventKind;
using testing::has_cause;
using testing::kMiB;
using testing::primary;
using testing::Program;

constexpr const char* kTorch = "/venv/lib/python3.11/site-packages/torch/";

size_t leaks(const Explanation& explanation) {
  return static_cast<size_t>(
      std::count_if(explanation.findings.begin(), explanation.findings.end(),
                    [](const Finding& f) { return f.bytes_per_step.has_value(); }));
}

const char* cause_of(const Explanation& explanation) {
  const Finding* finding = primary(explanation);
  return cause_name(finding ? finding->cause : Cause::kUnknown);
}

Program training(int parameters = 4, int steps = 0) {
  Program p;
  p.add_parameters(10 * kMiB, parameters);
  for (int step = 1; step <= steps; ++step) p.train_step(static_cast<uint64_t>(step), 4, 12 * kMiB);
  return p;
}

// --- Growth ---

TEST(ExplainKinds, GrowthInEveryFourthStep) {
  Program p = training();
  for (int step = 1; step <= 24; ++step)
    p.train_step(static_cast<uint64_t>(step), 4, 12 * kMiB, step % 4 == 0 ? 1 : 0);
  const Explanation explanation = p.explain();
  ASSERT_EQ(leaks(explanation), 1u);
  EXPECT_EQ(explanation.findings[0].bytes_per_step, 3u * kMiB);
  EXPECT_NE(report::words_of(explanation.findings[0].text).find("12.0 MiB every 4th step"),
            std::string::npos)
      << report::words_of(explanation.findings[0].text);
}

TEST(ExplainKinds, WhatComesUnevenlyIsACache) {
  Program p = training();
  for (int step = 1; step <= 24; ++step) {
    const bool first_of_its_shape = step == 2 || step == 3 || step == 5 || step == 9 || step == 17;
    p.train_step(static_cast<uint64_t>(step), 4, 12 * kMiB, first_of_its_shape ? 1 : 0);
  }
  EXPECT_EQ(leaks(p.explain()), 0u);
}

TEST(ExplainKinds, CyclesThatTheCollectorFreesAreNoLeak) {
  Program p = training();
  std::vector<uint64_t> held;
  for (int step = 1; step <= 22; ++step) {
    const auto kept = p.train_step(static_cast<uint64_t>(step), 4, 12 * kMiB, 1);
    held.insert(held.end(), kept.begin(), kept.end());
    if (step % 7 != 0) continue;
    for (const uint64_t address : held) p.drop(Phase::kOther, address);
    held.clear();
  }
  EXPECT_EQ(leaks(p.explain()), 0u);
}

TEST(ExplainKinds, StateOfLayersThatAreUnfrozenOneByOneIsNoLeak) {
  Program p = training();
  for (int step = 1; step <= 10; ++step) {
    p.make(Phase::kOptimizer, p.step_state, 10 * kMiB);
    p.train_step(static_cast<uint64_t>(step), 4, 12 * kMiB);
  }
  EXPECT_EQ(leaks(p.explain()), 0u);
}

// One tensor that is replaced by a larger one each time.
Explanation replaced(const char* function, bool samples_grow) {
  Program p = training();
  const uint32_t join =
      p.out.stack({{"/home/u/cache.py", 12, "update"},
                   {"/home/u/model.py", 30, "forward"},
                   {std::string(kTorch) + "nn/modules/module.py", 1790, "_call_impl"},
                   {"/home/u/serve.py", 40, function}});
  uint64_t cache = 0;
  for (uint64_t step = 1; step <= 12; ++step) {
    const uint64_t grown = p.make(Phase::kForward, join, step * 4 * kMiB);
    if (cache != 0) p.drop(Phase::kForward, cache);
    cache = grown;
    p.train_step(step, 4, samples_grow ? (12 + 4 * step) * kMiB : 12 * kMiB);
  }
  p.make(Phase::kForward, p.forward, 12 * kMiB);
  return p.explain();
}

TEST(ExplainKinds, ATensorThatGrowsEachTime) {
  const Explanation explanation = replaced("serve", false);
  ASSERT_EQ(leaks(explanation), 1u);
  EXPECT_EQ(explanation.findings[0].bytes_per_step, 4u * kMiB);
  EXPECT_EQ(explanation.findings[0].site->line.file, "/home/u/cache.py");
  EXPECT_NE(report::words_of(explanation.findings[0].text).find("torch.cat"), std::string::npos);
  EXPECT_EQ(leaks(replaced("generate", false)), 0u);  // keys and values of one generation
  EXPECT_EQ(leaks(replaced("train", true)), 0u);      // sorted samples: everything grows
}

// A validation that puts its results aside, three times; the snapshot is taken within the last one.
TEST(ExplainKinds, WhatWasGivenBackBeforeIsNoLeak) {
  Program p = training();
  uint64_t step = 0;
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (int i = 0; i < 4; ++i) p.train_step(++step, 4, 12 * kMiB);
    std::vector<uint64_t> results;
    for (int batch = 0; batch < 8; ++batch) {
      const uint64_t sample = p.make(Phase::kEval, p.load, 6 * kMiB);
      std::vector<uint64_t> scratch;
      for (int i = 0; i < 4; ++i) scratch.push_back(p.make(Phase::kEval, p.eval, 8 * kMiB));
      results.push_back(p.make(Phase::kEval, p.eval_same_line, 10 * kMiB));
      for (const uint64_t address : scratch) p.drop(Phase::kEval, address);
      p.drop(Phase::kEval, sample);
    }
    for (const uint64_t address : results) {
      if (epoch < 2) p.drop(Phase::kOther, address);
    }
  }
  EXPECT_EQ(leaks(p.explain()), 0u);
}

TEST(ExplainKinds, ATrainersOwnLoop) {
  Program p = training(4, 3);
  const uint32_t prepare =
      p.out.stack({{"/venv/lib/python3.11/site-packages/trainer/loop.py", 20, "prepare"},
                   {"/home/u/train.py", 130, "main"}});
  for (int batch = 0; batch < 8; ++batch) {
    p.make(Phase::kEval, prepare, 6 * kMiB);
    for (int i = 0; i < 6; ++i)
      p.make(Phase::kEval, p.eval, (12 + static_cast<uint64_t>(i)) * kMiB, Category::kActivation);
  }
  p.fail(Phase::kEval, p.eval, 100 * kMiB, 10 * kMiB);
  EXPECT_STREQ(cause_of(p.explain()), "eval_with_graph");
}

TEST(ExplainKinds, LossesThatAreSummedBeforeOneBackwardPass) {
  Program p = training();
  p.train_step(1, 6, 12 * kMiB);
  for (int batch = 0; batch < 8; ++batch) {
    p.make(Phase::kData, p.load, 6 * kMiB);
    for (int i = 0; i < 6; ++i)
      p.make(Phase::kForward, p.forward, (12 + static_cast<uint64_t>(i)) * kMiB,
             Category::kActivation);
  }
  p.fail(Phase::kForward, p.forward, 100 * kMiB, 10 * kMiB);
  const Explanation explanation = p.explain();
  EXPECT_STREQ(cause_of(explanation), "kept_across_steps");
  EXPECT_NE(report::words_of(primary(explanation)->advice.at(0))
                .text.find("backward() on the loss of each batch"),
            std::string::npos)
      << report::summary_of(explanation);
}

TEST(ExplainKinds, GrowthThatBeganBeforeTheRing) {
  Program p;
  p.out.record.kind = record::Record::Kind::kSnapshot;
  for (int i = 0; i < 60; ++i)
    p.make(Phase::kForward, p.forward, 12 * kMiB);  // fall out of the ring below
  const size_t lost = p.out.record.events.size();
  for (int step = 61; step <= 68; ++step) {
    for (int i = 0; i < 4; ++i)
      p.drop(Phase::kBackward, p.make(Phase::kForward, p.forward, 9 * kMiB));
    p.make(Phase::kForward, p.forward, 12 * kMiB);
    p.out.in(Phase::kOther).from(0);
    p.out.add(EventKind::kStep, 0, 0, static_cast<uint64_t>(step));
  }
  p.out.record.events.erase(p.out.record.events.begin(),
                            p.out.record.events.begin() + static_cast<ptrdiff_t>(lost));
  p.out.record.history_truncated = true;
  p.out.record.devices[0].total_bytes = 0;
  p.fail(Phase::kForward, p.forward, 40 * kMiB, 10 * kMiB);
  p.out.record.final_segments = p.allocator.segments();
  const Explanation explanation = p.explain();
  EXPECT_STREQ(cause_of(explanation), "kept_across_steps") << report::summary_of(explanation);
  const auto& evidence = primary(explanation)->evidence;
  EXPECT_TRUE(std::any_of(evidence.begin(), evidence.end(), [](const Evidence& e) {
    return report::words_of(e.fact).find("before the history begins") != std::string::npos;
  }));
}

// --- Failures that are none, and many that are one ---

TEST(ExplainKinds, AConvolutionThatGetsAlong) {
  for (const bool overcome : {true, false}) {
    Program p = training(4, 3);
    const uint32_t conv =
        p.out.stack({{std::string(kTorch) + "nn/modules/conv.py", 540, "forward"},
                     {std::string(kTorch) + "nn/modules/module.py", 1790, "_call_impl"},
                     {"/home/u/train.py", 90, "main"}});
    const uint32_t next =
        p.out.stack({{"/home/u/model.py", 22, "forward"},
                     {std::string(kTorch) + "nn/modules/module.py", 1790, "_call_impl"},
                     {"/home/u/train.py", 90, "main"}});
    for (int i = 0; i < 3; ++i) p.fail(Phase::kForward, conv, 500 * kMiB, 10 * kMiB);
    if (overcome) p.make(Phase::kForward, next, 12 * kMiB);
    const Explanation explanation = p.explain();
    EXPECT_EQ(explanation.failures.size(), overcome ? 0u : 1u);
    EXPECT_EQ(has_cause(explanation, Cause::kHarmless), overcome);
  }
}

// --- Categories ---

TEST(ExplainKinds, AWorkspacesSizeMakesNoWorkspace) {
  Program p;
  p.out.record.kind = record::Record::Kind::kSnapshot;
  p.make(Phase::kOther, p.forward, 8 * kMiB);
  for (int i = 0; i < 20; ++i) p.make(Phase::kOther, 0, 32 * kMiB);  // gradients, without a stack
  p.fail(Phase::kOther, 0, 40 * kMiB, 2 * kMiB);
  EXPECT_FALSE(has_cause(p.explain(), Cause::kWorkspaces));
}

// --- Causes ---

TEST(ExplainKinds, LogitsBeforeTheLossIsReached) {
  Program p = training();
  const uint32_t head =
      p.out.stack({{"/home/u/model.py", 60, "forward"},
                   {std::string(kTorch) + "nn/modules/module.py", 1790, "_call_impl"},
                   {"/home/u/train.py", 90, "main"}});
  for (uint64_t step = 1; step <= 3; ++step) {
    const uint64_t logits = p.make(Phase::kForward, head, 64 * kMiB),
                   loss = p.make(Phase::kForward, p.loss, 63 * kMiB);
    p.drop(Phase::kBackward, loss);
    p.drop(Phase::kBackward, logits);
    p.train_step(step, 4, 12 * kMiB);
  }
  p.make(Phase::kForward, head, 640 * kMiB, Category::kActivation);
  p.fail(Phase::kForward, head, 640 * kMiB, 20 * kMiB);
  EXPECT_STREQ(cause_of(p.explain()), "logits");
}

TEST(ExplainKinds, LogitsOfAFirstStepWithoutANamedLoss) {
  Program p = training();
  for (int i = 0; i < 12; ++i) p.make(Phase::kForward, p.forward, 12 * kMiB, Category::kActivation);
  for (int i = 0; i < 2; ++i) p.make(Phase::kForward, p.forward, 400 * kMiB, Category::kActivation);
  p.fail(Phase::kForward, p.forward, 400 * kMiB, 20 * kMiB);
  EXPECT_STREQ(cause_of(p.explain()), "logits");
  // The first tensors are the largest ones in a convolutional network: no logits.
  Program q = training();
  for (int i = 0; i < 2; ++i) q.make(Phase::kForward, q.forward, 400 * kMiB, Category::kActivation);
  for (int i = 0; i < 12; ++i) q.make(Phase::kForward, q.forward, 12 * kMiB, Category::kActivation);
  q.fail(Phase::kForward, q.forward, 400 * kMiB, 20 * kMiB);
  EXPECT_STREQ(cause_of(q.explain()), "activations");
}

TEST(ExplainKinds, AutocastsCopiesWithoutOperatorNames) {
  Program p = training(200);
  const uint32_t linear =
      p.out.stack({{std::string(kTorch) + "nn/modules/linear.py", 134, "forward"},
                   {std::string(kTorch) + "nn/modules/module.py", 1790, "_call_impl"},
                   {"/home/u/train.py", 90, "main"}});
  for (int i = 0; i < 80; ++i) {
    p.make(Phase::kForward, linear, 5 * kMiB, Category::kActivation);
    p.make(Phase::kForward, linear, kMiB / 2, Category::kActivation);
  }
  p.fail(Phase::kForward, linear, 5 * kMiB, 2 * kMiB);
  EXPECT_TRUE(has_cause(p.explain(), Cause::kAutocastCopies));
}

TEST(ExplainKinds, MomentumAndOnesOwnOptimizerMakeStateToo) {
  for (const char* file : {"optim/sgd.py", "optim/optimizer.py"}) {
    Program p = training(20);
    for (int i = 0; i < 20; ++i)
      p.gradients.push_back(p.make(Phase::kBackward, 0, 10 * kMiB, Category::kGradient));
    const uint32_t step = p.out.stack({{std::string(kTorch) + file, 400, "_single_tensor_sgd"},
                                       {std::string(kTorch) + "optim/sgd.py", 120, "step"},
                                       {"/home/u/train.py", 95, "main"}});
    for (int i = 0; i < 8; ++i)
      p.make(Phase::kOptimizer, step, 10 * kMiB, Category::kOptimizerState);
    p.fail(Phase::kOptimizer, step, 10 * kMiB, 2 * kMiB);
    const Explanation explanation = p.explain();
    EXPECT_STREQ(cause_of(explanation), "optimizer_first_step");
    EXPECT_NE(report::summary_of(explanation).find("1 tensor per parameter"), std::string::npos)
        << report::summary_of(explanation);
  }
}

TEST(ExplainKinds, TheWeightsTwice) {
  Program p = training(100);
  const uint32_t load = p.out.stack({{"/home/u/train.py", 40, "load_checkpoint"}});
  for (int i = 0; i < 90; ++i) p.make(Phase::kOther, load, 10 * kMiB);
  p.fail(Phase::kOther, load, 10 * kMiB, 2 * kMiB);
  const Explanation explanation = p.explain();
  EXPECT_STREQ(cause_of(explanation), "model_state");
  EXPECT_NE(report::summary_of(explanation).find("a second copy of the weights"), std::string::npos)
      << report::summary_of(explanation);
  EXPECT_NE(report::summary_of(explanation).find("train.py:40"), std::string::npos);
}

TEST(ExplainKinds, AnotherProcessOnTheCard) {
  Program p = training(4, 3);
  p.out.record.processes.push_back({4711, "python other.py", false});
  p.out.process(1);
  p.out.add(EventKind::kDeviceAlloc, 0x7000'0000'0000, 3000 * kMiB);
  p.out.process(0);
  for (int i = 0; i < 30; ++i) p.make(Phase::kForward, p.forward, 12 * kMiB, Category::kActivation);
  p.fail(Phase::kForward, p.forward, 12 * kMiB, 2 * kMiB);
  const Explanation explanation = p.explain();
  EXPECT_STREQ(cause_of(explanation), "other_process");
  EXPECT_NE(report::summary_of(explanation).find("process 4711"), std::string::npos)
      << report::summary_of(explanation);
}

// Holes that would just hold the request, in the middle of a first forward pass: closing them would
// not carry far.
TEST(ExplainKinds, AFewHolesAreNotTheReason) {
  Program p = training();
  std::vector<uint64_t> holes;
  for (int i = 0; i < 90; ++i) {
    p.make(Phase::kForward, p.forward, 16 * kMiB, Category::kActivation);
    if (i < 20) {
      holes.push_back(p.make(Phase::kForward, p.forward, 9 * kMiB));
      p.make(Phase::kForward, p.forward, 8 * kMiB, Category::kActivation);
    }
  }
  for (const uint64_t address : holes) p.drop(Phase::kForward, address);
  p.fail(Phase::kForward, p.forward, 90 * kMiB, 2 * kMiB);
  const Explanation explanation = p.explain();
  EXPECT_STREQ(cause_of(explanation), "activations");
  EXPECT_TRUE(has_cause(explanation, Cause::kFragmentation));
}

// Small results pin the segments of large ones that are gone: with what the card had left, those
// would have been enough.
TEST(ExplainKinds, SegmentsThatCouldNotBeGivenBack) {
  Program p;
  std::vector<uint64_t> large;
  for (int i = 0; i < 40; ++i) {
    large.push_back(p.make(Phase::kOther, p.load, 9 * kMiB));
    p.make(Phase::kOther, p.forward, 8 * kMiB);
  }
  for (const uint64_t address : large) p.drop(Phase::kOther, address);
  p.fail(Phase::kOther, p.load, 700 * kMiB, 500 * kMiB);
  const Explanation explanation = p.explain();
  EXPECT_STREQ(cause_of(explanation), "fragmentation") << report::summary_of(explanation);
  EXPECT_NE(report::summary_of(explanation).find("500.0 MiB outside of them"), std::string::npos)
      << report::summary_of(explanation);
}

// --- Steps ---

TEST(ExplainKinds, TwoOptimizersOfOneClass) {
  Program p;
  p.out.record.kind = record::Record::Kind::kSnapshot;
  const auto caller = [&](uint32_t line) {
    return p.out.stack({{std::string(kTorch) + "optim/adam.py", 300, "_single_tensor_adam"},
                        {std::string(kTorch) + "optim/adam.py", 240, "step"},
                        {"/home/u/gan.py", line, "main"}});
  };
  const uint32_t first = caller(30), second = caller(40);
  for (int i = 0; i < 6; ++i) {
    for (const uint32_t stack : {first, second}) {
      p.drop(Phase::kOther, p.make(Phase::kOther, p.forward, 12 * kMiB));
      p.out.add(EventKind::kAnnotation, 0, 0, 0, "Optimizer.step#Adam.step");
      p.drop(Phase::kOther, p.make(Phase::kOther, stack, 10 * kMiB));
      p.out.add(EventKind::kAnnotation, 0, 0, 1, "Optimizer.step#Adam.step");
    }
  }
  const auto steps = find_steps(p.out.record, Stacks(p.out.record));
  EXPECT_EQ(
      std::count_if(steps.begin(), steps.end(), [](const Step& step) { return step.complete; }), 6);
}

// --- What is not known is not said ---

TEST(ExplainKinds, ASnapshotKnowsOnlyUntilItWasTaken) {
  Program p = training(4, 3);
  EXPECT_NE(report::summary_of(p.explain()).find("It did not run out of memory."),
            std::string::npos);
  p.out.record.processes[0].ended = false;
  EXPECT_NE(report::summary_of(p.explain()).find("as far as the record goes"), std::string::npos);
  p.out.record.kind = record::Record::Kind::kSnapshot;
  EXPECT_NE(
      report::summary_of(p.explain()).find("up to the moment at which the snapshot was taken"),
      std::string::npos);
  p.out.record.history_truncated = true;
  EXPECT_NE(report::summary_of(p.explain()).find("in this part of the history"), std::string::npos);
  p.out.record.final_segments = p.allocator.segments();
  p.out.record.events.clear();
  EXPECT_NE(
      report::summary_of(p.explain()).find("whether the program ran out of memory is not in it"),
      std::string::npos)
      << report::summary_of(p.explain());
}

// --- Logs ---

TEST(ExplainKinds, ALineThatDoesSeveralThings) {
  const std::string line = "    loss = model(x.to(dev)); loss.backward(); optimizer.step()\n";
  const std::string message =
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.00 MiB. GPU 0 has a total "
      "capacity of 23.65 GiB of which 11.06 MiB is free. Of the allocated memory 22.90 GiB is "
      "allocated by PyTorch, and 19.87 MiB is "
      "reserved by PyTorch but unallocated.\n";
  for (const auto& [frame, cause] : std::initializer_list<std::pair<const char*, Cause>>{
           {"  File \"/v/site-packages/torch/nn/functional.py\", line 1723, in relu\n    x\n",
            Cause::kCapacity},
           {"  File \"/v/site-packages/torch/optim/adam.py\", line 178, in _init_group\n    x\n",
            Cause::kOptimizerFirstStep},
           {"  File \"/v/site-packages/torch/autograd/graph.py\", line 800, in "
            "_engine_run_backward\n    x\n",
            Cause::kActivations},
       }) {
    auto input = sources::Input::from_memory(
        "Traceback (most recent call last):\n  File \"/home/u/train.py\", line 71, in main\n" +
            line + frame + message,
        "train.log");
    const auto log = sources::read_log(**input);
    ASSERT_TRUE(log.has_value());
    EXPECT_STREQ(cause_name(explain(*log).findings.at(0).cause), cause_name(cause)) << frame;
  }
}

}  // namespace
}  // namespace tonnage::analysis
