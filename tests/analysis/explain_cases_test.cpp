// Public cases: what people reported, against the diagnosis and the advice that would have helped
// them.
//
// The histories are built by hand with the sizes that a thread (named by repository) gives. Cases
// without a failure to diagnose (size tables, estimates) are not here; the messages are data in
// tests/cases.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <array>
#include <fstream>
#include <functional>

#include "analysis/diagnosis/oom_log.h"
#include "analysis/explain_program.h"
#include "report/words/words.h"
#include "sources/messages/log_reader.h"

namespace tonnage::analysis {
namespace {

using testing::kMiB;
using testing::Program;

std::string everything(const Explanation& explanation) {
  std::string out = report::summary_of(explanation);
  for (const Finding& finding : explanation.findings) {
    const report::FindingWords words = report::words_of(finding);
    out += "\n" + words.title + "\n" + words.text;
    for (const std::string& evidence : words.evidence) out += "\n" + evidence;
    for (const report::AdviceWords& advice : words.advice)
      out += "\n" + advice.text + " " + advice.setting;
  }
  return out;
}

struct Case {
  const char* name;
  Explanation explanation;
  Cause cause;                    // of the primary finding (without a failure: of the first)
  std::vector<const char*> said;  // somewhere in findings and advice
  Cause also = Cause::kUnknown;   // of another finding
  std::vector<const char*> not_said = {};
};

void check(const Case& c) {
  ASSERT_FALSE(c.explanation.findings.empty()) << c.name;
  const Finding* finding = testing::primary(c.explanation);
  if (!finding) finding = &c.explanation.findings.front();
  const std::string text = everything(c.explanation);
  EXPECT_STREQ(cause_name(finding->cause), cause_name(c.cause)) << c.name << "\n" << text;
  EXPECT_FALSE(finding->advice.empty()) << c.name;
  for (const char* part : c.said)
    EXPECT_NE(text.find(part), std::string::npos) << c.name << " lacks: " << part << "\n" << text;
  for (const char* part : c.not_said)
    EXPECT_EQ(text.find(part), std::string::npos) << c.name << " should not say: " << part << "\n"
                                                  << text;
  if (c.also != Cause::kUnknown) {
    EXPECT_TRUE(testing::has_cause(c.explanation, c.also))
        << c.name << " also " << cause_name(c.also) << "\n"
        << text;
  }
}

TEST(PublicCases, PrivatePoolsAreInsideAllocated) {
  const auto oom = sources::parse_oom_message(
      "CUDA out of memory. Tried to allocate 1.20 GiB. GPU 0 has a total capacity of 139.72 GiB of "
      "which 400.00 MiB is free. Including non-PyTorch memory, this process has 139.32 GiB memory "
      "in use. Of the allocated memory 135.53 GiB is "
      "allocated by PyTorch, with 585.73 MiB allocated in private pools (e.g., CUDA Graphs), and "
      "272.38 MiB is reserved by PyTorch but unallocated.");
  ASSERT_TRUE(oom.has_value());
  EXPECT_NEAR(static_cast<double>(*log_figures(*oom).own_outside) / (1ull << 30), 3.52, 0.02);
}

Explanation history(const std::function<void(Program&)>& write, uint64_t card_mib = 4096) {
  Program program;
  program.out.record.devices[0].total_bytes = card_mib * kMiB;
  write(program);
  return program.explain();
}

TEST(PublicCases, Histories) {
  for (const Case& c : std::initializer_list<Case>{
           {"C01 SpareNet#12: losses kept for plots",
            history([](Program& p) {
              p.add_parameters(10 * kMiB, 4);
              for (uint64_t step = 1; step <= 8; ++step) p.train_step(step, 4, 12 * kMiB, 4);
              p.fail(Phase::kForward, p.forward, 40 * kMiB, 10 * kMiB);
            }),
            Cause::kKeptAcrossSteps,
            {"48.0 MiB a step"}},
           {"C03 pytorch-lightning#15514: a batch of 10240 x 24000 each step",
            history(
                [](Program& p) {
                  p.add_parameters(10 * kMiB, 4);
                  for (uint64_t step = 1; step <= 6; ++step) {
                    p.make(Phase::kData, p.load, 10240ull * 24000 * 4, Category::kInput);
                    p.train_step(step, 4, 12 * kMiB);
                  }
                  p.fail(Phase::kData, p.load, 10240ull * 24000 * 4, 300 * kMiB);
                },
                8192),
            Cause::kKeptAcrossSteps,
            {"one tensor of 937.5 MiB each time", "train.py:80", ".cpu()"}},
           {"C05 pytorch-lightning#1510: detached, but on the GPU",
            history([](Program& p) {
              p.add_parameters(10 * kMiB, 4);
              for (uint64_t step = 1; step <= 10; ++step) p.train_step(step, 4, 12 * kMiB, 1);
              p.fail(Phase::kForward, p.forward, 40 * kMiB, 10 * kMiB);
            }),
            Cause::kKeptAcrossSteps,
            {"detach() alone does not move it", "they hold no autograd graph"}},
           {"C11 pytorch#27600: a retry inside except",
            history([](Program& p) {
              p.add_parameters(10 * kMiB, 4);
              for (int i = 0; i < 60; ++i)
                p.make(Phase::kForward, p.forward, 20 * kMiB, Category::kActivation);
              p.fail(Phase::kForward, p.forward, 40 * kMiB, 10 * kMiB);
              for (int i = 0; i < 10; ++i)
                p.make(Phase::kForward, p.forward, 10 * kMiB, Category::kActivation);
              p.fail(Phase::kForward, p.forward, 40 * kMiB, 10 * kMiB);
            }),
            Cause::kKeptByException,
            {"1.17 GiB", "after the except block"}},
           {"C17 silero-vad#683: validation is not truncated",
            history([](Program& p) {
              p.add_parameters(10 * kMiB, 4);
              for (uint64_t step = 1; step <= 6; ++step) p.train_step(step, 10, 10 * kMiB);
              for (int i = 0; i < 5; ++i)
                p.make(Phase::kEval, p.eval_same_line, 60 * kMiB, Category::kActivation);
              p.fail(Phase::kEval, p.eval_same_line, 60 * kMiB, 10 * kMiB);
            }),
            Cause::kLargeSample,
            {"6.0 times as large"}},
           {"C27 pytorch#97712: foreach",
            history([](Program& p) {
              p.add_parameters(10 * kMiB, 40);
              p.train_step(1, 4, 12 * kMiB);
              p.train_step(2, 4, 12 * kMiB);
              for (int i = 0; i < 20; ++i)
                p.make(Phase::kOptimizer, p.step_copies, 10 * kMiB, Category::kTemporary);
              p.fail(Phase::kOptimizer, p.step_copies, 10 * kMiB, 2 * kMiB);
            }),
            Cause::kOptimizerCopies,
            {"fused=True", "210.0 MiB"}},
           {"C29 rf-detr PR 1342: a probe without step()",
            history([](Program& p) {
              p.add_parameters(10 * kMiB, 40);
              p.train_step(1, 4, 12 * kMiB, 0, false);
              for (int i = 0; i < 20; ++i)
                p.make(Phase::kOptimizer, p.step_state, 10 * kMiB, Category::kOptimizerState);
              p.fail(Phase::kOptimizer, p.step_state, 10 * kMiB, 2 * kMiB);
            }),
            Cause::kOptimizerFirstStep,
            {"a smaller batch frees none of the state"}},
           {"C35 Automodel PR 2603: the loss's copies of the logits",
            history([](Program& p) {
              p.add_parameters(10 * kMiB, 4);
              for (int i = 0; i < 10; ++i)
                p.make(Phase::kForward, p.forward, 12 * kMiB, Category::kActivation);
              p.make(Phase::kForward, p.forward, 400 * kMiB, Category::kActivation);
              p.make(Phase::kForward, p.loss, 400 * kMiB, Category::kActivation);
              p.fail(Phase::kForward, p.loss, 400 * kMiB, 100 * kMiB);
            }),
            Cause::kLogits,
            {"chunked or fused"}},
           {"C37 fairseq#103: the longest batch",
            history([](Program& p) {
              p.add_parameters(10 * kMiB, 4);
              for (uint64_t step = 1; step <= 6; ++step)
                p.train_step(step, 10, (10 + step % 2) * kMiB);
              for (int i = 0; i < 9; ++i)
                p.make(Phase::kForward, p.forward, 40 * kMiB, Category::kActivation);
              p.fail(Phase::kForward, p.forward, 40 * kMiB, 10 * kMiB);
            }),
            Cause::kLargeSample,
            {"largest sample first"}},
           {"C43 transformers PR 22270: checkpointing that does not happen",
            history([](Program& p) {
              p.add_parameters(10 * kMiB, 4);
              for (int i = 0; i < 60; ++i)
                p.make(Phase::kForward, p.checkpointed, 20 * kMiB, Category::kActivation);
              p.fail(Phase::kForward, p.checkpointed, 20 * kMiB, 4 * kMiB);
            }),
            Cause::kCheckpointInactive,
            {"1.17 GiB", "torch.utils.checkpoint"}},
           {"C45 pytorch#147449: checkpointing that saves nothing",
            history([](Program& p) {
              p.add_parameters(10 * kMiB, 4);
              p.train_step(1, 4, 12 * kMiB);
              for (int i = 0; i < 60; ++i)
                p.make(Phase::kForward, p.checkpointed, 24 * kMiB, Category::kActivation);
              p.fail(Phase::kForward, p.checkpointed, 24 * kMiB, 4 * kMiB);
            }),
            Cause::kCheckpointInactive,
            {"should have freed", "use_reentrant"}},
           {"C47 peft#2196: adapters do not lower activations",
            history([](Program& p) {
              p.add_parameters(10 * kMiB, 9);
              p.make(Phase::kBackward, 0, 2 * kMiB, Category::kGradient);
              for (int i = 0; i < 120; ++i)
                p.make(Phase::kForward, p.forward, 20 * kMiB, Category::kActivation);
              p.fail(Phase::kForward, p.forward, 20 * kMiB, 4 * kMiB);
            }),
            Cause::kActivations,
            {"2.34 GiB of the"},
            Cause::kUnknown,
            {"LoRA"}},
           {"C49 mLoRA#90: base weights left trainable",
            history([](Program& p) {
              p.add_parameters(10 * kMiB, 120);
              p.train_step(1, 4, 12 * kMiB);
              p.train_step(2, 4, 12 * kMiB);
              p.fail(Phase::kForward, p.forward, 40 * kMiB, 20 * kMiB);
            }),
            Cause::kModelState,
            {"only adapters (LoRA)", "2.34 GiB of gradients and optimizer state"}},
           {"C55 tnt PR 1057: no_sync keeps whole gradients of a sharded model",
            history([](Program& p) {
              p.add_parameters(10 * kMiB, 20);
              for (int i = 0; i < 20; ++i)
                p.make(Phase::kBackward, 0, 160 * kMiB, Category::kGradient);  // 16 ranks
              p.fail(Phase::kForward, p.forward, 40 * kMiB, 20 * kMiB);
            }),
            Cause::kModelState,
            {"16.0 times the parameters", "no_sync()", "2.93 GiB less"}},
           {"C69 deeplab-pytorch#74: workspaces of the autotuner",
            history([](Program& p) {
              p.add_parameters(10 * kMiB, 8);
              for (int i = 0; i < 3; ++i)
                p.make(Phase::kForward, p.forward, 400 * kMiB, Category::kWorkspace);
              p.fail(Phase::kForward, p.forward, 200 * kMiB, 100 * kMiB);
            }),
            Cause::kWorkspaces,
            {"1.17 GiB", "workspaces of cuBLAS"}},
       })
    check(c);
}

// --- The same messages as logs really have them ---

std::string wrapped(const std::string& text, size_t width, const std::string& prefix,
                    bool at_words) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(at + width, text.size());
    if (at_words && end < text.size()) {
      const size_t space = text.rfind(' ', end);
      if (space != std::string::npos && space > at) end = space;
    }
    out += prefix + text.substr(at, end - at) + "\n";
    at = end + (at_words && end < text.size() ? 1 : 0);
  }
  return out;
}

bool same(const std::optional<sources::LogSize>& a, const std::optional<sources::LogSize>& b) {
  return a.has_value() == b.has_value() && (!a || a->bytes == b->bytes);
}

TEST(PublicCases, HoweverALogPrintsThem) {
  struct Style {
    const char* name;
    std::function<std::string(const std::string&)> print;
  };
  const std::vector<Style> styles = {
      {"time and level",
       [](const std::string& m) {
         return "2026-03-01 12:00:01,123 - ERROR - trainer - " + m + "\n";
       }},
      {"rank", [](const std::string& m) { return "[rank3]: " + m + "\n"; }},
      {"elastic", [](const std::string& m) { return "[default3]:" + m + "\n"; }},
      {"ray",
       [](const std::string& m) { return "(RayTrainWorker pid=4711, ip=10.0.0.2) " + m + "\n"; }},
      {"colours",
       [](const std::string& m) {
         return "\x1b[1;31m" + m.substr(0, 30) + "\x1b[0m\x1b[35m" + m.substr(30) + "\x1b[0m\n";
       }},
      {"carriage returns",
       [](const std::string& m) { return "\r 3%|#   | 12/400\r" + m + "\r\n"; }},
      {"wrapped at 80", [](const std::string& m) { return wrapped(m, 80, "", true); }},
      {"wrapped at 40", [](const std::string& m) { return wrapped(m, 40, "", true); }},
      {"wrapped, each line with its rank",
       [](const std::string& m) { return wrapped(m, 90, "[rank1]: ", true); }},
      {"wrapped, each line with its time",
       [](const std::string& m) {
         return wrapped(m, 90, "2026-03-01T12:00:01.123Z ERROR ", true);
       }},
      {"a box", [](const std::string& m) { return wrapped(m, 76, "│ ", true); }},
      {"broken in words at the terminal's width",
       [](const std::string& m) { return wrapped(m, 79, "", false); }},
      {"quoted by JSON",
       [](const std::string& m) { return "{\"level\": \"error\", \"msg\": \"" + m + "\"}\n"; }},
  };
  std::ifstream file(std::string(TONNAGE_SOURCE_DIR) + "/tests/data/logs/oom_messages.txt");
  std::string line;
  size_t number = 0;
  while (std::getline(file, line)) {
    ++number;
    const auto whole = sources::parse_oom_message(line);
    ASSERT_TRUE(whole.has_value());
    const bool figures = whole->format == sources::OomFormat::kPyTorch10 ||
                         whole->format == sources::OomFormat::kPyTorch14 ||
                         whole->format == sources::OomFormat::kPyTorch21 ||
                         whole->format == sources::OomFormat::kMps;
    if (!figures) continue;
    for (const Style& style : styles) {
      const std::string text = "epoch 1\n" + style.print(line) + "epoch over\n";
      auto input = sources::Input::from_memory(text, "train.log");
      const auto log = sources::read_log(**input);
      ASSERT_TRUE(log.has_value());
      ASSERT_EQ(log->ooms.size(), 1u) << number << " " << style.name << "\n" << style.print(line);
      const sources::LogOom& oom = log->ooms[0];
      EXPECT_EQ(oom.format, whole->format) << number << " " << style.name;
      EXPECT_EQ(oom.device, whole->device) << number << " " << style.name;
      EXPECT_TRUE(same(oom.requested, whole->requested) && same(oom.capacity, whole->capacity) &&
                  same(oom.free, whole->free) && same(oom.allocated, whole->allocated) &&
                  same(oom.reserved, whole->reserved) &&
                  same(oom.unallocated, whole->unallocated) && same(oom.allowed, whole->allowed) &&
                  same(oom.other, whole->other))
          << number << " " << style.name << "\n"
          << style.print(line) << oom.text;
      EXPECT_EQ(oom.processes.size(), whole->processes.size()) << number << " " << style.name;
      EXPECT_EQ(diagnose(oom).front().cause, diagnose(*whole).front().cause)
          << number << " " << style.name;
    }
  }
}

}  // namespace
}  // namespace tonnage::analysis
