// Diagnoses: on recorded failures of a real card, and on programs made by hand, one for each kind
// of cause.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "analysis/diagnosis/findings.h"
#include "analysis/explain_program.h"
#include "report/words/words.h"
#include "sources/snapshot/snapshot_reader.h"

namespace tonnage::analysis {
namespace {

using abi::EventKind;
using testing::has_cause;
using testing::kMiB;
using testing::primary;
using testing::Program;
using testing::RecordBuilder;

Explanation explain_file(const std::string& path, const ExplainOptions& options = {}) {
  auto record = sources::read_snapshot(path);
  EXPECT_TRUE(record.has_value()) << path;
  if (!record) return {};
  return explain(std::make_shared<record::Record>(std::move(*record)), options);
}

std::string data(const std::string& name) {
  return std::string(TONNAGE_SOURCE_DIR) + "/tests/data/snapshots/" + name + ".pickle.xz";
}

size_t leaks(const Explanation& explanation) {
  return static_cast<size_t>(
      std::count_if(explanation.findings.begin(), explanation.findings.end(),
                    [](const Finding& f) { return f.bytes_per_step.has_value(); }));
}

// --- Recorded on a real card ---

struct Recorded {
  const char* name;
  Cause cause;
  const char* file;
  uint32_t line;
};

TEST(ExplainRecorded, EveryFailureHasItsCauseAndLine) {
  for (const Recorded& expected : std::initializer_list<Recorded>{
           {"oom_activations", Cause::kActivations, "vision_transformer.py", 113},
           {"oom_activations_exp", Cause::kActivations, "vision_transformer.py", 118},
           {"oom_eval_grad", Cause::kEvalWithGraph, "train.py", 69},
           {"oom_fragment", Cause::kFragmentation, "train.py", 66},
           {"oom_optimizer", Cause::kOptimizerFirstStep, "train.py", 12}}) {
    const Explanation explanation = explain_file(data(expected.name));
    const Finding* finding = primary(explanation);
    ASSERT_NE(finding, nullptr) << expected.name;
    EXPECT_EQ(finding->cause, expected.cause) << expected.name << " " << cause_name(finding->cause);
    ASSERT_TRUE(finding->site.has_value()) << expected.name;
    EXPECT_TRUE(finding->site->line.file.ends_with(expected.file))
        << expected.name << " " << finding->site->line.file;
    EXPECT_EQ(finding->site->line.line, expected.line) << expected.name;
    EXPECT_FALSE(finding->evidence.empty()) << expected.name;
    EXPECT_FALSE(finding->advice.empty()) << expected.name;
    // The card had over 90 GiB free in all of them: a fraction was set.
    EXPECT_TRUE(has_cause(explanation, Cause::kMemoryFraction)) << expected.name;
    ASSERT_EQ(explanation.failures.size(), 1u);
    EXPECT_FALSE(explanation.failures[0].recovered);
  }
}

TEST(ExplainRecorded, TheCapIsBracketedByWhatWasSeen) {
  struct Case {
    const char* name;
    double fraction;
  };
  constexpr double kH200 = 150109880320.0;  // 139.80 GiB, as cudaMemGetInfo says
  for (const Case& c : std::initializer_list<Case>{{"oom_activations", 0.05},
                                                   {"oom_activations_exp", 0.05},
                                                   {"oom_eval_grad", 0.2},
                                                   {"oom_fragment", 0.06},
                                                   {"oom_optimizer", 0.035}}) {
    const Explanation explanation = explain_file(data(c.name));
    const Failure& failure = explanation.failures.at(0);
    EXPECT_TRUE(failure.limit_is_cap && failure.limit_is_estimate);
    EXPECT_LE(static_cast<double>(failure.limit_at_least_bytes), c.fraction * kH200 * 1.0001)
        << c.name;
    EXPECT_GE(static_cast<double>(*failure.limit_bytes), c.fraction * kH200 * 0.9999) << c.name;
  }
}

TEST(ExplainRecorded, TheOptimizersStateIsForeseen) {
  const Explanation explanation = explain_file(data("oom_optimizer"));
  // AdamW: twice the parameters, of which there are 1,419,378,688 bytes.
  EXPECT_NEAR(static_cast<double>(primary(explanation)->bytes), 2.0 * 1419378688,
              0.01 * 2 * 1419378688);
}

TEST(ExplainRecorded, TheLeakIsFoundAtItsLineAndForecast) {
  ExplainOptions options;
  options.memory_bytes = 2ull << 30;
  const Explanation explanation = explain_file(data("leak_loss"), options);
  ASSERT_EQ(leaks(explanation), 1u);
  const Finding& leak = explanation.findings.at(0);
  EXPECT_EQ(leak.cause, Cause::kLeak);
  EXPECT_TRUE(leak.site->line.file.ends_with("train.py"));
  EXPECT_EQ(leak.site->line.line, 45u);
  // What is allocated after steps 2, 3 and 4 grows by 109 to 115 MiB.
  EXPECT_NEAR(static_cast<double>(*leak.bytes_per_step), 114e6 * 1.048576, 6e6);
  EXPECT_EQ(leak.fails_at_step, 16u);
}

TEST(ExplainRecorded, HealthyStepsHaveNoLeak) {
  for (const char* name : {"steps_unet_b4", "streams_expandable"}) {
    const Explanation explanation = explain_file(data(name));
    EXPECT_EQ(leaks(explanation), 0u) << name;
    EXPECT_TRUE(explanation.failures.empty()) << name;
    EXPECT_FALSE(report::summary_of(explanation).empty()) << name;
  }
}

// More histories than the repository holds: set TONNAGE_TRACES to a folder of .pickle.xz files
// whose names begin with oom_, leak_ or else.
TEST(ExplainRecorded, WholeFolder) {
  const char* folder = std::getenv("TONNAGE_TRACES");
  if (folder == nullptr) GTEST_SKIP() << "TONNAGE_TRACES is not set";
  size_t seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(".pickle.xz")) continue;
    ++seen;
    const Explanation explanation = explain_file(entry.path().string());
    if (name.starts_with("oom_")) {
      EXPECT_NE(primary(explanation), nullptr) << name;
    } else {
      EXPECT_EQ(leaks(explanation) > 0, name.starts_with("leak_")) << name;
      EXPECT_TRUE(explanation.failures.empty()) << name;
    }
  }
  EXPECT_GT(seen, 0u);
}

// --- Programs made by hand ---

TEST(ExplainCauses, ModelState) {
  Program p;
  p.add_parameters(10 * kMiB, 120);
  p.train_step(1, 4, 12 * kMiB);
  p.train_step(2, 4, 12 * kMiB);
  p.fail(Phase::kForward, p.forward, 40 * kMiB, 20 * kMiB);
  const Explanation explanation = p.explain();
  ASSERT_NE(primary(explanation), nullptr);
  EXPECT_EQ(primary(explanation)->cause, Cause::kModelState);
  EXPECT_EQ(primary(explanation)->bytes, 3u * 120 * 10 * kMiB);
  EXPECT_EQ(explanation.failures[0].moment.step, 3u);
}

TEST(ExplainCauses, Activations) {
  Program p;
  p.add_parameters(10 * kMiB, 4);
  p.train_step(1, 4, 12 * kMiB);
  p.train_step(2, 4, 12 * kMiB);
  for (int i = 0; i < 40; ++i) p.make(Phase::kForward, p.forward, 12 * kMiB, Category::kActivation);
  p.fail(Phase::kForward, p.forward, 12 * kMiB, 4 * kMiB);
  const Explanation explanation = p.explain();
  EXPECT_EQ(primary(explanation)->cause, Cause::kActivations);
  EXPECT_EQ(primary(explanation)->bytes, 40u * 12 * kMiB);
  // 40 alike layers: one of them and a boundary each would stay.
  EXPECT_TRUE(std::any_of(primary(explanation)->advice.begin(), primary(explanation)->advice.end(),
                          [](const Advice& a) {
                            return report::words_of(a).text.find(
                                       "halves the activations: about 240.0 MiB") !=
                                   std::string::npos;
                          }));
}

TEST(ExplainCauses, Logits) {
  Program p;
  p.add_parameters(10 * kMiB, 4);
  for (int i = 0; i < 10; ++i) p.make(Phase::kForward, p.forward, 12 * kMiB, Category::kActivation);
  p.make(Phase::kForward, p.forward, 400 * kMiB, Category::kActivation);
  p.make(Phase::kForward, p.loss, 400 * kMiB, Category::kActivation);
  p.fail(Phase::kForward, p.loss, 400 * kMiB, 100 * kMiB);
  const Explanation explanation = p.explain();
  EXPECT_EQ(primary(explanation)->cause, Cause::kLogits);
  EXPECT_EQ(primary(explanation)->bytes, 1200u * kMiB);
}

TEST(ExplainCauses, LargeSample) {
  Program p;
  p.add_parameters(10 * kMiB, 4);
  for (int step = 1; step <= 6; ++step) p.train_step(step, 10, (10 + step % 2) * kMiB);
  for (int i = 0; i < 9; ++i) p.make(Phase::kForward, p.forward, 40 * kMiB, Category::kActivation);
  p.fail(Phase::kForward, p.forward, 40 * kMiB, 10 * kMiB);
  const Explanation explanation = p.explain();
  EXPECT_EQ(primary(explanation)->cause, Cause::kLargeSample)
      << cause_name(primary(explanation)->cause);
  EXPECT_EQ(explanation.failures[0].moment.step, 7u);
  EXPECT_TRUE(has_cause(explanation, Cause::kActivations));
}

TEST(ExplainCauses, ChangingSizesAreNoLargeSample) {
  Program p;
  p.add_parameters(10 * kMiB, 4);
  for (int step = 1; step <= 6; ++step) p.train_step(step, 10, (30 + step) * kMiB);
  for (int i = 0; i < 9; ++i) p.make(Phase::kForward, p.forward, 35 * kMiB, Category::kActivation);
  p.fail(Phase::kForward, p.forward, 35 * kMiB, 10 * kMiB);
  EXPECT_EQ(primary(p.explain())->cause, Cause::kActivations);
}

TEST(ExplainCauses, OptimizerCopies) {
  Program p;
  p.add_parameters(10 * kMiB, 40);
  p.train_step(1, 4, 12 * kMiB);
  p.train_step(2, 4, 12 * kMiB);
  for (int i = 0; i < 20; ++i)
    p.make(Phase::kOptimizer, p.step_copies, 10 * kMiB, Category::kTemporary);
  p.fail(Phase::kOptimizer, p.step_copies, 10 * kMiB, 2 * kMiB);
  const Explanation explanation = p.explain();
  EXPECT_EQ(primary(explanation)->cause, Cause::kOptimizerCopies);
  EXPECT_EQ(primary(explanation)->bytes, 21u * 10 * kMiB);
  EXPECT_EQ(report::words_of(primary(explanation)->advice.at(0)).setting, "fused=True");
}

TEST(ExplainCauses, KeptTensorsEachStep) {
  Program p;
  p.add_parameters(10 * kMiB, 4);
  for (int step = 1; step <= 8; ++step) p.train_step(step, 4, 12 * kMiB, 4);
  p.fail(Phase::kForward, p.forward, 40 * kMiB, 10 * kMiB);
  const Explanation explanation = p.explain();
  EXPECT_EQ(primary(explanation)->cause, Cause::kKeptAcrossSteps)
      << cause_name(primary(explanation)->cause);
  EXPECT_EQ(*primary(explanation)->bytes_per_step, 48u * kMiB);
  EXPECT_EQ(primary(explanation)->site->line.line, 21u);
  EXPECT_EQ(primary(explanation)->bytes, 8u * 48 * kMiB);
}

TEST(ExplainCauses, RequestLargerThanTheCard) {
  Program p;
  p.add_parameters(10 * kMiB, 4);
  p.fail(Phase::kForward, p.forward, 5000 * kMiB, 3000 * kMiB);
  EXPECT_EQ(primary(p.explain())->cause, Cause::kRequestTooLarge);
}

TEST(ExplainCauses, CapIsNamedOnlyIfTheCardHadRoom) {
  Program full;
  full.add_parameters(10 * kMiB, 4);
  full.fail(Phase::kForward, full.forward, 40 * kMiB,
            70 * kMiB);  // less than the margin above the request
  EXPECT_FALSE(has_cause(full.explain(), Cause::kMemoryFraction));
  Program capped;
  capped.add_parameters(10 * kMiB, 4);
  capped.fail(Phase::kForward, capped.forward, 40 * kMiB, 3000 * kMiB);
  EXPECT_TRUE(has_cause(capped.explain(), Cause::kMemoryFraction));
}

TEST(ExplainCauses, AProgramThatGoesOn) {
  Program p;
  p.add_parameters(10 * kMiB, 4);
  p.fail(Phase::kForward, p.forward, 400 * kMiB, 10 * kMiB);
  p.make(Phase::kForward, p.forward, 12 * kMiB);
  const Explanation explanation = p.explain();
  EXPECT_TRUE(explanation.failures.at(0).recovered);
  EXPECT_NE(report::summary_of(explanation).find("went on"), std::string::npos);
}

// --- Growth ---

TEST(ExplainGrowth, NotEverythingThatStaysLeaks) {
  {
    Program p;  // three steps prove nothing
    p.add_parameters(10 * kMiB, 4);
    for (int step = 1; step <= 3; ++step) p.train_step(step, 4, 12 * kMiB, 1);
    EXPECT_EQ(leaks(p.explain()), 0u);
  }
  {
    Program p;  // a cache that fills in the first steps
    p.add_parameters(10 * kMiB, 4);
    for (int step = 1; step <= 10; ++step) p.train_step(step, 4, 12 * kMiB, step <= 3 ? 1 : 0);
    EXPECT_EQ(leaks(p.explain()), 0u);
  }
  {
    Program p;  // each step's result replaces the last one's
    p.add_parameters(10 * kMiB, 4);
    std::vector<uint64_t> before;
    for (int step = 1; step <= 10; ++step) {
      std::vector<uint64_t> kept = p.train_step(step, 4, 12 * kMiB, 1);
      for (const uint64_t address : before) p.drop(Phase::kOther, address);
      before = kept;
    }
    EXPECT_EQ(leaks(p.explain()), 0u);
  }
  {
    Program p;  // a buffer of the last five results
    p.add_parameters(10 * kMiB, 4);
    std::vector<uint64_t> ring;
    for (int step = 1; step <= 20; ++step) {
      ring.push_back(p.train_step(step, 4, 12 * kMiB, 1).at(0));
      if (ring.size() <= 5) continue;
      p.drop(Phase::kOther, ring.front());
      ring.erase(ring.begin());
    }
    EXPECT_EQ(leaks(p.explain()), 0u);
  }
}

TEST(ExplainGrowth, OneTensorAStepIsFound) {
  Program p;
  p.add_parameters(10 * kMiB, 4);
  for (int step = 1; step <= 10; ++step) p.train_step(step, 4, 12 * kMiB, 1);
  const Explanation explanation = p.explain();
  ASSERT_EQ(leaks(explanation), 1u);
  const Finding& leak = explanation.findings.at(0);
  EXPECT_EQ(*leak.bytes_per_step, 12u * kMiB);
  EXPECT_EQ(leak.site->line.line, 21u);
  EXPECT_NE(report::words_of(leak.text).find("one tensor of 12.0 MiB each time"), std::string::npos)
      << report::words_of(leak.text);
  // The tenth step's peak is 3 x 4 x 10 (state) + 4 x 12 (activations) + 10 x 12 (kept) = 288 MiB
  // of 4096: 317 more steps fit.
  EXPECT_EQ(leak.fails_at_step, 10u + 317 + 1);
}

TEST(ExplainGrowth, ALoopWithoutStepsIsRecognised) {
  Program p;
  p.add_parameters(10 * kMiB, 4);
  for (int batch = 0; batch < 8; ++batch) {
    p.make(Phase::kEval, p.load, 6 * kMiB);
    for (int i = 0; i < 6; ++i)
      p.make(Phase::kEval, p.eval, (12 + static_cast<uint64_t>(i)) * kMiB, Category::kActivation);
  }
  p.fail(Phase::kEval, p.eval, 100 * kMiB, 10 * kMiB);
  const Explanation explanation = p.explain();
  EXPECT_EQ(primary(explanation)->cause, Cause::kEvalWithGraph)
      << cause_name(primary(explanation)->cause);
  EXPECT_EQ(primary(explanation)->site->line.line, 120u);
}

// --- Files that say little ---

TEST(ExplainRecord, EmptyHistory) {
  auto record = std::make_shared<record::Record>();
  record->kind = record::Record::Kind::kSnapshot;
  const Explanation explanation = explain(record);
  EXPECT_TRUE(explanation.findings.empty());
  EXPECT_FALSE(explanation.limits.empty());
  EXPECT_NE(report::summary_of(explanation).find("no allocations"), std::string::npos);
}

TEST(ExplainRecord, AFailureWithoutAnyAllocation) {
  RecordBuilder out;
  out.record.kind = record::Record::Kind::kSnapshot;
  out.add(EventKind::kOom, 0, 100 * kMiB, 5 * kMiB);
  const Explanation explanation = explain(std::make_shared<record::Record>(out.record));
  ASSERT_EQ(explanation.failures.size(), 1u);
  ASSERT_NE(primary(explanation), nullptr);
}

}  // namespace
}  // namespace tonnage::analysis
