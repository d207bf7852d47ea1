// int8 layers against the formulas that they stand for, and QAT against what it becomes.
#include "tonnage/torch/quantize.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "error_of.h"
#include "tonnage/torch/lora.h"
#include "tonnage/torch/low_rank.h"
#include "tonnage/torch/memory.h"
#include "tonnage/torch/replaceable.h"

namespace quantize_test {

using tonnage_test::error_of;
using torch::Tensor;
namespace nn = torch::nn;

double relative(const Tensor& a, const Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

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
  EXPECT_TRUE(torch::allclose(small->forward(x), torch::linear(x, weight, layer->bias), 0,
                              step / 2 * weight.abs().sum(1).max().item<double>() * 1.01));
  EXPECT_LT(relative(small->forward(x), layer->forward(x)), 0.02);
  EXPECT_EQ(small->weight_bytes(), 40 * 24 + 8 * 24);
}

TEST(Quantize, LstmFollowsTheTrainedOne) {
  torch::manual_seed(2);
  torch::NoGradGuard no_grad;
  for (bool bidirectional : {false, true}) {
    nn::LSTM lstm(
        nn::LSTMOptions(16, 32).num_layers(2).batch_first(true).bidirectional(bidirectional));
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
  EXPECT_THROW(tonnage::DynamicQuantizedLSTM(nn::LSTM(nn::LSTMOptions(4, 6).proj_size(2))),
               c10::Error);
}

TEST(Quantize, QatTrainsAndConvertsToWhatItSimulated) {
  torch::manual_seed(4);
  nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)), nn::ReLU(), nn::Flatten(),
                     nn::Linear(8 * 6 * 6, 5));
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
  // Values on the edge between two steps may fall to either side: one step of the output, and few
  // of them.
  const double step = qat[3]->as<tonnage::QatLinear>()->output_range->scale.item<double>();
  Tensor steps = ((got - expected) / step).abs();
  EXPECT_LE(steps.max().item<double>(), 1.01);
  EXPECT_LT((steps > 0.5).to(torch::kFloat).mean().item<double>(), 0.05);
}

TEST(Quantize, FakeQuantizationRoundsAndPassesGradients) {
  tonnage::FakeQuantize weight(tonnage::FakeQuantizeImpl::Kind::kWeight);
  Tensor w = torch::tensor({{1.27f, 0.013f, -0.5f}, {0.0f, 2.54f, 0.031f}}).requires_grad_();
  Tensor q = weight->forward(w);
  EXPECT_TRUE(
      torch::allclose(q, torch::tensor({{1.27f, 0.01f, -0.5f}, {0.0f, 2.54f, 0.04f}}), 0, 1e-5));
  q.sum().backward();
  EXPECT_TRUE(torch::equal(w.grad(), torch::ones({2, 3})));
  tonnage::FakeQuantize fresh(tonnage::FakeQuantizeImpl::Kind::kActivation);
  fresh->eval();
  EXPECT_THROW(fresh->forward(w), c10::Error);
}

// Layers at all kinds of places: typed members, an entry of a Sequential that is a typed member, a
// list, one layer twice.
struct HeadImpl : nn::Module {
  HeadImpl() { fc = register_module("fc", tonnage::Linear(32, 4)); }
  Tensor forward(const Tensor& x) { return fc(x); }
  tonnage::Linear fc{nullptr};
};
TORCH_MODULE(Head);

struct TreeImpl : nn::Module {
  TreeImpl() {
    stem = register_module("stem", tonnage::Conv2d(nn::Conv2dOptions(2, 4, 3).padding(1)));
    body =
        register_module("body", nn::Sequential(nn::Flatten(), nn::Linear(4 * 25, 32), nn::ReLU()));
    shared = register_module("shared", tonnage::Linear(nn::LinearOptions(32, 32).bias(false)));
    again = register_module("again", shared);
    lstm = register_module("lstm", tonnage::LSTM(nn::LSTMOptions(32, 32).batch_first(true)));
    head = register_module("head", Head());
  }
  Tensor forward(const Tensor& x) {
    Tensor y = again(torch::tanh(shared(body->forward(stem(x)))));
    auto [output, state] = lstm(y.unsqueeze(1));
    return head(output.squeeze(1));
  }
  tonnage::Conv2d stem{nullptr};
  nn::Sequential body{nullptr};
  tonnage::Linear shared{nullptr}, again{nullptr};
  tonnage::LSTM lstm{nullptr};
  Head head{nullptr};
};
TORCH_MODULE(Tree);

struct FixedImpl : nn::Module {
  FixedImpl() {
    open = register_module("open", tonnage::Linear(8, 8));
    closed = register_module("closed", nn::Linear(8, 4));
  }
  Tensor forward(const Tensor& x) { return closed(open(x)); }
  tonnage::Linear open{nullptr};
  nn::Linear closed{nullptr};
};
TORCH_MODULE(Fixed);

struct CopyableImpl : nn::Cloneable<CopyableImpl> {
  CopyableImpl() { reset(); }
  void reset() override { fc = register_module("fc", tonnage::Linear(5, 3)); }
  tonnage::Linear fc{nullptr};
};
TORCH_MODULE(Copyable);

TEST(Replaceable, IsTorchsLayerUntilItIsReplaced) {
  torch::manual_seed(6);
  nn::Linear plain(5, 3);
  torch::manual_seed(6);
  tonnage::Linear ours(5, 3);
  EXPECT_EQ(ours->named_parameters().keys(), plain->named_parameters().keys());
  Tensor x = torch::randn({2, 5});
  EXPECT_TRUE(torch::equal(ours(x), plain(x)));
  auto clone = std::dynamic_pointer_cast<tonnage::LinearImpl>(ours->clone());
  ASSERT_TRUE(clone);
  EXPECT_TRUE(torch::equal(clone->forward(x), plain(x)));
  EXPECT_FALSE(clone->weight.is_same(ours->weight));
  EXPECT_TRUE(clone->parameters()[0].is_same(clone->weight));
  auto lstm = std::dynamic_pointer_cast<tonnage::LSTMImpl>(tonnage::LSTM(4, 4)->clone());
  EXPECT_TRUE(lstm && lstm->parameters().size() == 4);
  Copyable net;
  auto copied = std::dynamic_pointer_cast<CopyableImpl>(net->clone());
  EXPECT_TRUE(torch::equal(copied->fc(x), net->fc(x)));
  copied->fc->replace(nn::Linear(5, 3));
  EXPECT_TRUE(copied->fc->substitute() && !net->fc->substitute());
}

TEST(Replaceable, ForwardGoesToTheSubstitute) {
  torch::manual_seed(7);
  tonnage::Linear layer(6, 4);
  Tensor weight = layer->weight, x = torch::randn({3, 6}), before;
  {
    torch::NoGradGuard no_grad;  // a graph would hold the weight
    before = layer(x);
  }
  layer->eval();
  layer->replace(tonnage::low_rank_linear(layer, 4));  // full rank: the same numbers; a Sequential
  EXPECT_TRUE(torch::allclose(layer(x), before, 1e-4, 1e-5));
  EXPECT_FALSE(layer->substitute()->is_training());
  EXPECT_EQ(weight.use_count(), 1);  // the layer let go of it
  EXPECT_EQ(layer->named_parameters().keys(),
            (std::vector<std::string>{"layer.0.weight", "layer.1.weight", "layer.1.bias"}));
  nn::Linear other(6, 4);
  layer->replace(other);
  EXPECT_TRUE(torch::equal(layer(x), other(x)));
  EXPECT_EQ(layer->named_parameters().keys(),
            (std::vector<std::string>{"layer.weight", "layer.bias"}));
  EXPECT_THROW(layer->clone(), c10::Error);
  EXPECT_THROW(layer->replace(layer), c10::Error);
  EXPECT_THROW(layer->replace(nn::Linear(nullptr)), c10::Error);
  EXPECT_TRUE(torch::equal(layer(x), other(x)));
}

TEST(Replaceable, AnyLayerOfATree) {
  Tree tree;
  Tensor x = torch::randn({2, 2, 5, 5}), before = tree(x);
  std::vector<std::string> seen;
  const auto lora = [&](const std::string& name,
                        const std::shared_ptr<nn::Module>& layer) -> std::optional<nn::AnyModule> {
    seen.push_back(name);
    auto linear = std::dynamic_pointer_cast<nn::LinearImpl>(layer);
    if (!linear) return std::nullopt;
    return nn::AnyModule(tonnage::LoraLinear(nn::Linear(linear), tonnage::LoraOptions(2)));
  };
  const auto done = tonnage::replace_layers(*tree, lora);
  EXPECT_EQ(done.replaced, (std::vector<std::string>{"body.1", "shared", "head.fc"}));
  EXPECT_TRUE(done.fixed.empty());
  EXPECT_TRUE(torch::allclose(tree(x), before, 1e-5, 1e-6));  // a new LoRA layer is the layer
  EXPECT_TRUE(tree->again->substitute());                     // one object in two places
  tree(x).sum().backward();
  EXPECT_TRUE(tree->shared->substitute()->as<tonnage::LoraLinear>()->lora_b.grad().defined());
}

TEST(Quantize, AnyModuleTree) {
  torch::manual_seed(8);
  torch::NoGradGuard no_grad;
  Tree tree;
  tree->eval();
  Tensor x = torch::randn({16, 2, 5, 5}), before = tree(x);
  const auto done = tonnage::quantize_dynamic_(*tree);
  EXPECT_EQ(done.replaced, (std::vector<std::string>{"body.1", "shared", "lstm", "head.fc"}));
  Tensor after = tree(x);
  EXPECT_FALSE(torch::equal(after, before));
  EXPECT_LT(relative(after, before), 0.06);
  EXPECT_EQ(tree->parameters().size(), 2u);  // the convolution's
  // Every one of them computes in int8: its own numbers, put together by hand.
  Tensor y = tree->body->forward(tree->stem(x));
  auto shared =
      std::dynamic_pointer_cast<tonnage::DynamicQuantizedLinearImpl>(tree->shared->substitute());
  ASSERT_TRUE(shared);
  y = shared->forward(torch::tanh(shared->forward(y)));
  EXPECT_TRUE(torch::equal(
      after,
      tree->head(std::get<0>(tree->lstm->substitute()->as<tonnage::DynamicQuantizedLSTM>()->forward(
                                 y.unsqueeze(1)))
                     .squeeze(1))));
  EXPECT_TRUE(tonnage::quantize_dynamic_(*tree).replaced.empty());  // nothing is left to do
}

TEST(Quantize, WhatCannotBeReplacedIsSaid) {
  Fixed net;
  Tensor x = torch::randn({2, 8}), before = net(x);
  for (const auto& change : std::vector<std::function<void()>>{
           [&] { tonnage::quantize_dynamic_(*net); }, [&] { tonnage::prepare_qat_(*net); }}) {
    const std::string text = error_of(change);
    EXPECT_NE(text.find("1 layer cannot be replaced"), std::string::npos) << text;
    EXPECT_NE(text.find("closed (torch::nn::LinearImpl): it is a typed member of"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("Nothing was changed"), std::string::npos);
    EXPECT_FALSE(net->open->substitute());
  }
  EXPECT_TRUE(torch::equal(net(x), before));
  EXPECT_NE(error_of([] {
              tonnage::quantize_dynamic_(*nn::Linear(2, 2));
            }).find("it is the model itself"),
            std::string::npos);
  // A new Sequential cannot be given layers inside of its modules.
  const std::string inside = error_of([&] { tonnage::quantize_dynamic(nn::Sequential(Fixed())); });
  EXPECT_NE(inside.find("0.open and others. Replace them in place with quantize_dynamic_(*model)"),
            std::string::npos)
      << inside;

  auto listed = tonnage::quantize_dynamic_(*net, {.leave_fixed = true});
  EXPECT_EQ(listed.replaced, std::vector<std::string>{"open"});
  EXPECT_EQ(listed.fixed, std::vector<std::string>{"closed"});
  Fixed other;
  auto chosen = tonnage::prepare_qat_(
      *other,
      {.filter = [](const std::string& name, const nn::Module&) { return name != "closed"; }});
  EXPECT_EQ(chosen.replaced, std::vector<std::string>{"open"});
  EXPECT_TRUE(chosen.fixed.empty());
}

TEST(Quantize, LayersWithoutAKernelAreSaid) {
  nn::Sequential net(nn::Linear(4, 4), nn::LSTM(nn::LSTMOptions(4, 6).proj_size(2)));
  EXPECT_NE(error_of([&] { tonnage::quantize_dynamic_(*net); }).find("proj_size"),
            std::string::npos);
  EXPECT_TRUE(net[0]->as<nn::Linear>());
  nn::Sequential half(nn::Linear(4, 4));
  half->to(torch::kHalf);
  EXPECT_NE(
      error_of([&] { tonnage::quantize_dynamic_(*half); }).find("call to(torch::kFloat) first"),
      std::string::npos);
  EXPECT_NE(error_of([&] { tonnage::quantize_dynamic(half); }).find("call to(torch::kFloat) first"),
            std::string::npos);
  nn::Sequential reflecting(
      nn::Conv2d(nn::Conv2dOptions(1, 1, 3).padding(1).padding_mode(torch::kReflect)));
  EXPECT_NE(error_of([&] { tonnage::prepare_qat_(*reflecting); }).find("zero padding"),
            std::string::npos);
  struct OwnImpl : nn::LinearImpl {
    using LinearImpl::LinearImpl;
    Tensor forward(const Tensor& x) { return LinearImpl::forward(x).relu(); }
  };
  nn::Sequential own(std::make_shared<OwnImpl>(4, 4));
  EXPECT_NE(error_of([&] { tonnage::quantize_dynamic_(*own); }).find("derived from a layer"),
            std::string::npos);
}

TEST(Quantize, QatOfAModuleTree) {
  torch::manual_seed(9);
  Tree tree;
  const auto parameters = tree->parameters();
  torch::optim::SGD optimizer(
      parameters, torch::optim::SGDOptions(0.1));  // made before: the parameters stay the same
  const auto prepared = tonnage::prepare_qat_(*tree);
  EXPECT_EQ(prepared.replaced, (std::vector<std::string>{"stem", "body.1", "shared", "head.fc"}));
  Tensor x = torch::randn({64, 2, 5, 5}), y = torch::tanh(x.flatten(1).slice(1, 0, 4));
  EXPECT_NE(error_of([&] { tonnage::convert_(*tree); }).find("never saw data"), std::string::npos);
  EXPECT_TRUE(tree->stem->substitute()->as<tonnage::QatConv2d>());
  double first = 0, last = 0;
  for (int i = 0; i < 40; i++) {
    optimizer.zero_grad();
    Tensor loss = torch::mse_loss(tree(x), y);
    loss.backward();
    for (const Tensor& p : parameters) ASSERT_TRUE(p.grad().defined());
    optimizer.step();
    (i == 0 ? first : last) = loss.item<double>();
  }
  EXPECT_LT(last, first);
  tree->eval();
  torch::NoGradGuard no_grad;
  Tensor expected = tree(x);
  const auto converted = tonnage::convert_(*tree);
  EXPECT_EQ(converted.replaced, prepared.replaced);
  EXPECT_TRUE(std::dynamic_pointer_cast<tonnage::QuantizedLayerImpl>(tree->head->fc->substitute()));
  EXPECT_LT(relative(tree(x), expected), 0.1);
  EXPECT_EQ(tree->parameters().size(), 4u);  // the LSTM's: QAT has no LSTM
}

TEST(GpuQuantize, ATreeTakesAQuarterAndAnLstmStaysAway) {
  torch::NoGradGuard no_grad;
  Tree tree;
  tree->to(torch::kCUDA);
  EXPECT_NE(error_of([&] {
              tonnage::quantize_dynamic_(*tree);
            }).find("it is on cuda:0, and there is an int8 LSTM for the CPU only"),
            std::string::npos);
  tonnage::Linear layer(nn::LinearOptions(1024, 1024).bias(false));
  layer->to(torch::kCUDA);
  const int64_t before = tonnage::memory_stats().allocated_bytes.all.current;
  tonnage::quantize_dynamic_(*layer);
  EXPECT_EQ(tonnage::memory_stats().allocated_bytes.all.current - before,
            (1 << 20) + 4096 - (4 << 20));  // the float weight is gone
  layer(torch::ones({32, 1024}, torch::kCUDA));
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
