#include "tonnage/torch/batch.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tonnage/torch/memory.h"

namespace {

using torch::Tensor;

Tensor mean_loss(torch::nn::Linear& model, const Tensor& x) { return model(x).square().mean(); }

TEST(GradientAccumulator, UnevenPartsGiveTheGradientOfTheWholeBatch) {
  torch::manual_seed(1);
  torch::nn::Linear model(4, 1);
  auto x = torch::randn({10, 4}, torch::kFloat);
  mean_loss(model, x).backward();
  const Tensor expected = model->weight.grad().clone();
  model->zero_grad();
  torch::optim::SGD optimizer(model->parameters(), 1.0);
  Tensor seen;
  tonnage::GradientAccumulator accumulator(
      optimizer, {.window = 3, .before_step = [&] { seen = model->weight.grad().clone(); }});
  const Tensor before = model->weight.detach().clone();
  EXPECT_FALSE(accumulator.backward(mean_loss(model, x.narrow(0, 0, 2)), 2));
  EXPECT_FALSE(accumulator.backward(mean_loss(model, x.narrow(0, 2, 7)), 7));
  EXPECT_TRUE(torch::equal(model->weight, before));
  EXPECT_TRUE(accumulator.backward(mean_loss(model, x.narrow(0, 9, 1)), 1));
  EXPECT_TRUE(torch::allclose(seen, expected, 1e-5, 1e-6)) << seen << expected;
  EXPECT_TRUE(torch::equal(model->weight, before - seen));
  EXPECT_FALSE(model->weight.grad().defined());
  EXPECT_FALSE(accumulator.finish());  // nothing is left
  EXPECT_EQ(accumulator.updates(), 1);
}

TEST(GradientAccumulator, EqualPartsAreTheSameBitsAsDividing) {
  torch::manual_seed(1);
  torch::nn::Linear model(4, 1);
  auto x = torch::randn({12, 4});
  for (int i = 0; i < 3; i++) (mean_loss(model, x.narrow(0, 4 * i, 4)) / 3).backward();
  const Tensor expected = model->weight.grad().clone();
  model->zero_grad();
  torch::optim::SGD optimizer(model->parameters(), 1.0);
  Tensor seen;
  tonnage::GradientAccumulator accumulator(
      optimizer, {.window = 3, .before_step = [&] { seen = model->weight.grad().clone(); }});
  for (int i = 0; i < 3; i++) accumulator.backward(mean_loss(model, x.narrow(0, 4 * i, 4)), 4);
  EXPECT_TRUE(torch::equal(seen, expected));
}

TEST(GradientAccumulator, PartialWindowAndItsLearningRate) {
  torch::manual_seed(1);
  torch::nn::Linear model(4, 1);
  auto x = torch::randn({4, 4});
  mean_loss(model, x).backward();
  const Tensor expected = model->weight.grad().clone();
  model->zero_grad();
  torch::optim::SGD optimizer(model->parameters(), 1.0);
  tonnage::GradientAccumulator accumulator(
      optimizer, {.window = 4, .partial_window_rule = tonnage::LearningRateRule::kLinear});
  const Tensor before = model->weight.detach().clone();
  accumulator.backward(mean_loss(model, x), 4);
  EXPECT_TRUE(accumulator.finish());
  EXPECT_TRUE(torch::allclose(model->weight, before - 0.25 * expected, 1e-6,
                              1e-7));  // the mean's gradient, a quarter of the rate
  EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 1.0);
  accumulator.backward(mean_loss(model, x), 4);
  accumulator.reset();
  EXPECT_EQ(accumulator.parts(), 0);
  EXPECT_FALSE(model->weight.grad().defined());
  EXPECT_THROW(accumulator.backward(model(x), 4), c10::Error);
  EXPECT_THROW(accumulator.backward(mean_loss(model, x), 0), c10::Error);
  EXPECT_THROW(tonnage::GradientAccumulator(optimizer, {.window = 0}), c10::Error);
  EXPECT_EQ(tonnage::scaled_learning_rate(0.1, 256, 1024, tonnage::LearningRateRule::kSquareRoot),
            0.2);
}

TEST(GradientAccumulator, WithAScaler) {
  torch::manual_seed(1);
  torch::nn::Linear model(4, 1);
  auto x = torch::randn({8, 4});
  mean_loss(model, x).backward();
  const Tensor expected = model->weight.grad().clone();
  model->zero_grad();
  torch::optim::SGD optimizer(model->parameters(), 1.0);
  tonnage::GradScaler scaler({.initial_scale = 64, .growth_interval = 1});
  Tensor seen;
  tonnage::GradientAccumulator accumulator(optimizer,
                                           {.window = 2, .scaler = &scaler, .before_step = [&] {
                                              seen = model->weight.grad().clone();
                                            }});
  accumulator.backward(mean_loss(model, x.narrow(0, 0, 4)), 4);
  EXPECT_TRUE(accumulator.backward(mean_loss(model, x.narrow(0, 4, 4)), 4));
  EXPECT_TRUE(torch::allclose(seen, expected, 1e-5, 1e-6));
  EXPECT_EQ(scaler.get_scale(), 128);
}

[[noreturn]] void run_out() {
  TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate 1 GiB");
}

TEST(FindBatchSize, FindsTheEdge) {
  for (int64_t edge : {0, 1, 2, 3, 7, 64, 100, 1000}) {
    std::vector<int64_t> tried;
    auto attempt = [&](int64_t n) {
      tried.push_back(n);
      if (n > edge) run_out();
    };
    EXPECT_EQ(tonnage::find_batch_size(attempt, {.max = 512}), std::min<int64_t>(edge, 512));
    EXPECT_LT(tried.size(), 22u);
    EXPECT_EQ(tonnage::find_batch_size(attempt, {.start = 40, .max = 512, .multiple_of = 8}),
              std::min<int64_t>(edge, 512) / 8 * 8);
  }
  EXPECT_EQ(tonnage::find_batch_size(
                [](int64_t n) {
                  if (n > 100) run_out();
                },
                {.keep_free = 0.1}),
            90);
  EXPECT_THROW(tonnage::find_batch_size([](int64_t) { throw std::runtime_error("a bug"); }),
               std::runtime_error);
  EXPECT_THROW(tonnage::find_batch_size([](int64_t) {}, {.multiple_of = 0}), c10::Error);
}

TEST(RunOrDegrade, GoesDownTheLadder) {
  std::vector<std::string> told;
  tonnage::DegradeOptions options{
      .min_batch_size = 16,
      .min_resolution = 128,
      .min_width = 0.5,
      .may_freeze = true,
      .may_use_cpu = true,
      .on_change = [&](const std::string& what) { told.push_back(what); }};
  int runs = 0;
  auto on_cpu_only = [&](const tonnage::Workload& w) {
    runs++;
    if (w.device == c10::kCUDA) run_out();
  };
  const auto result =
      tonnage::run_or_degrade(on_cpu_only, {.batch_size = 64, .resolution = 224}, options);
  EXPECT_EQ(result.changes,
            (std::vector<std::string>{"batch size 64 -> 32", "batch size 32 -> 16",
                                      "resolution 224 -> 160", "resolution 160 -> 128",
                                      "width 1 -> 0.5", "all but the head frozen", "device CPU"}));
  EXPECT_EQ(told, result.changes);
  EXPECT_EQ(runs, 8);
  EXPECT_EQ(result.workload.learning_rate_factor, 0.25);
  try {
    tonnage::run_or_degrade([](const tonnage::Workload&) { run_out(); }, {.batch_size = 2});
    FAIL();
  } catch (const c10::OutOfMemoryError& error) {
    const std::string text = error.what_without_backtrace();
    EXPECT_NE(text.find("tried: batch size 2 -> 1"), std::string::npos) << text;
    EXPECT_NE(text.find("Tried to allocate 1 GiB"), std::string::npos) << text;
  }
  EXPECT_THROW(
      tonnage::run_or_degrade([](const tonnage::Workload&) { throw std::logic_error("a bug"); },
                              {.batch_size = 4}),
      std::logic_error);
  EXPECT_TRUE(tonnage::is_out_of_memory(
      std::runtime_error("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate")));
  EXPECT_FALSE(tonnage::is_out_of_memory(std::runtime_error("shape mismatch")));
}

TEST(GpuFindBatchSize, FindsTheEdgeOfTheCard) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  tonnage::release_cached_memory();
  const int64_t free = tonnage::free_memory().available_bytes();
  const int64_t found = tonnage::find_batch_size(
      [&](int64_t n) {
        auto t = torch::empty({n * kGiB}, torch::dtype(torch::kByte).device(torch::kCUDA));
      },
      {.max = 4096});
  EXPECT_EQ(found, free / kGiB);
  const auto result = tonnage::run_or_degrade(
      [&](const tonnage::Workload& w) {
        auto t =
            torch::empty({w.batch_size * kGiB}, torch::dtype(torch::kByte).device(torch::kCUDA));
      },
      {.batch_size = 4 * found});
  EXPECT_LE(result.workload.batch_size, found);
  EXPECT_GT(result.workload.batch_size, found / 2);
  tonnage::release_cached_memory();  // the card is full of cached blocks: other tests' libraries
                                     // need some of it
}

}  // namespace
