#include "tonnage/torch/checkpoint.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "error_of.h"
#include "sizes.h"
#include "tonnage/torch/memory.h"
#include "tonnage/torch/precision.h"
#include "tonnage/torch/saved_tensor_hooks.h"

namespace {

using tonnage::checkpoint;
using tonnage_test::error_of;
using tonnage_test::kMiB;
using torch::Tensor;

struct Block : torch::nn::Module {
  explicit Block(int64_t width, double dropout = 0.1)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        up(register_module("up", torch::nn::Linear(width, 4 * width))),
        down(register_module("down", torch::nn::Linear(4 * width, width))),
        drop(register_module("drop", torch::nn::Dropout(dropout))) {}
  Tensor forward(Tensor x) { return x + drop(down(torch::gelu(up(norm(x))))); }
  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
  torch::nn::Dropout drop;
};

std::vector<std::shared_ptr<Block>> make_blocks(int count, int64_t width,
                                                torch::Device device = torch::kCPU) {
  torch::manual_seed(7);
  std::vector<std::shared_ptr<Block>> blocks;
  for (int i = 0; i < count; i++) {
    blocks.push_back(std::make_shared<Block>(width));
    blocks.back()->to(device);
  }
  return blocks;
}

std::vector<Tensor> gradients_of(const std::vector<std::shared_ptr<Block>>& blocks) {
  std::vector<Tensor> out;
  for (const auto& b : blocks)
    for (const auto& p : b->parameters()) {
      out.push_back(p.grad().clone());
      p.mutable_grad().reset();
    }
  return out;
}

void expect_same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); i++) EXPECT_TRUE(torch::equal(a[i], b[i])) << "tensor " << i;
}

enum class Way { kPlain, kEach, kNested };

Tensor forward(const std::vector<std::shared_ptr<Block>>& blocks, Tensor x, Way way,
               tonnage::CheckpointOptions options = {}) {
  auto call = [](std::shared_ptr<Block> b) { return [b](Tensor t) { return b->forward(t); }; };
  if (way == Way::kNested) {
    return checkpoint(
        options,
        [=](Tensor t) {
          for (const auto& b : blocks) t = checkpoint(options, call(b), t);
          return t.sin();
        },
        x);
  }
  for (const auto& b : blocks)
    x = way == Way::kPlain ? b->forward(x) : checkpoint(options, call(b), x);
  return x.sin();
}

TEST(Checkpoint, GradientsAreTheSameBitsWithDropout) {
  auto blocks = make_blocks(3, 16);
  auto data = torch::randn({5, 16});
  std::vector<Tensor> expected;
  Tensor expected_loss;
  for (Way way : {Way::kPlain, Way::kEach, Way::kNested}) {
    torch::manual_seed(11);
    Tensor loss = forward(blocks, data, way).square().sum();
    loss.backward();
    Tensor next = torch::rand({3});  // the random state after the step is the same too
    auto gradients = gradients_of(blocks);
    gradients.push_back(loss.detach());
    gradients.push_back(next);
    if (way == Way::kPlain)
      expected = gradients;
    else
      expect_same_bits(gradients, expected);
  }
}

TEST(Checkpoint, InputGradientRetainGraphAndGradOfGrad) {
  auto blocks = make_blocks(2, 8);
  for (const auto& b : blocks) b->eval();
  auto run = [&](Way way) {
    auto x = torch::linspace(-1, 1, 16).reshape({2, 8}).requires_grad_();
    Tensor y = forward(blocks, x, way).sum();
    auto first =
        torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
    auto again = torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true)[0];
    first.square().sum().backward();
    auto out = gradients_of(blocks);
    out.insert(out.end(), {first.detach(), again, x.grad()});
    return out;
  };
  auto expected = run(Way::kPlain);
  expect_same_bits(run(Way::kEach), expected);
  expect_same_bits(run(Way::kNested), expected);
}

TEST(Checkpoint, RunsOnceMoreAndStopsEarly) {
  int calls = 0, ends = 0;
  auto function = [&](Tensor x) {
    calls++;
    x = (x * 2).exp() + 1;
    ends++;
    return x;
  };
  auto x = torch::ones({3}).requires_grad_();
  checkpoint(function, x).sum().backward();
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(ends, 1);  // the saved result of exp is there: the rest was left out
  checkpoint(tonnage::CheckpointOptions{.early_stop = false}, function, x).sum().backward();
  EXPECT_EQ(calls, 4);
  EXPECT_EQ(ends, 3);
}

TEST(Checkpoint, ManyInputsAndResults) {
  auto a = torch::randn({4}).requires_grad_(), b = torch::randn({4}).requires_grad_();
  auto function = [](std::vector<Tensor> list, std::optional<Tensor> maybe, double scale,
                     Tensor t) {
    return std::make_tuple((list[0] * list[1]).exp() * scale,
                           maybe.has_value() ? *maybe * t : t * t);
  };
  auto [p, q] = checkpoint(function, std::vector<Tensor>{a, b}, std::optional<Tensor>(), 3.0, a);
  auto got = torch::autograd::grad({(p + q).sum()}, {a, b});
  auto [r, s] = function({a, b}, std::nullopt, 3.0, a);
  expect_same_bits(got, torch::autograd::grad({(r + s).sum()}, {a, b}));
  auto [u, v] = checkpoint(function, std::vector<Tensor>{a, b}, std::optional<Tensor>(b), 3.0, a);
  auto [f, g] = function({a, b}, b, 3.0, a);
  expect_same_bits(torch::autograd::grad({(u + v).sum()}, {a, b}),
                   torch::autograd::grad({(f + g).sum()}, {a, b}));
}

TEST(Checkpoint, KeepsAutocast) {
  torch::nn::Linear linear(8, 8);
  auto x = torch::randn({2, 8}).requires_grad_();
  std::vector<c10::ScalarType> types;
  auto function = [&](Tensor t) {
    t = linear(t);
    types.push_back(t.scalar_type());
    return t.relu().square();
  };
  Tensor y;
  {
    tonnage::AutocastGuard guard(torch::kCPU);
    y = checkpoint(function, x);
  }
  y.sum().backward();
  EXPECT_EQ(types, (std::vector<c10::ScalarType>{torch::kBFloat16, torch::kBFloat16}));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
}

TEST(Checkpoint, Sequential) {
  torch::manual_seed(3);
  torch::nn::Sequential model;
  for (int i = 0; i < 5; i++) {
    model->push_back(torch::nn::Linear(6, 6));
    model->push_back(torch::nn::Tanh());
  }
  auto x = torch::randn({4, 6});
  auto run = [&](auto forward) {
    forward().square().sum().backward();
    std::vector<Tensor> out;
    for (const auto& p : model->parameters()) out.push_back(p.grad().clone());
    model->zero_grad();
    return out;
  };
  auto expected = run([&] { return model->forward(x); });
  for (int64_t segments : {1, 3, 10})
    expect_same_bits(run([&] { return tonnage::checkpoint_sequential(model, segments, x); }),
                     expected);
  EXPECT_THROW(tonnage::checkpoint_sequential(model, 0, x), c10::Error);
  EXPECT_THROW(tonnage::checkpoint_sequential(model, 11, x), c10::Error);
  EXPECT_THROW(tonnage::checkpoint_sequential(torch::nn::Sequential(), 1, x), c10::Error);
}

TEST(Checkpoint, BadFunctionsAreTold) {
  auto x = torch::ones({3}).requires_grad_();
  EXPECT_NE(
      error_of([&] { checkpoint([](Tensor) { return Tensor(); }, x); }).find("returned no tensor"),
      std::string::npos);
  int calls = 0;
  auto other_shape = [&](Tensor t) { return calls++ ? t.narrow(0, 0, 2).exp() : t.exp(); };
  Tensor y = checkpoint(other_shape, x);
  EXPECT_NE(error_of([&] { y.sum().backward(); }).find("instead of Float [3]"), std::string::npos);
  calls = 0;
  auto fewer = [&](Tensor t) { return calls++ ? t + 1 : t.exp().exp(); };
  Tensor z = checkpoint(fewer, x);
  EXPECT_NE(error_of([&] { z.sum().backward(); }).find("saved 2 tensors in its first run and 0"),
            std::string::npos);
  auto changed = torch::ones({3});
  Tensor w = checkpoint([&](Tensor t) { return t * x; }, changed);
  changed.add_(1);
  EXPECT_NE(error_of([&] { w.sum().backward(); }).find("inplace"), std::string::npos);
  EXPECT_THROW(checkpoint([](Tensor) -> Tensor { throw std::runtime_error("mine"); }, x),
               std::runtime_error);
  EXPECT_EQ(tonnage::current_saved_tensor_hooks(), nullptr);  // nothing is left behind
}

TEST(Checkpoint, WithoutGradientsNothingIsKept) {
  torch::NoGradGuard no_grad;
  int calls = 0;
  EXPECT_FALSE(checkpoint(
                   [&](Tensor t) {
                     calls++;
                     return t * 2;
                   },
                   torch::ones({2}).requires_grad_())
                   .requires_grad());
  EXPECT_EQ(calls, 1);
}

TEST(Checkpoint, TheGraphLetsGo) {
  std::weak_ptr<int> watched;
  auto x = torch::ones({3}).requires_grad_();
  {
    auto token = std::make_shared<int>(1);
    watched = token;
    Tensor y = checkpoint([token](Tensor t) { return (t * 2).exp(); }, x);
    token.reset();
    EXPECT_FALSE(watched.expired());
    y.sum().backward();
    EXPECT_TRUE(watched.expired());  // the backward pass released what it had saved
  }
  {
    auto token = std::make_shared<int>(1);
    watched = token;
    Tensor mine = x * 2;
    Tensor y = checkpoint([token](Tensor t) { return t.exp_(); },
                          mine);  // an input that becomes part of the graph
  }
  EXPECT_TRUE(watched.expired());
}

// Six layers gelu(x w), all of 4 MiB: plainly each keeps its input and what goes into gelu.
TEST(GpuCheckpoint, KeepsTheInputsOnly) {
  std::vector<Tensor> weights;
  for (int i = 0; i < 6; i++)
    weights.push_back(torch::zeros({1024, 1024}, torch::kCUDA).requires_grad_());
  auto x = torch::zeros({1024, 1024}, torch::kCUDA);
  auto forward = [&](bool checkpointed) {
    Tensor y = x;
    for (const Tensor& w : weights) {
      auto layer = [w](const Tensor& t) { return torch::gelu(t.matmul(w)); };
      y = checkpointed ? checkpoint(layer, y) : layer(y);
    }
    return y.sum();
  };
  forward(true).backward();  // gradients and workspaces are there from now on
  auto figures = [&](bool checkpointed) {
    tonnage::PeakScope scope;
    const int64_t before = scope.begin_allocated_bytes();
    Tensor loss = forward(checkpointed);
    const int64_t kept = tonnage::memory_stats().allocated_bytes.all.current - before;
    loss.backward();
    loss = Tensor();
    EXPECT_EQ(tonnage::memory_stats().allocated_bytes.all.current, before);
    return std::pair(kept, scope.added_peak_bytes());
  };
  constexpr int64_t kLoss = 512, kTensor = 4 * kMiB;
  EXPECT_EQ(figures(false).first,
            11 * kTensor + kLoss);  // all but the first input, which is there anyway
  EXPECT_EQ(figures(true).first, 5 * kTensor + kLoss);
  // The last layer's backward pass: its gradient, its input's and its weight's, on top of what is
  // kept. Recomputation makes gelu's input only: it stops before gelu.
  EXPECT_EQ(figures(false).second, 13 * kTensor + 2 * kLoss);
  EXPECT_EQ(figures(true).second, 8 * kTensor + 2 * kLoss);
}

TEST(GpuNumbersCheckpoint, SameBitsWithDropout) {
  auto blocks = make_blocks(3, 256, torch::kCUDA);
  auto data = torch::randn({64, 256}, torch::kCUDA);
  std::vector<Tensor> expected;
  for (Way way : {Way::kPlain, Way::kEach, Way::kNested}) {
    torch::manual_seed(11);
    forward(blocks, data, way).square().sum().backward();
    auto gradients = gradients_of(blocks);
    gradients.push_back(torch::rand({3}, torch::kCUDA));
    if (way == Way::kPlain)
      expected = gradients;
    else
      expect_same_bits(gradients, expected);
  }
}

TEST(SavedTensorHooks, ChangeWhatIsKept) {
  struct Halve : tonnage::SavedTensorHooks {
    std::unique_ptr<tonnage::PackedTensor> pack(const Tensor& t) override {
      if (tonnage::is_parameter_storage(t)) {
        parameters++;
        return nullptr;
      }
      packed++;
      return tonnage::pack_with(t.to(torch::kBFloat16),
                                [](const Tensor& p) { return p.to(torch::kFloat); });
    }
    int parameters = 0, packed = 0;
  };
  auto hooks = std::make_shared<Halve>();
  torch::nn::Linear linear(4, 3);
  auto x = torch::full({2, 4}, 1.001f);
  {
    tonnage::SavedTensorHooksGuard guard(hooks);
    linear(x.clone().requires_grad_() * 1).sum().backward();
  }
  EXPECT_EQ(hooks->packed, 1);      // the linear's input
  EXPECT_EQ(hooks->parameters, 1);  // its weight, transposed
  EXPECT_TRUE(
      torch::equal(linear->weight.grad(), torch::full({3, 4}, 2.0f)));  // 1.001 is 1 in bfloat16
}

TEST(SavedTensorHooks, InnermostGuardCountsAndWritesAreSeen) {
  struct Nothing : tonnage::SavedTensorHooks {
    std::unique_ptr<tonnage::PackedTensor> pack(const Tensor&) override { return count++, nullptr; }
    int count = 0;
  };
  auto outer = std::make_shared<Nothing>(), inner = std::make_shared<Nothing>();
  auto x = torch::ones({2}).requires_grad_();
  auto data = torch::ones({2});
  Tensor y;
  {
    tonnage::SavedTensorHooksGuard a(outer);
    y = x * data;
    {
      tonnage::SavedTensorHooksGuard b(inner);
      y.exp();
      tonnage::SavedTensorHooksGuard c(nullptr);
      y.exp();
    }
  }
  EXPECT_EQ(outer->count, 1);
  EXPECT_EQ(inner->count, 1);
  data.add_(1);
  EXPECT_NE(error_of([&] { y.sum().backward(); }).find("modified by an inplace operation"),
            std::string::npos);
}

}  // namespace
