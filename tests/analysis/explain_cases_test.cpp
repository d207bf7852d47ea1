// Public cases: what people reported, against the diagnosis and the advice that would have helped
// them.
//
// The numbers are those of the threads (named by repository); histories are built by hand with the
// sizes that a thread gives. Cases without a failure to diagnose (size tables, estimates) are not
// here.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <array>
#include <fstream>
#include <functional>

#include "analysis/diagnosis/oom_log.h"
#include "analysis/explain_program.h"
#include "sources/messages/log_reader.h"

namespace tonnage::analysis {
namespace {

using testing::kMiB;
using testing::Program;

Explanation explain_log(const std::string& text) {
  auto input = sources::Input::from_memory(text, "train.log");
  auto log = sources::read_log(**input);
  return log ? explain(*log) : Explanation{};
}

std::string everything(const Explanation& explanation) {
  std::string out = explanation.summary;
  for (const Finding& finding : explanation.findings) {
    out += "\n" + finding.title + "\n" + finding.text;
    for (const Evidence& evidence : finding.evidence) out += "\n" + evidence.text;
    for (const Advice& advice : finding.advice) out += "\n" + advice.text + " " + advice.setting;
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

// "CUDA out of memory", as PyTorch 1.4 to 2.0 and as 2.2 and later print it.
std::string v1(const char* tried, int gpu, const char* total, const char* allocated,
               const char* free, const char* reserved) {
  return fmt::format(
      "RuntimeError: CUDA out of memory. Tried to allocate {} (GPU {}; {} total capacity; {} "
      "already allocated; {} free; {} reserved in total by PyTorch)\n",
      tried, gpu, total, allocated, free, reserved);
}
std::string v4(const char* tried, int gpu, const char* total, const char* free,
               const char* processes, const char* allocated, const char* unallocated) {
  return fmt::format(
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {}. GPU {} has a total "
      "capacity of {} of which {} is free. {}Of the allocated memory {} is allocated by PyTorch, "
      "and {} is reserved by PyTorch but unallocated. "
      "If reserved but unallocated memory is large try setting "
      "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.\n",
      tried, gpu, total, free, processes, allocated, unallocated);
}
std::string traceback(std::initializer_list<std::array<const char*, 3>> frames) {
  std::string out = "Traceback (most recent call last):\n";
  for (const auto& [file, function, code] : frames)
    out += fmt::format("  File \"{}\", line 120, in {}\n    {}\n", file, function, code);
  return out;
}

TEST(PublicCases, Messages) {
  const std::string user = "/home/u/train.py", site = "/venv/lib/python3.11/site-packages/";
  for (const Case& c : std::initializer_list<Case>{
           {"C07 torchmetrics#1094: list states",
            explain_log(v1("210.00 MiB", 0, "15.78 GiB", "14.39 GiB", "138.50 MiB", "14.42 GiB")),
            Cause::kCapacity,
            {"something grows"},
            Cause::kUnknown,
            {"expandable"}},
           {"C07 torchmetrics#1949",
            explain_log(v1("194.00 MiB", 0, "10.92 GiB", "9.63 GiB", "20.00 MiB", "10.39 GiB")),
            Cause::kCapacity,
            {"something grows", "778.2 MiB"}},
           {"C09 pytorch#64586: penalty graph",
            explain_log(v1("64.00 MiB", 2, "15.75 GiB", "13.76 GiB", "2.75 MiB", "14.50 GiB")),
            Cause::kCapacity,
            {"something grows"}},
           {"C13 transformers#7232: logits of the whole set",
            explain_log(
                traceback({{"/home/u/run_eval.py", "main", "trainer.evaluate()"},
                           {"/v/site-packages/transformers/trainer.py", "prediction_loop",
                            "preds = nested_concat(preds, logits)"},
                           {"/v/site-packages/transformers/trainer_pt_utils.py", "nested_concat",
                            "return torch.cat((tensors, new_tensors), dim=0)"}}) +
                v1("3.50 GiB", 0, "15.90 GiB", "13.80 GiB", "1.20 GiB", "14.10 GiB")),
            Cause::kCapacity,
            {"eval_accumulation_steps", "outputs of all batches", "run_eval.py:120"}},
           {"C15 transformers#10722: the host instead",
            explain_log("numpy.core._exceptions._ArrayMemoryError: Unable to allocate 2.77 TiB for "
                        "an array with shape (200000, 77, 50000) and data type float32\n"),
            Cause::kHostMemory,
            {"2.77 TiB", "batch by batch"}},
           {"C19 fast-stable-diffusion#1722",
            explain_log(v1("8.00 GiB", 0, "14.75 GiB", "7.93 GiB", "708.81 MiB", "12.95 GiB")),
            Cause::kActivations,
            {"memory-efficient"},
            Cause::kUnknown,
            {"expandable"}},
           {"C19 MADDoG#11",
            explain_log(v1("2.87 GiB", 0, "14.76 GiB", "8.77 GiB", "19.75 MiB", "13.71 GiB")),
            Cause::kFragmentation,
            {"4.94 GiB", "expandable_segments:True"}},
           {"C21 pytorch PR 113481: the printed hint",
            explain_log(
                v4("22.00 MiB", 0, "23.65 GiB", "11.06 MiB",
                   "Including non-PyTorch memory, this process has 23.60 GiB memory in use. ",
                   "22.90 GiB", "194.87 MiB")),
            Cause::kCapacity,
            {},
            Cause::kUnknown,
            {"expandable", "max_split"}},
           {"C23 pytorch#16417",
            explain_log(
                "RuntimeError: CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.92 GiB "
                "total capacity; 8.57 MiB already allocated; 9.28 GiB free; 4.68 MiB cached)\n"),
            Cause::kNotCapacity,
            {"smaller batch would not address this"}},
           {"C23 nanoGPT#88",
            explain_log(v1("394.00 MiB", 0, "15.78 GiB", "5.17 GiB", "8.68 GiB", "5.25 GiB")),
            Cause::kNotCapacity,
            {"set_per_process_memory_fraction"}},
           {"C23 webui#9415, Windows",
            explain_log(v1("1.12 GiB", 0, "23.99 GiB", "4.82 GiB", "16.48 GiB", "4.92 GiB")),
            Cause::kNotCapacity,
            {"paging file"}},
           {"C23 pytorch#175431, HIP",
            explain_log("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 MiB. "
                        "GPU 7 has a total capacity of 287.98 GiB of which 203.49 GiB is free. Of "
                        "the allocated memory 68.63 GiB is allocated by "
                        "PyTorch, and 14.93 GiB is reserved by PyTorch but unallocated.\n"),
            Cause::kNotCapacity,
            {"203.49 GiB were free"}},
           {"C25 sglang PR 15927: private pools",
            explain_log("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.20 GiB. "
                        "GPU 0 has a total capacity of 139.72 GiB of which 400.00 MiB is free. "
                        "Including non-PyTorch memory, this process has "
                        "139.32 GiB memory in use. Of the allocated memory 135.53 GiB is allocated "
                        "by PyTorch, with 585.73 MiB allocated in private pools (e.g., CUDA "
                        "Graphs), and 272.38 MiB is reserved by PyTorch but "
                        "unallocated.\n"),
            Cause::kCapacity,
            {},
            Cause::kUnknown,
            {"expandable"}},
           {"C31 GPT-2 XL on 24 GB",
            explain_log(v1("40.00 MiB", 0, "23.65 GiB", "22.27 GiB", "20.31 MiB", "22.76 GiB")),
            Cause::kCapacity,
            {"16 B a parameter", "sharding, offloading"}},
           {"C33 transformers#24491",
            explain_log(v1("64.00 MiB", 0, "23.68 GiB", "18.17 GiB", "64.62 MiB", "18.60 GiB")),
            Cause::kOutsideAllocator,
            {"5.02 GiB"},
            Cause::kCapacity},
           {"C35 slime#2253: 11.6 k tokens x 248,320 classes",
            explain_log(traceback({{"/home/u/train.py", "step",
                                    "loss = F.cross_entropy(logits.float(), labels)"},
                                   {"/v/site-packages/torch/nn/functional.py", "cross_entropy",
                                    "return torch._C._nn.cross_entropy_loss("}}) +
                        v4("10.73 GiB", 0, "79.11 GiB", "5.20 GiB", "", "72.10 GiB", "610.00 MiB")),
            Cause::kLogits,
            {"tokens x classes", "train.py:120"}},
           {"C39 ultralytics hub#297: the assigner",
            explain_log(v1("4.98 GiB", 0, "14.75 GiB", "12.11 GiB", "1.03 GiB", "12.29 GiB")),
            Cause::kActivations,
            {"One tensor of 4.98 GiB is 34 % of the card", "pairwise matrix"}},
           {"C41 EasyLM#36",
            explain_log("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile "
                        "permanent error. Ran out of memory in memory space hbm. Used 23.43G of "
                        "15.48G hbm. Exceeded hbm capacity by 7.95G.\n"),
            Cause::kCapacity,
            {"7.95 GiB have to go", "accumulation"}},
           {"C45 pytorch#147449: the warning beside the saving",
            explain_log("UserWarning: None of the inputs have requires_grad=True. Gradients will "
                        "be None\n  warnings.warn(\nmax memory 12.82 GB\n"),
            Cause::kCheckpointInactive,
            {"no saving", "use_reentrant=False"}},
           {"C51 webui#10836",
            explain_log(v1("8.09 GiB", 0, "15.99 GiB", "9.99 GiB", "4.50 GiB", "10.15 GiB")),
            Cause::kActivations,
            {"memory-efficient kernel"}},
           {"C53 pytorch#23138: contexts of the other ranks",
            explain_log(v4("512.00 MiB", 0, "15.78 GiB", "90.00 MiB",
                           "Process 5101 has 725.00 MiB memory in use. Process 5102 has 725.00 MiB "
                           "memory in use. Process 5103 has 725.00 MiB memory in use. Including "
                           "non-PyTorch memory, this process has 13.56 GiB memory in use. ",
                           "12.60 GiB", "250.00 MiB")),
            Cause::kOtherProcess,
            {"map_location", "3 processes", "process 5102"},
            Cause::kCapacity},
           {"C57 pytorch#103884: saving gathers everything",
            explain_log(traceback({{"/home/u/train.py", "save", "state = model.state_dict()"},
                                   {"/v/site-packages/torch/distributed/fsdp/_state_dict_utils.py",
                                    "_full_state_dict_post", "x = y"}}) +
                        v4("2.00 GiB", 3, "39.39 GiB", "1.10 GiB", "", "37.20 GiB", "300.00 MiB")),
            Cause::kCapacity,
            {"rank 0 only", "sharded state dict"}},
           {"C59 nccl#1284",
            explain_log("torch.distributed.DistBackendError: NCCL error in: /x/NCCLUtils.hpp:340, "
                        "unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version "
                        "2.21.5\nncclUnhandledCudaError: Call to CUDA function failed.\nLast "
                        "error:\nFailed to CUDA calloc 8388608 bytes\n"),
            Cause::kNccl,
            {"8388608 bytes", "communicator"}},
           {"C65 transformers#22123: resuming",
            explain_log(
                traceback(
                    {{"/home/u/run_clm.py", "main", "trainer.train(resume_from_checkpoint=path)"},
                     {"/v/site-packages/transformers/trainer.py", "_load_optimizer_and_scheduler",
                      "self.optimizer.load_state_dict(torch.load(f))"},
                     {"/v/site-packages/torch/optim/optimizer.py", "load_state_dict",
                      "state_dict = deepcopy(state_dict)"}}) +
                v1("394.00 MiB", 0, "23.70 GiB", "22.10 GiB", "120.00 MiB", "22.40 GiB")),
            Cause::kCapacity,
            {"exists twice", "map_location=\"cpu\""}},
           {"C67 pytorch#85698: a cast materialises the expand",
            explain_log(v4("5.13 GiB", 0, "10.75 GiB", "4.20 GiB", "", "5.40 GiB", "40.00 MiB")),
            Cause::kActivations,
            {"One tensor of 5.13 GiB"}},
           {"C73 returnn#1649",
            explain_log(v4("290.00 MiB", 0, "93.00 GiB", "134.94 MiB",
                           "Process 118636 has 71.62 GiB memory in use. Including non-PyTorch "
                           "memory, this process has 21.24 GiB memory in use. ",
                           "19.85 GiB", "731.17 MiB")),
            Cause::kOtherProcess,
            {"process 118636 (71.62 GiB)", "crashed run"},
            Cause::kUnknown,
            {"map_location"}},
           {"C73 Qwen3-ASR#54",
            explain_log(v4("254.00 MiB", 0, "44.40 GiB", "220.00 MiB",
                           "Including non-PyTorch memory, this process has 5.86 GiB memory in use. "
                           "Process 175589 has 38.31 GiB memory in use. ",
                           "4.91 GiB", "622.96 MiB")),
            Cause::kOtherProcess,
            {"38.31 GiB"}},
           {"C73 ultralytics#7642",
            explain_log(v4("20.00 MiB", 2, "3.81 GiB", "10.00 MiB",
                           "Process 4107 has 3.31 GiB memory in use. Including non-PyTorch memory, "
                           "this process has 268.00 MiB memory in use. ",
                           "30.00 MiB", "2.00 MiB")),
            Cause::kOtherProcess,
            {"process 4107"}},
           {"C73 monodepth2#236",
            explain_log(v1("20.00 MiB", 0, "7.93 GiB", "2.81 GiB", "25.38 MiB", "3.06 GiB")),
            Cause::kOutsideAllocator,
            {"4.85 GiB"}},
           {"C75 sockeye#897",
            explain_log("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling "
                        "`cublasCreate(handle)`\n"),
            Cause::kLibrary,
            {"Treat it as out of memory"}},
           {"C75 a handle that cannot start",
            explain_log("RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling "
                        "`cublasCreate(handle)`\n"),
            Cause::kLibrary,
            {"Treat it as out of memory", "versions"}},
           {"C75 cuRAND",
            explain_log("RuntimeError: CURAND error: CURAND_STATUS_INITIALIZATION_FAILED when "
                        "calling `curandCreateGenerator`\n"),
            Cause::kLibrary,
            {"out of memory"}},
           {"C77 TensorFlow beside PyTorch",
            explain_log(v1("20.00 MiB", 0, "7.92 GiB", "320.00 MiB", "18.00 MiB", "340.00 MiB")),
            Cause::kOutsideAllocator,
            {"7.57 GiB", "another framework"}},
           {"C79 pytorch#130112",
            explain_log("RuntimeError: MPS backend out of memory (MPS allocated: 5.50 GB, other "
                        "allocations: 14.76 GB, max allowed: 20.40 GB). Tried to allocate 147.24 "
                        "MB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable "
                        "upper limit for memory allocations (may cause system failure).\n"),
            Cause::kOutsideAllocator,
            {"14.76 GB", "only lifts the guard"}},
       })
    check(c);
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
            {"one tensor each time of 937.5 MiB", "train.py:80", ".cpu()"}},
           {"C05 pytorch-lightning#1510: detached, but on the GPU",
            history([](Program& p) {
              p.add_parameters(10 * kMiB, 4);
              for (uint64_t step = 1; step <= 10; ++step) p.train_step(step, 4, 12 * kMiB, 1);
              p.fail(Phase::kForward, p.forward, 40 * kMiB, 10 * kMiB);
            }),
            Cause::kKeptAcrossSteps,
            {"detach() alone does not move it", "no graph seems to hang on them"}},
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
            {"should have dropped", "use_reentrant"}},
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
            {"adapters only (LoRA)", "2.34 GiB of gradients and optimizer state"}},
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
            {"1.17 GiB", "scratch memory"}},
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

TEST(PublicCases, OtherWordsForFull) {
  struct Row {
    const char* text;
    Cause cause;
    const char* said;
  };
  for (const Row& row : std::initializer_list<Row>{
           {"RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 3; 60.97 GiB total "
            "capacity; 57.12 GiB already allocated; 57.12 GiB current active; 1.02 GiB free; 58.40 "
            "GiB reserved in total by PyTorch)",
            Cause::kCapacity, "2.00 GiB"},
           {"torch.OutOfMemoryError: XPU out of memory. Tried to allocate 1.50 GiB. GPU 1 has a "
            "total capacity of 15.56 GiB. Of the allocated memory 14.10 GiB is allocated by "
            "PyTorch, and 210.00 MiB is reserved by PyTorch but unallocated. Please use "
            "`empty_cache` to release all unoccupied cached memory.",
            Cause::kCapacity, "14.10 GiB of 15.56 GiB"},
           {"torch.OutOfMemoryError: Allocation on device ", Cause::kUnknown, "no figures"},
           {"RuntimeError: DataLoader worker (pid 4321) is killed by signal: Killed. ",
            Cause::kHostMemory, "data-loader workers"},
           {"ERROR: Unexpected bus error encountered in worker. This might be caused by "
            "insufficient shared memory (shm).",
            Cause::kHostMemory, "--shm-size"},
           {"slurmstepd: error: Detected 1 oom_kill event in StepId=12.batch. Some of the step "
            "tasks have been OOM Killed.",
            Cause::kHostMemory, "host's memory"},
           {"RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", Cause::kLibrary,
            "Treat it as out of memory"},
           {"RuntimeError: GET was unable to find an engine to execute this computation",
            Cause::kLibrary, "workspace"},
           {"[rank2]: ncclUnhandledCudaError: Call to CUDA function failed. NCCL Last error: Cuda "
            "failure 2 'out of memory'",
            Cause::kNccl, "NCCL"},
           {"RESOURCE_EXHAUSTED: Error loading program: Attempting to reserve 5.10G at the bottom "
            "of memory. That was not possible. There are 3.20G free, 0B reserved, and 3.20G "
            "reservable.",
            Cause::kCapacity, "1.90 GiB have to go"},
           {"RESOURCE_EXHAUSTED: Out of memory allocating 8589934592 bytes.", Cause::kCapacity,
            "8589934592 bytes"},
       }) {
    const Explanation explanation = explain_log(std::string("step 12\n") + row.text + "\n");
    ASSERT_EQ(explanation.failures.size(), 1u) << row.text;
    EXPECT_STREQ(cause_name(explanation.findings.at(0).cause), cause_name(row.cause)) << row.text;
    EXPECT_NE(everything(explanation).find(row.said), std::string::npos) << row.text << "\n"
                                                                         << everything(explanation);
  }
}

TEST(PublicCases, WhatIsNoFailureOfMemory) {
  for (const char* text :
       {"triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456, "
        "Hardware limit: 101376. Reducing block sizes or `num_stages` may help.",
        "RuntimeError: CUDA error: device-side assert triggered",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "epoch 137 done, loss 0.1", "batch 12 of 137", "Attempting to resume from step 40",
        "INFO trying to allocate the budget", "ValueError: shared memory name exists"})
    EXPECT_TRUE(explain_log(std::string(text) + "\n").failures.empty()) << text;
}

}  // namespace
}  // namespace tonnage::analysis
