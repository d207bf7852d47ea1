// What optimizers take on the device, to the byte (virtual GPU), and their numbers there (a real
// card only: GpuNumbers*).
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tonnage/torch/adafactor.h"
#include "tonnage/torch/adam8bit.h"
#include "tonnage/torch/memory.h"
#include "tonnage/torch/offloaded_adamw.h"
#include "tonnage/torch/optim.h"
#include "tonnage/torch/optim_in_backward.h"

namespace optim_memory_test {

using torch::Tensor;
namespace to = torch::optim;
constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kScalar = 512;  // the allocator's smallest block

// `count` parameters of 1024 x 1024 floats (4 MiB each), with gradients.
std::vector<Tensor> matrices(int count) {
  std::vector<Tensor> parameters;
  for (int i = 0; i < count; i++) {
    parameters.push_back(torch::zeros({1024, 1024}, torch::kCUDA).requires_grad_());
    parameters.back().mutable_grad() = torch::ones({1024, 1024}, torch::kCUDA);
  }
  return parameters;
}

struct Cost {
  int64_t kept_bytes;  // state
  int64_t first_peak_bytes,
      peak_bytes;  // on top of what was there, in the first step and a later one
};

Cost cost_of(to::Optimizer& optimizer) {
  const int64_t before = tonnage::memory_stats().allocated_bytes.all.current;
  Cost cost{};
  {
    tonnage::PeakScope scope;
    optimizer.step();
    cost.first_peak_bytes = scope.added_peak_bytes();
  }
  tonnage::PeakScope scope;
  optimizer.step();
  cost.peak_bytes = scope.added_peak_bytes();
  cost.kept_bytes = tonnage::memory_stats().allocated_bytes.all.current - before;
  return cost;
}

TEST(GpuOptim, FusedKeepsTwoMomentsAndNothingElse) {
  auto p = matrices(3);
  tonnage::FusedAdamW adamw(p, to::AdamWOptions(1e-3));
  Cost cost = cost_of(adamw);
  EXPECT_EQ(cost.kept_bytes, 3 * 8 * kMiB);
  EXPECT_EQ(cost.peak_bytes, kScalar);
  tonnage::FusedSGD sgd(p, to::SGDOptions(1e-3).momentum(0.9));
  cost = cost_of(sgd);
  EXPECT_EQ(cost.kept_bytes, 3 * 4 * kMiB);
  EXPECT_EQ(cost.peak_bytes, 0);
}

TEST(GpuOptim, ForeachWorksInSlices) {
  auto p = matrices(40);  // 160 MiB: slices of 64, 64 and 32
  tonnage::ForeachAdamW adamw(p, to::AdamWOptions(1e-3));
  const Cost cost = cost_of(adamw);
  EXPECT_EQ(cost.kept_bytes, 40 * 8 * kMiB);
  EXPECT_EQ(cost.peak_bytes, tonnage::kForeachSliceBytes);
}

TEST(GpuOptim, EightBitsKeepAQuarter) {
  auto p = matrices(3);
  tonnage::Adam8bit adam(p);
  const Cost cost = cost_of(adam);
  EXPECT_EQ(cost.kept_bytes, 3 * (2 * kMiB + 2 * 4 * (1024 * 1024 / 256)));
  EXPECT_EQ(cost.peak_bytes, 0);
}

TEST(GpuOptim, AdafactorKeepsARowAndAColumn) {
  auto p = matrices(3);
  torch::matmul(p[0].detach(), p[1].detach());  // cuBLAS takes its workspace the first time
  tonnage::Adafactor adafactor(p);
  const Cost cost = cost_of(adafactor);
  EXPECT_EQ(cost.kept_bytes, 3 * (4096 + 4096));
  EXPECT_LE(cost.peak_bytes, 2 * 4 * kMiB + 16 * kScalar);  // two tensors of one parameter's size
}

TEST(GpuOptim, InBackwardNeverHoldsAllGradients) {
  const auto peak = [](bool in_backward) {
    torch::nn::Sequential net;
    for (int i = 0; i < 8; i++)
      net->push_back(torch::nn::Linear(torch::nn::LinearOptions(1024, 1024).bias(false)));
    net->to(torch::kCUDA);
    auto make = [](std::vector<Tensor> p) {
      return std::make_unique<tonnage::FusedSGD>(std::move(p), to::SGDOptions(0.1));
    };
    std::unique_ptr<tonnage::OptimizerInBackward> inside;
    std::unique_ptr<to::Optimizer> outside;
    if (in_backward)
      inside = std::make_unique<tonnage::OptimizerInBackward>(net->parameters(), make);
    else
      outside = make(net->parameters());
    Tensor x = torch::zeros({2, 1024}, torch::kCUDA);
    int64_t bytes = 0;
    for (int i = 0; i < 2; i++) {
      tonnage::PeakScope scope;
      net->forward(x).sum().backward();
      bytes = scope.added_peak_bytes();
      if (outside) outside->step(), outside->zero_grad();
    }
    return bytes;
  };
  const int64_t plain = peak(false), inside = peak(true);
  // Its peak is at the last layer, where 7 activations and a gradient on its way, 8 KiB each, are
  // there as well.
  EXPECT_EQ(plain - inside, 7 * 4 * kMiB - 8 * 8192);
}

TEST(GpuOptim, OffloadedKeepsNothingOnTheDevice) {
  auto p = matrices(8);
  tonnage::OffloadedAdamW adamw(p, to::AdamWOptions(1e-3), 8 * kMiB);  // two parameters in a bucket
  const Cost cost = cost_of(adamw);
  EXPECT_EQ(cost.kept_bytes, 0);
  EXPECT_EQ(cost.peak_bytes, 6 * 8 * kMiB + kScalar);
  EXPECT_EQ(adamw.host_bytes(), 8 * 8 * kMiB);
}

std::vector<Tensor> trained(
    const std::function<std::unique_ptr<to::Optimizer>(std::vector<Tensor>)>& make,
    torch::Device device, torch::ScalarType type = torch::kFloat) {
  std::vector<Tensor> p;
  torch::manual_seed(1);
  for (const auto& shape :
       std::vector<std::vector<int64_t>>{{300, 257}, {5000}, {17}, {64, 3, 3, 3}})
    p.push_back(torch::randn(shape).to(device, type).requires_grad_());
  auto optimizer = make(p);
  for (int i = 0; i < 5; i++) {
    for (Tensor& t : p) t.mutable_grad() = torch::randn(t.sizes()).to(device, type);
    optimizer->step();
  }
  for (Tensor& t : p) t = t.detach().cpu().to(torch::kFloat);
  return p;
}

TEST(GpuNumbersOptim, SameOnTheCardAsOnTheCpu) {
  auto eight = [](std::vector<Tensor> p) {
    return std::make_unique<tonnage::Adam8bit>(p,
                                               tonnage::Adam8bitOptions(1e-2).min_elements(1000));
  };
  auto factor = [](std::vector<Tensor> p) { return std::make_unique<tonnage::Adafactor>(p); };
  auto fused = [](std::vector<Tensor> p) {
    return std::make_unique<tonnage::FusedAdamW>(p, to::AdamWOptions(1e-2));
  };
  auto foreach = [](std::vector<Tensor> p) {
    return std::make_unique<tonnage::ForeachAdamW>(p, to::AdamWOptions(1e-2));
  };
  auto offloaded = [](std::vector<Tensor> p) {
    return std::make_unique<tonnage::OffloadedAdamW>(p, to::AdamWOptions(1e-2), 1 << 18);
  };
  const auto compare = [](const std::vector<Tensor>& a, const std::vector<Tensor>& b,
                          double tolerance) {
    for (size_t i = 0; i < a.size(); i++)
      EXPECT_LE((a[i] - b[i]).abs().max().item<double>(), tolerance) << i;
  };
  compare(trained(fused, torch::kCUDA), trained(fused, torch::kCPU), 1e-5);
  compare(trained(foreach, torch::kCUDA), trained(fused, torch::kCPU), 1e-5);
  compare(trained(factor, torch::kCUDA), trained(factor, torch::kCPU), 1e-4);
  compare(trained(offloaded, torch::kCUDA), trained(fused, torch::kCUDA), 0);
  // A code on the edge of two places may fall to either side: a small share of one step.
  compare(trained(eight, torch::kCUDA), trained(eight, torch::kCPU), 1e-3);
  compare(trained(eight, torch::kCUDA, torch::kBFloat16),
          trained(eight, torch::kCPU, torch::kBFloat16), 0.04);
  compare(trained(eight, torch::kCUDA, torch::kHalf), trained(eight, torch::kCPU, torch::kHalf),
          1e-2);
}

}  // namespace optim_memory_test
