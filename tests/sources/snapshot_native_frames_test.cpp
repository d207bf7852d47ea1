// C++ frames in snapshots, which PyTorch takes by default: the user's line and the operator must be
// found among them.
#include <gtest/gtest.h>

#include "analysis/explain_program.h"
#include "analysis/timeline/stacks.h"
#include "sources/snapshot/native_frames.h"

namespace tonnage::analysis {
namespace {

using abi::EventKind;
using testing::kMiB;
using testing::RecordBuilder;

const std::string kTorch = "/venv/lib/python3.11/site-packages/torch/";

// A stack as PyTorch 2.11 gives it: its own C++ first, Python's interpreter between the Python
// frames.
std::vector<RecordBuilder::FrameText> mixed(const std::string& op,
                                            std::vector<RecordBuilder::FrameText> python) {
  std::vector<RecordBuilder::FrameText> frames = {
      {"??", 0, "torch::unwind::unwind()"},
      {"memory_snapshot.cpp", 0, "torch::cuda::(anonymous namespace)::gather_with_cpp()"},
      {"CUDACachingAllocator.cpp", 0,
       "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc(unsigned long, "
       "CUstream_st*)"},
      {"??", 0, "at::_ops::empty_memory_format::call(c10::ArrayRef<c10::SymInt>)"},
      {"RegisterCUDA_0.cpp", 0,
       "at::_ops::" + op + "::redispatch(c10::DispatchKeySet, at::Tensor const&)"},
      {"", 0, "at::_ops::" + op + "::call(at::Tensor const&)"}};
  for (const auto& frame : python) {
    frames.push_back(frame);
    frames.push_back({"/tmp/build/Python-3.11.7/Python/ceval.c", 4769, "_PyEval_EvalFrameDefault"});
  }
  frames.push_back({"./csu/../csu/libc-start.c", 360, "__libc_start_main_impl"});
  return frames;
}

TEST(NativeFrames, OperatorNames) {
  EXPECT_EQ(sources::operator_of("at::_ops::gelu::call(at::Tensor const&)"), "aten::gelu");
  EXPECT_EQ(sources::operator_of("at::_ops::add_Tensor::redispatch(c10::DispatchKeySet)"),
            "aten::add");
  EXPECT_EQ(sources::operator_of("at::_ops::mm_out::call(at::Tensor&)"), "aten::mm");
  EXPECT_EQ(sources::operator_of("at::_ops::_to_copy::call(at::Tensor const&)"), "aten::_to_copy");
  EXPECT_EQ(sources::operator_of("at::native::gelu(at::Tensor const&)"), "");
  EXPECT_EQ(sources::operator_of("at::_ops::"), "");
}

TEST(NativeFrames, TheUsersLineAndTheOperatorAreFound) {
  RecordBuilder b;
  b.record.kind = record::Record::Kind::kSnapshot;
  const std::vector<RecordBuilder::FrameText> python = {
      {"/home/u/model.py", 14, "forward"},
      {kTorch + "nn/modules/module.py", 1790, "_call_impl"},
      {"/home/u/train.py", 32, "train"}};
  b.from(b.stack(mixed("gelu", python))).alloc(0x1000, 4 * kMiB);
  b.from(b.stack(mixed("addmm", python))).alloc(0x800000, 4 * kMiB);
  sources::digest_native_frames(b.record);
  ASSERT_EQ(b.record.events[0].stack, b.record.events[1].stack);  // one line
  EXPECT_EQ(b.record.stacks[b.record.events[0].stack].size(), 3u);
  const Stacks stacks(b.record);
  EXPECT_EQ(stacks.site(b.record.events[0]).line.file, "/home/u/model.py");
  EXPECT_EQ(stacks.site(b.record.events[0]).line.line, 14u);
  EXPECT_EQ(stacks.site(b.record.events[0]).op, "aten::gelu");
  EXPECT_EQ(stacks.site(b.record.events[1]).op, "aten::addmm");
  EXPECT_TRUE(stacks[b.record.events[0].stack].in_module);
}

TEST(NativeFrames, TheBackwardThreadHasItsPhaseAndItsOperator) {
  RecordBuilder b;
  b.record.kind = record::Record::Kind::kSnapshot;
  auto frames = mixed("mm", {});
  frames.push_back(
      {"engine.cpp", 0,
       "torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)"});
  frames.push_back({"./nptl/pthread_create.c", 442, "start_thread"});
  b.from(b.stack(frames)).alloc(0x1000, 4 * kMiB);
  b.record.stacks.push_back({});  // the record has Python frames elsewhere
  sources::digest_native_frames(b.record);
  const Stacks stacks(b.record);
  const Site site = stacks.site(b.record.events[0]);
  EXPECT_FALSE(site.line.known()) << site.line.file;
  EXPECT_EQ(site_text(site), "in aten::mm");
  EXPECT_TRUE(stacks[b.record.events[0].stack].in_backward);
}

TEST(NativeFrames, ACppProgramsOwnFileIsItsLine) {
  RecordBuilder b;
  b.record.kind = record::Record::Kind::kSnapshot;
  auto frames = mixed("linear", {});
  frames.insert(frames.end() - 1, {"/home/u/trainer/main.cpp", 88, "train(Net&)"});
  b.from(b.stack(frames)).alloc(0x1000, 4 * kMiB);
  sources::digest_native_frames(b.record);
  EXPECT_EQ(Stacks(b.record).site(b.record.events[0]).line.file, "/home/u/trainer/main.cpp");
}

TEST(NativeFrames, PythonStacksStayAsTheyAre) {
  RecordBuilder b;
  const uint32_t stack =
      b.stack({{"/home/u/model.py", 14, "forward"}, {"/home/u/train.py", 32, "train"}});
  b.from(stack).alloc(0x1000, 4 * kMiB);
  sources::digest_native_frames(b.record);
  EXPECT_EQ(b.record.events[0].stack, stack);
  EXPECT_EQ(b.record.events[0].op, abi::kNoId);
}

TEST(NativeFrames, EndStatesKeepTheirStacks) {
  RecordBuilder b;
  b.stack(mixed("gelu", {{"/home/u/unused.py", 1, "f"}}));
  b.stack(mixed("mm", {{"/home/u/unused.py", 1, "f"}}));  // becomes the same as the first
  const uint32_t used = b.stack(mixed("mm", {{"/home/u/model.py", 14, "forward"}}));
  record::SegmentState segment;
  segment.blocks.push_back({0x1000, 512, 512, record::BlockState::State::kActive, used});
  b.record.final_segments.push_back(segment);
  sources::digest_native_frames(b.record);
  const uint32_t now = b.record.final_segments[0].blocks[0].stack;
  ASSERT_LT(now, b.record.stacks.size());
  EXPECT_EQ(b.record.string(b.record.stacks[now].at(0).file), "/home/u/model.py");
}

// Records of Python 3.11 and later carry qualified names.
TEST(NativeFrames, QualifiedNames) {
  EXPECT_EQ(bare_name("Adam._init_group"), "_init_group");
  EXPECT_EQ(bare_name("Optimizer.profile_hook_step.<locals>.wrapper"), "wrapper");
  EXPECT_EQ(bare_name("forward"), "forward");
  EXPECT_EQ(bare_name("at::native::add(float...)"), "at::native::add(float...)");
  RecordBuilder b;
  const uint32_t stack = b.stack({{kTorch + "optim/adam.py", 178, "Adam._init_group"},
                                  {kTorch + "optim/adam.py", 238, "Adam.step"},
                                  {"/home/u/train.py", 34, "train"}});
  const Stacks stacks(b.record);
  EXPECT_TRUE(stacks[stack].in_optimizer);
  EXPECT_TRUE(stacks[stack].makes_state);
}

}  // namespace
}  // namespace tonnage::analysis
