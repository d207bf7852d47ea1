// Out-of-memory messages: every public one that was collected, and logs as they really look.
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "sources/messages/log_reader.h"
#include "sources/messages/log_scan.h"

namespace {

using namespace tonnage;
using namespace tonnage::sources;

Log read_text(const std::string& text) {
  auto input = Input::from_memory(text, "train.log");
  EXPECT_TRUE(input.has_value());
  auto log = read_log(**input);
  EXPECT_TRUE(log.has_value());
  return log.has_value() ? *log : Log{};
}

std::string text_of(const std::optional<LogSize>& size) { return size ? size->text : ""; }

struct Expected {
  const char* format;
  int device;
  const char *requested, *capacity, *free, *allocated, *reserved, *unallocated, *allowed;
};

// One row for each line of tests/data/logs/oom_messages.txt.
const std::vector<Expected> kMessages = {
    {"torch_storage", -1, "", "", "", "", "", "", ""},                                         // 1
    {"torch_storage", -1, "", "", "", "", "", "", ""},                                         // 2
    {"cuda_error", -1, "", "", "", "", "", "", ""},                                            // 3
    {"pytorch_1.0", 0, "12.50 MiB", "10.92 GiB", "9.28 GiB", "8.57 MiB", "", "4.68 MiB", ""},  // 4
    {"pytorch_1.0", 0, "1024.00 KiB", "11.17 GiB", "576.00 KiB", "10.90 GiB", "", "30.96 MiB",
     ""},  // 5
    {"pytorch_1.0", 0, "8.13 GiB", "10.76 GiB", "8.20 GiB", "643.57 MiB", "", "32.43 MiB",
     ""},  // 6
    {"pytorch_1.0", 0, "198.00 MiB", "5.93 GiB", "54.94 MiB", "4.64 GiB", "", "233.05 MiB",
     ""},  // 7
    {"pytorch_1.0", 0, "1.12 MiB", "22.37 GiB", "3.56 MiB", "15.87 GiB", "", "787.74 MiB",
     ""},                                                                                       // 8
    {"pytorch_1.0", 0, "20.00 MiB", "7.93 GiB", "17.56 MiB", "7.20 GiB", "", "46.25 MiB", ""},  // 9
    {"pytorch_1.4", 0, "786.00 MiB", "14.73 GiB", "575.88 MiB", "13.33 GiB", "13.38 GiB", "",
     ""},  // 10
    {"pytorch_1.4", 0, "2.87 GiB", "14.76 GiB", "19.75 MiB", "8.77 GiB", "13.71 GiB", "",
     ""},  // 11
    {"pytorch_1.4", 0, "1006.00 MiB", "10.91 GiB", "569.81 MiB", "9.18 GiB", "9.49 GiB", "",
     ""},  // 12
    {"pytorch_1.4", 0, "40.00 MiB", "23.65 GiB", "20.31 MiB", "22.27 GiB", "22.76 GiB", "",
     ""},                                                                                      // 13
    {"pytorch_1.4", 0, "20.00 MiB", "7.93 GiB", "25.38 MiB", "2.81 GiB", "3.06 GiB", "", ""},  // 14
    {"pytorch_1.4", 2, "64.00 MiB", "15.75 GiB", "2.75 MiB", "13.76 GiB", "14.50 GiB", "",
     ""},  // 15
    {"pytorch_1.4", 0, "210.00 MiB", "15.78 GiB", "138.50 MiB", "14.39 GiB", "14.42 GiB", "",
     ""},  // 16
    {"pytorch_1.4", 0, "394.00 MiB", "15.78 GiB", "8.68 GiB", "5.17 GiB", "5.25 GiB", "",
     ""},                                                                                      // 17
    {"pytorch_1.4", 0, "1.12 GiB", "23.99 GiB", "16.48 GiB", "4.82 GiB", "4.92 GiB", "", ""},  // 18
    {"pytorch_1.4", 0, "8.00 GiB", "14.75 GiB", "708.81 MiB", "7.93 GiB", "12.95 GiB", "",
     ""},  // 19
    {"pytorch_1.4", 5, "3.14 GiB", "31.75 GiB", "1.95 GiB", "28.28 GiB", "28.28 GiB", "",
     ""},  // 20
    {"pytorch_1.4", 0, "64.00 MiB", "23.68 GiB", "64.62 MiB", "18.17 GiB", "18.60 GiB", "",
     ""},  // 21
    {"pytorch_1.4", 0, "4.98 GiB", "14.75 GiB", "1.03 GiB", "12.11 GiB", "12.29 GiB", "",
     ""},  // 22
    {"pytorch_1.4", 3, "4.00 GiB", "11.93 GiB", "515.38 MiB", "10.67 GiB", "10.92 GiB", "",
     "11.93 GiB"},  // 23
    {"pytorch_2.1", 0, "172.00 MiB", "39.56 GiB", "52.56 MiB", "37.80 GiB", "", "336.39 MiB",
     ""},                                                                                     // 24
    {"pytorch_2.1", 0, "1.70 GiB", "6.00 GiB", "0 bytes", "2.93 GiB", "", "2.30 GiB", ""},    // 25
    {"pytorch_2.1", 0, "64.00 MiB", "8.00 GiB", "0 bytes", "22.44 GiB", "", "3.16 MiB", ""},  // 26
    {"pytorch_2.1", 0, "22.00 MiB", "23.65 GiB", "11.06 MiB", "22.90 GiB", "", "194.87 MiB",
     ""},  // 27
    {"pytorch_2.1", 0, "290.00 MiB", "93.00 GiB", "134.94 MiB", "19.85 GiB", "", "731.17 MiB",
     ""},  // 28
    {"pytorch_2.1", 0, "1.45 GiB", "5.78 GiB", "606.62 MiB", "4.13 GiB", "", "37.56 MiB",
     ""},  // 29
    {"pytorch_2.1", 0, "254.00 MiB", "44.40 GiB", "220.00 MiB", "4.91 GiB", "", "622.96 MiB",
     ""},  // 30
    {"pytorch_2.1", 0, "124.00 MiB", "19.94 GiB", "554.47 MiB", "15.87 GiB", "", "165.29 MiB",
     ""},  // 31
    {"pytorch_2.1", 0, "2.00 MiB", "255.98 GiB", "244.65 GiB", "1017.01 MiB", "", "54.99 MiB",
     "1.05 GiB"},  // 32
    {"pytorch_2.1", 7, "2.00 MiB", "287.98 GiB", "203.49 GiB", "68.63 GiB", "", "14.93 GiB",
     ""},                                                                   // 33
    {"mps", -1, "147.24 MB", "20.40 GB", "", "5.50 GB", "", "", ""},        // 34
    {"mps", -1, "292.50 MiB", "27.20 GiB", "", "9.57 GiB", "", "", ""},     // 35
    {"pytorch_too_large", -1, "", "", "", "", "", "", ""},                  // 36
    {"library_alloc_failed", -1, "", "", "", "", "", "", ""},               // 37
    {"nvml_assert", -1, "", "", "", "", "", "", ""},                        // 38
    {"nccl_calloc", -1, "8388608 bytes", "", "", "", "", "", ""},           // 39
    {"nccl_warn", -1, "", "", "", "", "", "", ""},                          // 40
    {"tensorflow_shape", -1, "", "", "", "", "", "", ""},                   // 41
    {"tensorflow_shape", 0, "41803776 bytes", "", "", "", "", "", ""},      // 42
    {"tensorflow_shape", 0, "118013952 bytes", "", "", "", "", "", ""},     // 43
    {"tensorflow_device", -1, "9267854592 bytes", "", "", "", "", "", ""},  // 44
    {"xla_bytes", -1, "5520758552 bytes", "", "", "", "", "", ""},          // 45
    {"xla_request", 0, "6727663616 bytes", "", "", "", "", "", ""},         // 46
    {"xla_memory_space", -1, "", "15.48G", "", "23.43G", "", "", ""},       // 47
};

TEST(LogReader, EveryCollectedMessage) {
  std::ifstream file(std::string(TONNAGE_SOURCE_DIR) + "/tests/data/logs/oom_messages.txt");
  std::string line;
  size_t number = 0;
  while (std::getline(file, line)) {
    ASSERT_LT(number, kMessages.size());
    const Expected& expected = kMessages[number++];
    const Log log = read_text(line + "\n");
    ASSERT_EQ(log.ooms.size(), 1u) << line;
    const LogOom& oom = log.ooms[0];
    EXPECT_STREQ(oom_format_name(oom.format), expected.format) << line;
    EXPECT_EQ(oom.device ? static_cast<int>(*oom.device) : -1, expected.device) << line;
    EXPECT_EQ(text_of(oom.requested).substr(0, text_of(oom.requested).find(" (shape")),
              expected.requested)
        << line;
    EXPECT_EQ(text_of(oom.capacity), expected.capacity) << line;
    EXPECT_EQ(text_of(oom.free), expected.free) << line;
    EXPECT_EQ(text_of(oom.allocated), expected.allocated) << line;
    EXPECT_EQ(text_of(oom.reserved), expected.reserved) << line;
    EXPECT_EQ(text_of(oom.unallocated), expected.unallocated) << line;
    EXPECT_EQ(text_of(oom.allowed), expected.allowed) << line;
  }
  EXPECT_EQ(number, kMessages.size());
}

TEST(LogReader, AMessageCutAnywhereNeverCrashesAndKeepsWhatItHas) {
  std::ifstream file(std::string(TONNAGE_SOURCE_DIR) + "/tests/data/logs/oom_messages.txt");
  std::string line;
  while (std::getline(file, line)) {
    const auto whole = parse_oom_message(line);
    ASSERT_TRUE(whole.has_value()) << line;
    for (size_t size = 0; size < line.size(); ++size) {
      const auto cut = parse_oom_message(std::string_view(line).substr(0, size));
      if (!cut || !cut->capacity || !whole->capacity) continue;
      EXPECT_LE(cut->capacity->text.size(), whole->capacity->text.size()) << line.substr(0, size);
    }
  }
}

TEST(LogScan, Sizes) {
  struct Case {
    const char* text;
    uint64_t bytes, plus_minus;
  };
  for (const auto& [text, bytes, plus_minus] :
       std::initializer_list<Case>{{"0 bytes", 0, 0},
                                   {"512 bytes", 512, 0},
                                   {"1024.00 KiB", 1048576, 5},
                                   {"148.00 MiB", 155189248, 5243},
                                   {"2.24GiB", 2405181686, 5368709},
                                   {"23.43G", 25157770936, 5368709},
                                   {"5.50 GB", 5905580032, 5368709},
                                   {"3 GiB", 3221225472, 536870912},
                                   {"17179869184.00 GiB", UINT64_MAX, 0}}) {
    LogScan scan(text);
    const auto size = scan.size();
    ASSERT_TRUE(size.has_value()) << text;
    EXPECT_EQ(size->bytes, bytes) << text;
    EXPECT_EQ(size->plus_minus_bytes, plus_minus) << text;
    EXPECT_TRUE(scan.ended()) << text;
  }
  for (const char* text : {"", "GiB", "12", "12 apples", ". GiB", "1.5.2 GiB", "5 Girls"})
    EXPECT_FALSE(LogScan(text).size().has_value()) << text;
}

TEST(LogReader, ProcessesPrivatePoolsAndTheFraction) {
  const auto oom = parse_oom_message(
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 148.00 MiB. GPU 0 has a total "
      "capacity of 139.80 GiB of which 126.09 GiB is "
      "free. Process 762 has 2.05 GiB memory in use. Process 749 has 17179869184.00 GiB memory in "
      "use. Including non-PyTorch memory, this process "
      "has 7.60 GiB memory in use. 6.99 GiB allowed; Of the allocated memory 6.89 GiB is allocated "
      "by PyTorch, with 23.00 MiB allocated in private "
      "pools (e.g., CUDA Graphs), and 33.92 MiB is reserved by PyTorch but unallocated. If "
      "reserved but unallocated memory is large try setting "
      "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.");
  ASSERT_TRUE(oom.has_value());
  ASSERT_EQ(oom->processes.size(), 3u);
  EXPECT_EQ(oom->processes[0].pid, 762u);
  EXPECT_TRUE(oom->processes[0].plausible);
  EXPECT_FALSE(oom->processes[1].plausible);
  EXPECT_TRUE(oom->processes[2].is_self);
  EXPECT_FALSE(oom->processes[2].pid.has_value());
  EXPECT_EQ(text_of(oom->allowed), "6.99 GiB");
  EXPECT_EQ(text_of(oom->private_pools), "23.00 MiB");
  EXPECT_EQ(text_of(oom->unallocated), "33.92 MiB");
  EXPECT_EQ(oom->hint, "expandable_segments");
}

TEST(LogReader, CudaMallocAsyncOverSeveralLines) {
  const Log log = read_text(
      "step 12\n"
      "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of "
      "memory)\n"
      "Currently allocated     : 5.09 GiB\n"
      "Requested               : 512.00 MiB\n"
      "Device limit            : 79.11 GiB\n"
      "Free (according to CUDA): 71.20 GiB\n"
      "PyTorch limit (set by user-supplied memory fraction)\n"
      "                        : 5.50 GiB\n");
  ASSERT_EQ(log.ooms.size(), 1u);
  const LogOom& oom = log.ooms[0];
  EXPECT_EQ(oom.format, OomFormat::kCudaMallocAsync);
  EXPECT_EQ(oom.line_number, 2u);
  EXPECT_EQ(text_of(oom.allocated), "5.09 GiB");
  EXPECT_EQ(text_of(oom.requested), "512.00 MiB");
  EXPECT_EQ(text_of(oom.capacity), "79.11 GiB");
  EXPECT_EQ(text_of(oom.free), "71.20 GiB");
  EXPECT_EQ(text_of(oom.allowed), "5.50 GiB");
}

TEST(LogReader, WrappedMessage) {
  const Log log = read_text(
      "RuntimeError: CUDA out of memory. Tried to allocate 40.00 MiB (GPU 0; 23.65 GiB total\n"
      "capacity; 22.27 GiB already allocated; 20.31 MiB free; 22.76 GiB reserved in total by\n"
      "PyTorch)\n");
  ASSERT_EQ(log.ooms.size(), 1u);
  EXPECT_EQ(log.ooms[0].format, OomFormat::kPyTorch14);
  EXPECT_EQ(text_of(log.ooms[0].reserved), "22.76 GiB");
}

TEST(LogReader, RanksTracebacksAndRepeats) {
  const std::string message =
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.00 MiB. GPU 1 has a total "
      "capacity of 23.65 GiB of which 11.06 MiB is free. "
      "Of the allocated memory 22.90 GiB is allocated by PyTorch, and 194.87 MiB is reserved by "
      "PyTorch but unallocated.\n";
  const Log log = read_text(
      "\x1b[31m[rank1]:\x1b[0m Traceback (most recent call last):\n"
      "[rank1]:   File \"/home/user/train.py\", line 93, in <module>\n"
      "[rank1]:     main()\n"
      "[rank1]:   File \"/home/user/train.py\", line 71, in main\n"
      "[rank1]:     loss.backward()\n"
      "[rank1]:     ^^^^^^^^^^^^^^^\n"
      "[rank1]: " +
      message + "[rank0]: " + message + "[rank1]: " + message);
  ASSERT_EQ(log.ooms.size(), 2u);
  EXPECT_EQ(log.ooms[0].rank, 1u);
  EXPECT_EQ(log.ooms[0].count, 2u);
  EXPECT_EQ(log.ooms[0].line_number, 7u);
  ASSERT_EQ(log.ooms[0].frames.size(), 2u);
  EXPECT_EQ(log.ooms[0].frames[1].file, "/home/user/train.py");
  EXPECT_EQ(log.ooms[0].frames[1].line, 71u);
  EXPECT_EQ(log.ooms[0].frames[1].function, "main");
  EXPECT_EQ(log.ooms[0].frames[1].code, "loss.backward()");
  EXPECT_EQ(log.ooms[1].rank, 0u);
  EXPECT_TRUE(log.ooms[1].frames.empty());
}

TEST(LogReader, TensorFlowAllocatorStatistics) {
  std::string text =
      "2024-01-01 00:00:00.000000: W tensorflow/core/common_runtime/bfc_allocator.cc:497] "
      "Allocator (GPU_0_bfc) ran out of memory trying to allocate "
      "4.50GiB (rounded to 4831838208)requested by op model/conv2d_3/Conv2D\n"
      "If the cause is memory fragmentation maybe the environment variable "
      "'TF_GPU_ALLOCATOR=cuda_malloc_async' will improve the situation.\n";
  for (int i = 0; i < 300; ++i) text += "InUse at 7f0000000000 of size 256 next 1\n";
  text +=
      "Stats:\nLimit:                     15697772544\nInUse:                     "
      "12884901888\nMaxInUse:                  13958643712\nNumAllocs: 1\n";
  const Log log = read_text(text);
  ASSERT_EQ(log.ooms.size(), 1u);
  const LogOom& oom = log.ooms[0];
  EXPECT_EQ(oom.format, OomFormat::kTensorFlowBfc);
  EXPECT_EQ(oom.requested->bytes, 4831838208u);
  EXPECT_EQ(oom.capacity->bytes, 15697772544u);
  EXPECT_EQ(oom.allocated->bytes, 12884901888u);
  EXPECT_EQ(oom.peak->bytes, 13958643712u);
  EXPECT_EQ(oom.detail, "model/conv2d_3/Conv2D");
  EXPECT_EQ(oom.device, 0u);
}

TEST(LogReader, JaxOfSeveralYears) {
  struct Case {
    const char* text;
    uint64_t bytes;
    const char* detail;
  };
  for (const auto& [text, bytes, detail] : std::initializer_list<Case>{
           {"RESOURCE_EXHAUSTED: Out of memory while trying to allocate 5520758552 bytes.",
            5520758552, ""},
           {"jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to "
            "allocate 2.24GiB. [executable_name='jit_step'] "
            "[tf-allocator-allocation-error='']",
            2405181686, "jit_step"},
           {"RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1.95GiB with allocator "
            "GPU_0_bfc on device 0. [executable_name='jit_f']",
            2093796557, "jit_f"}}) {
    const auto oom = parse_oom_message(text);
    ASSERT_TRUE(oom.has_value()) << text;
    EXPECT_EQ(oom->format, OomFormat::kXlaBytes) << text;
    EXPECT_EQ(oom->requested->bytes, bytes) << text;
    EXPECT_EQ(oom->detail, detail) << text;
  }
}

TEST(LogReader, HostMemoryIsNotTheGpus) {
  EXPECT_EQ(parse_oom_message("RuntimeError: [enforce fail at alloc_cpu.cpp:75] "
                              "DefaultCPUAllocator: can't allocate memory: you tried to allocate "
                              "4294967296 bytes. Error code 12 (Cannot allocate memory)")
                ->backend,
            "CPU");
  EXPECT_EQ(parse_oom_message("Out of memory: Killed process 4242 (python) total-vm:1kB")->format,
            OomFormat::kHostKilled);
}

TEST(LogReader, OrdinaryLogsHaveNone) {
  const Log log = read_text(
      "epoch 1 loss 0.5\nTrying to allocate a budget\nno out of memory here\nFile \"x.py\", line "
      "3, in f\n");
  EXPECT_TRUE(log.ooms.empty());
  EXPECT_EQ(log.lines, 4u);
}

TEST(LogReader, LongLinesAreCutNotKept) {
  const Log log = read_text(std::string(10 << 20, 'x') +
                            " CUDA out of memory. Tried to allocate 1.00 GiB\nnext\n");
  EXPECT_EQ(log.lines, 2u);
  EXPECT_TRUE(log.ooms.empty());
  ASSERT_EQ(log.notes.size(), 1u);
}

TEST(LogReader, ProgressBarsBeforeTheMessage) {
  std::string text;
  for (int i = 0; i < 20000; ++i) text += "\r 12%|#####     | 1/8 [00:01<00:07,  1.0s/it]";
  const Log log = read_text(text + "\rRuntimeError: CUDA error: out of memory\n");
  ASSERT_EQ(log.ooms.size(), 1u);
}

}  // namespace
