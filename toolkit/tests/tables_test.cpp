#include "tonnage/torch/memory_tables.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tonnage/torch/graph_dot.h"
#include "tonnage/torch/memory.h"

namespace {

using torch::Tensor;

struct TwoLayers : torch::nn::Module {
  TwoLayers() {
    first =
        register_module("first", torch::nn::Linear(torch::nn::LinearOptions(64, 256).bias(false)));
    second =
        register_module("second", torch::nn::Linear(torch::nn::LinearOptions(256, 64).bias(false)));
  }
  Tensor forward(Tensor x) { return second(torch::relu(first(x))); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};

void check_tables(c10::Device device) {
  auto model = std::make_shared<TwoLayers>();
  model->to(device);
  auto x = torch::ones({32, 64}, device);
  model->forward(x).sum().backward();  // gradients and workspaces are there
  tonnage::MemoryTables tables(model.get(), device.type());
  {
    Tensor y = model->forward(x);
    y.sum().backward();
  }
  tables.stop();
  { Tensor after = torch::ones({1 << 20}, device); }  // not seen any more
  const int64_t hidden = 32 * 256 * 4;
  int64_t sum = 0, relu = 0;
  bool backward = false;
  for (const auto& row : tables.by_operator()) {
    sum += row.at_peak_bytes;
    if (row.name == "aten::relu") {
      relu = row.allocated_bytes;
      EXPECT_EQ(row.calls, 1);
    }
    backward = backward || row.name == "ReluBackward0";
  }
  EXPECT_EQ(sum, tables.peak_bytes());
  EXPECT_EQ(relu, hidden);
  EXPECT_TRUE(backward);
  const auto modules = tables.by_module();
  ASSERT_EQ(modules.size(), 4u);
  EXPECT_EQ(modules[1].name, "first");
  EXPECT_EQ(modules[1].parameter_bytes, 64 * 256 * 4);
  EXPECT_EQ(modules[1].gradient_bytes, 64 * 256 * 4);
  EXPECT_GE(modules[1].allocated_bytes, 2 * hidden);  // its result and relu's
  sum = 0;
  for (const auto& m : modules) sum += m.at_peak_bytes;
  EXPECT_EQ(sum, tables.peak_bytes());
  EXPECT_NE(tables.to_string().find("aten::matmul"), std::string::npos) << tables.to_string();
}

TEST(MemoryTables, AddUpOnTheCpu) { check_tables(torch::kCPU); }
TEST(GpuMemoryTables, AddUp) { check_tables(torch::kCUDA); }

TEST(GpuMemoryTables, PeakIsTheAllocators) {
  auto model = std::make_shared<TwoLayers>();
  model->to(torch::kCUDA);
  auto x = torch::ones({4096, 64}, torch::kCUDA);
  model->forward(x).sum().backward();
  tonnage::PeakScope scope;
  tonnage::MemoryTables tables(model.get());
  model->forward(x).sum().backward();
  tables.stop();
  EXPECT_EQ(tables.peak_bytes(), scope.added_peak_bytes());
}

TEST(MemoryTables, OneAtATime) {
  tonnage::MemoryTables tables(nullptr, torch::kCPU);
  EXPECT_THROW(tonnage::MemoryTables(nullptr, torch::kCPU), c10::Error);
  EXPECT_THROW(tonnage::LeakDetector(tonnage::LeakOptions{.device = torch::kCPU}), c10::Error);
  EXPECT_THROW(tables.by_module(), c10::Error);
  tables.stop();
  EXPECT_NO_THROW(tonnage::MemoryTables(nullptr, torch::kCPU));
}

void check_leaks(c10::Device device) {
  torch::nn::Linear model(16, 16);
  model->to(device);
  torch::optim::Adam optimizer(model->parameters());
  std::vector<Tensor> losses, batches;
  tonnage::LeakDetector detector({.device = device.type()});
  std::vector<tonnage::Leak> leaks;
  for (int step = 0; step < 10; step++) {
    const bool leaky = step >= 5;
    optimizer.zero_grad();
    Tensor x = torch::ones({8, 16}, device);
    Tensor loss;
    {
      tonnage::MemoryScope scope("train");
      loss = model(x).square().sum();
    }
    loss.backward();
    optimizer.step();
    batches = {x};  // replaced in every step
    if (leaky) {
      tonnage::MemoryScope outer("epoch"), inner("history");
      losses.push_back(x * 2);
    }
    leaks = detector.step();
    if (step < 8) {
      EXPECT_TRUE(leaks.empty()) << step << tonnage::describe(leaks);
    }
  }
  ASSERT_EQ(leaks.size(), 1u) << tonnage::describe(leaks);
  EXPECT_EQ(leaks[0].scope, "epoch/history");
  EXPECT_EQ(leaks[0].operator_name, "aten::mul");
  EXPECT_EQ(leaks[0].bytes_per_step, 8 * 16 * 4);
  EXPECT_EQ(leaks[0].tensors_per_step, 1);
  EXPECT_EQ(leaks[0].total_bytes, 5 * 8 * 16 * 4);
  EXPECT_NE(tonnage::describe(leaks).find("made by aten::mul in epoch/history"), std::string::npos);
}

TEST(LeakDetector, NamesTheScope) { check_leaks(torch::kCPU); }
TEST(GpuLeakDetector, NamesTheScope) { check_leaks(torch::kCUDA); }

TEST(LeakDetector, SeesAGraphThatIsKept) {
  torch::nn::Linear model(16, 16);
  tonnage::LeakDetector detector({.device = torch::kCPU});
  Tensor total = torch::zeros({});
  std::vector<tonnage::Leak> leaks;
  for (int step = 0; step < 8; step++) {
    total = total + model(torch::ones({4, 16})).exp().sum();  // instead of .item()
    leaks = detector.step();
  }
  ASSERT_FALSE(leaks.empty());
  bool exp = false;
  for (const auto& l : leaks) exp = exp || l.operator_name == "aten::exp";
  EXPECT_TRUE(exp) << tonnage::describe(leaks);
}

TEST(GraphDot, BytesOfEveryNode) {
  auto model = std::make_shared<TwoLayers>();
  auto x = torch::ones({32, 64});
  tonnage::GraphRecorder recorder;
  Tensor y = model->forward(x);
  Tensor loss = (y * y).sum();
  recorder.stop();
  const auto nodes = recorder.nodes({loss}, model.get());
  int64_t saved = 0, shared = 0;
  std::map<std::string, int64_t> by_name;
  for (const auto& n : nodes) {
    saved += n.saved_bytes;
    shared += n.shared_bytes;
    by_name[n.name] += n.saved_bytes + n.shared_bytes;
  }
  EXPECT_EQ(by_name["ReluBackward0"], 32 * 256 * 4);
  EXPECT_EQ(by_name["MulBackward0"], 32 * 64 * 4);
  EXPECT_EQ(by_name.count("first.weight"), 1u);
  // x, relu's result (saved by relu and by the second layer), y.
  EXPECT_EQ(saved, 32 * 64 * 4 + 32 * 256 * 4 + 32 * 64 * 4);
  EXPECT_EQ(shared, 32 * 256 * 4);
  const std::string dot = recorder.dot({loss}, model.get());
  EXPECT_NE(dot.find("48.00 KiB saved\""), std::string::npos) << dot;
  EXPECT_NE(dot.find("second.weight"), std::string::npos);
  EXPECT_THROW(recorder.dot({x}), c10::Error);
  loss.backward();
  EXPECT_TRUE(model->first->weight.grad().defined());
}

}  // namespace
