// Chains at work: measuring their layers, playing a plan through on paper, and running it.
#include <torch/autograd.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/cuda.h>

#include <algorithm>
#include <chrono>
#include <unordered_map>
#include <unordered_set>

#include "ambient_state.h"
#include "device_allocator.h"
#include "tonnage/torch/chain_plan.h"
#include "tonnage/torch/memory.h"
#include "tonnage/torch/saved_tensor_hooks.h"

namespace tonnage {
namespace {

using ::torch::Tensor;

// --- On paper ---

// Walks through the steps with the bytes that are there, and notes the highest number.
class Simulation {
 public:
  explicit Simulation(const ChainCosts& costs) : costs_(costs) {}

  // Forward and backward of the steps. At the end the gradient of their input has taken the place
  // of the result's.
  void both_ways(const std::vector<ChainStep>& steps, int64_t result_gradient) {
    const int64_t start = now_;
    std::vector<int64_t> held;
    for (const ChainStep& step : steps) {
      const int64_t before = now_;
      if (step.checkpointed())
        pass(step.begin, step.end);
      else
        layer_forward(step.begin, costs_.layers[step.begin].kept_bytes);
      held.push_back(now_ - before);
    }
    // The pass turns: the gradient of the result is there from here on.
    if (!result_gradient_there_) now_ += result_gradient;
    int64_t gradient = result_gradient;
    for (size_t s = steps.size(); s-- > 0;) {
      const ChainStep& step = steps[s];
      const int64_t gradient_out = step.begin == 0 ? costs_.input_gradient_bytes
                                                   : costs_.layers[step.begin - 1].output_bytes;
      if (step.checkpointed()) {
        now_ -= held[s];  // the results of the part were needed by what came after it
        const bool outer = result_gradient_there_;
        result_gradient_there_ = true;
        both_ways(step.inside, gradient);
        result_gradient_there_ = outer;
      } else {
        const LayerCost& c = costs_.layers[step.begin];
        see(gradient_out + c.backward_extra_bytes);
        seconds_ += c.backward_seconds;
        now_ += gradient_out - gradient - held[s];
      }
      gradient = gradient_out;
    }
    TORCH_INTERNAL_ASSERT(now_ == start + gradient - (result_gradient_there_ ? result_gradient : 0),
                          "the simulation lost bytes");
  }

  int64_t peak_bytes() const { return peak_; }
  double seconds() const { return seconds_; }

 private:
  void see(int64_t more) { peak_ = std::max(peak_, now_ + more); }

  void layer_forward(size_t layer, int64_t kept_bytes) {
    const LayerCost& c = costs_.layers[layer];
    see(c.kept_bytes + c.forward_extra_bytes);
    seconds_ += c.forward_seconds;
    now_ += kept_bytes;
  }

  // Forward, keeping only the last result.
  void pass(size_t begin, size_t end) {
    for (size_t layer = begin; layer < end; layer++) {
      layer_forward(layer, costs_.layers[layer].output_bytes);
      if (layer > begin) now_ -= costs_.layers[layer - 1].output_bytes;
    }
  }

  const ChainCosts& costs_;
  int64_t now_ = 0, peak_ = 0;
  double seconds_ = 0;
  bool result_gradient_there_ = false;  // it is, when a part runs again
};

// --- For real ---

int64_t block_bytes(const Tensor& t) {
  const int64_t bytes = static_cast<int64_t>(t.storage().nbytes());
  return t.is_cuda() ? (bytes + 511) / 512 * 512 : bytes;
}

struct StorageCounter : SavedTensorHooks {
  std::unique_ptr<PackedTensor> pack(const Tensor& t) override {
    if (t.has_storage() && !is_parameter_storage(t))
      saved[t.storage().unsafeGetStorageImpl()] = block_bytes(t);
    return nullptr;
  }
  std::unordered_map<const c10::StorageImpl*, int64_t> saved;
};

class Stopwatch {
 public:
  explicit Stopwatch(c10::Device device) : device_(device) { restart(); }
  void restart() {
    wait();
    start_ = std::chrono::steady_clock::now();
  }
  double seconds() {
    wait();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  void wait() {
    if (device_.is_cuda()) ::torch::cuda::synchronize(device_.index());
  }
  c10::Device device_;
  std::chrono::steady_clock::time_point start_;
};

// Gradients with respect to all leaves that the output depends on, which are dropped: nothing of
// the model changes.
void backward_without_accumulating(const Tensor& output) {
  std::vector<Tensor> leaves;
  std::unordered_set<const ::torch::autograd::Node*> seen;
  std::vector<::torch::autograd::Node*> open{output.grad_fn().get()};
  while (!open.empty()) {
    ::torch::autograd::Node* node = open.back();
    open.pop_back();
    if (!node || !seen.insert(node).second) continue;
    if (auto* leaf = dynamic_cast<::torch::autograd::AccumulateGrad*>(node))
      leaves.push_back(leaf->variable);
    for (const auto& edge : node->next_edges()) open.push_back(edge.function.get());
  }
  if (leaves.empty()) return;
  ::torch::autograd::grad({output}, leaves, {::torch::ones_like(output)}, false, false, true);
}

// The first run makes what stays (workspaces of libraries, compiled kernels), the second is for the
// memory, the third for the time.
LayerCost measure_layer(const Layer& layer, const Tensor& input, Tensor& output) {
  LayerCost cost;
  const c10::Device device = input.device();
  {
    Tensor first = layer(input);
    TORCH_CHECK(first.defined(), "measure_chain: a layer returned no tensor");
    if (first.requires_grad()) backward_without_accumulating(first);
  }
  auto counter = std::make_shared<StorageCounter>();
  Tensor result;
  {
    std::optional<PeakScope> scope;
    if (device.is_cuda()) scope.emplace(device);
    {
      SavedTensorHooksGuard guard(counter);
      result = layer(input);
    }
    counter->saved.erase(input.storage().unsafeGetStorageImpl());
    counter->saved[result.storage().unsafeGetStorageImpl()] =
        result.is_alias_of(input) ? 0 : block_bytes(result);
    for (const auto& [storage, bytes] : counter->saved) cost.kept_bytes += bytes;
    cost.output_bytes =
        std::min(cost.kept_bytes, result.is_alias_of(input) ? 0 : block_bytes(result));
    if (scope)
      cost.forward_extra_bytes = std::max<int64_t>(0, scope->added_peak_bytes() - cost.kept_bytes);
  }
  const int64_t input_gradient = input.requires_grad() ? block_bytes(input) : 0;
  if (result.requires_grad()) {
    std::optional<PeakScope> scope;
    if (device.is_cuda()) scope.emplace(device);
    backward_without_accumulating(result);
    if (scope)
      cost.backward_extra_bytes =
          std::max<int64_t>(0, scope->added_peak_bytes() - cost.output_bytes - input_gradient);
  }
  Stopwatch watch(device);
  Tensor again = layer(input);
  cost.forward_seconds = watch.seconds();
  if (again.requires_grad()) {
    watch.restart();
    backward_without_accumulating(again);
    cost.backward_seconds = watch.seconds();
  }
  output = result.detach().set_requires_grad(result.requires_grad());
  return cost;
}

Tensor run_steps(const std::shared_ptr<const std::vector<Layer>>& layers,
                 const std::vector<ChainStep>& steps, Tensor x, const CheckpointOptions& options) {
  for (const ChainStep& step : steps) {
    if (!step.checkpointed()) {
      x = (*layers)[step.begin](std::move(x));
      continue;
    }
    auto part = [layers, inside = step.inside, options](Tensor t) {
      return run_steps(layers, inside, std::move(t), options);
    };
    x = checkpoint(options, std::move(part), std::move(x));
  }
  return x;
}

// The layers that the steps cover, in order; false if they are not begin..end.
bool covers(const std::vector<ChainStep>& steps, size_t begin, size_t end) {
  for (const ChainStep& s : steps) {
    if (s.begin != begin || s.end <= s.begin || s.end > end) return false;
    if (s.checkpointed() ? !covers(s.inside, s.begin, s.end) : s.end != s.begin + 1) return false;
    begin = s.end;
  }
  return begin == end;
}

}  // namespace

ChainFigures simulate_chain(const ChainCosts& costs, const std::vector<ChainStep>& steps) {
  TORCH_CHECK_VALUE(covers(steps, 0, costs.layers.size()),
                    "simulate_chain: the steps do not cover the ", costs.layers.size(),
                    " layers one after the other");
  Simulation simulation(costs);
  simulation.both_ways(steps, costs.layers.back().output_bytes);
  return {simulation.peak_bytes(), simulation.seconds()};
}

ChainCosts measure_chain(const std::vector<Layer>& layers, const Tensor& input) {
  TORCH_CHECK(!layers.empty(), "measure_chain: there are no layers");
  TORCH_CHECK(input.defined(), "measure_chain: the input is undefined");
  const AmbientState state = AmbientState::capture({input}, /*with_random=*/true);
  const AmbientStateGuard put_back(state);
  const at::AutoGradMode with_grad(true);
  ChainCosts out;
  Tensor x = input.detach().set_requires_grad(input.requires_grad());
  out.input_gradient_bytes = x.requires_grad() ? block_bytes(x) : 0;
  for (const Layer& layer : layers) {
    Tensor next;
    out.layers.push_back(measure_layer(layer, x, next));
    x = std::move(next);
  }
  return out;
}

Tensor run_chain(const std::vector<Layer>& layers, const ChainPlan& plan, Tensor input,
                 const CheckpointOptions& options) {
  TORCH_CHECK(covers(plan.steps, 0, layers.size()), "run_chain: the plan is not one for ",
              layers.size(), " layers; make it from the costs of this chain");
  return run_steps(std::make_shared<const std::vector<Layer>>(layers), plan.steps, std::move(input),
                   options);
}

}  // namespace tonnage
