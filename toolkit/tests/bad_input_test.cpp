// Bad input of every part: an exception that names the part and what is wrong, and nothing changed.
// What the other tests show already is not here again.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>

#include "tonnage/torch/adafactor.h"
#include "tonnage/torch/adam8bit.h"
#include "tonnage/torch/attention.h"
#include "tonnage/torch/batch.h"
#include "tonnage/torch/chain_plan.h"
#include "tonnage/torch/compress.h"
#include "tonnage/torch/data.h"
#include "tonnage/torch/distill.h"
#include "tonnage/torch/graph_dot.h"
#include "tonnage/torch/grow.h"
#include "tonnage/torch/hash_embedding.h"
#include "tonnage/torch/housekeeping.h"
#include "tonnage/torch/lora.h"
#include "tonnage/torch/low_rank.h"
#include "tonnage/torch/memory_tables.h"
#include "tonnage/torch/offload.h"
#include "tonnage/torch/offloaded_adamw.h"
#include "tonnage/torch/optim.h"
#include "tonnage/torch/prune.h"
#include "tonnage/torch/saved_tensor_hooks.h"

namespace bad_input_test {

using torch::Tensor;
namespace nn = torch::nn;

struct Bad {
  const char* says;  // a part of the message
  std::function<void()> does;
};

void expect_all(const std::vector<Bad>& all) {
  for (const Bad& bad : all) {
    std::string text = "no error";
    try {
      bad.does();
    } catch (const c10::Error& error) {
      text = error.what_without_backtrace();
    }
    EXPECT_NE(text.find(bad.says), std::string::npos)
        << "expected: " << bad.says << "\ngot: " << text;
  }
}

// A step on one parameter with this gradient; the parameter and the optimizer's state stay as they
// were.
template <class Optimizer, class Options>
std::function<void()> step(Options options, Tensor parameter, Tensor gradient) {
  return [=] {
    Tensor good = torch::ones({2}).requires_grad_(), p = parameter;
    good.mutable_grad() = torch::ones({2});
    p.mutable_grad() = gradient;
    Optimizer optimizer({good, p}, options);
    const Tensor before = p.detach().clone();
    try {
      optimizer.step();
    } catch (...) {
      EXPECT_TRUE(torch::equal(p.detach(), before) && torch::equal(good, torch::ones({2})));
      EXPECT_TRUE(optimizer.state().empty());
      throw;
    }
  };
}

TEST(BadInput, Optimizers) {
  namespace to = torch::optim;
  Tensor floats = torch::ones({2, 3}).requires_grad_();
  const auto everywhere = [&](const char* says, Tensor p, Tensor g) {
    expect_all({{says, step<tonnage::FusedAdam>(to::AdamOptions(0.1), p, g)},
                {says, step<tonnage::FusedAdamW>(to::AdamWOptions(0.1), p, g)},
                {says, step<tonnage::FusedSGD>(to::SGDOptions(0.1).momentum(0.9), p, g)},
                {says, step<tonnage::ForeachAdam>(to::AdamOptions(0.1), p, g)},
                {says, step<tonnage::ForeachSGD>(to::SGDOptions(0.1), p, g)},
                {says, step<tonnage::Adam8bit>(tonnage::Adam8bitOptions(0.1), p, g)},
                {says, step<tonnage::Adafactor>(tonnage::AdafactorOptions(0.1), p, g)},
                {says, step<tonnage::OffloadedAdamW>(to::AdamWOptions(0.1), p, g)}});
  };
  Tensor complex = torch::ones({2}, torch::kComplexFloat).requires_grad_();
  everywhere("only real floating point parameters", complex,
             torch::ones({2}, torch::kComplexFloat));
  Tensor table = torch::ones({4, 2}).requires_grad_();
  everywhere(
      "is sparse", table,
      torch::sparse_coo_tensor(torch::zeros({1, 1}, torch::kLong), torch::ones({1, 2}), {4, 2}));
  // torch::optim's own constructor refuses tensors that are computed from others.
  expect_all({{"non-leaf", [&] { tonnage::FusedAdamW({floats * 2}, to::AdamWOptions(0.1)); }},
              {"non-leaf", [&] { tonnage::Adam8bit({floats * 2}); }},
              {"non-leaf", [&] { tonnage::Adafactor({floats * 2}); }}});
  Tensor doubles = torch::ones({2}, torch::kDouble).requires_grad_(),
         gaps = torch::ones({4, 4}).slice(1, 0, 2).requires_grad_();
  expect_all(
      {{"float, bfloat16 and half have a kernel",
        step<tonnage::Adam8bit>(tonnage::Adam8bitOptions(0.1), doubles,
                                torch::ones({2}, torch::kDouble))},
       {"has gaps in memory",
        step<tonnage::Adam8bit>(tonnage::Adam8bitOptions(0.1), gaps, torch::ones({4, 2}))},
       {"Adam8bit: lr", [&] { tonnage::Adam8bit({floats}, tonnage::Adam8bitOptions(-1)); }},
       {"Adam8bit: betas",
        [&] {
          tonnage::Adam8bit({floats}, tonnage::Adam8bitOptions(1).betas({0.9, 1}));
        }},
       {"quantize_blocks: values are", [&] { tonnage::quantize_blocks(doubles, true); }},
       {"need 2 scales",
        [&] {
          tonnage::dequantize_blocks(torch::zeros({300}, torch::kByte), torch::ones({1}), true);
        }},
       {"Adafactor: lr", [&] { tonnage::Adafactor({floats}, tonnage::AdafactorOptions(-1)); }},
       {"Adafactor: clip",
        [&] { tonnage::Adafactor({floats}, tonnage::AdafactorOptions(1).clip(0.5)); }},
       {"Adafactor: beta2_decay",
        [&] { tonnage::Adafactor({floats}, tonnage::AdafactorOptions(1).beta2_decay(0.8)); }},
       {"amsgrad is not supported",
        [&] { tonnage::OffloadedAdamW({floats}, to::AdamWOptions(1).amsgrad(true)); }},
       {"bucket_bytes is 0", [&] { tonnage::OffloadedAdamW({floats}, to::AdamWOptions(1), 0); }}});
}

TEST(BadInput, Models) {
  Tensor q = torch::ones({1, 2, 4, 8}), k = torch::ones({1, 2, 6, 8}), w = torch::ones({5, 8});
  nn::Linear linear(8, 4);
  nn::Conv2d grouped(nn::Conv2dOptions(4, 4, 3).groups(2));
  const auto causal = tonnage::AttentionOptions{.causal = true};
  expect_all(
      {{"must be (batch, heads, length, width)",
        [&] { tonnage::memory_efficient_attention(q[0], k, k); }},
       {"memory_efficient_attention",
        [&] { tonnage::memory_efficient_attention(q, k.slice(3, 0, 4), k); }},
       {"one floating point type",
        [&] { tonnage::memory_efficient_attention(q, k.to(torch::kDouble), k); }},
       {"as many queries as keys",
        [&] { tonnage::memory_efficient_attention(q, k, k, {}, causal); }},
       {"does not broadcast",
        [&] {
          tonnage::memory_efficient_attention(q, k, k, torch::ones({3, 6}));
        }},
       {"slices must be positive",
        [&] { tonnage::memory_efficient_attention(q, k, k, {}, {.query_slice = 0}); }},
       {"projection is",
        [&] {
          tonnage::performer_attention(q, k, k, torch::ones({5, 4}));
        }},
       {"as many queries as keys", [&] { tonnage::performer_attention(q, k, k, w, true); }},
       {"no multiple of the 3 heads",
        [&] { tonnage::MemoryEfficientAttention(tonnage::SelfAttentionOptions(8, 3)); }},
       {"dropout must be 0",
        [&] { tonnage::PerformerSelfAttention(tonnage::SelfAttentionOptions(8, 2).dropout(0.1)); }},
       {"rank is 0; it must be from 1 to 4", [&] { tonnage::LoraLinear(linear, 0); }},
       {"rank is 5; it must be from 1 to 4", [&] { tonnage::LoraLinear(linear, 5); }},
       {"dropout is 1", [&] { tonnage::LoraLinear(linear, tonnage::LoraOptions(2).dropout(1)); }},
       {"groups is 2", [&] { tonnage::LoraConv2d(grouped, 1); }},
       {"rank is 5; it must be from 1 to 4", [&] { tonnage::low_rank_linear(linear, 5); }},
       {"grouped and transposed", [&] { tonnage::tucker_conv2d(grouped, 1, 1); }},
       {"input_rank is 9", [&] { tonnage::tucker_conv2d(nn::Conv2d(4, 4, 3), 9, 1); }},
       {"energy is 2", [&] { tonnage::rank_for_energy(linear->weight, 2); }},
       {"at least 2 are needed", [&] { tonnage::rank_for_energy(linear->bias, 0.5); }},
       {"must be positive", [&] { tonnage::HashEmbedding(tonnage::HashEmbeddingOptions(0, 4)); }},
       {"ids are", [&] {
          tonnage::HashEmbedding(tonnage::HashEmbeddingOptions(10, 4))(
              torch::zeros({2}, torch::kInt));
        }}});
  tonnage::Pruner pruner;
  const Tensor before = linear->weight.detach().clone();
  nn::Linear five(5, 2);
  expect_all({{"share is 1", [&] { pruner.magnitude(*linear, 1); }},
              {"no parameter was chosen by the filter",
               [&] {
                 pruner.magnitude(*linear, 0.5, tonnage::Pruner::Scope::kGlobal,
                                  [](auto&&...) { return false; });
               }},
              {"5 inputs are no multiple of 4", [&] { pruner.two_of_four(*five); }}});
  EXPECT_TRUE(torch::equal(linear->weight, before) && pruner.entries().empty());
  tonnage::GrowingStack stack(2, [](int64_t) { return nn::AnyModule(nn::Linear(4, 4)); });
  expect_all(
      {{"at least one block",
        [] { tonnage::GrowingStack(0, [](int64_t) { return nn::AnyModule(nn::Linear(1, 1)); }); }},
       {"3 blocks more are asked for", [&] { stack->grow(3); }},
       {"no block yet", [&] { stack->grow(1, /*copy_last=*/true); }},
       {"fade is 2", [&] { stack->set_fade(2); }},
       {"widen: the first layer has 4 outputs",
        [&] { tonnage::widen(linear, nn::Linear(3, 2), 8); }},
       {"new_hidden is 4", [&] { tonnage::widen(linear, nn::Linear(4, 2), 4); }},
       {"begin at step 0",
        [] {
          tonnage::GrowthSchedule({{5, 128}});
        }},
       {"not after the one before it", [] {
          tonnage::GrowthSchedule({{0, 128}, {0, 160}});
        }}});
  EXPECT_EQ(stack->size(), 0);
}

TEST(BadInput, Distillation) {
  Tensor student = torch::ones({3, 5}).requires_grad_(), labels = torch::zeros({3}, torch::kLong);
  expect_all(
      {{"must be of one shape",
        [&] {
          tonnage::distillation_loss(student, torch::ones({3, 4}), labels);
        }},
       {"they must be int64",
        [&] { tonnage::distillation_loss(student, student, labels.to(torch::kInt)); }},
       {"one floating point type",
        [&] { tonnage::distillation_loss(student, student.to(torch::kDouble), labels); }},
       {"temperature is 0",
        [&] { tonnage::distillation_loss(student, student, labels, {.temperature = 0}); }},
       {"alpha is 2", [&] { tonnage::distillation_loss(student, student, labels, {.alpha = 2}); }},
       {"double backward is not supported", [&] {
          Tensor loss = tonnage::distillation_loss(student, torch::zeros({3, 5}), labels);
          torch::autograd::grad({loss}, {student}, {}, true, /*create_graph=*/true);
        }}});
}

TEST(BadInput, MemoryTechniques) {
  Tensor x = torch::ones({4}).requires_grad_();
  expect_all(
      {{"block_size must be 16 or more", [] { tonnage::CompressHooks({.block_size = 8}); }},
       {"needs a floating point tensor",
        [] { tonnage::quantize_blockwise(torch::zeros({4}, torch::kInt), 16); }},
       {"more elements than were packed",
        [] {
          tonnage::dequantize_blockwise(tonnage::quantize_blockwise(torch::ones({4}), 16), {64},
                                        torch::kFloat);
        }},
       {"must not be negative", [] { tonnage::OffloadHooks({.prefetch = -1}); }},
       {"an output has no graph", [] { tonnage::GraphRecorder().nodes({torch::ones({2})}); }},
       {"made without a model", [] { tonnage::MemoryTables(nullptr, torch::kCPU).by_module(); }},
       {"in_a_row", [] { tonnage::LeakDetector({.device = torch::kCPU, .in_a_row = 1}); }},
       {"the chain has no layers", [] { tonnage::plan_chain({}, 100); }},
       {"there are no layers", [&] { tonnage::measure_chain({}, x); }},
       {"the plan is not one for 1 layers",
        [&] { tonnage::run_chain({[](Tensor t) { return t; }}, {}, x); }}});
  // Hooks that give back something else.
  struct Wrong : tonnage::SavedTensorHooks {
    explicit Wrong(std::function<Tensor(const Tensor&)> how) : unpack(std::move(how)) {}
    std::unique_ptr<tonnage::PackedTensor> pack(const Tensor& t) override {
      return tonnage::pack_with(t.detach(), unpack);
    }
    std::function<Tensor(const Tensor&)> unpack;
  };
  const auto with = [&](std::function<Tensor(const Tensor&)> how) {
    return [&x, how] {
      Tensor y;
      {
        tonnage::SavedTensorHooksGuard guard(std::make_shared<Wrong>(how));
        y = (x * 1).exp();
      }
      y.sum().backward();
    };
  };
  expect_all(
      {{"unpack() returned an undefined tensor", with([](const Tensor&) { return Tensor(); })},
       {"unpack() returned a Float tensor [2] on cpu; pack() got Float [4] on cpu",
        with([](const Tensor& t) { return t.slice(0, 0, 2); })},
       {"unpack() returned a Double tensor [4]",
        with([](const Tensor& t) { return t.to(torch::kDouble); })}});
  EXPECT_FALSE(x.grad().defined());
}

TEST(GpuBadInput, HousekeepingAndDevices) {
  Tensor here = torch::ones({1, 1, 4, 8}), there = here.cuda();
  expect_all(
      {{"give every_steps or unused_fraction", [] { tonnage::EmptyCacheSchedule schedule({}); }},
       {"every_steps must not be negative",
        [] { tonnage::EmptyCacheSchedule schedule({.every_steps = -1}); }},
       {"unused_fraction must be",
        [] { tonnage::EmptyCacheSchedule schedule({.unused_fraction = 0}); }},
       {"must not be negative", [] { tonnage::set_cufft_plan_cache_max_size(-1); }},
       {"q is on cpu, k on cuda:0",
        [&] { tonnage::memory_efficient_attention(here, there, there); }},
       {"projection is on cpu",
        [&] {
          tonnage::performer_attention(there, there, there, torch::ones({5, 8}));
        }},
       {"student is on cpu, teacher on cuda:0", [&] {
          tonnage::distillation_loss(here, there, torch::zeros({1, 1, 4}, torch::kLong));
        }}});
}

TEST(BadInput, BatchesAndData) {
  Tensor p = torch::ones({2}).requires_grad_(), rows = torch::zeros({4, 3});
  tonnage::FusedSGD optimizer({p}, torch::optim::SGDOptions(0.1));
  tonnage::GradientAccumulator accumulator(optimizer, {.window = 2});
  tonnage::MappedDataset data(rows, torch::zeros({4}));
  const auto source = tonnage::batches(data, {.batch_size = 2});
  const auto images = torch::zeros({2, 3, 8, 8});
  expect_all(
      {{"window must be 1 or more",
        [&] { tonnage::GradientAccumulator(optimizer, {.window = 0}); }},
       {"the loss must be one number", [&] { accumulator.backward(p * 2, 1); }},
       {"units must be 1 or more", [&] { accumulator.backward(p.sum(), 0); }},
       {"batch sizes must be positive",
        [] { tonnage::scaled_learning_rate(0.1, 0, 4, tonnage::LearningRateRule::kLinear); }},
       {"find_batch_size", [] { tonnage::find_batch_size([](int64_t) {}, {.multiple_of = 0}); }},
       {"keep_free", [] { tonnage::find_batch_size([](int64_t) {}, {.keep_free = 1}); }},
       {"run_or_degrade",
        [] {
          tonnage::run_or_degrade([](const tonnage::Workload&) {}, {.batch_size = 4},
                                  {.min_batch_size = 0});
        }},
       {"one row per example", [&] { tonnage::MappedDataset(rows, torch::zeros({5})); }},
       {"one row of integers", [&] { tonnage::TokenDataset(rows, 2); }},
       {"too few for one window", [] { tonnage::TokenDataset(torch::zeros({4}, torch::kInt), 4); }},
       {"batch_size is 0", [&] { tonnage::batches(data, {.batch_size = 0}); }},
       {"depth and workers must be positive",
        [&] { tonnage::PrefetchLoader(source, {.depth = 0}); }},
       {"there is no source", [] { tonnage::PrefetchLoader(nullptr, {}); }},
       {"they must be (n, c, h, w)", [&] { tonnage::Augment({})(rows); }},
       {"does not fit into images", [&] { tonnage::Augment({.crop = 9})(images); }},
       {"2 means or deviations were given for 3 channels",
        [&] {
          tonnage::Augment({.mean = {0.5, 0.5}})(images);
        }},
       {"flip is 2", [] { tonnage::Augment({.flip = 2}); }}});
  EXPECT_EQ(accumulator.parts(), 0);
  EXPECT_FALSE(p.grad().defined());
}

}  // namespace bad_input_test
