// Recomputation, offloading, compression, precision and accumulation on ResNet-50 and on GPT-2.
#include <torch/torch.h>

#include "gpt2.h"
#include "resnet50.h"
#include "techniques.h"
#include "tonnage/torch/batch.h"
#include "tonnage/torch/chain_plan.h"
#include "tonnage/torch/checkpoint.h"
#include "tonnage/torch/compress.h"
#include "tonnage/torch/offload.h"
#include "tonnage/torch/optim.h"
#include "tonnage/torch/precision.h"

namespace bench {
namespace memory {

using torch::Tensor;
using Hooks = std::shared_ptr<tonnage::SavedTensorHooks>;

Tensor ids(c10::IntArrayRef shape, int64_t below) {
  return torch::randint(0, below, shape, torch::device(torch::kCUDA).dtype(torch::kLong));
}

// A model as this file sees it: what is before its blocks, the blocks, and the loss.
struct Parts {
  std::shared_ptr<torch::nn::Module> model;
  std::function<Tensor(const Tensor& data)> before;
  std::vector<tonnage::Layer> blocks;
  std::function<Tensor(const Tensor& x, const Tensor& labels)> loss;
  Tensor data, labels;
  std::shared_ptr<torch::optim::Optimizer> optimizer;

  Tensor forward(const Tensor& inputs, const Tensor& targets) const {
    Tensor x = before(inputs);
    for (const auto& block : blocks) x = block(std::move(x));
    return loss(x, targets);
  }
  Tensor forward() const { return forward(data, labels); }
};

Parts gpt2() {
  torch::manual_seed(0);
  examples::Gpt2 model;
  model->to(torch::kCUDA);
  Parts parts{
      model.ptr(),
      [model](const Tensor& data) mutable { return model->embed(data); },
      {},
      [model](const Tensor& x, const Tensor& labels) mutable { return model->loss_of(x, labels); },
      ids({kGptBatch, kGptLength}, 50257),
      ids({kGptBatch, kGptLength}, 50257),
      std::make_shared<tonnage::FusedAdamW>(tonnage::unique_parameters(*model),
                                            torch::optim::AdamWOptions(1e-4))};
  for (auto& block : model->blocks)
    parts.blocks.emplace_back([block](Tensor x) mutable { return block->forward(std::move(x)); });
  return parts;
}

Parts resnet50() {
  torch::manual_seed(0);
  examples::ResNet50 model;
  model->to(torch::kCUDA);
  Parts parts{
      model.ptr(),
      [model](const Tensor& data) mutable { return model->stem(data); },
      {},
      [model](const Tensor& x, const Tensor& labels) mutable { return model->loss_of(x, labels); },
      torch::randn({kResNetBatch, 3, kResNetSize, kResNetSize}, torch::kCUDA),
      ids({kResNetBatch}, 1000),
      std::make_shared<tonnage::FusedSGD>(model->parameters(),
                                          torch::optim::SGDOptions(1e-2).momentum(0.9))};
  for (auto& block : model->blocks)
    parts.blocks.emplace_back([block](Tensor x) mutable { return block->forward(std::move(x)); });
  return parts;
}

// One step with the loss that `loss` gives.
Step step_with(std::shared_ptr<Parts> parts, std::function<Tensor()> loss) {
  auto last = std::make_shared<Tensor>();
  return {[parts, loss = std::move(loss), last] {
            parts->optimizer->zero_grad();
            Tensor value = loss();
            value.backward();
            parts->optimizer->step();
            *last = value.detach();
          },
          [last] { return last->item<double>(); }};
}

using MakeParts = std::function<Parts()>;

Step plain(const MakeParts& make) {
  auto parts = std::make_shared<Parts>(make());
  return step_with(parts, [parts] { return parts->forward(); });
}

Step checkpointed(const MakeParts& make) {
  auto parts = std::make_shared<Parts>(make());
  return step_with(parts, [parts] {
    Tensor x = parts->before(parts->data);
    for (const auto& block : parts->blocks) x = tonnage::checkpoint(block, x);
    return parts->loss(x, parts->labels);
  });
}

// The blocks in a share of what they need without recomputation.
Step planned(const MakeParts& make, double share) {
  auto parts = std::make_shared<Parts>(make());
  parts->forward()
      .backward();  // kernels are chosen and workspaces made before anything is measured
  const Tensor input = parts->before(parts->data).detach().requires_grad_();
  const auto costs = tonnage::measure_chain(parts->blocks, input);
  const int64_t all = tonnage::plan_chain(costs, int64_t{1} << 42).peak_bytes;
  const int64_t budget = std::max(tonnage::least_chain_bytes(costs),
                                  static_cast<int64_t>(share * static_cast<double>(all)));
  const auto plan = tonnage::plan_chain(costs, budget);
  return step_with(parts, [parts, plan] {
    return parts->loss(tonnage::run_chain(parts->blocks, plan, parts->before(parts->data)),
                       parts->labels);
  });
}

Step with_hooks(const MakeParts& make, const std::function<Hooks(const Parts&)>& make_hooks) {
  auto parts = std::make_shared<Parts>(make());
  Hooks hooks = make_hooks(*parts);
  return step_with(parts, [parts, hooks] {
    tonnage::SavedTensorHooksGuard guard(hooks);
    return parts->forward();
  });
}

// Hooks around the blocks only.
Step with_hooks_on_blocks(const MakeParts& make, const Hooks& hooks) {
  auto parts = std::make_shared<Parts>(make());
  return step_with(parts, [parts, hooks] {
    Tensor x = parts->before(parts->data);
    {
      tonnage::SavedTensorHooksGuard guard(hooks);
      for (const auto& block : parts->blocks) x = block(std::move(x));
    }
    return parts->loss(x, parts->labels);
  });
}

Step autocast(const MakeParts& make, c10::ScalarType dtype) {
  auto parts = std::make_shared<Parts>(make());
  return step_with(parts, [parts, dtype] {
    tonnage::AutocastGuard guard(torch::kCUDA, dtype);
    return parts->forward();
  });
}

Step scaled_half(const MakeParts& make) {
  auto parts = std::make_shared<Parts>(make());
  auto scaler = std::make_shared<tonnage::GradScaler>();
  return {[parts, scaler] {
    parts->optimizer->zero_grad();
    Tensor loss;
    {
      tonnage::AutocastGuard guard(torch::kCUDA, torch::kHalf);
      loss = parts->forward();
    }
    scaler->scale(loss).backward();
    scaler->step(*parts->optimizer);
    scaler->update();
  }};
}

// The same batch in parts.
Step accumulated(const MakeParts& make, int64_t windows) {
  auto parts = std::make_shared<Parts>(make());
  auto accumulator = std::make_shared<tonnage::GradientAccumulator>(
      *parts->optimizer, tonnage::AccumulatorOptions{.window = windows});
  return {[parts, accumulator, windows] {
    const int64_t rows = parts->data.size(0) / windows;
    for (int64_t i = 0; i < windows; i++) {
      const Tensor labels = parts->labels.narrow(0, i * rows, rows);
      accumulator->backward(parts->forward(parts->data.narrow(0, i * rows, rows), labels),
                            labels.numel());
    }
  }};
}

void add(std::vector<Case>& cases, const char* model, const MakeParts& make) {
  using tonnage::CompressedFormat, tonnage::CompressHooks, tonnage::OffloadHooks;
  const auto add_case = [&](const char* technique, const char* variant,
                            std::function<Step()> step) {
    cases.push_back({model, technique, variant, std::move(step)});
  };
  add_case("checkpoint", "without", [make] { return plain(make); });
  add_case("checkpoint", "every block", [make] { return checkpointed(make); });
  add_case("checkpoint", "half the budget", [make] { return planned(make, 0.5); });
  add_case("checkpoint", "a quarter", [make] { return planned(make, 0.25); });
  add_case("offload", "with", [make] {
    return with_hooks(make, [](const Parts& parts) {
      return std::make_shared<OffloadHooks>(tonnage::OffloadOptions{.keep = {parts.data}});
    });
  });
  add_case("offload", "least memory", [make] {
    return with_hooks(make, [](const Parts& parts) {
      return std::make_shared<OffloadHooks>(
          tonnage::OffloadOptions{.in_flight_bytes = 0, .prefetch = 0, .keep = {parts.data}});
    });
  });
  add_case("compress", "bfloat16",
           [make] { return with_hooks_on_blocks(make, std::make_shared<CompressHooks>()); });
  add_case("compress", "int8", [make] {
    return with_hooks_on_blocks(make, std::make_shared<CompressHooks>(tonnage::CompressOptions{
                                          .format = CompressedFormat::kInt8}));
  });
  add_case("autocast", "bfloat16", [make] { return autocast(make, torch::kBFloat16); });
  add_case("autocast", "float16 and scaler", [make] { return scaled_half(make); });
  add_case("accumulate", "4 parts", [make] { return accumulated(make, 4); });
}

}  // namespace memory

void add_memory_cases(std::vector<Case>& cases) {
  memory::add(cases, "gpt2", memory::gpt2);
  memory::add(cases, "resnet50", memory::resnet50);
}

}  // namespace bench
