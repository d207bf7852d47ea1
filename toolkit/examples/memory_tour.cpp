// A short example of each part of the toolkit, on a small model. The parts that make models smaller
// are in model_tour.h.
//
//   memory_tour [--cpu] [--graph FILE.dot]
#include <torch/torch.h>

#include <cstring>
#include <fstream>
#include <iostream>

#include "model_tour.h"
#include "tonnage/torch/batch.h"
#include "tonnage/torch/chain_plan.h"
#include "tonnage/torch/checkpoint.h"
#include "tonnage/torch/compress.h"
#include "tonnage/torch/device_check.h"
#include "tonnage/torch/graph_dot.h"
#include "tonnage/torch/housekeeping.h"
#include "tonnage/torch/memory.h"
#include "tonnage/torch/memory_tables.h"
#include "tonnage/torch/offload.h"
#include "tonnage/torch/precision.h"
#include "tonnage/torch/recorder.h"
#include "tonnage/torch/saved_tensor_hooks.h"

namespace {

using torch::Tensor;

torch::nn::Sequential make_model(torch::Device device) {
  torch::nn::Sequential model;
  for (int i = 0; i < 6; i++) {
    model->push_back(torch::nn::Linear(256, 1024));
    model->push_back(torch::nn::GELU());
    model->push_back(torch::nn::Linear(1024, 256));
    model->push_back(torch::nn::Dropout(0.1));
  }
  model->to(device);
  tonnage::label_module(*model);
  tonnage::assert_on_device(*model, device);
  return model;
}

// Bytes that the graph of `forward` keeps, by the tables' count; works on the CPU too.
int64_t step_peak(torch::Device device, const std::function<Tensor()>& forward) {
  tonnage::MemoryTables tables(nullptr, device.type());
  forward().square().mean().backward();
  tables.stop();
  return tables.peak_bytes();
}

// A hook of one's own: float activations are kept as bfloat16.
struct Halve : tonnage::SavedTensorHooks {
  std::unique_ptr<tonnage::PackedTensor> pack(const Tensor& saved) override {
    if (saved.scalar_type() != torch::kFloat || tonnage::is_parameter_storage(saved))
      return nullptr;
    return tonnage::pack_with(saved.to(torch::kBFloat16),
                              [](const Tensor& packed) { return packed.to(torch::kFloat); });
  }
};

void keep_less(torch::nn::Sequential model, const Tensor& x) {
  const auto device = x.device();
  const auto layers = tonnage::layers_of(model);
  const auto line = [&](const char* what, const std::function<Tensor()>& forward) {
    std::cout << "  " << what << ": peak " << tonnage::format_bytes(step_peak(device, forward))
              << " above parameters and gradients\n";
  };
  const auto hooked = [&](std::shared_ptr<tonnage::SavedTensorHooks> hooks) {
    return [&model, &x, hooks] {
      tonnage::SavedTensorHooksGuard guard(hooks);
      return model->forward(x);
    };
  };
  model->forward(x).square().mean().backward();  // gradients are there from here on
  line("plain", [&] { return model->forward(x); });
  line("checkpoint_sequential, 6 parts",
       [&] { return tonnage::checkpoint_sequential(model, 6, x); });
  const auto costs = tonnage::measure_chain(layers, x);
  const int64_t budget = std::max(tonnage::least_chain_bytes(costs),
                                  tonnage::plan_chain(costs, int64_t{1} << 40).peak_bytes / 2);
  const auto plan = tonnage::plan_chain(costs, budget);
  std::cout << "  plan for " << tonnage::format_bytes(budget) << ": " << plan.to_string() << "\n";
  line("run_chain with it", [&] { return tonnage::run_chain(layers, plan, x); });
  line("halved by a hook of one's own", hooked(std::make_shared<Halve>()));
  line("compressed to int8",
       hooked(std::make_shared<tonnage::CompressHooks>(
           tonnage::CompressOptions{.format = tonnage::CompressedFormat::kInt8})));
  if (!device.is_cuda()) return;
  auto offload = std::make_shared<tonnage::OffloadHooks>(
      tonnage::OffloadOptions{.floor_bytes = 1 << 16, .in_flight_bytes = 4 << 20, .keep = {x}});
  line("offloaded", hooked(offload));
  std::cout << "  moved to the host: " << tonnage::format_bytes(offload->figures().to_host_bytes)
            << "\n";
}

void train(torch::nn::Sequential model, const Tensor& x) {
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  tonnage::GradScaler scaler(
      {.initial_scale = 1024, .enabled = x.is_cuda()});  // float16 on the card, bfloat16 on the CPU
  tonnage::GradientAccumulator accumulator(
      optimizer, {.window = 2, .scaler = x.is_cuda() ? &scaler : nullptr, .before_step = [&] {
                    torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
                  }});
  tonnage::LeakDetector leaks({.device = x.device().type()});
  std::vector<Tensor> history;  // a mistake: every loss stays on the device
  for (int part = 0; part < 8; part++) {
    Tensor loss;
    {
      tonnage::MemoryScope scope("training");
      tonnage::AutocastGuard autocast(x.device().type(),
                                      x.is_cuda() ? torch::kHalf : torch::kBFloat16);
      loss = (model->forward(x) - x).square().mean();
    }
    if (accumulator.backward(loss, x.size(0))) tonnage::mark_step();
    history.push_back(loss);
    if (const auto found = leaks.step(); !found.empty() && part == 7)
      std::cout << tonnage::describe(found);
  }
  accumulator.finish();
  std::cout << "  loss " << history.front().item<float>() << " -> " << history.back().item<float>()
            << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  bool cpu = false;
  std::string graph;
  for (int i = 1; i < argc; i++) {
    if (!std::strcmp(argv[i], "--cpu"))
      cpu = true;
    else if (!std::strcmp(argv[i], "--graph") && i + 1 < argc)
      graph = argv[++i];
    else {
      std::cerr << "usage: memory_tour [--cpu] [--graph FILE.dot]\n";
      return 2;
    }
  }
  if (!cpu && !torch::cuda::is_available()) {
    std::cerr << "memory_tour: no CUDA device; --cpu works without one\n";
    return 1;
  }
  try {
    torch::manual_seed(0);
    const torch::Device device = cpu ? torch::kCPU : torch::kCUDA;
    auto model = make_model(device);
    const Tensor x = torch::randn({128, 256}, device);

    std::cout << "Where memory goes in one step\n";
    {
      tonnage::MemoryTables tables(model.ptr().get(), device.type());
      model->forward(x).square().mean().backward();
      tables.stop();
      std::cout << tables.to_string(6);
    }
    if (!graph.empty()) {
      tonnage::GraphRecorder recorder;
      const Tensor loss = model->forward(x).square().mean();
      recorder.stop();
      std::ofstream(graph) << recorder.dot({loss}, model.ptr().get());
    }

    std::cout << "\nKeeping less\n";
    keep_less(model, x);

    std::cout << "\nTraining in half precision, in parts, with a leak\n";
    train(model, device.is_cuda() ? x : x.slice(0, 0, 8));  // bfloat16 is slow on most CPUs

    std::cout << "\nSmaller models\n";
    examples::smaller_models(device);

    std::cout << "\nOut of memory\n";
    // On a card these attempts would be training steps; here a limit of 300 rows stands for it.
    const auto attempt = [](int64_t rows) {
      TORCH_CHECK_WITH(OutOfMemoryError, rows <= 300, "out of memory with ", rows, " rows");
    };
    std::cout << "  largest batch: " << tonnage::find_batch_size(attempt, {.multiple_of = 4})
              << "\n";
    const auto result = tonnage::run_or_degrade(
        [&](const tonnage::Workload& w) { attempt(w.batch_size); }, {.batch_size = 1024});
    for (const auto& change : result.changes) std::cout << "  " << change << "\n";

    if (!cpu) {
      std::cout << "\n" << tonnage::memory_summary(device, {.abbreviated = true});
      const auto memory = tonnage::free_memory(device);
      std::cout << "free " << tonnage::format_bytes(memory.free_bytes) << ", others "
                << tonnage::format_bytes(memory.other_bytes()) << ", given back "
                << tonnage::format_bytes(tonnage::empty_cache(device)) << "\n";
    }
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << std::endl;
    return 1;
  }
  return 0;
}
