// Optimizers against torch::optim's own, on the CPU; their memory, on the virtual GPU (Gpu*).
#include "tonnage/torch/optim.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tonnage/torch/adafactor.h"
#include "tonnage/torch/adam8bit.h"
#include "tonnage/torch/optim_in_backward.h"

#include <sstream>

namespace optim_test {

using torch::Tensor;
namespace to = torch::optim;

// Parameters of several shapes and types, the same for every seed.
std::vector<Tensor> make_parameters(torch::Device device = torch::kCPU) {
  torch::manual_seed(7);
  std::vector<Tensor> parameters;
  for (const auto& shape : std::vector<std::vector<int64_t>>{{33, 17}, {128}, {4, 3, 5, 5}, {1}})
    parameters.push_back(torch::randn(shape).to(device).requires_grad_());
  parameters.push_back(torch::randn({40, 3}, torch::kDouble).to(device).requires_grad_());
  return parameters;
}

void set_gradients(const std::vector<Tensor>& parameters, int seed) {
  torch::manual_seed(seed);
  for (const Tensor& p : parameters) {
    Tensor leaf = p;
    leaf.mutable_grad() =
        torch::randn(p.sizes(), p.options().device(torch::kCPU).requires_grad(false)).to(p.device());
  }
}

// Both optimizers over equal parameters and gradients; the largest difference between the results,
// relative.
template <class A, class B, class Options>
double difference(Options options, int steps = 6) {
  auto a = make_parameters(), b = make_parameters();
  A first(a, options);
  B second(b, options);
  for (int i = 0; i < steps; i++) {
    set_gradients(a, i);
    set_gradients(b, i);
    first.step();
    second.step();
  }
  double worst = 0;
  for (size_t i = 0; i < a.size(); i++)
    worst =
        std::max(worst, ((a[i] - b[i]).abs() / b[i].abs().clamp_min(1e-3)).max().item<double>());
  return worst;
}

TEST(Optim, FusedAdamsFollowTorch) {
  EXPECT_LT((difference<tonnage::FusedAdam, to::Adam>(to::AdamOptions(1e-2).weight_decay(0.1))),
            2e-5);
  EXPECT_LT((difference<tonnage::FusedAdam, to::Adam>(to::AdamOptions(1e-2).amsgrad(true))), 2e-5);
  EXPECT_LT((difference<tonnage::FusedAdamW, to::AdamW>(to::AdamWOptions(1e-2).weight_decay(0.1))),
            2e-5);
}

TEST(Optim, ForeachAdamsFollowTorch) {
  EXPECT_LT((difference<tonnage::ForeachAdam, to::Adam>(to::AdamOptions(1e-2).weight_decay(0.1))),
            2e-5);
  EXPECT_LT((difference<tonnage::ForeachAdamW, to::AdamW>(
                to::AdamWOptions(1e-2).weight_decay(0.1).amsgrad(true))),
            2e-5);
}

TEST(Optim, SgdFollowsTorch) {
  for (auto options : {to::SGDOptions(0.1), to::SGDOptions(0.1).momentum(0.9),
                       to::SGDOptions(0.1).momentum(0.9).weight_decay(0.01),
                       to::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01),
                       to::SGDOptions(0.1).momentum(0.9).dampening(0.3)}) {
    EXPECT_LT((difference<tonnage::FusedSGD, to::SGD>(options)), 1e-5);
    EXPECT_EQ((difference<tonnage::ForeachSGD, to::SGD>(options)), 0);
  }
}

TEST(Optim, ParametersThatJoinLaterStartAtStepOne) {
  auto a = make_parameters(), b = make_parameters();
  tonnage::FusedAdamW fused(a, to::AdamWOptions(1e-2));
  to::AdamW plain(b, to::AdamWOptions(1e-2));
  for (int i = 0; i < 4; i++) {
    set_gradients(a, i);
    set_gradients(b, i);
    if (i < 2) a[1].mutable_grad().reset(), b[1].mutable_grad().reset();
    fused.step();
    plain.step();
  }
  EXPECT_TRUE(torch::allclose(a[1], b[1], 1e-5, 1e-6));
  EXPECT_TRUE(torch::allclose(a[0], b[0], 1e-5, 1e-6));
}

TEST(Optim, StateIsTorchsOwn) {
  auto a = make_parameters(), b = make_parameters();
  tonnage::FusedAdamW fused(a, to::AdamWOptions(1e-2));
  set_gradients(a, 1);
  fused.step();
  std::stringstream file;
  torch::save(fused, file);
  to::AdamW plain(b, to::AdamWOptions(1));
  torch::load(plain, file);
  for (size_t i = 0; i < a.size(); i++) b[i].detach().copy_(a[i].detach());
  set_gradients(a, 2);
  set_gradients(b, 2);
  fused.step();
  plain.step();
  for (size_t i = 0; i < a.size(); i++) EXPECT_TRUE(torch::allclose(a[i], b[i], 1e-5, 1e-6)) << i;
}

TEST(Optim, ClosureRunsWithGradients) {
  Tensor x = torch::ones({3}, torch::requires_grad());
  tonnage::FusedSGD optimizer({x}, to::SGDOptions(0.5));
  Tensor loss = optimizer.step([&] {
    Tensor l = (x * x).sum();
    l.backward();
    return l;
  });
  EXPECT_EQ(loss.item<float>(), 3);
  EXPECT_TRUE(torch::equal(x, torch::zeros({3})));
}

TEST(Optim, NothingChangesWhereOneGradientIsWrong) {
  auto p = make_parameters();
  tonnage::FusedAdamW optimizer(p, to::AdamWOptions(1e-2));
  set_gradients(p, 1);
  auto before = p[0].detach().clone();
  Tensor sparse =
      torch::sparse_coo_tensor(torch::zeros({2, 1}, torch::kLong), torch::ones({1}), {40, 3})
          .to(torch::kDouble);
  p[4].mutable_grad() = sparse;
  try {
    optimizer.step();
    FAIL() << "no error";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what_without_backtrace()).find("gradient of parameter 4 is sparse"),
              std::string::npos)
        << error.what();
  }
  EXPECT_TRUE(torch::equal(p[0], before));
  EXPECT_TRUE(optimizer.state().empty());
}

// One step of torch.optim.Adafactor's formulas, written out plainly.
struct PlainAdafactor {
  Tensor row, column, full;
  int step = 0;
  void update(Tensor p, const Tensor& grad, double lr, double weight_decay) {
    step++;
    const double eps1 = 1.1920928955078125e-07, share = std::pow(step, -0.8),
                 rate = std::min(lr, 1 / std::sqrt(double(step)));
    const double alpha = std::max(1e-3, p.square().mean().sqrt().item<double>()) * rate;
    p.mul_(1 - lr * weight_decay);
    Tensor estimate;
    if (p.dim() > 1) {
      Tensor r = grad.square().mean(-1, true), c = grad.square().mean(-2, true);
      row = row.defined() ? row + share * (r - row) : share * r;
      column = column.defined() ? column + share * (c - column) : share * c;
      estimate = torch::matmul(row, column) / row.mean(-2, true).clamp_min(eps1);
    } else {
      full = full.defined() ? full + share * (grad.square() - full) : share * grad.square();
      estimate = full;
    }
    Tensor u = grad / estimate.clamp_min(eps1 * eps1).sqrt();
    p.sub_(u * (alpha / std::max(1.0, u.square().mean().sqrt().item<double>())));
  }
};

TEST(Optim, AdafactorFollowsItsFormulas) {
  auto a = make_parameters(), b = make_parameters();
  a.pop_back(), b.pop_back();  // the double one has another epsilon
  tonnage::Adafactor optimizer(a, tonnage::AdafactorOptions(0.05).weight_decay(0.1));
  std::vector<PlainAdafactor> plain(b.size());
  for (int step = 0; step < 5; step++) {
    set_gradients(a, step);
    set_gradients(b, step);
    optimizer.step();
    for (size_t i = 0; i < b.size(); i++) plain[i].update(b[i].detach(), b[i].grad(), 0.05, 0.1);
  }
  for (size_t i = 0; i < a.size(); i++) EXPECT_TRUE(torch::allclose(a[i], b[i], 1e-4, 1e-6)) << i;
}

TEST(Optim, CodesOfEightBits) {
  torch::manual_seed(3);
  Tensor values = torch::randn({1000}) * torch::pow(10.0, -3 * torch::rand({1000}));
  auto [codes, scales] = tonnage::quantize_blocks(values, true);
  EXPECT_EQ(codes.numel(), 1000);
  EXPECT_EQ(scales.numel(), 4);
  Tensor back = tonnage::dequantize_blocks(codes, scales, true);
  Tensor limit = scales.repeat_interleave(256).slice(0, 0, 1000);
  // The last decade has 64 places of 0.9 / 64: an error of at most half of one, of the block's
  // magnitude.
  EXPECT_LE(((back - values).abs() / limit).max().item<float>(), 0.9 / 64 / 2 + 1e-6);
  EXPECT_TRUE(torch::equal(torch::sign(back), torch::sign(values)));
  // Every code is a fixed point.
  for (bool is_signed : {true, false}) {
    Tensor all = torch::arange(256, torch::kByte), one = torch::ones({1});
    Tensor decoded = tonnage::dequantize_blocks(all, one, is_signed);
    if (!is_signed) decoded[255] = 1;  // a block's largest value is its magnitude
    auto [again, scale] = tonnage::quantize_blocks(decoded, is_signed);
    EXPECT_EQ(scale.item<float>(), 1);
    EXPECT_TRUE(torch::equal(again, all)) << is_signed << (again != all).nonzero().flatten();
  }
  // The second moment never becomes zero.
  auto [tiny, tiny_scale] = tonnage::quantize_blocks(torch::tensor({1.0f, 1e-12f, 0.0f}), false);
  EXPECT_GT(tiny[1].item<int>(), 0);
  EXPECT_EQ(tiny[2].item<int>(), 0);
}

// A regression problem: both optimizers must reach the same loss.
double trained_loss(const std::function<std::unique_ptr<to::Optimizer>(std::vector<Tensor>)>& make,
                    torch::ScalarType type = torch::kFloat) {
  torch::manual_seed(5);
  torch::nn::Sequential net(torch::nn::Linear(64, 256), torch::nn::GELU(),
                            torch::nn::Linear(256, 16));
  net->to(type);
  Tensor x = torch::randn({256, 64}), y = torch::sin(x.matmul(torch::randn({64, 16}) / 4));
  auto optimizer = make(net->parameters());
  Tensor loss;
  for (int i = 0; i < 60; i++) {
    optimizer->zero_grad();
    loss = torch::mse_loss(net->forward(x.to(type)).to(torch::kFloat), y);
    loss.backward();
    optimizer->step();
  }
  return loss.item<double>();
}

TEST(Optim, EightBitsTrainAsWellAsFloat) {
  const double full =
      trained_loss([](auto p) { return std::make_unique<to::AdamW>(p, to::AdamWOptions(3e-3)); });
  const double small = trained_loss([](auto p) {
    return std::make_unique<tonnage::Adam8bit>(p,
                                               tonnage::Adam8bitOptions(3e-3).min_elements(1024));
  });
  EXPECT_LT(full, 0.1);
  EXPECT_NEAR(small, full, 0.05 * full);
  const double half = trained_loss(
      [](auto p) {
        return std::make_unique<tonnage::Adam8bit>(
            p, tonnage::Adam8bitOptions(3e-3).min_elements(1024));
      },
      torch::kBFloat16);
  EXPECT_LT(half, 0.15);
}

TEST(Optim, EightBitStateIsSavedAndLoaded) {
  auto a = make_parameters(), b = make_parameters();
  a.pop_back(), b.pop_back();
  tonnage::Adam8bit first(a, tonnage::Adam8bitOptions(1e-2).min_elements(200));
  set_gradients(a, 1);
  first.step();
  std::stringstream file;
  torch::save(first, file);
  tonnage::Adam8bit second(b, tonnage::Adam8bitOptions(1));
  torch::load(second, file);
  for (size_t i = 0; i < a.size(); i++) b[i].detach().copy_(a[i].detach());
  set_gradients(a, 2);
  set_gradients(b, 2);
  first.step();
  second.step();
  for (size_t i = 0; i < a.size(); i++) EXPECT_TRUE(torch::equal(a[i], b[i])) << i;
}

TEST(Optim, InBackwardIsBitwiseThePlainLoop) {
  auto run = [](bool in_backward) {
    torch::manual_seed(9);
    torch::nn::Sequential net(torch::nn::Linear(8, 32), torch::nn::Tanh(),
                              torch::nn::Linear(32, 4));
    auto make = [](std::vector<Tensor> p) {
      return std::make_unique<tonnage::FusedAdamW>(std::move(p), to::AdamWOptions(1e-2));
    };
    std::unique_ptr<tonnage::OptimizerInBackward> inside;
    std::unique_ptr<to::Optimizer> outside;
    if (in_backward)
      inside = std::make_unique<tonnage::OptimizerInBackward>(net->parameters(), make);
    else
      outside = make(net->parameters());
    for (int i = 0; i < 5; i++) {
      Tensor x = torch::randn({16, 8});
      net->forward(x).square().mean().backward();
      if (outside) outside->step(), outside->zero_grad();
      for (const Tensor& p : net->parameters()) EXPECT_FALSE(p.grad().defined());
    }
    EXPECT_EQ(inside ? inside->updates() : 20, 20);
    return torch::nn::utils::parameters_to_vector(net->parameters()).detach();
  };
  EXPECT_TRUE(torch::equal(run(true), run(false)));
}

TEST(Optim, InBackwardRefusesWhatItCannotDo) {
  auto make = [](std::vector<Tensor> p) {
    return std::make_unique<to::SGD>(std::move(p), to::SGDOptions(0.1));
  };
  Tensor x = torch::ones({2}, torch::requires_grad()), frozen = torch::ones({2});
  EXPECT_THROW(tonnage::OptimizerInBackward({x, frozen}, make), c10::Error);
  EXPECT_THROW(tonnage::OptimizerInBackward({x * 2}, make), c10::Error);
  EXPECT_THROW(tonnage::OptimizerInBackward({x, x}, make), c10::Error);
  {
    tonnage::OptimizerInBackward once({x}, make);
    EXPECT_THROW(tonnage::OptimizerInBackward({x}, make), c10::Error);
  }
  (x * 2).sum().backward();  // the hook is gone
  EXPECT_TRUE(torch::equal(x.grad(), torch::full({2}, 2.0f)));
  EXPECT_TRUE(torch::equal(x, torch::ones({2})));
}

}  // namespace optim_test
