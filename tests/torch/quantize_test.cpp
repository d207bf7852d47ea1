// int8 layers against the formulas that they stand for, and QAT against what it becomes.
#include "tonnage/torch/quantize.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tonnage/torch/memory.h"

namespace quantize_test {

using torch::Tensor;
namespace nn = torch::nn;

double relative(const Tensor& a, const Tensor& b) { return ((a - b).norm() / b.norm()).item<double>(); }

TEST(Quantize, LinearIsItsRoundedWeight) {
  torch::manual_seed(1);
  torch::NoGradGuard no_grad;
  nn::Linear layer(40, 24);
  Tensor x = torch::randn({3, 5, 40});
  tonnage::DynamicQuantizedLinear small(layer);
  Tensor weight = small->dequantized_weight(), scale = layer->weight.abs().amax(1, true) / 127;
  EXPECT_TRUE(torch::allclose(weight, (layer->weight / scale).round() * scale, 1e-5, 1e-7));
  // The input is rounded to 7 bits of its range.
  const double step = (x.max() - x.min()).item<double>() / 127;
  EXPECT_TRUE(torch::allclose(small->forward(x), torch::linear(x, weight, layer->bias), 0, step / 2 * weight.abs().sum(1).max().item<double>() * 1.01));
  EXPECT_LT(relative(small->forward(x), layer->forward(x)), 0.02);
  EXPECT_EQ(small->weight_bytes(), 40 * 24 + 8 * 24);
}

TEST(Quantize, LstmFollowsTheTrainedOne) {
  torch::manual_seed(2);
  torch::NoGradGuard no_grad;
  for (bool bidirectional : {false, true}) {
    nn::LSTM lstm(nn::LSTMOptions(16, 32).num_layers(2).batch_first(true).bidirectional(bidirectional));
    lstm->eval();
    tonnage::DynamicQuantizedLSTM small(lstm);
    Tensor x = torch::randn({4, 9, 16});
    auto [plain, state] = lstm->forward(x);
    auto [ours, our_state] = small->forward(x);
    EXPECT_EQ(ours.sizes(), plain.sizes());
    EXPECT_LT(relative(ours, plain), 0.03);
    EXPECT_LT(relative(std::get<1>(our_state), std::get<1>(state)), 0.03);
    EXPECT_GT(relative(ours, plain), 1e-6);  // it is another computation
  }
}

TEST(Quantize, AWholeSequential) {
  torch::manual_seed(3);
  torch::NoGradGuard no_grad;
  nn::Sequential net(nn::Linear(8, 16), nn::ReLU(), nn::Linear(16, 16), nn::Linear(16, 4));
  auto small = tonnage::quantize_dynamic(net);
  EXPECT_EQ(small->size(), 4u);
  EXPECT_EQ(small->parameters().size(), 0u);
  Tensor x = torch::randn({32, 8});
  EXPECT_LT(relative(small->forward(x), net->forward(x)), 0.05);
}

TEST(Quantize, RefusesGradients) {
  tonnage::DynamicQuantizedLinear small(nn::Linear(4, 4));
  EXPECT_THROW(small->forward(torch::ones({2, 4}, torch::requires_grad())), c10::Error);
  EXPECT_THROW(small->forward(torch::ones({2, 5})), c10::Error);
  EXPECT_THROW(tonnage::DynamicQuantizedLSTM(nn::LSTM(nn::LSTMOptions(4, 6).proj_size(2))), c10::Error);
}

TEST(Quantize, QatTrainsAndConvertsToWhatItSimulated) {
  torch::manual_seed(4);
  nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)), nn::ReLU(), nn::Flatten(), nn::Linear(8 * 6 * 6, 5));
  EXPECT_THROW(tonnage::convert(tonnage::prepare_qat(net)), c10::Error);  // never saw data
  auto qat = tonnage::prepare_qat(net);
  torch::optim::SGD optimizer(qat->parameters(), torch::optim::SGDOptions(0.05));
  Tensor x = torch::randn({64, 3, 6, 6}), y = x.mean({2, 3}).matmul(torch::randn({3, 5})) * 3;
  double first = 0, last = 0;
  for (int i = 0; i < 60; i++) {
    optimizer.zero_grad();
    Tensor loss = torch::mse_loss(qat->forward(x), y);
    loss.backward();
    optimizer.step();
    (i == 0 ? first : last) = loss.item<double>();
  }
  EXPECT_LT(last, first / 2);
  EXPECT_TRUE(net->parameters()[0].is_same(qat[0]->as<tonnage::QatConv2d>()->weight));
  qat->eval();
  torch::NoGradGuard no_grad;
  Tensor expected = qat->forward(x), got = tonnage::convert(qat)->forward(x);
  // Values on the edge between two steps may fall to either side: one step of the output, and few of them.
  const double step = qat[3]->as<tonnage::QatLinear>()->output_range->scale.item<double>();
  Tensor steps = ((got - expected) / step).abs();
  EXPECT_LE(steps.max().item<double>(), 1.01);
  EXPECT_LT((steps > 0.5).to(torch::kFloat).mean().item<double>(), 0.05);
}

TEST(Quantize, FakeQuantizationRoundsAndPassesGradients) {
  tonnage::FakeQuantize weight(tonnage::FakeQuantizeImpl::Kind::kWeight);
  Tensor w = torch::tensor({{1.27f, 0.013f, -0.5f}, {0.0f, 2.54f, 0.031f}}).requires_grad_();
  Tensor q = weight->forward(w);
  EXPECT_TRUE(torch::allclose(q, torch::tensor({{1.27f, 0.01f, -0.5f}, {0.0f, 2.54f, 0.04f}}), 0, 1e-5));
  q.sum().backward();
  EXPECT_TRUE(torch::equal(w.grad(), torch::ones({2, 3})));
  tonnage::FakeQuantize fresh(tonnage::FakeQuantizeImpl::Kind::kActivation);
  fresh->eval();
  EXPECT_THROW(fresh->forward(w), c10::Error);
}

TEST(GpuQuantize, LinearTakesAQuarter) {
  torch::NoGradGuard no_grad;
  nn::Linear layer(nn::LinearOptions(1024, 1024).bias(false));
  layer->to(torch::kCUDA);
  const int64_t before = tonnage::memory_stats().allocated_bytes.all.current;
  tonnage::DynamicQuantizedLinear small(layer);
  EXPECT_EQ(tonnage::memory_stats().allocated_bytes.all.current - before, (1 << 20) + 4096);
  small->forward(torch::ones({32, 1024}, torch::kCUDA));
}

TEST(GpuNumbersQuantize, LinearOnTheCardFollowsTheLayer) {
  torch::manual_seed(5);
  torch::NoGradGuard no_grad;
  for (int64_t rows : {1, 17, 100}) {
    nn::Linear layer(50, 30);
    Tensor x = torch::randn({rows, 50});
    Tensor plain = layer->forward(x);
    layer->to(torch::kCUDA);
    tonnage::DynamicQuantizedLinear small(layer);
    EXPECT_LT(relative(small->forward(x.cuda()).cpu(), plain), 0.02) << rows;
    EXPECT_LT(relative(small->forward(x), plain), 0.03) << rows;  // and back on the CPU
  }
}

}  // namespace quantize_test
