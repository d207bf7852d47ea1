// Optimizers and model techniques on ResNet-50 and on GPT-2.
#include <torch/torch.h>

#include "gpt2.h"
#include "resnet50.h"
#include "techniques.h"
#include "tonnage/torch/adafactor.h"
#include "tonnage/torch/adam8bit.h"
#include "tonnage/torch/attention.h"
#include "tonnage/torch/distill.h"
#include "tonnage/torch/hash_embedding.h"
#include "tonnage/torch/lora.h"
#include "tonnage/torch/low_rank.h"
#include "tonnage/torch/offloaded_adamw.h"
#include "tonnage/torch/optim.h"
#include "tonnage/torch/optim_in_backward.h"
#include "tonnage/torch/prune.h"
#include "tonnage/torch/quantize.h"

namespace bench {
namespace {

using torch::Tensor;
namespace nn = torch::nn;
namespace to = torch::optim;
using Optimizer = std::unique_ptr<to::Optimizer>;
using MakeOptimizer = std::function<Optimizer(std::vector<Tensor>)>;

Tensor random_ids(c10::IntArrayRef shape) {
  return torch::randint(0, 50257, shape, torch::device(torch::kCUDA).dtype(torch::kLong));
}

// A model with its data; forward() gives the loss.
struct Job {
  std::shared_ptr<nn::Module> model;
  std::function<Tensor()> forward;
};

Job gpt2(const examples::Gpt2Options& options = {}) {
  torch::manual_seed(0);
  examples::Gpt2 model(options);
  model->to(torch::kCUDA);
  Tensor ids = random_ids({kGptBatch, kGptLength}), targets = random_ids({kGptBatch, kGptLength});
  return {model.ptr(), [model, ids, targets]() mutable { return model->forward(ids, targets); }};
}

Job resnet50() {
  torch::manual_seed(0);
  examples::ResNet50 model;
  model->to(torch::kCUDA);
  Tensor images = torch::randn({kResNetBatch, 3, kResNetSize, kResNetSize}, torch::kCUDA);
  Tensor labels =
      torch::randint(0, 1000, {kResNetBatch}, torch::device(torch::kCUDA).dtype(torch::kLong));
  return {model.ptr(),
          [model, images, labels]() mutable { return model->forward(images, labels); }};
}

std::vector<Tensor> trainable(const nn::Module& model) {
  std::vector<Tensor> parameters;
  for (const Tensor& p : tonnage::unique_parameters(model))
    if (p.requires_grad()) parameters.push_back(p);
  return parameters;
}

Step training(Job job, const MakeOptimizer& make, std::function<void()> after = nullptr) {
  auto loss = std::make_shared<Tensor>();
  std::shared_ptr<to::Optimizer> optimizer = make(trainable(*job.model));
  return {[job, optimizer, loss, after] {
            optimizer->zero_grad();
            Tensor l = job.forward();
            l.backward();
            optimizer->step();
            if (after) after();
            *loss = l.detach();
          },
          [loss] { return loss->item<double>(); }};
}

template <class O, class Options>
MakeOptimizer make(Options options) {
  return [options](std::vector<Tensor> p) { return std::make_unique<O>(std::move(p), options); };
}

const MakeOptimizer& fused_adamw() {
  static const MakeOptimizer f = make<tonnage::FusedAdamW>(to::AdamWOptions(1e-4));
  return f;
}

Step in_backward(Job job) {
  auto updates =
      std::make_shared<tonnage::OptimizerInBackward>(trainable(*job.model), fused_adamw());
  return {[job, updates] { job.forward().backward(); }};
}

void add_optimizers(std::vector<Case>& cases, const char* model, Job (*job)()) {
  const auto add = [&](const char* technique, const char* variant, MakeOptimizer optimizer) {
    cases.push_back(
        {model, technique, variant, [job, optimizer] { return training(job(), optimizer); }});
  };
  add("adamw", "torch::optim", make<to::AdamW>(to::AdamWOptions(1e-4)));
  add("adamw", "fused", fused_adamw());
  add("adamw", "foreach", make<tonnage::ForeachAdamW>(to::AdamWOptions(1e-4)));
  add("adamw", "8 bits", make<tonnage::Adam8bit>(tonnage::Adam8bitOptions(1e-4)));
  add("adamw", "offloaded", make<tonnage::OffloadedAdamW>(to::AdamWOptions(1e-4)));
  add("adafactor", "with", make<tonnage::Adafactor>(tonnage::AdafactorOptions(1e-3)));
  add("sgd", "torch::optim", make<to::SGD>(to::SGDOptions(1e-2).momentum(0.9)));
  add("sgd", "fused", make<tonnage::FusedSGD>(to::SGDOptions(1e-2).momentum(0.9)));
  add("sgd", "foreach", make<tonnage::ForeachSGD>(to::SGDOptions(1e-2).momentum(0.9)));
  cases.push_back({model, "optimizer in backward", "with", [job] { return in_backward(job()); }});
}

examples::Gpt2Options with_linear(std::function<nn::AnyModule(nn::Linear)> change) {
  examples::Gpt2Options options;
  options.linear = [change](int64_t in, int64_t out) { return change(nn::Linear(in, out)); };
  return options;
}

// The two layers of low_rank_linear as one module with a plain forward().
struct ChainImpl : nn::Module {
  explicit ChainImpl(nn::Sequential layers) : layers(register_module("layers", layers)) {}
  Tensor forward(const Tensor& x) { return layers->forward(x); }
  nn::Sequential layers;
};
TORCH_MODULE(Chain);

examples::Gpt2Options with_attention(std::function<Tensor(Tensor, Tensor, Tensor)> attention) {
  examples::Gpt2Options options;
  options.attention = std::move(attention);
  return options;
}

Tensor plain_attention(const Tensor& q, const Tensor& k, const Tensor& v) {
  Tensor scores = torch::matmul(q / std::sqrt(double(q.size(-1))), k.transpose(-2, -1));
  scores = scores.masked_fill(
      torch::ones({q.size(2), k.size(2)}, q.options().dtype(torch::kBool)).triu(1), -INFINITY);
  return torch::matmul(torch::softmax(scores, -1), v);
}

void add_gpt2_models(std::vector<Case>& cases) {
  const auto add = [&](const char* technique, const char* variant, std::function<Step()> step) {
    cases.push_back({"gpt2", technique, variant, std::move(step)});
  };
  add("tied weights", "without", [] {
    examples::Gpt2Options options;
    options.tie = false;
    return training(gpt2(options), fused_adamw());
  });
  add("tied weights", "with", [] { return training(gpt2(), fused_adamw()); });
  add("freeze", "all but 2 blocks", [] {
    Job job = gpt2();
    tonnage::freeze(*job.model, [](const std::string& name, const Tensor&) {
      return name.rfind("block10", 0) != 0 && name.rfind("block11", 0) != 0;
    });
    return training(job, fused_adamw());
  });
  add("lora", "rank 8", [] {
    Job job = gpt2(with_linear([](nn::Linear l) {
      return nn::AnyModule(tonnage::LoraLinear(l, tonnage::LoraOptions(8).alpha(16)));
    }));
    tonnage::freeze(*job.model, [](const std::string& name, const Tensor&) {
      return name.find("lora_") == std::string::npos;
    });
    return training(job, fused_adamw());
  });
  add("low rank", "rank 192", [] {
    return training(gpt2(with_linear([](nn::Linear l) {
                      nn::Sequential two(
                          nn::Linear(nn::LinearOptions(l->weight.size(1), 192).bias(false)),
                          nn::Linear(192, l->weight.size(0)));
                      return nn::AnyModule(Chain(two));
                    })),
                    fused_adamw());
  });
  add("attention", "plain",
      [] { return training(gpt2(with_attention(plain_attention)), fused_adamw()); });
  add("attention", "fused kernel", [] { return training(gpt2(), fused_adamw()); });
  add("attention", "sliced", [] {
    return training(gpt2(with_attention([](Tensor q, Tensor k, Tensor v) {
                      return tonnage::memory_efficient_attention(q, k, v, {}, {.causal = true});
                    })),
                    fused_adamw());
  });
  add("attention", "performer, 256 features", [] {
    Tensor projection = tonnage::performer_projection(256, 64, torch::kCUDA);
    return training(gpt2(with_attention([projection](Tensor q, Tensor k, Tensor v) {
                      return tonnage::performer_attention(q, k, v, projection, true);
                    })),
                    fused_adamw());
  });
  add("pruning", "80 % masks", [] {
    Job job = gpt2();
    auto pruner = std::make_shared<tonnage::Pruner>();
    pruner->magnitude(*job.model, 0.8);
    return training(job, fused_adamw(), [pruner] { pruner->apply(); });
  });
  add("qat", "with", [] {
    return training(
        gpt2(with_linear([](nn::Linear l) { return nn::AnyModule(tonnage::QatLinear(l)); })),
        fused_adamw());
  });
  // Inference.
  const auto inference = [](const examples::Gpt2Options& options) {
    Job job = gpt2(options);
    job.model->eval();
    return Step{[job] {
      torch::NoGradGuard no_grad;
      job.forward();
    }};
  };
  add("int8 linear", "without", [inference] { return inference({}); });
  add("int8 linear", "with", [inference] {
    return inference(with_linear([](nn::Linear l) {
      l->to(torch::kCUDA);
      return nn::AnyModule(tonnage::DynamicQuantizedLinear(l));
    }));
  });
  // The loss alone, on the logits of a batch of GPT-2.
  const auto distillation = [](bool ours) {
    const auto options = torch::device(torch::kCUDA);
    Tensor student = torch::randn({kGptBatch * kGptLength, 50257}, options.requires_grad(true)),
           labels = random_ids({kGptBatch * kGptLength});
    Tensor teacher = torch::randn({kGptBatch * kGptLength, 50257}, options.requires_grad(false));
    return Step{[=]() mutable {
      student.mutable_grad().reset();
      Tensor loss;
      if (ours) {
        loss =
            tonnage::distillation_loss(student, teacher, labels, {.temperature = 2, .alpha = 0.5});
      } else {
        namespace F = nn::functional;
        const auto options = F::KLDivFuncOptions().reduction(torch::kBatchMean).log_target(true);
        const auto softened = [](const Tensor& logits) {
          return F::log_softmax(logits / 2, -1);
        };  // the quotient goes when it returns
        Tensor kl = F::kl_div(softened(student), softened(teacher), options);
        loss = 0.5 * 4 * kl + 0.5 * F::cross_entropy(student, labels);
      }
      loss.backward();
    }};
  };
  add("distillation loss", "without", [distillation] { return distillation(false); });
  add("distillation loss", "with", [distillation] { return distillation(true); });
  const auto embedding = [](nn::AnyModule module) {
    module.ptr()->to(torch::kCUDA);
    auto optimizer =
        std::make_shared<tonnage::FusedAdamW>(module.ptr()->parameters(), to::AdamWOptions(1e-4));
    Tensor ids = random_ids({kGptBatch, kGptLength});
    return Step{[=]() mutable {
      optimizer->zero_grad();
      Tensor loss = module.forward<Tensor>(ids)
                        .square()
                        .mean();  // temporaries would live until after backward() in one statement
      loss.backward();
      optimizer->step();
    }};
  };
  add("hash embedding", "without",
      [embedding] { return embedding(nn::AnyModule(nn::Embedding(50257, 768))); });
  add("hash embedding", "5000 buckets", [embedding] {
    return embedding(nn::AnyModule(
        tonnage::HashEmbedding(tonnage::HashEmbeddingOptions(50257, 768).buckets(5000))));
  });
}

void add_resnet_models(std::vector<Case>& cases) {
  cases.push_back({"resnet50", "freeze", "all but the last stage", [] {
                     Job job = resnet50();
                     tonnage::freeze(*job.model, [](const std::string& name, const Tensor&) {
                       return name.rfind("stage4", 0) != 0 && name.rfind("head", 0) != 0;
                     });
                     return training(job,
                                     make<tonnage::FusedSGD>(to::SGDOptions(1e-2).momentum(0.9)));
                   }});
  cases.push_back({"resnet50", "pruning", "80 % masks", [] {
                     Job job = resnet50();
                     auto pruner = std::make_shared<tonnage::Pruner>();
                     pruner->magnitude(*job.model, 0.8);
                     return training(job,
                                     make<tonnage::FusedSGD>(to::SGDOptions(1e-2).momentum(0.9)),
                                     [pruner] { pruner->apply(); });
                   }});
}

}  // namespace

void add_model_cases(std::vector<Case>& cases) {
  add_optimizers(cases, "gpt2", [] { return gpt2(); });
  add_optimizers(cases, "resnet50", resnet50);
  add_gpt2_models(cases);
  add_resnet_models(cases);
}

}  // namespace bench
