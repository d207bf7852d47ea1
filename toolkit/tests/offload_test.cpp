#include "tonnage/torch/offload.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "sizes.h"
#include "tonnage/torch/compress.h"
#include "tonnage/torch/memory.h"

namespace {

using tonnage_test::kMiB;

using torch::Tensor;

struct ConvNet : torch::nn::Module {
  ConvNet() {
    torch::manual_seed(3);
    body = register_module(
        "body",
        torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)),
                              torch::nn::BatchNorm2d(8), torch::nn::ReLU(), torch::nn::MaxPool2d(2),
                              torch::nn::Conv2d(8, 8, 3), torch::nn::GELU()));
    head = register_module("head", torch::nn::Linear(8, 4));
  }
  Tensor forward(Tensor x) { return torch::log_softmax(head(body->forward(x).mean({2, 3})), 1); }
  torch::nn::Sequential body;
  torch::nn::Linear head{nullptr};
};

std::vector<Tensor> gradients(ConvNet& net, const Tensor& x,
                              std::shared_ptr<tonnage::SavedTensorHooks> hooks,
                              bool twice = false) {
  Tensor loss;
  {
    tonnage::SavedTensorHooksGuard guard(hooks);
    loss = net.forward(x).square().sum();
  }
  if (twice) {
    loss.backward({}, /*retain_graph=*/true);
    net.zero_grad();
  }
  loss.backward();
  std::vector<Tensor> out;
  for (auto& p : net.parameters()) out.push_back(p.grad().clone());
  net.zero_grad();
  return out;
}

void expect_equal(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); i++) EXPECT_TRUE(torch::equal(a[i], b[i])) << i;
}

TEST(Offload, SameGradientsAndByStorage) {
  ConvNet net;
  auto x = torch::randn({2, 3, 16, 16}).to(torch::MemoryFormat::ChannelsLast);
  const auto expected = gradients(net, x, nullptr);
  auto offload = std::make_shared<tonnage::OffloadHooks>(
      tonnage::OffloadOptions{.floor_bytes = 0, .from = torch::kCPU});
  expect_equal(gradients(net, x, offload), expected);
  const auto figures = offload->figures();
  EXPECT_GT(figures.to_host_count, 5);
  EXPECT_EQ(figures.host_bytes, 0);  // the graph is gone
  EXPECT_GE(figures.kept_count, 4);  // parameters
  auto again = std::make_shared<tonnage::OffloadHooks>(
      tonnage::OffloadOptions{.floor_bytes = 0, .prefetch = 0, .from = torch::kCPU});
  expect_equal(gradients(net, x, again, /*twice=*/true), expected);

  auto shared = std::make_shared<tonnage::OffloadHooks>(
      tonnage::OffloadOptions{.floor_bytes = 0, .from = torch::kCPU});
  auto w = torch::randn({4, 4}).requires_grad_();
  auto base = torch::randn({8, 4});
  {
    tonnage::SavedTensorHooksGuard guard(shared);
    auto y = (base.narrow(0, 0, 4).matmul(w) + base.narrow(0, 4, 4).t().matmul(w)).sum();
    EXPECT_EQ(shared->figures().to_host_bytes, 8 * 4 * 4);  // two views, one copy
    y.backward();
  }
  EXPECT_TRUE(torch::allclose(
      w.grad(), (base.narrow(0, 0, 4).t() + base.narrow(0, 4, 4)).sum(1, true).expand({4, 4})));
}

TEST(Offload, KeepsItsValueWhenTheTensorChanges) {
  auto offload = std::make_shared<tonnage::OffloadHooks>(
      tonnage::OffloadOptions{.floor_bytes = 0, .from = torch::kCPU});
  auto w = torch::ones({4}).requires_grad_();
  auto data = torch::full({4}, 2.f), stays = torch::full({4}, 3.f);
  Tensor y;
  {
    tonnage::SavedTensorHooksGuard guard(offload);
    y = w * data;
    data.fill_(5);
    y = y + w * data;  // the same storage with other values: copied again
  }
  EXPECT_EQ(offload->figures().to_host_count, 2);
  y.sum().backward();
  EXPECT_TRUE(torch::equal(w.grad(), torch::full({4}, 7.f)));
  auto keeping = std::make_shared<tonnage::OffloadHooks>(
      tonnage::OffloadOptions{.floor_bytes = 0, .keep = {stays}, .from = torch::kCPU});
  tonnage::SavedTensorHooksGuard guard(keeping);
  (w * stays).sum().backward();
  EXPECT_EQ(keeping->figures().to_host_count, 0);
  EXPECT_THROW(tonnage::OffloadHooks(tonnage::OffloadOptions{.floor_bytes = -1}), c10::Error);
}

TEST(Compress, RoundsAsItSays) {
  auto x = torch::randn({1000});
  const auto packed = tonnage::quantize_blockwise(x, 64);
  EXPECT_EQ(packed.values.nbytes(), 1024u);
  EXPECT_EQ(packed.scales.numel(), 16);
  const Tensor back = tonnage::dequantize_blockwise(packed, {1000}, torch::kFloat);
  const Tensor largest = torch::constant_pad_nd(x, {0, 24}).view({16, 64}).abs().amax(1, true);
  const Tensor error = torch::constant_pad_nd((back - x).abs(), {0, 24}).view({16, 64});
  EXPECT_TRUE((error <= largest / 254 * 1.0001).all().item<bool>());
  EXPECT_TRUE(
      torch::equal(tonnage::dequantize_blockwise(
                       tonnage::quantize_blockwise(torch::zeros({40}), 16), {40}, torch::kFloat),
                   torch::zeros({40})));
  auto infinite = torch::ones({32});
  infinite[3] = INFINITY;
  const Tensor told =
      tonnage::dequantize_blockwise(tonnage::quantize_blockwise(infinite, 16), {32}, torch::kFloat);
  EXPECT_FALSE(torch::isfinite(told.narrow(0, 0, 16)).any().item<bool>());
  EXPECT_TRUE(torch::equal(told.narrow(0, 16, 16), torch::ones({16})));
  EXPECT_THROW(tonnage::quantize_blockwise(torch::ones({2}, torch::kLong), 16), c10::Error);
  EXPECT_THROW(tonnage::CompressHooks({.block_size = 8}), c10::Error);
}

TEST(Compress, GradientsAreClose) {
  ConvNet net;
  auto x = torch::randn({4, 3, 16, 16}).to(torch::MemoryFormat::ChannelsLast);
  const auto expected = gradients(net, x, nullptr);
  const double ratio[] = {0.5, (1 + 4 / 64.) / 4};
  for (auto format : {tonnage::CompressedFormat::kBFloat16, tonnage::CompressedFormat::kInt8}) {
    auto hooks = std::make_shared<tonnage::CompressHooks>(
        tonnage::CompressOptions{.format = format, .block_size = 64, .floor_bytes = 256});
    const auto got = gradients(net, x, hooks);
    double difference = 0,
           size = 0;  // over all parameters: a bias before batch norm has no gradient but rounding
    for (size_t i = 0; i < got.size(); i++) {
      difference += (got[i] - expected[i]).square().sum().item<double>();
      size += expected[i].square().sum().item<double>();
    }
    EXPECT_LT(std::sqrt(difference / size), 0.02);
    EXPECT_GT(difference, 0);
    EXPECT_NEAR(
        static_cast<double>(hooks->compressed_bytes()) / static_cast<double>(hooks->full_bytes()),
        ratio[static_cast<int>(format)], 0.01);
  }
}

// A chain of matrix products with a GELU each: 4 MiB saved per GELU, 4 per product.
struct Chain {
  explicit Chain(int layers) {
    for (int i = 0; i < layers; i++)
      weights.push_back(torch::empty({1024, 1024}, torch::kCUDA).fill_(0).requires_grad_());
  }
  Tensor forward(Tensor x) {
    for (auto& w : weights) x = torch::gelu(x.matmul(w));
    return x;
  }
  std::vector<Tensor> weights;
};

int64_t saved_bytes(Chain& chain, const Tensor& x,
                    std::shared_ptr<tonnage::SavedTensorHooks> hooks) {
  const int64_t before = tonnage::memory_stats().allocated_bytes.all.current;
  Tensor y;
  {
    tonnage::SavedTensorHooksGuard guard(hooks);
    y = chain.forward(x);
  }
  return tonnage::memory_stats().allocated_bytes.all.current - before -
         static_cast<int64_t>(y.nbytes());
}

TEST(GpuOffload, OnlyWhatIsUnderWayStays) {
  Chain chain(6);
  auto x = torch::empty({1024, 1024}, torch::kCUDA);
  chain.forward(x).sum().backward();  // gradients, workspaces
  EXPECT_EQ(saved_bytes(chain, x, nullptr), 11 * 4 * kMiB);
  auto offload = std::make_shared<tonnage::OffloadHooks>(
      tonnage::OffloadOptions{.in_flight_bytes = 8 * kMiB, .keep = {x}});
  EXPECT_EQ(saved_bytes(chain, x, offload), 8 * kMiB);
  EXPECT_EQ(offload->figures().to_host_bytes, 11 * 4 * kMiB);
  EXPECT_EQ(offload->figures().host_bytes, 0);

  auto peak = [&](std::shared_ptr<tonnage::SavedTensorHooks> hooks) {
    tonnage::PeakScope scope;
    Tensor y;
    {
      tonnage::SavedTensorHooksGuard guard(hooks);
      y = chain.forward(x).sum();
    }
    y.backward();
    return scope.added_peak_bytes();
  };
  peak(nullptr);
  const int64_t plain = peak(nullptr);
  const int64_t before = tonnage::memory_stats().allocated_bytes.all.current;
  const int64_t offloaded = peak(offload);
  EXPECT_EQ(tonnage::memory_stats().allocated_bytes.all.current,
            before);  // all of it came back and went
  EXPECT_LE(offloaded, plain - 20 * kMiB) << plain;
  EXPECT_GT(offload->figures().from_host_count, 5);
}

TEST(GpuCompress, HalfAndAQuarter) {
  Chain chain(6);
  auto x = torch::empty({1024, 1024}, torch::kCUDA);
  chain.forward(x).sum().backward();
  // The chain's input lives on: compressing it adds a copy. The other 11 are replaced.
  auto bf16 = std::make_shared<tonnage::CompressHooks>();
  EXPECT_EQ(saved_bytes(chain, x, bf16), 12 * 2 * kMiB);
  auto int8 = std::make_shared<tonnage::CompressHooks>(
      tonnage::CompressOptions{.format = tonnage::CompressedFormat::kInt8});
  EXPECT_EQ(saved_bytes(chain, x, int8), 12 * (kMiB + kMiB / 256 * 4));
}

TEST(GpuNumbersOffload, SameBits) {
  ConvNet net;
  net.to(torch::kCUDA);
  auto x = torch::randn({16, 3, 64, 64}, torch::kCUDA);
  at::globalContext().setDeterministicCuDNN(true);
  const auto expected = gradients(net, x, nullptr);
  auto offload = std::make_shared<tonnage::OffloadHooks>(
      tonnage::OffloadOptions{.floor_bytes = 1024, .in_flight_bytes = kMiB});
  for (int i = 0; i < 5; i++) expect_equal(gradients(net, x, offload), expected);
  EXPECT_GT(offload->figures().from_host_count, 5);
}

}  // namespace
