#include "analysis/verdict.h"

#include <gtest/gtest.h>
#include <signal.h>

#include "analysis/analysis_builder.h"
#include "analysis/report.h"
#include "analysis/timeline/failures.h"

namespace tonnage::analysis {
namespace {

using testing::EventKind;
using testing::kMiB;
using testing::RecordBuilder;

constexpr uint64_t kBase = 0x7f0000000000;

record::CommandEnd ended(int exit_code, int signal = 0) {
  record::CommandEnd end;
  end.known = true;
  end.exit_code = exit_code;
  end.signal = signal;
  return end;
}

VerdictFacts facts_with(record::CommandEnd end, uint64_t peak_mib = 500) {
  VerdictFacts facts;
  facts.has_session = true;
  facts.complete_steps = 3;
  facts.end = std::move(end);
  DeviceFacts device;
  device.used = true;
  device.total_bytes = 1024 * kMiB;
  device.peak_bytes = peak_mib * kMiB;
  facts.devices.push_back(device);
  return facts;
}

TEST(Verdict, HowTheCommandEndedDecides) {
  EXPECT_EQ(judge(facts_with(ended(0))).verdict, Verdict::kFits);
  EXPECT_EQ(judge(facts_with(ended(1))).verdict, Verdict::kFailed);
  EXPECT_EQ(judge(facts_with(ended(128 + SIGSEGV, SIGSEGV))).verdict, Verdict::kFailed);
  const Judgement killed = judge(facts_with(ended(128 + SIGKILL, SIGKILL)));
  EXPECT_EQ(killed.verdict, Verdict::kCut);
  EXPECT_EQ(killed.cut, CutReason::kKilled);
  EXPECT_EQ(killed.devices[0], Verdict::kCut);  // no device fits for certain
}

TEST(Verdict, ARefusalThatEndedTheCommandCountsBeforeItsExit) {
  for (const int code : {0, 1, 130}) {
    VerdictFacts facts = facts_with(ended(code));
    facts.devices[0].ended_by_refusal = true;
    facts.lost = true;
    EXPECT_EQ(judge(facts).verdict, Verdict::kDoesNotFit) << code;
  }
}

TEST(Verdict, MoreThanTheCardHasDoesNotFit) {
  EXPECT_EQ(judge(facts_with(ended(0), 1025)).verdict, Verdict::kDoesNotFit);
}

TEST(Verdict, SizesThatWereAssumedMakeItAtMost) {
  VerdictFacts facts = facts_with(ended(0));
  facts.devices[0].rests_on_assumption = true;
  EXPECT_EQ(judge(facts).verdict, Verdict::kFitsAtMost);
}

TEST(Verdict, WhatIsMissingIsNeverAYes) {
  VerdictFacts facts = facts_with(ended(0));
  facts.lost = true;
  EXPECT_EQ(judge(facts).cut, CutReason::kLostParts);
  facts = facts_with(record::CommandEnd{});
  EXPECT_EQ(judge(facts).cut, CutReason::kNoEnd);
  facts.has_session = false;  // made by hand: no end is expected
  EXPECT_EQ(judge(facts).verdict, Verdict::kFits);
}

TEST(Verdict, ARunThatWasStoppedFitsSoFar) {
  record::CommandEnd interrupted = ended(1);
  interrupted.errors.push_back({});
  interrupted.errors.back().interrupted = true;
  for (const record::CommandEnd& end :
       {ended(128 + SIGINT, SIGINT), ended(128 + SIGTERM, SIGTERM), ended(143), interrupted}) {
    VerdictFacts facts = facts_with(end);
    EXPECT_EQ(judge(facts).verdict, Verdict::kFits);
    EXPECT_TRUE(judge(facts).stopped);
    facts.complete_steps = 1;
    EXPECT_EQ(judge(facts).cut, CutReason::kStoppedEarly);
    facts.complete_steps = 3;
    facts.lost = true;
    EXPECT_EQ(judge(facts).cut, CutReason::kStoppedEarly);
  }
}

TEST(Verdict, NothingUsed) {
  VerdictFacts facts = facts_with(ended(0));
  facts.devices[0] = DeviceFacts{};
  facts.devices[0].total_bytes = 1024 * kMiB;
  EXPECT_EQ(judge(facts).verdict, Verdict::kNothingUsed);
  facts.end = ended(2);
  EXPECT_EQ(judge(facts).verdict, Verdict::kFailed);
}

TEST(Verdict, OneDeviceDecidesForAll) {
  VerdictFacts facts = facts_with(ended(0));
  facts.devices.push_back(facts.devices[0]);
  facts.devices[1].ended_by_refusal = true;
  const Judgement judgement = judge(facts);
  EXPECT_EQ(judgement.verdict, Verdict::kDoesNotFit);
  EXPECT_EQ(judgement.devices[0], Verdict::kFits);
  EXPECT_EQ(judgement.devices[1], Verdict::kDoesNotFit);
}

// --- Refusals -----------------------------------------------------------------------------------

// A PyTorch process with a segment and a tensor in it.
RecordBuilder program() {
  RecordBuilder b;
  b.record.has_session = true;
  b.op("aten::empty").from(b.stack({{"train.py", 5, "main"}}));
  b.add(EventKind::kContext, 0, 64 * kMiB);
  b.segment(kBase, 200 * kMiB);
  b.alloc(kBase, 100 * kMiB);
  return b;
}

void refuse(RecordBuilder& b, uint64_t mib = 900, const std::string& asker = "") {
  b.add(EventKind::kDeviceOom, 0, mib * kMiB, 700 * kMiB, asker);
}
void refuse_pytorch(RecordBuilder& b) {
  refuse(b);
  b.add(EventKind::kSegmentFree, kBase + 512 * kMiB, 2 * kMiB);
  b.add(EventKind::kDeviceFree, kBase + 512 * kMiB, 2 * kMiB);
  refuse(b);
  b.add(EventKind::kOom, 0, 900 * kMiB, 700 * kMiB);
}

record::CommandError error_of(const std::string& type, bool memory, uint32_t line = 99) {
  record::CommandError error;
  error.pid = 100;
  error.type = type;
  error.memory = memory;
  error.file = "train.py";
  error.line = line;
  return error;
}

Report report_of(RecordBuilder& b, record::CommandEnd end) {
  b.record.end = std::move(end);
  return make_report(b.record);
}

TEST(Refusals, OneOfPyTorchsIsOne) {
  auto b = program();
  refuse_pytorch(b);
  record::CommandEnd end = ended(1);
  end.errors.push_back(error_of("torch.OutOfMemoryError", true));
  const Report report = report_of(b, end);
  ASSERT_EQ(report.devices[0].out_of_memory.size(), 1u);
  EXPECT_EQ(report.devices[0].out_of_memory[0].asker, Asker::kPyTorch);
  EXPECT_TRUE(report.devices[0].out_of_memory[0].ended);
  EXPECT_EQ(report.verdict, Verdict::kDoesNotFit);
}

TEST(Refusals, ALibrarysInAPyTorchProcessCounts) {
  // cuBLAS was refused its workspace: no error of PyTorch's allocator follows.
  auto b = program();
  b.op("aten::mm").from(b.stack({{"train.py", 8, "main"}}));
  refuse(b, 8);
  b.op("");
  b.add(EventKind::kProcessEnd, 0, 0, 100);
  record::CommandEnd end = ended(1);
  end.errors.push_back(error_of("RuntimeError", true));
  const Report report = report_of(b, end);
  ASSERT_EQ(report.devices[0].out_of_memory.size(), 1u);
  const OutOfMemory& oom = report.devices[0].out_of_memory[0];
  EXPECT_EQ(oom.asker, Asker::kCublas);
  EXPECT_EQ(oom.moment.site.user_line.line, 8u);
  EXPECT_EQ(report.verdict, Verdict::kDoesNotFit);
}

TEST(Refusals, TheDriverNamesWhoAsked) {
  for (const auto& [name, asker] :
       {std::pair("nccl", Asker::kNccl), std::pair("streams", Asker::kStreams),
        std::pair("local_memory", Asker::kLocalMemory), std::pair("code", Asker::kCode)}) {
    auto b = program();
    refuse(b, 4, name);
    const Report report = report_of(b, ended(1));
    ASSERT_EQ(report.devices[0].out_of_memory.size(), 1u) << name;
    EXPECT_EQ(report.devices[0].out_of_memory[0].asker, asker) << name;
    EXPECT_STREQ(asker_name(asker), name);
    EXPECT_EQ(report.verdict, Verdict::kDoesNotFit) << name;
  }
}

// PyTorch tells the host's refusal as one of the card's.
TEST(Refusals, ALimitOfTheHostsIsNotTheCards) {
  auto b = program();
  b.add(EventKind::kHostRefusal, 0, 900 * kMiB, 2000 * kMiB, "address_space");
  b.add(EventKind::kSegmentFree, kBase + 512 * kMiB, 2 * kMiB);
  b.add(EventKind::kHostRefusal, 0, 900 * kMiB, 2000 * kMiB, "address_space");
  b.add(EventKind::kOom, 0, 900 * kMiB, 700 * kMiB);
  record::CommandEnd end = ended(1);
  end.errors.push_back(error_of("torch.OutOfMemoryError", true));
  const Report report = report_of(b, end);
  EXPECT_EQ(report.verdict, Verdict::kFailed);
  EXPECT_EQ(report.devices[0].verdict, Verdict::kFailed);
  EXPECT_TRUE(report.devices[0].out_of_memory.empty());
  ASSERT_EQ(report.host_refusals.size(), 1u);
  const HostRefusal& refusal = report.host_refusals[0];
  EXPECT_EQ(refusal.limit, "address_space");
  EXPECT_EQ(refusal.limit_bytes, 2000 * kMiB);
  EXPECT_EQ(refusal.request_bytes, 900 * kMiB);
  EXPECT_EQ(refusal.count, 2u);
  EXPECT_TRUE(refusal.ended);
  EXPECT_EQ(refusal.moment->site.user_line.line, 5u);
}

TEST(Refusals, OneOfTheHostsThatWasGotOverChangesNothing) {
  auto b = program();
  b.add(EventKind::kHostRefusal, 0, 900 * kMiB, 0, "pinned_memory");
  b.alloc(kBase + 100 * kMiB, 4 * kMiB);
  const Report fine = report_of(b, ended(0));
  EXPECT_EQ(fine.verdict, Verdict::kFits);
  EXPECT_FALSE(fine.host_refusals.at(0).ended);
  // Later the card refuses: that is the card's.
  refuse_pytorch(b);
  record::CommandEnd end = ended(1);
  end.errors.push_back(error_of("torch.OutOfMemoryError", true));
  EXPECT_EQ(report_of(b, end).verdict, Verdict::kDoesNotFit);
}

TEST(Verdict, AGroupsLimitThatKilledItIsNamed) {
  auto b = program();
  record::CommandEnd end = ended(128 + SIGKILL, SIGKILL);
  EXPECT_EQ(report_of(b, end).verdict, Verdict::kCut);
  end.host_limit = {"cgroup_memory", 4096 * kMiB};
  const Report report = report_of(b, end);
  EXPECT_EQ(report.verdict, Verdict::kFailed);
  ASSERT_EQ(report.host_refusals.size(), 1u);
  EXPECT_EQ(report.host_refusals[0].limit, "cgroup_memory");
}

TEST(Verdict, AProcessOfWhichNothingIsInTheRecordIsLost) {
  auto b = program();
  record::CommandEnd end = ended(0);
  end.drivers_loaded = 1;
  EXPECT_EQ(report_of(b, end).verdict, Verdict::kFits);
  end.drivers_loaded = 2;
  EXPECT_EQ(report_of(b, end).cut, CutReason::kLostParts);
}

TEST(Refusals, CaughtAndWentOn) {
  auto b = program();
  refuse_pytorch(b);
  b.alloc(kBase + 100 * kMiB, 4 * kMiB);
  const Report report = report_of(b, ended(0));
  EXPECT_TRUE(report.devices[0].out_of_memory[0].went_on);
  EXPECT_EQ(report.verdict, Verdict::kFits);
}

TEST(Refusals, CaughtInTheMiddleOfAPassAndNothingCameAfter) {
  for (const bool in_a_pass : {true, false}) {
    auto b = program();
    b.in(in_a_pass ? Phase::kForward : Phase::kInit);
    refuse_pytorch(b);
    b.release(kBase, 100 * kMiB);
    EXPECT_EQ(report_of(b, ended(0)).verdict, in_a_pass ? Verdict::kDoesNotFit : Verdict::kFits);
  }
}

TEST(Refusals, TheSameCaughtBeforeIsCaughtAgain) {
  auto b = program();
  b.in(Phase::kForward);
  refuse_pytorch(b);
  b.alloc(kBase + 100 * kMiB, 4 * kMiB);
  refuse_pytorch(b);
  EXPECT_EQ(report_of(b, ended(0)).verdict, Verdict::kFits);
}

TEST(Refusals, AnotherErrorAfterOneThatWasCaughtIsTheReason) {
  auto b = program();
  refuse_pytorch(b);
  b.alloc(kBase + 100 * kMiB, 4 * kMiB);
  record::CommandEnd end = ended(1);
  end.errors.push_back(error_of("ValueError", false));
  EXPECT_EQ(report_of(b, end).verdict, Verdict::kFailed);
}

TEST(Refusals, AnErrorAtTheSameLineIsTheRefusals) {
  // CUDNN_STATUS_NOT_INITIALIZED and the like do not say that memory was missing.
  auto b = program();
  refuse(b, 8, "cudnn");
  b.alloc(kBase + 100 * kMiB, 4 * kMiB);  // while the process ends
  record::CommandEnd end = ended(1);
  end.errors.push_back(error_of("RuntimeError", false, 5));
  EXPECT_EQ(report_of(b, end).verdict, Verdict::kDoesNotFit);
}

TEST(Refusals, DyingProcessesMayStillAllocate) {
  auto b = program();
  refuse_pytorch(b);
  b.alloc(kBase + 100 * kMiB, 4 * kMiB);  // a destructor
  record::CommandEnd end = ended(1);
  end.errors.push_back(error_of("torch.OutOfMemoryError", true));
  const Report report = report_of(b, end);
  EXPECT_FALSE(report.devices[0].out_of_memory[0].went_on);
  EXPECT_EQ(report.verdict, Verdict::kDoesNotFit);
}

TEST(Refusals, ALibrarysOwnRetry) {
  // CuPy frees its pool and asks again.
  auto b = program();
  refuse(b, 64, "cupy");
  b.add(EventKind::kDeviceFree, kBase + 512 * kMiB, 2 * kMiB);
  b.add(EventKind::kDeviceAlloc, kBase + 600 * kMiB, 64 * kMiB);
  const Report report = report_of(b, ended(0));
  EXPECT_TRUE(report.devices[0].out_of_memory.empty());
  EXPECT_EQ(report.devices[0].retries, 1u);
}

// JAX's error names the driver's refusal once more, or one that the driver never saw.
TEST(Refusals, JaxsOwnAllocatorIsToldApart) {
  for (const bool asked_the_driver : {true, false}) {
    auto b = program();
    if (asked_the_driver) refuse(b, 128, "jax");
    refuse(b, 64, "jax_pool");
    const Report report = report_of(b, ended(0));
    ASSERT_EQ(report.devices[0].out_of_memory.size(), 1u);
    EXPECT_EQ(report.devices[0].out_of_memory[0].library, asked_the_driver ? "jax" : "jax_pool");
    EXPECT_EQ(report.verdict, Verdict::kFits);
    EXPECT_EQ(report_of(b, ended(1)).verdict, Verdict::kDoesNotFit);
  }
}

TEST(Refusals, TriesOfOneCallAreOne) {
  auto b = program();
  for (int i = 0; i < 3; ++i) refuse(b, 64, "cupy");
  const Report report = report_of(b, ended(1));
  ASSERT_EQ(report.devices[0].out_of_memory.size(), 1u);
  EXPECT_EQ(report.devices[0].out_of_memory[0].count, 3u);
}

TEST(Refusals, AChildsErrorThatOnlyTheParentTells) {
  auto b = program();
  refuse_pytorch(b);
  b.alloc(kBase + 100 * kMiB, 4 * kMiB);
  record::CommandEnd end = ended(1);
  end.errors.push_back(error_of("torch.multiprocessing.spawn.ProcessRaisedException", true));
  end.errors.back().pid = 7;
  EXPECT_EQ(report_of(b, end).verdict, Verdict::kDoesNotFit);
}

TEST(Refusals, APeakAfterTheLastStepIsToldApart) {
  auto b = program();
  b.add(EventKind::kStep, 0, 0, 1);
  b.alloc(kBase + 100 * kMiB, 10 * kMiB);
  b.add(EventKind::kStep, 0, 0, 2);
  b.segment(kBase + 300 * kMiB, 100 * kMiB);
  const Report report = report_of(b, ended(0));
  EXPECT_EQ(report.devices[0].device->bytes, 364 * kMiB);
  EXPECT_EQ(report.devices[0].peak_of_steps, 264 * kMiB);
}

TEST(Refusals, AKilledProcessLosesItsLastPart) {
  auto b = program();
  b.record.processes[0].ended = false;
  EXPECT_EQ(report_of(b, ended(0)).verdict, Verdict::kCut);
}

}  // namespace
}  // namespace tonnage::analysis
