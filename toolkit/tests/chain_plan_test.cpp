#include "tonnage/torch/chain_plan.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <random>

#include "tonnage/torch/memory.h"

namespace {

using tonnage::ChainCosts;
using tonnage::ChainStep;

// Every way to run layers i..j-1.
std::vector<std::vector<ChainStep>> all_plans(size_t i, size_t j) {
  if (i == j) return {{}};
  std::vector<std::vector<ChainStep>> out;
  for (auto rest : all_plans(i + 1, j)) {
    rest.insert(rest.begin(), ChainStep{i, i + 1, {}});
    out.push_back(rest);
  }
  for (size_t k = i + 1; k < j; k++)
    for (const auto& inside : all_plans(i, k))
      for (auto rest : all_plans(k, j)) {
        rest.insert(rest.begin(), ChainStep{i, k, inside});
        out.push_back(rest);
      }
  return out;
}

ChainCosts random_costs(size_t layers, std::mt19937& random) {
  auto number = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  ChainCosts costs;
  for (size_t i = 0; i < layers; i++) {
    tonnage::LayerCost c;
    c.output_bytes = number(1, 8);
    c.kept_bytes = c.output_bytes + number(0, 20);
    c.forward_extra_bytes = number(0, 5);
    c.backward_extra_bytes = number(0, 5);
    c.forward_seconds = number(1, 9);
    c.backward_seconds = number(1, 9);
    costs.layers.push_back(c);
  }
  costs.input_gradient_bytes = number(0, 3);
  return costs;
}

TEST(ChainPlan, IsTheBestOfAllPlans) {
  std::mt19937 random(5);
  int nested = 0, cases = 0;
  for (int round = 0; round < 60; round++) {
    const size_t layers = 1 + static_cast<size_t>(round) % 5;
    const ChainCosts costs = random_costs(layers, random);
    const auto plans = all_plans(0, layers);
    std::vector<tonnage::ChainFigures> figures;
    for (const auto& p : plans) figures.push_back(tonnage::simulate_chain(costs, p));
    int64_t least = INT64_MAX, most = 0;
    for (const auto& f : figures) {
      least = std::min(least, f.peak_bytes);
      most = std::max(most, f.peak_bytes);
    }
    EXPECT_EQ(tonnage::least_chain_bytes(costs), least);
    for (int64_t budget = least; budget <= most; budget++) {
      double best = 1e9;
      for (const auto& f : figures)
        if (f.peak_bytes <= budget) best = std::min(best, f.seconds);
      const auto plan = tonnage::plan_chain(costs, budget);
      EXPECT_LE(plan.peak_bytes, budget);
      EXPECT_EQ(plan.seconds, best)
          << plan.to_string() << " for " << budget << " of " << layers << " layers";
      nested += plan.to_string().find("((") != std::string::npos;
      cases++;
    }
  }
  EXPECT_GT(cases, 500);
  EXPECT_GT(nested, 0);  // the harder plans do occur
}

TEST(ChainPlan, SaysTheLeastThatFits) {
  std::mt19937 random(9);
  const ChainCosts costs = random_costs(4, random);
  const int64_t least = tonnage::least_chain_bytes(costs);
  EXPECT_NO_THROW(tonnage::plan_chain(costs, least));
  try {
    tonnage::plan_chain(costs, least - 1);
    FAIL();
  } catch (const c10::ValueError& error) {
    EXPECT_NE(std::string(error.what()).find("the least is " + std::to_string(least) + " bytes"),
              std::string::npos)
        << error.what();
  }
  EXPECT_THROW(tonnage::plan_chain({}, 100), c10::Error);
  ChainCosts wrong = costs;
  wrong.layers[1].kept_bytes = wrong.layers[1].output_bytes - 1;
  EXPECT_THROW(tonnage::plan_chain(wrong, 1000), c10::Error);
}

TEST(ChainPlan, LongChains) {
  ChainCosts costs;
  for (int i = 0; i < 80; i++)
    costs.layers.push_back({4 << 20, 40 << 20, 1 << 20, 8 << 20, 1e-3 * (1 + i % 3), 2e-3});
  const int64_t all =
      tonnage::simulate_chain(costs, tonnage::plan_chain(costs, int64_t{1} << 40).steps).peak_bytes;
  double before = 0;
  for (int64_t budget : {all, all / 2, all / 4, all / 8}) {
    const auto plan = tonnage::plan_chain(costs, budget);
    EXPECT_LE(plan.peak_bytes, budget);
    EXPECT_GT(plan.peak_bytes, budget * 9 / 10);  // what is given is used
    EXPECT_GE(plan.seconds, before);
    before = plan.seconds;
  }
}

torch::nn::Sequential make_model(int blocks, int64_t width) {
  torch::manual_seed(2);
  torch::nn::Sequential model;
  for (int i = 0; i < blocks; i++) {
    model->push_back(torch::nn::Linear(width, 3 * width));
    model->push_back(torch::nn::GELU());
    model->push_back(torch::nn::Linear(3 * width, width));
    model->push_back(torch::nn::Dropout(0.2));
  }
  return model;
}

TEST(ChainPlan, SameGradientsWithinEveryBudget) {
  auto model = make_model(3, 8);
  auto layers = tonnage::layers_of(model);
  auto x = torch::randn({16, 8});
  auto costs = tonnage::measure_chain(layers, x);
  ASSERT_EQ(costs.layers.size(), 12u);
  EXPECT_EQ(costs.layers[0].output_bytes, 16 * 24 * 4);
  EXPECT_EQ(costs.layers[0].kept_bytes, 16 * 24 * 4);  // its input is the chain's
  EXPECT_EQ(costs.layers[3].kept_bytes,
            16 * 8 * 4 * 2);  // dropout: its result and the mask (a float tensor on the CPU)
  for (auto& p : model->parameters())
    EXPECT_FALSE(p.grad().defined());  // measuring leaves nothing behind
  for (auto& c : costs.layers) c.forward_seconds = c.backward_seconds = 1;
  auto gradients = [&](const std::function<torch::Tensor()>& forward) {
    torch::manual_seed(4);
    forward().square().sum().backward();
    std::vector<torch::Tensor> out;
    for (auto& p : model->parameters()) out.push_back(p.grad().clone());
    model->zero_grad();
    return out;
  };
  const auto expected = gradients([&] { return model->forward(x); });
  const int64_t least = tonnage::least_chain_bytes(costs);
  const int64_t most = tonnage::plan_chain(costs, int64_t{1} << 30).peak_bytes;
  EXPECT_LT(least, most / 2);
  for (int64_t budget : {least, (least + most) / 2, most}) {
    const auto plan = tonnage::plan_chain(costs, budget);
    const auto got = gradients([&] { return tonnage::run_chain(layers, plan, x); });
    for (size_t i = 0; i < got.size(); i++)
      EXPECT_TRUE(torch::equal(got[i], expected[i])) << plan.to_string();
  }
  EXPECT_THROW(tonnage::run_chain({layers[0]}, tonnage::plan_chain(costs, most), x), c10::Error);
}

TEST(GpuChainPlan, StaysWithinItsBudget) {
  auto model = make_model(6, 512);
  model->to(torch::kCUDA);
  auto layers = tonnage::layers_of(model);
  auto x = torch::randn({1024, 512}, torch::kCUDA);
  auto step = [&](const std::function<torch::Tensor()>& forward) {
    torch::Tensor loss = forward().square().sum();
    loss.backward();
  };
  step(
      [&] { return model->forward(x); });  // gradients and cuBLAS's workspace are there from now on
  auto costs = tonnage::measure_chain(layers, x);
  for (auto& c : costs.layers) c.forward_seconds = c.backward_seconds = 1;
  auto measured = [&](const std::function<torch::Tensor()>& forward) {
    tonnage::PeakScope scope;
    step(forward);
    return scope.added_peak_bytes();
  };
  const int64_t plain = measured([&] { return model->forward(x); });
  const int64_t least = tonnage::least_chain_bytes(costs);
  for (int64_t budget : {least, plain / 2, plain * 3 / 4}) {
    const auto plan = tonnage::plan_chain(costs, budget);
    const int64_t peak = measured([&] { return tonnage::run_chain(layers, plan, x); });
    // The loss's own: square() saves the chain's result (counted) and makes one as large.
    EXPECT_LE(peak, budget + 2 * (1024 * 512 * 4) + 2048) << plan.to_string();
    EXPECT_LT(peak, plain);
  }
}

}  // namespace
