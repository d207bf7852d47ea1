// Trains ResNet-50 or GPT-2 from C++ with the toolkit. The data is made up, and written to mapped
// files. It prints its progress.
//
//   train_cpp [--model resnet50|gpt2] [--batch-size N] [--steps N]
//             [--optimizer adamw|adamw8bit|adafactor|in-backward|offloaded]
//             [--checkpoint] [--bf16] [--small] [--cpu]
//
// --small: a few narrow layers, to try it on the CPU. Under `tonnage run` the report names
// parameters, gradients and optimizer state.
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include "gpt2.h"
#include "resnet50.h"
#include "tonnage/torch/adafactor.h"
#include "tonnage/torch/adam8bit.h"
#include "tonnage/torch/checkpoint.h"
#include "tonnage/torch/data.h"
#include "tonnage/torch/memory.h"
#include "tonnage/torch/offloaded_adamw.h"
#include "tonnage/torch/optim.h"
#include "tonnage/torch/optim_in_backward.h"
#include "tonnage/torch/precision.h"
#include "tonnage/torch/recorder.h"
#include "tonnage/torch/share.h"

namespace {

using torch::Tensor;

struct Settings {
  std::string model = "gpt2", optimizer = "adamw";
  int64_t batch_size = 4, steps = 10;
  bool checkpoint = false, bf16 = false, small = false, cpu = false;
};

[[noreturn]] void usage() {
  std::cerr << "usage: train_cpp [--model resnet50|gpt2] [--batch-size N] [--steps N]\n"
               "                 [--optimizer adamw|adamw8bit|adafactor|in-backward|offloaded] "
               "[--checkpoint] [--bf16] [--small] [--cpu]\n";
  std::exit(2);
}

Settings parse(int argc, char** argv) {
  Settings s;
  for (int i = 1; i < argc; i++) {
    const std::string option = argv[i];
    const auto value = [&]() -> std::string { return i + 1 < argc ? argv[++i] : (usage(), ""); };
    if (option == "--model")
      s.model = value();
    else if (option == "--optimizer")
      s.optimizer = value();
    else if (option == "--batch-size")
      s.batch_size = std::atoll(value().c_str());
    else if (option == "--steps")
      s.steps = std::atoll(value().c_str());
    else if (option == "--checkpoint")
      s.checkpoint = true;
    else if (option == "--bf16")
      s.bf16 = true;
    else if (option == "--small")
      s.small = true;
    else if (option == "--cpu")
      s.cpu = true;
    else
      usage();
  }
  if ((s.model != "gpt2" && s.model != "resnet50") || s.batch_size < 1 || s.steps < 1) usage();
  return s;
}

// What a model is to this program: its blocks can be checkpointed, its data come from `batches`.
struct Job {
  std::shared_ptr<torch::nn::Module> model;
  std::function<Tensor(const tonnage::Batch&)> loss;
  tonnage::BatchSource batches;
  const char* unit;
  int64_t units_per_batch;
};

template <class Block>
Tensor run_blocks(std::vector<Block>& blocks, Tensor x, bool checkpoint) {
  for (auto& block : blocks)
    x = checkpoint
            ? tonnage::checkpoint([block](Tensor in) mutable { return block->forward(in); }, x)
            : block->forward(x);
  return x;
}

Job make_gpt2(const Settings& s, const std::string& folder) {
  examples::Gpt2Options options;
  if (s.small) options = {.layers = 2, .width = 64, .heads = 4, .vocabulary = 256, .length = 32};
  // Text with a pattern that can be learnt: each token is a function of the one before, with some
  // noise.
  const int64_t length = options.length, count = (length + 1) * s.batch_size * 8;
  Tensor next = torch::randperm(options.vocabulary), tokens = torch::empty({count}, torch::kInt);
  auto* text = tokens.data_ptr<int>();
  text[0] = 0;
  for (int64_t i = 1; i < count; i++)
    text[i] = static_cast<int>(i % 7 ? next.data_ptr<int64_t>()[text[i - 1]]
                                     : (text[i - 1] + i) % options.vocabulary);
  tonnage::write_npy(folder + "/tokens.npy", tokens);
  tonnage::TokenDataset data(tonnage::map_npy(folder + "/tokens.npy"), length);
  const auto source =
      tonnage::batches(data, {.batch_size = s.batch_size, .shuffle = true, .seed = 1});
  examples::Gpt2 model(options);
  return {model.ptr(),
          [model, checkpoint = s.checkpoint](const tonnage::Batch& batch) mutable {
            return model->loss_of(run_blocks(model->blocks, model->embed(batch[0]), checkpoint),
                                  batch[1]);
          },
          [source, full = static_cast<int64_t>(*data.size()) / s.batch_size](int64_t i) {
            return source(i % full);
          },  // without end
          "tokens", s.batch_size * length};
}

Job make_resnet50(const Settings& s, const std::string& folder) {
  const int64_t size = s.small ? 64 : 256, count = s.batch_size * 4;
  Tensor labels = torch::randint(0, 10, {count});
  Tensor images =
      (torch::rand({count, 3, size, size}) * 128 + labels.view({-1, 1, 1, 1}) * 12).to(torch::kByte);
  tonnage::write_npy(folder + "/images.npy", images);
  tonnage::MappedDataset data(tonnage::map_npy(folder + "/images.npy"), labels);
  const auto source =
      tonnage::batches(data, {.batch_size = s.batch_size, .shuffle = true, .seed = 1});
  auto augment = std::make_shared<tonnage::Augment>(
      tonnage::AugmentOptions{.crop = s.small ? 56 : 224,
                              .flip = 0.5,
                              .mean = {0.485, 0.456, 0.406},
                              .deviation = {0.229, 0.224, 0.225}});
  examples::ResNet50 model;
  return {model.ptr(),
          [model, augment, checkpoint = s.checkpoint](const tonnage::Batch& batch) mutable {
            return model->loss_of(
                run_blocks(model->blocks, model->stem((*augment)(batch[0])), checkpoint), batch[1]);
          },
          [source, full = count / s.batch_size](int64_t i) { return source(i % full); }, "images",
          s.batch_size};
}

// Either an optimizer, or updates inside the backward pass.
struct Updates {
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::unique_ptr<tonnage::OptimizerInBackward> in_backward;
};

Updates make_updates(const Settings& s, const torch::nn::Module& model) {
  const auto parameters = tonnage::unique_parameters(model);
  const torch::optim::AdamWOptions adamw(3e-4);
  Updates u;
  if (s.optimizer == "adamw")
    u.optimizer = std::make_unique<tonnage::FusedAdamW>(parameters, adamw);
  else if (s.optimizer == "adamw8bit")
    u.optimizer = std::make_unique<tonnage::Adam8bit>(parameters, tonnage::Adam8bitOptions(3e-4));
  else if (s.optimizer == "adafactor")
    u.optimizer = std::make_unique<tonnage::Adafactor>(parameters, tonnage::AdafactorOptions(1e-2));
  else if (s.optimizer == "offloaded")
    u.optimizer = std::make_unique<tonnage::OffloadedAdamW>(parameters, adamw);
  else if (s.optimizer == "in-backward")
    u.in_backward =
        std::make_unique<tonnage::OptimizerInBackward>(parameters, [&](std::vector<Tensor> p) {
          return std::make_unique<tonnage::FusedAdamW>(std::move(p), adamw);
        });
  else
    usage();
  return u;
}

void train(const Settings& s, const std::string& folder) {
  torch::manual_seed(0);
  const torch::Device device = s.cpu ? torch::kCPU : torch::kCUDA;
  Job job = s.model == "gpt2" ? make_gpt2(s, folder) : make_resnet50(s, folder);
  job.model->to(device);
  tonnage::label_module(*job.model);
  Updates updates = make_updates(s, *job.model);
  tonnage::PrefetchLoader loader(job.batches, {.device = device, .depth = 2, .workers = 1});
  std::printf("%s: %.1f M parameters, %s of them\n", s.model.c_str(),
              double(tonnage::parameter_bytes(*job.model)) / 4e6,
              tonnage::format_bytes(tonnage::parameter_bytes(*job.model)).c_str());

  for (int64_t step = 1; step <= s.steps; step++) {
    const auto begin = std::chrono::steady_clock::now();
    auto batch = loader.next();
    Tensor loss;
    {
      tonnage::AutocastGuard autocast(device.type(), torch::kBFloat16, s.bf16);
      loss = job.loss(*batch);
    }
    loss.backward();
    if (updates.optimizer) {
      updates.optimizer->step();
      if (step == 1) tonnage::label_optimizer(*updates.optimizer, *job.model);
      updates.optimizer->zero_grad();
    }
    tonnage::mark_step();
    const double value = loss.item<double>();  // waits for the device
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::printf("step %lld/%lld: loss %.4f, %.0f %s/s", static_cast<long long>(step),
                static_cast<long long>(s.steps), value, double(job.units_per_batch) / seconds,
                job.unit);
    if (!s.cpu)
      std::printf(", peak %s",
                  tonnage::format_bytes(tonnage::memory_stats().allocated_bytes.all.peak).c_str());
    std::printf("\n");
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Settings settings = parse(argc, argv);
  if (!settings.cpu && !torch::cuda::is_available()) {
    std::cerr << "train_cpp: no CUDA device; --cpu --small trains without one\n";
    return 1;
  }
  char folder[] = "/tmp/train_cpp.XXXXXX";  // for the data
  if (!mkdtemp(folder)) {
    std::perror("train_cpp: /tmp");
    return 1;
  }
  int status = 0;
  try {
    train(settings, folder);
  } catch (const c10::Error& error) {  // out of memory among them
    std::cerr << error.what_without_backtrace() << std::endl;
    status = 1;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    status = 1;
  }
  for (const char* name : {"/tokens.npy", "/images.npy"})
    std::remove((std::string(folder) + name).c_str());
  rmdir(folder);
  return status;
}
