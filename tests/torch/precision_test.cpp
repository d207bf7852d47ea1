#include "tonnage/torch/precision.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "tonnage/torch/memory.h"

namespace {

using torch::Tensor;

// What torch.amp.GradScaler('cpu') of PyTorch 2.11 does for these options and infinities: scale, growth tracker, last parameter.
TEST(GradScaler, SameTrajectoryAsPython) {
  const int infinite[] = {0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0};
  const double scales[] = {1024, 3072, 768, 768, 2304, 2304, 6912, 1728, 432, 432, 1296};
  const int64_t trackers[] = {1, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0};
  const float parameters[] = {-0.30000001192092896f, -0.6000000238418579f, -0.6000000238418579f, -0.9000000357627869f, -1.2000000476837158f,
                              -1.5f, -1.7999999523162842f, -1.7999999523162842f, -1.7999999523162842f, -2.0999999046325684f, -2.3999998569488525f};
  Tensor p = torch::zeros({3}).requires_grad_();
  torch::optim::SGD optimizer({p}, torch::optim::SGDOptions(0.1));
  tonnage::GradScaler scaler({.initial_scale = 1024, .growth_factor = 3, .backoff_factor = 0.25, .growth_interval = 2});
  for (size_t i = 0; i < std::size(infinite); i++) {
    optimizer.zero_grad();
    Tensor loss = (p * torch::tensor({1.f, 2.f, 3.f})).sum() * (infinite[i] ? std::numeric_limits<float>::infinity() : 1.f);
    scaler.scale(loss).backward();
    EXPECT_EQ(scaler.step(optimizer), !infinite[i]);
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), scales[i]) << i;
    EXPECT_EQ(scaler.state().growth_tracker, trackers[i]) << i;
    EXPECT_EQ(p[2].item<float>(), parameters[i]) << i;
  }
  tonnage::GradScaler other;
  other.load_state(scaler.state());
  EXPECT_EQ(other.get_scale(), 1296);
  EXPECT_EQ(other.state().growth_interval, 2);
}

std::string error_text(const std::function<void()>& what) {
  try {
    what();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(GradScaler, WrongOrderIsTold) {
  Tensor p = torch::ones({2}).requires_grad_(), half = torch::ones({2}, torch::kHalf).requires_grad_();
  torch::optim::SGD optimizer({p}, 0.1), of_half({half}, 0.1);
  tonnage::GradScaler scaler;
  EXPECT_NE(error_text([&] { scaler.step(optimizer); }).find("scale() was not called"), std::string::npos);
  scaler.scale(p.sum()).backward();
  scaler.unscale_(optimizer);
  EXPECT_TRUE(torch::equal(p.grad(), torch::ones({2})));
  EXPECT_NE(error_text([&] { scaler.unscale_(optimizer); }).find("already"), std::string::npos);
  EXPECT_TRUE(scaler.step(optimizer));
  EXPECT_NE(error_text([&] { scaler.step(optimizer); }).find("already"), std::string::npos);
  scaler.update();
  EXPECT_NE(error_text([&] { scaler.update(); }).find("no gradients were checked"), std::string::npos);
  half.sum().backward();
  EXPECT_NE(error_text([&] { scaler.step(of_half); }).find("float16"), std::string::npos);
  EXPECT_THROW(tonnage::GradScaler({.growth_factor = 1}), c10::Error);
  EXPECT_THROW(tonnage::GradScaler({.backoff_factor = 1}), c10::Error);
  tonnage::GradScaler off({.enabled = false});
  EXPECT_EQ(off.scale(p).unsafeGetTensorImpl(), p.unsafeGetTensorImpl());
  EXPECT_TRUE(off.step(optimizer));
  EXPECT_EQ(off.get_scale(), 1);
}

TEST(AutocastGuard, CastsInsideAndPutsBack) {
  torch::nn::Linear linear(4, 4);
  auto x = torch::ones({2, 4});
  {
    tonnage::AutocastGuard guard(torch::kCPU);
    EXPECT_EQ(linear(x).scalar_type(), torch::kBFloat16);
    {
      tonnage::AutocastGuard off(torch::kCPU, torch::kBFloat16, /*enabled=*/false);
      EXPECT_EQ(linear(x).scalar_type(), torch::kFloat);
    }
    EXPECT_EQ(linear(x).scalar_type(), torch::kBFloat16);
  }
  EXPECT_EQ(linear(x).scalar_type(), torch::kFloat);
  EXPECT_THROW(tonnage::AutocastGuard(torch::kCPU, torch::kDouble), c10::Error);
  EXPECT_THROW(tonnage::AutocastGuard(torch::kMPS), c10::Error);
}

TEST(GpuAutocast, KeepsACopyOfEveryParameterUntilItEnds) {
  auto weight = torch::zeros({1024, 1024}, torch::kCUDA).requires_grad_();
  auto x = torch::ones({1024, 1024}, torch::kCUDA);
  { tonnage::AutocastGuard guard; x.matmul(weight); }  // cuBLAS's workspace
  const int64_t before = tonnage::memory_stats().allocated_bytes.all.current;
  {
    tonnage::AutocastGuard guard;
    { Tensor y = x.matmul(weight).detach(); }
    EXPECT_EQ(tonnage::memory_stats().allocated_bytes.all.current - before, 2 << 20);  // the weight in bfloat16
  }
  EXPECT_EQ(tonnage::memory_stats().allocated_bytes.all.current, before);
}

TEST(GpuGradScaler, TakesTwoScalars) {
  auto loss = torch::ones({}, torch::kCUDA);
  const int64_t before = tonnage::memory_stats().allocated_bytes.all.current;
  tonnage::GradScaler scaler;
  scaler.scale(loss);
  EXPECT_EQ(tonnage::memory_stats().allocated_bytes.all.current - before, 1024);
}

}  // namespace
