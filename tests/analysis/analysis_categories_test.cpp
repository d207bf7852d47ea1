#include "analysis/timeline/categories.h"

#include <gtest/gtest.h>

#include "analysis/analysis_builder.h"

namespace tonnage::analysis {
namespace {

using testing::EventKind;
using testing::kMiB;
using testing::RecordBuilder;

constexpr uint64_t kBase = 0x7f0000000000;
constexpr uint64_t kSlot = 64 * 1024;

// Gives each allocation an address of its own.
class Program : public RecordBuilder {
 public:
  Program() { segment(kBase, 512 * kMiB); }
  uint64_t make(uint64_t size = 8 * kMiB) {
    const uint64_t address = kBase + next_;
    next_ += size + kSlot;
    alloc(address, size);
    return address;
  }
  void drop(uint64_t address, uint64_t size = 8 * kMiB) { release(address, size); }
  void step(uint64_t number) {
    in(Phase::kOptimizer).op("aten::addcdiv_").module("");
    add(EventKind::kStep, 0, 0, number);
  }
  Category of(uint64_t address) {
    Timeline timeline(record);
    infer_categories(timeline);
    for (const Allocation& a : timeline.allocations()) {
      if (a.address == address) return a.category;
    }
    return Category::kOther;
  }

  using Phase = abi::Phase;

 private:
  uint64_t next_ = 0;
};

using abi::Phase;

TEST(Categories, FreedByTheBackwardPassIsActivation) {
  Program program;
  program.in(Phase::kForward).op("aten::relu").module("layer1");
  const uint64_t tensor = program.make();
  program.in(Phase::kBackward).op("aten::threshold_backward").module("");
  program.drop(tensor);
  program.step(1);
  EXPECT_EQ(program.of(tensor), Category::kActivation);
}

TEST(Categories, FreedInsideTheOperatorIsScratch) {
  Program program;
  program.in(Phase::kForward).op("aten::convolution").module("conv1");
  const uint64_t workspace = program.make();
  program.drop(workspace);
  program.op("aten::sort");
  const uint64_t scratch = program.make();
  program.drop(scratch);
  EXPECT_EQ(program.of(workspace), Category::kWorkspace);
  EXPECT_EQ(program.of(scratch), Category::kTemporary);
}

TEST(Categories, ThePassesOwnIntermediatesAreTemporary) {
  Program program;
  program.in(Phase::kForward).op("aten::add").module("a");
  const uint64_t tensor = program.make();
  program.op("aten::mul").module("b");
  const uint64_t other = program.make();
  program.drop(tensor);
  program.in(Phase::kBackward).op("aten::mul").module("");
  const uint64_t flow = program.make();
  program.op("aten::mm");
  program.make();
  program.drop(flow);
  program.drop(other);
  EXPECT_EQ(program.of(tensor), Category::kTemporary);
  EXPECT_EQ(program.of(flow), Category::kTemporary);
  EXPECT_EQ(program.of(other), Category::kActivation);
}

// A record gives a gradient the line of the forward pass, modules and all; what is recomputed was
// called from autograd.
TEST(Categories, OnlyWhatAutogradCallsIsRecomputed) {
  Program program;
  const std::string torch = "/venv/lib/python3.11/site-packages/torch/";
  const Program::FrameText call{torch + "nn/modules/module.py", 1800, "_call_impl"},
      user{"train.py", 9, "<module>"};
  program.in(Phase::kBackward)
      .op("aten::nll_loss_backward")
      .from(program.stack({{torch + "nn/functional.py", 10, "nll_loss"}, call, user}));
  const uint64_t flow = program.make();
  program.op("aten::relu")
      .from(program.stack({{torch + "nn/functional.py", 20, "relu"},
                           call,
                           {torch + "utils/checkpoint.py", 1100, "unpack_hook"}}));
  const uint64_t recomputed = program.make();
  program.op("aten::mm").from(abi::kNoId);
  program.drop(flow);
  program.drop(recomputed);
  EXPECT_EQ(program.of(flow), Category::kTemporary);
  EXPECT_EQ(program.of(recomputed), Category::kActivation);
}

TEST(Categories, MadeInBackwardAndAliveInTheOptimizerIsGradient) {
  Program program;
  program.in(Phase::kBackward).op("aten::mm");
  const uint64_t gradient = program.make();
  program.step(1);
  program.in(Phase::kOther).op("");
  program.drop(gradient);
  EXPECT_EQ(program.of(gradient), Category::kGradient);
}

TEST(Categories, MadeByTheOptimizerAndKeptIsItsState) {
  Program program;
  program.in(Phase::kOptimizer).op("aten::zeros_like");
  const uint64_t state = program.make();
  program.op("aten::_foreach_sqrt");
  const uint64_t scratch = program.make();
  program.op("aten::_foreach_div");
  program.make();
  program.drop(scratch);
  program.step(1);
  program.in(Phase::kForward).op("aten::mm");
  program.make();
  program.step(2);
  EXPECT_EQ(program.of(state), Category::kOptimizerState);
  EXPECT_EQ(program.of(scratch), Category::kTemporary);
}

TEST(Categories, CopiesFromTheHostAreInputs) {
  Program program;
  program.in(Phase::kData).op("aten::_to_copy");
  const uint64_t input = program.make();
  program.record.events.back().flags = abi::kEventHostSource;
  program.in(Phase::kForward).op("aten::mm");
  program.make();
  EXPECT_EQ(program.of(input), Category::kInput);
}

TEST(Categories, CublasWorkspacesAreKnownByTheirSize) {
  Program program;
  program.in(Phase::kForward).op("aten::addmm").module("fc");
  const uint64_t workspace = program.make(8'519'680);
  program.op("aten::relu");
  program.make();
  program.step(1);
  EXPECT_EQ(program.of(workspace), Category::kWorkspace);
}

TEST(Categories, AliveWhenMemoryRanOutInForwardIsActivation) {
  Program program;
  program.in(Phase::kForward).op("aten::relu").module("layer1");
  const uint64_t tensor = program.make();
  program.add(EventKind::kOom, 0, 100 * kMiB, kMiB);
  program.drop(tensor);  // the error unwinds the forward pass
  EXPECT_EQ(program.of(tensor), Category::kActivation);
}

TEST(Categories, LabelsWinOverLives) {
  Program program;
  program.in(Phase::kForward).op("aten::relu");
  const uint64_t tensor = program.make();
  program.add(EventKind::kLabel, tensor, 0, static_cast<uint64_t>(Category::kBuffer),
              "running_mean");
  program.in(Phase::kBackward);
  program.drop(tensor);
  EXPECT_EQ(program.of(tensor), Category::kBuffer);
}

TEST(Categories, WhatNothingTellsStaysUnknown) {
  Program program;
  program.in(Phase::kOther).op("");
  const uint64_t tensor = program.make();
  EXPECT_EQ(program.of(tensor), Category::kUnknown);
}

TEST(Categories, SnapshotsAreReadFromTheirStacks) {
  Program program;
  program.record.kind = record::Record::Kind::kSnapshot;
  const std::string torch = "/venv/lib/python3.11/site-packages/torch/";
  program.from(program.stack({{torch + "nn/modules/module.py", 1370, "convert"},
                              {torch + "nn/modules/module.py", 965, "_apply"},
                              {"train.py", 5, "<module>"}}));
  const uint64_t parameter = program.make();
  program.from(program.stack({{torch + "nn/functional.py", 10, "relu"},
                              {torch + "nn/modules/module.py", 1800, "_call_impl"},
                              {"train.py", 9, "<module>"}}));
  const uint64_t activation = program.make();
  program.from(abi::kNoId);  // autograd's own thread has no Python stack
  const uint64_t gradient = program.make();
  program.drop(activation);
  program.from(program.stack({{torch + "optim/adam.py", 200, "_init_group"},
                              {torch + "optim/adam.py", 230, "step"},
                              {"train.py", 12, "<module>"}}));
  const uint64_t state = program.make();
  program.from(program.stack(
      {{torch + "optim/optimizer.py", 900, "zero_grad"}, {"train.py", 13, "<module>"}}));
  program.drop(gradient);
  EXPECT_EQ(program.of(parameter), Category::kParameter);
  EXPECT_EQ(program.of(activation), Category::kActivation);
  EXPECT_EQ(program.of(gradient), Category::kGradient);
  EXPECT_EQ(program.of(state), Category::kOptimizerState);
}

TEST(Stacks, TheUsersLineIsTheInnermostThatIsTheirs) {
  RecordBuilder builder;
  const uint32_t stack = builder.stack(
      {{"/v/lib/python3.11/site-packages/torch/nn/functional.py", 1, "linear"},
       {"/v/lib/python3.11/site-packages/transformers/models/bert.py", 300, "forward"},
       {"/usr/lib/python3.11/contextlib.py", 81, "inner"},
       {"<frozen runpy>", 198, "_run_module"},
       {"/home/user/train.py", 12, "main"}});
  const uint32_t torch_only =
      builder.stack({{"/v/lib/python3.11/site-packages/torch/optim/adam.py", 7, "step"}});
  const Stacks stacks(builder.record);
  EXPECT_EQ(stacks.line(stack).line, 300u);
  EXPECT_EQ(stacks.user_line(stack).file, "/home/user/train.py");
  EXPECT_EQ(stacks.line(torch_only).line, 7u);  // nothing else there
  EXPECT_FALSE(stacks.line(abi::kNoId).known());
  EXPECT_FALSE(stacks.line(12345).known());  // a stack that does not exist
}

}  // namespace
}  // namespace tonnage::analysis
