// Smaller models: tied and frozen parameters, LoRA, low rank, pruning, distillation, attention,
// hash embeddings, growth. Numbers on the CPU against plain formulas; memory on the virtual GPU
// (GpuModels).
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "error_of.h"
#include "tonnage/torch/attention.h"
#include "tonnage/torch/distill.h"
#include "tonnage/torch/grow.h"
#include "tonnage/torch/hash_embedding.h"
#include "tonnage/torch/lora.h"
#include "tonnage/torch/low_rank.h"
#include "tonnage/torch/memory.h"
#include "tonnage/torch/prune.h"
#include "tonnage/torch/share.h"

namespace models_test {

using tonnage_test::error_of;
using torch::Tensor;
namespace nn = torch::nn;
namespace F = torch::nn::functional;
constexpr int64_t kMiB = 1 << 20;

struct Tied : nn::Module {
  nn::Embedding tokens{nn::Embedding(50, 8)};
  nn::Linear head{nn::Linear(nn::LinearOptions(8, 50).bias(false))};
  explicit Tied(bool tie) {
    register_module("tokens", tokens);
    register_module("head", head);
    if (tie) tonnage::share_parameter(*tokens, "weight", *head, "weight", head->weight);
  }
  Tensor forward(const Tensor& ids) { return head->forward(tokens->forward(ids)); }
};

TEST(Share, ATiedWeightIsOneTensor) {
  Tied tied(true);
  EXPECT_TRUE(tied.head->weight.is_same(tied.tokens->weight));
  EXPECT_EQ(tied.parameters().size(), 2u);
  EXPECT_EQ(tonnage::unique_parameters(tied).size(), 1u);
  EXPECT_EQ(tonnage::parameter_bytes(tied), 50 * 8 * 4);
  tied.to(torch::kDouble);  // both names follow
  EXPECT_TRUE(tied.head->weight.is_same(tied.tokens->weight));
  EXPECT_EQ(tied.head->weight.scalar_type(), torch::kDouble);
  // Its gradient is the sum of what both places would get.
  Tied loose(false);
  loose.to(torch::kDouble);
  {
    torch::NoGradGuard no_grad;
    loose.tokens->weight.copy_(tied.tokens->weight);
    loose.head->weight.copy_(tied.tokens->weight);
  }
  Tensor ids = torch::randint(0, 50, {4, 5}), target = torch::randint(0, 50, {20});
  for (Tied* model : {&tied, &loose})
    F::cross_entropy(model->forward(ids).view({20, 50}), target).backward();
  EXPECT_TRUE(torch::allclose(tied.head->weight.grad(),
                              loose.head->weight.grad() + loose.tokens->weight.grad()));
}

TEST(Share, RefusesWhatDoesNotFit) {
  Tied model(false);
  Tensor before = model.head->weight;
  Tensor stranger = torch::ones({50, 8});
  EXPECT_NE(error_of([&] {
              tonnage::share_parameter(*model.tokens, "weight", *model.head, "bias",
                                       model.head->bias);
            }).find("it has: weight"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              tonnage::share_parameter(*model.tokens, "weight", *model.head, "weight", stranger);
            }).find("is not"),
            std::string::npos);
  nn::Linear other(8, 51);
  EXPECT_NE(error_of([&] {
              tonnage::share_parameter(*other, "weight", *model.head, "weight", model.head->weight);
            }).find("shapes differ"),
            std::string::npos);
  EXPECT_TRUE(model.head->weight.is_same(before));
}

TEST(Share, FrozenParametersStay) {
  nn::Sequential net(nn::Linear(4, 8), nn::ReLU(), nn::Linear(8, 2));
  net->forward(torch::randn({3, 4})).sum().backward();
  EXPECT_EQ(tonnage::freeze(*net, [](const std::string& name,
                                     const Tensor&) { return name.rfind("0.", 0) == 0; }),
            4 * 8 + 8);
  EXPECT_FALSE(net->parameters()[0].grad().defined());
  net->zero_grad();
  net->forward(torch::randn({3, 4})).sum().backward();
  EXPECT_FALSE(net->parameters()[0].grad().defined());
  EXPECT_TRUE(net->parameters()[2].grad().defined());
  EXPECT_EQ(tonnage::freeze(*net), 8 * 2 + 2);  // the rest
  EXPECT_EQ(tonnage::unfreeze(*net), 4 * 8 + 8 + 8 * 2 + 2);
}

TEST(Lora, StartsAsTheTrainedLayerAndMerges) {
  torch::manual_seed(1);
  nn::Linear base(12, 20);
  tonnage::LoraLinear lora(base, tonnage::LoraOptions(3).alpha(6));
  Tensor x = torch::randn({5, 12});
  EXPECT_TRUE(torch::equal(lora->forward(x), base->forward(x)));
  EXPECT_EQ(lora->weight.data_ptr(), base->weight.data_ptr());
  lora->forward(x).square().sum().backward();
  EXPECT_FALSE(lora->weight.grad().defined());
  EXPECT_GT(lora->lora_b.grad().abs().max().item<float>(), 0);
  {
    torch::NoGradGuard no_grad;
    lora->lora_b.normal_();
  }
  Tensor expected = F::linear(x, base->weight + 2 * lora->lora_b.matmul(lora->lora_a), base->bias);
  EXPECT_TRUE(torch::allclose(lora->forward(x), expected, 1e-5, 1e-5));
  lora->merge();
  EXPECT_NE(error_of([&] { lora->forward(x); }).find("merged"), std::string::npos);
  lora->eval();
  EXPECT_TRUE(torch::allclose(lora->forward(x), expected, 1e-5, 1e-5));
  EXPECT_NE(
      error_of([&] { tonnage::LoraLinear(base, tonnage::LoraOptions(13)); }).find("from 1 to 12"),
      std::string::npos);
}

TEST(Lora, EmbeddingAndConvolution) {
  torch::manual_seed(2);
  nn::Embedding words(30, 6);
  tonnage::LoraEmbedding small(words, tonnage::LoraOptions(2));
  Tensor ids = torch::randint(0, 30, {7});
  EXPECT_TRUE(torch::equal(small->forward(ids), words->forward(ids)));
  {
    torch::NoGradGuard no_grad;
    small->lora_a.normal_();
  }
  EXPECT_TRUE(torch::allclose(
      small->forward(ids),
      (words->weight + small->lora_a.matmul(small->lora_b) / 2).index_select(0, ids), 1e-5, 1e-5));
  nn::Conv2d conv(nn::Conv2dOptions(4, 6, 3).stride(2).padding(1));
  tonnage::LoraConv2d update(conv, tonnage::LoraOptions(2).alpha(4));
  Tensor x = torch::randn({2, 4, 9, 9});
  EXPECT_TRUE(torch::equal(update->forward(x), conv->forward(x)));
  EXPECT_EQ(update->base->weight.const_data_ptr(), conv->weight.const_data_ptr());  // no copy
  EXPECT_TRUE(conv->weight.requires_grad() && !update->base->parameters()[0].requires_grad());
  {
    torch::NoGradGuard no_grad;
    update->lora_b.normal_();
  }
  Tensor weight = conv->weight +
                  2 * torch::einsum("or,rckl->ockl", {update->lora_b.flatten(1), update->lora_a});
  EXPECT_TRUE(torch::allclose(
      update->forward(x),
      F::conv2d(x, weight, F::Conv2dFuncOptions().bias(conv->bias).stride(2).padding(1)), 1e-4,
      1e-4));
}

TEST(LowRank, LinearIsTheTruncatedSvd) {
  torch::manual_seed(3);
  nn::Linear layer(10, 16);
  Tensor x = torch::randn({4, 10});
  EXPECT_TRUE(torch::allclose(tonnage::low_rank_linear(layer, 10)->forward(x), layer->forward(x),
                              1e-4, 1e-4));
  auto small = tonnage::low_rank_linear(layer, 4);
  Tensor product = small[1]->as<nn::Linear>()->weight.matmul(small[0]->as<nn::Linear>()->weight);
  Tensor s = at::linalg_svdvals(layer->weight.detach());
  EXPECT_NEAR((product - layer->weight).norm().item<double>(), s.slice(0, 4).norm().item<double>(),
              1e-4);
  EXPECT_EQ(tonnage::parameter_bytes(*small), 4 * (4 * (10 + 16) + 16));
  EXPECT_EQ(tonnage::rank_for_energy(layer->weight, 1.0), 10);
  const double kept = (s.slice(0, 0, 4).square().sum() / s.square().sum()).item<double>();
  EXPECT_EQ(tonnage::rank_for_energy(layer->weight, kept - 1e-4), 4);
}

TEST(LowRank, TuckerKeepsTheConvolution) {
  torch::manual_seed(4);
  nn::Conv2d conv(nn::Conv2dOptions(8, 12, 3).stride(2).padding(1));
  Tensor x = torch::randn({2, 8, 11, 11});
  EXPECT_TRUE(torch::allclose(tonnage::tucker_conv2d(conv, 8, 12)->forward(x), conv->forward(x),
                              1e-3, 1e-4));
  // A weight of that Tucker rank is kept exactly by it.
  {
    torch::NoGradGuard no_grad;
    conv->weight.copy_(
        torch::einsum("abkl,oa,ib->oikl",
                      {torch::randn({3, 2, 3, 3}), torch::randn({12, 3}), torch::randn({8, 2})}));
  }
  auto small = tonnage::tucker_conv2d(conv, 2, 3);
  EXPECT_TRUE(torch::allclose(small->forward(x), conv->forward(x), 1e-3, 1e-3));
  EXPECT_EQ(tonnage::parameter_bytes(*small), 4 * (8 * 2 + 2 * 3 * 9 + 3 * 12 + 12));
  EXPECT_NE(error_of([&] { tonnage::tucker_conv2d(conv, 9, 3); }).find("input_rank is 9"),
            std::string::npos);
}

TEST(Prune, MagnitudeTakesTheSmallest) {
  torch::manual_seed(5);
  nn::Sequential net(nn::Linear(20, 30), nn::Linear(30, 10));
  Tensor before = net[0]->as<nn::Linear>()->weight.detach().clone();
  tonnage::Pruner pruner;
  pruner.magnitude(*net, 0.6);
  int64_t zeros = 0;
  for (const Tensor& p : net->parameters())
    if (p.dim() == 2) zeros += (p == 0).sum().item<int64_t>();
  EXPECT_EQ(zeros, 540);
  EXPECT_DOUBLE_EQ(pruner.sparsity(), 0.6);
  EXPECT_EQ(pruner.mask_bytes(), 900);
  Tensor weight = net[0]->as<nn::Linear>()->weight, mask = pruner.entries()[0].mask;
  EXPECT_TRUE(torch::equal(weight, before * mask));
  EXPECT_LE(before.masked_select(mask.logical_not()).abs().max().item<float>(),
            before.masked_select(mask).abs().min().item<float>());
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  net->forward(torch::randn({4, 20})).sum().backward();
  optimizer.step();
  EXPECT_GT(weight.masked_select(mask.logical_not()).abs().max().item<float>(), 0);
  pruner.apply();
  EXPECT_EQ(weight.masked_select(mask.logical_not()).abs().max().item<float>(), 0);
  pruner.magnitude(*net, 0.8);  // more of it: what was pruned stays pruned
  EXPECT_DOUBLE_EQ(pruner.sparsity(), 0.8);
  EXPECT_FALSE(pruner.entries()[0].mask.logical_and(mask.logical_not()).any().item<bool>());
}

TEST(Prune, TwoOfFour) {
  nn::Linear layer(nn::LinearOptions(8, 1).bias(false));
  {
    torch::NoGradGuard no_grad;
    layer->weight.copy_(torch::tensor({{1.f, -4.f, 2.f, 3.f, 5.f, 5.f, 5.f, -6.f}}));
  }
  tonnage::Pruner pruner;
  pruner.two_of_four(*layer);
  EXPECT_TRUE(torch::equal(layer->weight.detach(),
                           torch::tensor({{0.f, -4.f, 0.f, 3.f, 5.f, 0.f, 0.f, -6.f}})));
  EXPECT_EQ(pruner.compact_bytes(), 4 * 4 + 1);
  nn::Linear odd(6, 2);
  EXPECT_NE(error_of([&] { pruner.two_of_four(*odd); }).find("no multiple of 4"),
            std::string::npos);
}

TEST(Distill, FollowsThePlainFormula) {
  torch::manual_seed(6);
  Tensor student = torch::randn({3, 7, 11}, torch::requires_grad()),
         teacher = torch::randn({3, 7, 11}), labels = torch::randint(0, 11, {3, 7});
  labels[1][2] = -100;
  Tensor loss = tonnage::distillation_loss(student, teacher, labels,
                                           {.temperature = 3, .alpha = 0.7, .chunk_rows = 4});
  (loss * 2).backward();
  Tensor gradient = student.grad().clone();
  student.mutable_grad().reset();
  Tensor rows = labels.view({-1}) != -100;
  Tensor kl = (torch::softmax(teacher / 3, -1) *
               (torch::log_softmax(teacher / 3, -1) - torch::log_softmax(student / 3, -1)))
                  .sum(-1)
                  .view({-1})
                  .masked_select(rows)
                  .mean();
  Tensor plain = 0.7 * 9 * kl + 0.3 * F::cross_entropy(student.view({-1, 11}), labels.view({-1}));
  (plain * 2).backward();
  EXPECT_NEAR(loss.item<float>(), plain.item<float>(), 1e-5);
  EXPECT_TRUE(torch::allclose(gradient, student.grad(), 1e-4, 1e-6));
  EXPECT_NE(error_of([&] {
              tonnage::distillation_loss(student, teacher.slice(0, 0, 2), labels);
            }).find("of one shape"),
            std::string::npos);
}

Tensor plain_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& bias,
                       bool causal) {
  Tensor s = q.matmul(k.transpose(-2, -1)) / std::sqrt(double(q.size(-1)));
  if (bias.defined()) s = s + bias;
  if (causal)
    s = s.masked_fill(torch::ones({q.size(2), k.size(2)}).triu(1).to(torch::kBool), -INFINITY);
  return torch::softmax(s, -1).matmul(v);
}

TEST(Attention, SlicedIsExact) {
  for (bool causal : {false, true})
    for (int bias_kind : {0, 1, 2}) {
      torch::manual_seed(7);
      const int64_t sources = causal ? 37 : 50;
      std::vector<Tensor> in{torch::randn({2, 3, 37, 8}), torch::randn({2, 3, sources, 8}),
                             torch::randn({2, 3, sources, 5})};
      Tensor bias = bias_kind == 0   ? Tensor()
                    : bias_kind == 1 ? torch::randn({3, 37, sources})
                                     : torch::randn({2, 1, 1, sources});
      for (Tensor& t : in) t.requires_grad_();
      if (bias.defined()) bias.requires_grad_();
      tonnage::AttentionOptions options{.causal = causal, .query_slice = 16, .key_slice = 12};
      Tensor ours = tonnage::memory_efficient_attention(in[0], in[1], in[2], bias, options),
             plain = plain_attention(in[0], in[1], in[2], bias, causal);
      EXPECT_TRUE(torch::allclose(ours, plain, 1e-4, 1e-5));
      std::vector<Tensor> wanted = in;
      if (bias.defined()) wanted.push_back(bias);
      Tensor weights = torch::randn_like(plain);
      auto a = torch::autograd::grad({(ours * weights).sum()}, wanted),
           b = torch::autograd::grad({(plain * weights).sum()}, wanted);
      for (size_t i = 0; i < a.size(); i++)
        EXPECT_TRUE(torch::allclose(a[i], b[i], 1e-3, 1e-5)) << causal << bias_kind << i;
    }
}

TEST(Attention, DoubleBackwardIsRefused) {
  Tensor x = torch::randn({1, 1, 4, 4}, torch::requires_grad()),
         logits = torch::randn({3, 5}, torch::requires_grad());
  Tensor attended = tonnage::memory_efficient_attention(x, x, x).sum();
  EXPECT_NE(error_of([&] {
              torch::autograd::grad({attended}, {x}, {}, true, true);
            }).find("double backward is not supported"),
            std::string::npos);
  Tensor loss =
      tonnage::distillation_loss(logits, torch::randn({3, 5}), torch::zeros({3}, torch::kLong));
  EXPECT_NE(error_of([&] {
              torch::autograd::grad({loss}, {logits}, {}, true, true);
            }).find("double backward is not supported"),
            std::string::npos);
}

TEST(Attention, PerformerApproachesSoftmax) {
  torch::manual_seed(8);
  Tensor q = torch::randn({2, 2, 300, 16}) * 0.4, k = torch::randn({2, 2, 300, 16}) * 0.4,
         v = torch::randn({2, 2, 300, 16});
  for (bool causal : {false, true}) {
    Tensor exact = plain_attention(q, k, v, {}, causal);
    auto error = [&](int64_t features) {
      return ((tonnage::performer_attention(q, k, v, tonnage::performer_projection(features, 16),
                                            causal) -
               exact)
                  .norm() /
              exact.norm())
          .item<double>();
    };
    const double coarse = error(16), fine = error(1024);
    EXPECT_LT(fine, 0.1) << causal;
    EXPECT_LT(fine, coarse / 2.5) << causal;
  }
  // Causal means that nothing comes from later positions.
  Tensor w = tonnage::performer_projection(64, 16), changed = v.clone();
  changed.slice(2, 200).zero_();
  EXPECT_TRUE(torch::equal(tonnage::performer_attention(q, k, v, w, true).slice(2, 0, 200),
                           tonnage::performer_attention(q, k, changed, w, true).slice(2, 0, 200)));
  Tensor blocks = tonnage::performer_projection(16, 16);
  Tensor gram = blocks.matmul(blocks.t());
  EXPECT_LT((gram - gram.diag().diag()).abs().max().item<float>(), 1e-3);
}

TEST(Attention, ModulesTrain) {
  torch::manual_seed(9);
  Tensor x = torch::randn({2, 20, 32});
  tonnage::MemoryEfficientAttention exact(tonnage::SelfAttentionOptions(32, 4).causal(true));
  auto qkv = exact->in_proj->forward(x).view({2, 20, 3, 4, 8}).permute({2, 0, 3, 1, 4});
  Tensor plain = exact->out_proj->forward(
      plain_attention(qkv[0], qkv[1], qkv[2], {}, true).transpose(1, 2).reshape({2, 20, 32}));
  EXPECT_TRUE(torch::allclose(exact->forward(x), plain, 1e-4, 1e-5));
  Tensor bias = torch::zeros({4, 20, 20}, torch::requires_grad());
  EXPECT_TRUE(torch::allclose(exact->forward(x, bias), plain, 1e-4, 1e-5));
  tonnage::PerformerSelfAttention performer(tonnage::SelfAttentionOptions(32, 4).features(64));
  performer->forward(x).square().sum().backward();
  EXPECT_GT(performer->in_proj->weight.grad().abs().max().item<float>(), 0);
  Tensor old = performer->projection.clone();
  performer->redraw();
  EXPECT_FALSE(torch::equal(old, performer->projection));
}

TEST(HashEmbedding, SumsItsRows) {
  torch::manual_seed(10);
  tonnage::HashEmbedding words(tonnage::HashEmbeddingOptions(5000, 6).buckets(100));
  Tensor ids = torch::arange(5000).view({50, 100}), rows = words->rows(ids);
  EXPECT_EQ(rows.sizes(), c10::IntArrayRef({50, 100, 2}));
  EXPECT_TRUE(rows.ge(0).logical_and(rows.lt(100)).all().item<bool>());
  Tensor load = torch::bincount(rows.flatten(), {}, 100);  // 100 expected in each
  EXPECT_GT(load.min().item<int64_t>(), 50);
  EXPECT_LT(load.max().item<int64_t>(), 170);
  Tensor by_hand = words->importance[17][0] * words->table[rows.flatten(0, 1)[17][0]] +
                   words->importance[17][1] * words->table[rows.flatten(0, 1)[17][1]];
  EXPECT_TRUE(torch::allclose(words->forward(ids).flatten(0, 1)[17], by_hand, 1e-5, 1e-6));
  EXPECT_EQ(tonnage::parameter_bytes(*words), 4 * (100 * 6 + 5000 * 2));
  words->forward(ids).sum().backward();
  EXPECT_TRUE(words->table.grad().defined() && words->importance.grad().defined());
}

TEST(Grow, StackFadesIn) {
  torch::manual_seed(11);
  tonnage::GrowingStack stack(3, [](int64_t) { return nn::AnyModule(nn::Linear(4, 4)); });
  Tensor x = torch::randn({2, 4});
  EXPECT_TRUE(torch::equal(stack->forward(x), x));
  EXPECT_EQ(stack->grow(1).size(), 2u);
  Tensor one = stack->forward(x);
  stack->grow(1);
  stack->set_fade(0);
  EXPECT_TRUE(torch::allclose(stack->forward(x), one));
  stack->set_fade(1);
  EXPECT_FALSE(torch::allclose(stack->forward(x), one));
  auto copied = stack->grow(1, /*copy_last=*/true);
  EXPECT_TRUE(torch::equal(copied[0], stack->named_parameters()["1.weight"]));
  EXPECT_NE(error_of([&] { stack->grow(1); }).find("there are 3 of 3"), std::string::npos);
}

TEST(Grow, Net2NetKeepsTheFunction) {
  torch::manual_seed(12);
  nn::Linear in(6, 9), out(9, 3);
  Tensor x = torch::randn({5, 6});
  auto [wide_in, wide_out] = tonnage::widen(in, out, 14);
  EXPECT_EQ(wide_in->weight.size(0), 14);
  EXPECT_TRUE(torch::allclose(wide_out->forward(torch::tanh(wide_in->forward(x))),
                              out->forward(torch::tanh(in->forward(x))), 1e-4, 1e-5));
  auto same = tonnage::deepen(9);
  Tensor hidden = torch::relu(in->forward(x));
  EXPECT_TRUE(torch::equal(torch::relu(same->forward(hidden)), hidden));
  tonnage::GrowthSchedule schedule({{0, 128}, {100, 160}, {200, 224}});
  EXPECT_EQ(schedule.size_at(99), 128);
  EXPECT_EQ(schedule.size_at(100), 160);
  EXPECT_EQ(schedule.size_at(5000), 224);
  EXPECT_EQ(schedule.fade_at(125, 50), 0.5);
}

int64_t kept_bytes(const std::function<Tensor()>& forward) {  // by the graph and its output
  forward();  // cuBLAS takes its workspace the first time
  const int64_t before = tonnage::memory_stats().allocated_bytes.all.current;
  Tensor kept = forward();
  return tonnage::memory_stats().allocated_bytes.all.current - before;
}

TEST(GpuModels, ATiedWeightTakesItsMemoryOnce) {
  const int64_t before = tonnage::memory_stats().allocated_bytes.all.current;
  nn::Embedding tokens(1 << 14, 64);
  nn::Linear head(nn::LinearOptions(64, 1 << 14).bias(false));
  tonnage::share_parameter(*tokens, "weight", *head, "weight", head->weight);
  tokens->to(torch::kCUDA);
  EXPECT_TRUE(head->weight.is_cuda());
  EXPECT_EQ(tonnage::memory_stats().allocated_bytes.all.current - before, 4 * kMiB);
}

TEST(GpuModels, AttentionKeepsNoScores) {
  auto in =
      torch::zeros({1, 4, 1024, 64}, torch::device(torch::kCUDA).requires_grad(true));  // 1 MiB
  EXPECT_EQ(kept_bytes([&] { return tonnage::memory_efficient_attention(in, in, in); }),
            kMiB + 4 * 1024 * 4);  // output and log sums
  const int64_t plain =
      kept_bytes([&] { return torch::softmax(in.matmul(in.transpose(-2, -1)), -1).matmul(in); });
  EXPECT_EQ(plain, kMiB + 4 * 1024 * 1024 * 4);
}

TEST(GpuModels, DistillationKeepsOneTensor) {
  auto student = torch::zeros({256, 1024}, torch::device(torch::kCUDA).requires_grad(true)),
       teacher = torch::zeros({256, 1024}, torch::kCUDA);
  auto labels = torch::zeros({256}, torch::device(torch::kCUDA).dtype(torch::kLong));
  EXPECT_EQ(kept_bytes([&] { return tonnage::distillation_loss(student, teacher, labels); }),
            kMiB + 512 + 512);  // gradient, count, loss
}

TEST(GpuModels, LoraGradientsAreSmall) {
  nn::Linear base(nn::LinearOptions(1024, 1024).bias(false));
  base->to(torch::kCUDA);
  auto x = torch::zeros({8, 1024}, torch::kCUDA);
  const int64_t before = tonnage::memory_stats().allocated_bytes.all.current;
  tonnage::LoraLinear lora(base, tonnage::LoraOptions(8));
  EXPECT_EQ(tonnage::memory_stats().allocated_bytes.all.current - before, 2 * 8 * 1024 * 4);
  lora->forward(x).sum().backward();
  EXPECT_EQ(lora->lora_a.grad().nbytes() + lora->lora_b.grad().nbytes(), 2u * 8 * 1024 * 4);
  EXPECT_FALSE(lora->weight.grad().defined());
}

TEST(GpuModels, BlocksThatDoNotExistTakeNothing) {
  tonnage::GrowingStack stack(
      4,
      [](int64_t) { return nn::AnyModule(nn::Linear(nn::LinearOptions(1024, 1024).bias(false))); },
      torch::kCUDA);
  const int64_t before = tonnage::memory_stats().allocated_bytes.all.current;
  stack->grow(2);
  EXPECT_EQ(tonnage::memory_stats().allocated_bytes.all.current - before, 8 * kMiB);
}

}  // namespace models_test
