// The text report against golden files. To accept new output: TONNAGE_REBASE_GOLDEN=1 unit_tests
// --gtest_filter='*Golden*'
#include "report/text.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "analysis/analysis_builder.h"
#include "report/style.h"

namespace tonnage::report {
namespace {

using abi::Category;
using abi::Phase;
using analysis::testing::EventKind;
using analysis::testing::kMiB;
using analysis::testing::RecordBuilder;

constexpr uint64_t kBase = 0x7f0000000000;
const std::string kTorch = "/venv/lib/python3.11/site-packages/torch/";

// Three steps of a small model with Adam on a card of 1 GiB; the third with a longer input.
RecordBuilder training() {
  RecordBuilder b;
  b.record.torch_version = "2.11.0+cu130";
  b.record.devices[0].name = "NVIDIA GeForce RTX 3060";
  const uint32_t build = b.stack(
      {{kTorch + "nn/modules/module.py", 1370, "convert"}, {"/home/user/train.py", 12, "main"}});
  const uint32_t forward = b.stack({{kTorch + "nn/modules/linear.py", 134, "forward"},
                                    {"/home/user/model.py", 40, "forward"},
                                    {"/home/user/train.py", 20, "main"}});
  const uint32_t library =
      b.stack({{"/venv/lib/python3.11/site-packages/transformers/models/gpt2/modeling_gpt2.py", 345,
                "forward"},
               {"/home/user/train.py", 20, "main"}});
  const uint32_t optimizer = b.stack(
      {{kTorch + "optim/adam.py", 150, "_init_group"}, {"/home/user/train.py", 22, "main"}});
  b.add(EventKind::kProcessStart, 0, 0, 100, "python train.py");
  b.add(EventKind::kContext, 0, 90 * kMiB);
  b.in(Phase::kInit).op("aten::_to_copy").from(build);
  for (uint64_t i = 0; i < 3; ++i)
    b.segment(kBase + i * 64 * kMiB, 64 * kMiB);  // parameters, gradients, Adam's state
  b.segment(kBase + 192 * kMiB, 208 * kMiB);      // activations
  for (uint64_t i = 0; i < 4; ++i) {
    b.alloc(kBase + i * 16 * kMiB, 16 * kMiB - 100);
    b.add(EventKind::kLabel, kBase + i * 16 * kMiB, 0, static_cast<uint64_t>(Category::kParameter),
          "layers." + std::to_string(i) + ".weight");
  }
  b.add(EventKind::kModuleLoad, 0, 3 * kMiB);
  uint64_t launches = 0;
  for (uint64_t step = 1; step <= 3; ++step) {
    const uint64_t size = (step == 3 ? 24 : 20) * kMiB, start = kBase + 192 * kMiB;
    b.in(Phase::kForward).op("aten::addmm").from(forward).module("layers.0");
    for (uint64_t i = 0; i < 4; ++i) {
      if (i == 3) b.op("aten::gelu").from(library).module("layers.3.act");
      b.alloc(start + i * size, size);
    }
    b.in(Phase::kBackward).op("aten::mm").from(0).module("");
    for (uint64_t i = 0; i < 4; ++i) {
      b.alloc(kBase + (64 + i * 16) * kMiB, 16 * kMiB);
      b.release(start + (3 - i) * size, size);
    }
    b.in(Phase::kOptimizer).op("aten::zeros_like").from(optimizer);
    if (step == 1) {
      for (uint64_t i = 0; i < 4; ++i) b.alloc(kBase + (128 + i * 16) * kMiB, 16 * kMiB);
    }
    launches += 40;
    b.add(EventKind::kKernelCount, 0, 0, launches);
    b.add(EventKind::kStep, 0, 0, step);
    b.in(Phase::kOther).op("").from(0);
    if (step < 3) {
      for (uint64_t i = 0; i < 4; ++i) b.release(kBase + (64 + i * 16) * kMiB, 16 * kMiB);
    }
  }
  return b;
}

RecordBuilder out_of_memory() {
  RecordBuilder b = training();
  b.record.devices[0].total_bytes = 520 * kMiB;
  b.record.processes[0].ended = false;
  b.in(Phase::kForward).op("aten::addmm").module("layers.2");
  b.from(b.stack({{"/home/user/model.py", 41, "forward"}}));
  b.add(EventKind::kDeviceOom, 0, 200 * kMiB, 27 * kMiB);
  b.add(EventKind::kOom, 0, 200 * kMiB, 27 * kMiB);
  b.add(EventKind::kCounter, 0, 0, 300 * kMiB, "allocated_bytes.all.peak");
  b.add(EventKind::kStubCall, 0, 0, 0, "cuMulticastCreate");
  b.add(EventKind::kUnknownRead, 0, 8, 0, "aten::item");
  b.add(EventKind::kAssumedSize, 0, 4096, 1024, "aten::nonzero");
  b.add(EventKind::kMessage, 0, 0, 1,
        "the recorder could not follow torch.compile: categories are inferred");
  return b;
}

RecordBuilder plain_cuda() {
  RecordBuilder b;
  b.record.devices.push_back({1, "Test GPU", 1024 * kMiB, 0});
  b.record.processes[0].command = "./stencil --size 4096";
  b.from(b.stack({{"/src/stencil.cu", 77, "main"}}));
  for (uint8_t gpu = 0; gpu < 2; ++gpu) {
    b.device(gpu);
    b.add(EventKind::kContext, 0, 80 * kMiB);
    for (uint64_t i = 0; i < 3; ++i)
      b.add(EventKind::kDeviceAlloc, kBase + i * 64 * kMiB, (32 + 16 * gpu) * kMiB);
    b.add(EventKind::kDeviceAlloc, kBase + 512 * kMiB, 100 * kMiB,
          static_cast<uint64_t>(abi::DeviceMemoryKind::kManaged));
    b.add(EventKind::kDeviceFree, kBase, 32 * kMiB);
  }
  b.add(EventKind::kHostAlloc, 0x5000, 64 * kMiB,
        static_cast<uint64_t>(abi::DeviceMemoryKind::kHostPinned));
  return b;
}

RecordBuilder snapshot() {
  RecordBuilder b = training();
  b.record.kind = record::Record::Kind::kSnapshot;
  b.record.devices[0] = {0, "", 0, 0};
  b.record.history_truncated = true;
  std::erase_if(b.record.events, [](const abi::MemoryEvent& e) {
    return e.kind == EventKind::kContext || e.kind == EventKind::kModuleLoad ||
           e.kind == EventKind::kDeviceAlloc || e.kind == EventKind::kLabel ||
           e.kind == EventKind::kKernelCount;
  });
  return b;
}

struct Case {
  const char* name;
  RecordBuilder (*make)();
  TextOptions options;
};

const Case kCases[] = {
    {"training", training, {80, false, true}},
    {"training_ascii", training, {80, false, false}},
    {"training_wide_color", training, {120, true, true}},
    {"out_of_memory", out_of_memory, {80, false, true}},
    {"plain_cuda", plain_cuda, {80, false, true}},
    {"snapshot", snapshot, {100, false, true}},
    {"empty", [] { return RecordBuilder(); }, {80, false, true}},
};

class Golden : public ::testing::TestWithParam<Case> {};

TEST_P(Golden, Text) {
  const std::string path =
      std::string(TONNAGE_SOURCE_DIR "/tests/golden/report_") + GetParam().name + ".txt";
  const std::string text =
      render_text(analysis::make_report(GetParam().make().record), GetParam().options);
  if (std::getenv("TONNAGE_REBASE_GOLDEN") != nullptr) {
    std::ofstream(path) << text;
    return;
  }
  std::ifstream file(path);
  ASSERT_TRUE(file) << path << " is missing";
  std::stringstream expected;
  expected << file.rdbuf();
  EXPECT_EQ(text, expected.str());
}

TEST_P(Golden, StaysWithinItsWidth) {
  TextOptions options = GetParam().options;
  options.color = false;
  for (int width : {20, 80, 100, 133}) {
    options.width = width;
    std::stringstream text(render_text(analysis::make_report(GetParam().make().record), options));
    for (std::string line; std::getline(text, line);)
      EXPECT_LE(columns(line), std::max(width, 80)) << line;
  }
}

INSTANTIATE_TEST_SUITE_P(Reports, Golden, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Text, PlainMeansNoEscapesAndAsciiMeansAscii) {
  const auto report = analysis::make_report(out_of_memory().record);
  EXPECT_EQ(render_text(report, {80, false, true}).find('\x1b'), std::string::npos);
  EXPECT_NE(render_text(report, {80, true, true}).find('\x1b'), std::string::npos);
  for (char c : render_text(report, {80, false, false}))
    EXPECT_LT(static_cast<unsigned char>(c), 0x80);
}

TEST(Text, StrangersTextCannotControlTheTerminal) {
  RecordBuilder b = training();
  b.record.devices[0].name =
      "card\x1b[2J\r\n\xff\xc2\x9b"
      "31m";
  b.record.notes.push_back(
      "a\x1b]0;title\x07"
      "b");
  b.add(EventKind::kStubCall, 0, 0, 0, "cu\x1bX");
  b.in(Phase::kForward).module("m\x1b").op("op\n");
  b.from(b.stack({{"/home/\x1b[1m/\tx.py", 1, "f\x08"}}));
  b.alloc(kBase + 192 * kMiB, 90 * kMiB);
  const std::string text = render_text(analysis::make_report(b.record), {80, false, true});
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    EXPECT_TRUE(c >= 0x20 || c == '\n') << i;
    EXPECT_NE(c, 0x7f);
  }
  EXPECT_EQ(text.find("\xc2\x9b"), std::string::npos);
  EXPECT_EQ(text.find('\xff'), std::string::npos);
}

TEST(Text, Headlines) {
  EXPECT_EQ(headline(analysis::make_report(record::Record{})), "No GPU memory was used");
  EXPECT_EQ(headline(analysis::make_report(training().record)),
            "Fits: peak 493.0 MiB of 1.00 GiB, 531.0 MiB to spare on NVIDIA GeForce RTX 3060");
  EXPECT_EQ(headline(analysis::make_report(out_of_memory().record)),
            "Does not fit on NVIDIA GeForce RTX 3060 (520.0 MiB): PyTorch asked for 200.0 MiB when "
            "27.0 MiB were free, at model.py:41, in step 4, forward");
}

TEST(Bytes, AreShort) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(148 * kMiB), "148.0 MiB");
  EXPECT_EQ(format_bytes(1024 * kMiB - 1), "1.00 GiB");
  EXPECT_EQ(format_bytes(uint64_t{9940} * kMiB), "9.71 GiB");
}

TEST(Options, ColourOnlyOnATerminal) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const TextOptions options = text_options_for(pipe_ends[1]);
  EXPECT_FALSE(options.color);
  EXPECT_GE(options.width, 80);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

TEST(Options, TheLocaleChoosesTheCharacters) {
  setenv("LC_ALL", "C", 1);
  EXPECT_FALSE(text_options_for(1).unicode);
  setenv("LC_ALL", "C.UTF-8", 1);
  EXPECT_TRUE(text_options_for(1).unicode);
  unsetenv("LC_ALL");
}

}  // namespace
}  // namespace tonnage::report
