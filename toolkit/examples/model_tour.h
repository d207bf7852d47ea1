// The toolkit's means for smaller models, one short example each, on a network of two layers.
#pragma once

#include <torch/torch.h>

#include <iostream>

#include "tonnage/torch/attention.h"
#include "tonnage/torch/distill.h"
#include "tonnage/torch/grow.h"
#include "tonnage/torch/hash_embedding.h"
#include "tonnage/torch/lora.h"
#include "tonnage/torch/low_rank.h"
#include "tonnage/torch/memory.h"
#include "tonnage/torch/optim.h"
#include "tonnage/torch/prune.h"
#include "tonnage/torch/quantize.h"
#include "tonnage/torch/replaceable.h"
#include "tonnage/torch/share.h"

namespace examples {

// Its layers can be replaced (tonnage::Linear where torch::nn::Linear would be).
struct ClassifierImpl : torch::nn::Module {
  explicit ClassifierImpl(int64_t hidden = 1024) {
    in = register_module("in", tonnage::Linear(256, hidden));
    out = register_module("out", tonnage::Linear(hidden, 16));
  }
  torch::Tensor forward(const torch::Tensor& x) { return out(torch::relu(in(x))); }
  tonnage::Linear in{nullptr}, out{nullptr};
};
TORCH_MODULE(Classifier);

inline int64_t training_bytes(const torch::nn::Module& model) {
  int64_t bytes = 0;
  for (const auto& p : tonnage::unique_parameters(model))
    if (p.requires_grad()) bytes += static_cast<int64_t>(p.nbytes());
  return bytes;
}

inline double train_step(Classifier model, const torch::Tensor& x, const torch::Tensor& labels) {
  std::vector<torch::Tensor> parameters;
  for (const auto& p : model->parameters())
    if (p.requires_grad()) parameters.push_back(p);
  tonnage::FusedAdamW optimizer(parameters, torch::optim::AdamWOptions(1e-3));
  torch::Tensor loss = torch::nn::functional::cross_entropy(model(x), labels);
  loss.backward();
  optimizer.step();
  return loss.item<double>();
}

inline void smaller_models(torch::Device device) {
  using tonnage::format_bytes;
  const torch::Tensor x = torch::randn({64, 256}).to(device),
                      labels = torch::randint(0, 16, {64}).to(device);
  const auto fresh = [&](int64_t hidden = 1024) {
    Classifier model(hidden);
    model->to(device);
    return model;
  };
  const auto line = [](const char* what, int64_t bytes, int64_t of) {
    std::cout << "  " << what << ": " << format_bytes(bytes) << " of " << format_bytes(of) << "\n";
  };

  Classifier teacher = fresh();
  const int64_t full = tonnage::parameter_bytes(*teacher);
  train_step(teacher, x, labels);

  Classifier tuned = fresh();
  tonnage::freeze(*tuned);
  tuned->in->replace(tonnage::LoraLinear(tuned->in, 8));
  tuned->out->replace(tonnage::LoraLinear(tuned->out, 8));
  train_step(tuned, x, labels);
  line("LoRA trains", training_bytes(*tuned), full);

  Classifier factorised(1024);  // the SVD is computed on the CPU
  factorised->in->replace(tonnage::low_rank_linear(factorised->in, 32));
  factorised->to(device);
  train_step(factorised, x, labels);
  line("low rank keeps", tonnage::parameter_bytes(*factorised), full);

  Classifier sparse = fresh();
  tonnage::Pruner pruner;
  pruner.two_of_four(*sparse);
  train_step(sparse, x, labels);
  pruner.apply();
  line("2:4 pruning would pack", pruner.compact_bytes(), full);

  Classifier student = fresh(128);
  torch::Tensor teachers;
  {
    torch::NoGradGuard no_grad;
    teachers = teacher(x);
  }
  tonnage::distillation_loss(student(x), teachers, labels, {.temperature = 4, .alpha = 0.7})
      .backward();
  line("a distilled student has", tonnage::parameter_bytes(*student), full);

  Classifier learner = fresh();  // QAT and what becomes of it
  tonnage::prepare_qat_(*learner);
  train_step(learner, x, labels);
  learner->to(torch::kCPU);
  tonnage::convert_(*learner);
  Classifier quantized = fresh();
  const auto replaced = tonnage::quantize_dynamic_(*quantized);
  {
    torch::NoGradGuard no_grad;
    learner(x.cpu());
    quantized(x);
  }
  int64_t int8_bytes = 0;
  for (auto& layer : {quantized->in, quantized->out})
    int8_bytes +=
        std::dynamic_pointer_cast<tonnage::DynamicQuantizedLinearImpl>(layer->substitute())
            ->weight_bytes();
  line(("int8 in " + std::to_string(replaced.replaced.size()) + " layers takes").c_str(),
       int8_bytes, full);

  tonnage::HashEmbedding words(tonnage::HashEmbeddingOptions(100'000, 64).buckets(2'000));
  words->to(device);
  words(torch::randint(0, 100'000, {64}).to(device)).sum().backward();
  line("a hash embedding takes", tonnage::parameter_bytes(*words), int64_t{100'000} * 64 * 4);

  tonnage::GrowingStack stack(
      4, [](int64_t) { return torch::nn::AnyModule(torch::nn::Linear(256, 256)); }, device);
  stack->grow(2);
  const int64_t half = tonnage::parameter_bytes(*stack);
  stack->grow(2);
  stack->set_fade(0.3);
  stack->forward(x).sum().backward();
  line("half of a growing stack took", half, tonnage::parameter_bytes(*stack));

  tonnage::MemoryEfficientAttention attention(tonnage::SelfAttentionOptions(256, 4).causal(true));
  attention->to(device);
  attention(x.view({4, 16, 256})).sum().backward();
}

}  // namespace examples
