#include "tonnage/torch/precision.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <sstream>

#include "error_of.h"
#include "scaled_fused_values.h"
#include "tonnage/torch/memory.h"
#include "tonnage/torch/optim.h"

namespace {

using tonnage_test::error_of;
using torch::Tensor;

// What torch.amp.GradScaler('cpu') of PyTorch 2.11 does for these options and infinities: scale,
// growth tracker, last parameter.
TEST(GradScaler, SameTrajectoryAsPython) {
  const int infinite[] = {0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0};
  const double scales[] = {1024, 3072, 768, 768, 2304, 2304, 6912, 1728, 432, 432, 1296};
  const int64_t trackers[] = {1, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0};
  const float parameters[] = {-0.30000001192092896f, -0.6000000238418579f, -0.6000000238418579f,
                              -0.9000000357627869f,  -1.2000000476837158f, -1.5f,
                              -1.7999999523162842f,  -1.7999999523162842f, -1.7999999523162842f,
                              -2.0999999046325684f,  -2.3999998569488525f};
  Tensor p = torch::zeros({3}).requires_grad_();
  torch::optim::SGD optimizer({p}, torch::optim::SGDOptions(0.1));
  tonnage::GradScaler scaler(
      {.initial_scale = 1024, .growth_factor = 3, .backoff_factor = 0.25, .growth_interval = 2});
  for (size_t i = 0; i < std::size(infinite); i++) {
    optimizer.zero_grad();
    Tensor loss = (p * torch::tensor({1.f, 2.f, 3.f})).sum() *
                  (infinite[i] ? std::numeric_limits<float>::infinity() : 1.f);
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

template <class State, class Optimizer, class Options>
void expect_rows(const scaled_fused::Row (&rows)[std::size(scaled_fused::kInfinite)],
                 const Options& options, torch::ScalarType type = torch::kFloat) {
  Tensor p = torch::tensor(torch::ArrayRef<float>(scaled_fused::kStart)).to(type).requires_grad_();
  Optimizer optimizer({p}, options);
  tonnage::GradScaler scaler(
      {.initial_scale = 1024, .growth_factor = 2, .backoff_factor = 0.5, .growth_interval = 2});
  for (int i = 0; i < static_cast<int>(std::size(rows)); i++) {
    const bool infinite = scaled_fused::kInfinite[i];
    optimizer.zero_grad();
    Tensor loss = (p * torch::arange(1, 6, type) / 4).sum() *
                  (infinite ? std::numeric_limits<double>::infinity() : 1.0);
    scaler.scale(loss).backward();
    if (i % scaled_fused::kUnscaled == 1 && type == torch::kFloat) scaler.unscale_(optimizer);
    EXPECT_EQ(scaler.step(optimizer), !infinite) << i;
    scaler.update();
    EXPECT_TRUE(torch::equal(p.detach().to(torch::kFloat),
                             torch::tensor(torch::ArrayRef<float>(rows[i].parameters))))
        << i << p;
    EXPECT_EQ(scaler.get_scale(), rows[i].scale) << i;
    if constexpr (!std::is_same_v<State, torch::optim::SGDParamState>) {
      EXPECT_EQ(static_cast<State&>(*optimizer.state().at(p.unsafeGetTensorImpl())).step(),
                rows[i].step)
          << i;
    }
  }
}

TEST(GradScaler, FusedOptimizersDoBitwiseWhatPythonsDo) {
  namespace to = torch::optim;
  expect_rows<to::AdamParamState, tonnage::FusedAdam>(
      scaled_fused::kAdam, to::AdamOptions(0.0625).weight_decay(0.125).amsgrad(true));
  expect_rows<to::AdamWParamState, tonnage::FusedAdamW>(
      scaled_fused::kAdamW, to::AdamWOptions(0.0625).weight_decay(0.125));
  expect_rows<to::SGDParamState, tonnage::FusedSGD>(
      scaled_fused::kSGD, to::SGDOptions(0.0625).momentum(0.75).weight_decay(0.125).nesterov(true));
  expect_rows<to::AdamWParamState, tonnage::FusedAdamW>(
      scaled_fused::kAdamWHalf, to::AdamWOptions(0.0625).weight_decay(0.125), torch::kHalf);
}

TEST(GradScaler, AFusedFirstStepThatIsSkippedLeavesNothingBehind) {
  Tensor p = torch::ones({4}).requires_grad_(), never = torch::ones({2}).requires_grad_();
  tonnage::FusedSGD sgd({p, never}, torch::optim::SGDOptions(0.5).momentum(0.5));
  tonnage::FusedAdamW adam({p}, torch::optim::AdamWOptions(0.5));
  tonnage::GradScaler scaler({.initial_scale = 16});
  const auto step = [&](torch::optim::Optimizer& optimizer, double factor) {
    optimizer.zero_grad();
    scaler.scale(p.sum() * factor).backward();
    const bool taken = scaler.step(optimizer);
    scaler.update();
    return taken;
  };
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(step(sgd, infinity));
  EXPECT_FALSE(step(adam, infinity));
  EXPECT_TRUE(sgd.state().empty());
  EXPECT_TRUE(torch::equal(p, torch::ones({4})));
  EXPECT_TRUE(step(sgd, 1));  // the momentum is the gradient, as in any first step
  EXPECT_TRUE(torch::equal(p, torch::full({4}, 0.5f)));
  EXPECT_TRUE(torch::equal(p.grad(), torch::ones({4})));  // divided by the kernel
  std::stringstream file;
  torch::save(adam, file);
  torch::optim::AdamW plain({p}, torch::optim::AdamWOptions(0.5));
  torch::load(plain, file);
  EXPECT_EQ(
      static_cast<torch::optim::AdamWParamState&>(*plain.state().at(p.unsafeGetTensorImpl())).step(),
      0);
}

TEST(GradScaler, AFusedOptimizerWithoutGradientsIsTold) {
  Tensor p = torch::ones({2}).requires_grad_();
  tonnage::FusedAdam optimizer({p}, torch::optim::AdamOptions(0.1));
  tonnage::GradScaler scaler;
  EXPECT_THROW(scaler.step(optimizer), c10::Error);  // no scale yet
  scaler.scale(p.sum());
  EXPECT_THROW(scaler.step(optimizer), c10::Error);  // no gradients
  EXPECT_THROW(optimizer.step_scaled({}, {}), c10::Error);
  EXPECT_THROW(optimizer.step_scaled(torch::ones({2}), torch::zeros({})), c10::Error);
  EXPECT_TRUE(optimizer.state().empty());
}

TEST(GradScaler, WrongOrderIsTold) {
  Tensor p = torch::ones({2}).requires_grad_(),
         half = torch::ones({2}, torch::kHalf).requires_grad_();
  torch::optim::SGD optimizer({p}, 0.1), of_half({half}, 0.1);
  tonnage::GradScaler scaler;
  EXPECT_NE(error_of([&] { scaler.step(optimizer); }).find("scale() was not called"),
            std::string::npos);
  scaler.scale(p.sum()).backward();
  scaler.unscale_(optimizer);
  EXPECT_TRUE(torch::equal(p.grad(), torch::ones({2})));
  EXPECT_NE(error_of([&] { scaler.unscale_(optimizer); }).find("already"), std::string::npos);
  EXPECT_TRUE(scaler.step(optimizer));
  EXPECT_NE(error_of([&] { scaler.step(optimizer); }).find("already"), std::string::npos);
  scaler.update();
  EXPECT_NE(error_of([&] { scaler.update(); }).find("no gradients were checked"),
            std::string::npos);
  half.sum().backward();
  EXPECT_NE(error_of([&] { scaler.step(of_half); }).find("float16"), std::string::npos);
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
  {
    tonnage::AutocastGuard guard;
    x.matmul(weight);
  }  // cuBLAS's workspace
  const int64_t before = tonnage::memory_stats().allocated_bytes.all.current;
  {
    tonnage::AutocastGuard guard;
    { Tensor y = x.matmul(weight).detach(); }
    EXPECT_EQ(tonnage::memory_stats().allocated_bytes.all.current - before,
              2 << 20);  // the weight in bfloat16
  }
  EXPECT_EQ(tonnage::memory_stats().allocated_bytes.all.current, before);
}

TEST(GpuGradScaler, AFusedStepTakesAScalarForTheCheckAndOneForTheKernel) {
  auto p = torch::zeros({1 << 20}, torch::kCUDA).requires_grad_();
  tonnage::FusedAdamW optimizer({p}, torch::optim::AdamWOptions(0.1));
  tonnage::GradScaler scaler;
  const auto backward = [&] {
    optimizer.zero_grad();
    scaler.scale(p.sum()).backward();
  };
  backward();
  scaler.step(optimizer);
  scaler.update();
  backward();
  const int64_t before = tonnage::memory_stats().allocated_bytes.all.current;
  tonnage::PeakScope peak;
  scaler.step(optimizer);
  // What was found; 1, to look without dividing; the step's number, once the 1 is gone.
  EXPECT_EQ(peak.peak_allocated_bytes() - before, 1024);
  EXPECT_EQ(tonnage::memory_stats().allocated_bytes.all.current - before,
            512);  // what was found, until update()
  scaler.update();
  EXPECT_EQ(tonnage::memory_stats().allocated_bytes.all.current, before);
}

// On a card the host counts the step before it knows: the next step, save() or settle() puts that
// right.
TEST(GpuGradScaler, ASkippedFusedStepIsNotCountedInTheEnd) {
  auto p = torch::ones({1000}, torch::kCUDA).requires_grad_();
  tonnage::FusedAdamW optimizer({p}, torch::optim::AdamWOptions(0.1));
  tonnage::GradScaler scaler;
  const auto step = [&](double factor) {
    optimizer.zero_grad();
    scaler.scale(p.sum() * factor).backward();
    scaler.step(optimizer);
    scaler.update();
  };
  const auto steps = [&] {
    return static_cast<torch::optim::AdamWParamState&>(
               *optimizer.state().at(p.unsafeGetTensorImpl()))
        .step();
  };
  step(1);
  step(std::numeric_limits<double>::infinity());
  step(1);
  optimizer.settle();
  EXPECT_EQ(steps(), 2);
  step(std::numeric_limits<double>::quiet_NaN());
  optimizer.settle();
  EXPECT_EQ(steps(), 2);
  EXPECT_EQ(scaler.get_scale(), 65536.0 / 4);
}

TEST(GpuGradScaler, TakesTwoScalars) {
  auto loss = torch::ones({}, torch::kCUDA);
  const int64_t before = tonnage::memory_stats().allocated_bytes.all.current;
  tonnage::GradScaler scaler;
  scaler.scale(loss);
  EXPECT_EQ(tonnage::memory_stats().allocated_bytes.all.current - before, 1024);
}

}  // namespace
