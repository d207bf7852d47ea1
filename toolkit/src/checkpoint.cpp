#include "tonnage/torch/checkpoint.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <mutex>
#include <unordered_map>

#include "ambient_state.h"
#include "tonnage/torch/saved_tensor_hooks.h"

namespace tonnage {
namespace detail {

using ::torch::Tensor;
using ::torch::autograd::SavedVariable;

// Thrown through the user's function when the second run has made all that is needed. Not a
// std::exception: nobody is to catch it.
struct RecomputationDone {};

struct TensorFacts {
  c10::SmallVector<int64_t, 5> sizes;
  c10::ScalarType dtype = c10::kFloat;
  c10::Device device = c10::kCPU;

  explicit TensorFacts(const Tensor& t)
      : sizes(t.sizes().begin(), t.sizes().end()), dtype(t.scalar_type()), device(t.device()) {}
  bool matches(const Tensor& t) const {
    return t.sizes() == at::IntArrayRef(sizes) && t.scalar_type() == dtype && t.device() == device;
  }
};

// One checkpointed call. Held by the graph's saved tensors, so it goes when the last of them is
// released.
class CheckpointSegment : public std::enable_shared_from_this<CheckpointSegment> {
 public:
  CheckpointSegment(const CheckpointOptions& options, const TensorList& inputs,
                    std::function<void(const TensorList&)> again)
      : options_(options),
        again_(std::move(again)),
        ambient_(AmbientState::capture(inputs, options.preserve_rng)) {
    // Saved like any saved tensor: hooks further out (an outer checkpoint, offloading) take them
    // too. Detached, because a function that changes its input in place would make the input part
    // of the graph that holds this segment.
    inputs_.reserve(inputs.size());
    for (const Tensor& t : inputs) {
      requires_grad_.push_back(t.defined() && t.requires_grad());
      if (!t.defined())
        inputs_.emplace_back();
      else
        inputs_.emplace_back(t.requires_grad() && t.is_leaf() ? t : t.detach(),
                             /*is_output=*/false);
    }
  }

  size_t add_slot(const Tensor& tensor) {
    std::lock_guard<std::recursive_mutex> lock(mutex_);
    slots_.emplace_back(tensor);
    return slots_.size() - 1;
  }

  Tensor unpack(size_t slot) {
    std::lock_guard<std::recursive_mutex> lock(mutex_);
    const int task = ::torch::autograd::get_current_graph_task_id();
    if (task < 0) return run_again()[slot];
    auto found = recomputed_.find(task);
    if (found == recomputed_.end() || !found->second[slot].defined()) {
      TensorList tensors = run_again();
      if (found == recomputed_.end()) release_after_backward(task);
      found = recomputed_.insert_or_assign(task, std::move(tensors)).first;
    }
    return std::move(found->second[slot]);  // the graph's now: gone as soon as its node is done
  }

 private:
  struct Collector;

  TensorList run_again();

  // A backward pass that does not use every saved tensor (gradients of some inputs only) leaves the
  // rest: it goes with the pass.
  void release_after_backward(int task) {
    std::weak_ptr<CheckpointSegment> weak = weak_from_this();
    ::torch::autograd::Engine::get_default_engine().queue_callback([weak, task] {
      auto segment = weak.lock();
      if (!segment) return;
      std::lock_guard<std::recursive_mutex> lock(segment->mutex_);
      segment->recomputed_.erase(task);
    });
  }

  const CheckpointOptions options_;
  std::function<void(const TensorList&)> again_;
  AmbientState ambient_;
  std::vector<SavedVariable> inputs_;
  std::vector<bool> requires_grad_;
  std::recursive_mutex
      mutex_;  // held while the function runs again: a second device's thread waits for the result
  std::vector<TensorFacts> slots_;
  std::unordered_map<int, TensorList> recomputed_;  // by backward pass
};

// Takes what the second run saves, in the order of the first.
struct CheckpointSegment::Collector : SavedTensorHooks {
  Collector(const std::vector<TensorFacts>& expected_slots,
            const CheckpointOptions& checkpoint_options)
      : expected(expected_slots), options(checkpoint_options) {}

  std::unique_ptr<PackedTensor> pack(const Tensor& tensor) override {
    const size_t slot = count++;
    if (slot < expected.size()) {
      TORCH_CHECK(!options.check_determinism || expected[slot].matches(tensor),
                  "checkpoint: saved tensor ", slot, " of ", expected.size(),
                  " is different when the function runs again: ", tensor.toString(), " ",
                  tensor.sizes(), " on ", tensor.device(), " instead of ", expected[slot].dtype,
                  " ", at::IntArrayRef(expected[slot].sizes), " on ", expected[slot].device,
                  ". The function must do the same both times (no branches on changing state)");
      tensors.push_back(tensor.detach());
      if (options.early_stop && count == expected.size()) throw RecomputationDone{};
    }
    return nullptr;
  }

  const std::vector<TensorFacts>& expected;
  const CheckpointOptions& options;
  TensorList tensors;
  size_t count = 0;
};

TensorList CheckpointSegment::run_again() {
  TensorList inputs;
  for (size_t i = 0; i < inputs_.size(); i++) {
    Tensor saved = inputs_[i].unpack();
    // A leaf of its own, with the same requires_grad: the same operators then save the same tensors.
    inputs.push_back(saved.defined() ? saved.detach().set_requires_grad(requires_grad_[i])
                                     : Tensor());
  }
  auto collector = std::make_shared<Collector>(slots_, options_);
  {
    at::AutoGradMode with_grad(true);
    AmbientStateGuard ambient(ambient_);
    SavedTensorHooksGuard hooks(collector);
    try {
      again_(inputs);
    } catch (const RecomputationDone&) {
    }
  }
  TORCH_CHECK(collector->count == slots_.size(), "checkpoint: the function saved ", slots_.size(),
              " tensors in its first run and ", collector->count,
              " when it ran again. It must do the same both times (no branches on changing state)");
  return std::move(collector->tensors);
}

namespace {

struct Slot : PackedTensor {
  Slot(std::shared_ptr<CheckpointSegment> of, size_t index) : segment(std::move(of)), slot(index) {}
  Tensor unpack() override { return segment->unpack(slot); }
  std::shared_ptr<CheckpointSegment> segment;
  size_t slot;
};

struct FirstRun : SavedTensorHooks {
  explicit FirstRun(std::shared_ptr<CheckpointSegment> of) : segment(std::move(of)) {}
  std::unique_ptr<PackedTensor> pack(const Tensor& tensor) override {
    return std::make_unique<Slot>(segment, segment->add_slot(tensor));
  }
  std::shared_ptr<CheckpointSegment> segment;
};

}  // namespace

struct CheckpointRun::Hooks {
  explicit Hooks(std::shared_ptr<CheckpointSegment> segment)
      : guard(std::make_shared<FirstRun>(std::move(segment))) {}
  SavedTensorHooksGuard guard;
};

CheckpointRun::CheckpointRun(const CheckpointOptions& options, const TensorList& inputs,
                             std::function<void(const TensorList&)> again)
    : hooks_(std::make_unique<Hooks>(
          std::make_shared<CheckpointSegment>(options, inputs, std::move(again)))) {}

CheckpointRun::~CheckpointRun() = default;

void throw_no_tensor() {
  TORCH_CHECK(false,
              "checkpoint: the function returned no tensor; return what the rest of the model "
              "uses, as a tensor or a vector, "
              "tuple, pair or array of tensors");
}

}  // namespace detail

std::vector<Layer> layers_of(const ::torch::nn::Sequential& model) {
  TORCH_CHECK(!model.is_empty(), "layers_of: the Sequential is empty");
  std::vector<Layer> layers;
  for (auto it = model->begin(); it != model->end(); ++it) {
    ::torch::nn::AnyModule module = *it;
    layers.emplace_back([module](::torch::Tensor x) mutable {
      return module.forward<::torch::Tensor>(std::move(x));
    });
  }
  return layers;
}

::torch::Tensor checkpoint_sequential(const std::vector<Layer>& layers, int64_t segments,
                                      ::torch::Tensor input, const CheckpointOptions& options) {
  const int64_t count = static_cast<int64_t>(layers.size());
  TORCH_CHECK(count > 0, "checkpoint_sequential: there are no layers");
  TORCH_CHECK(segments >= 1 && segments <= count, "checkpoint_sequential: ", segments,
              " segments of ", count, " layers; give a number from 1 to ", count);
  const int64_t length = count / segments;
  for (int64_t s = 0; s < segments; s++) {
    const bool last = s + 1 == segments;
    std::vector<Layer> part(layers.begin() + s * length,
                            last ? layers.end() : layers.begin() + (s + 1) * length);
    auto run = [part = std::move(part)](::torch::Tensor x) {
      for (const Layer& layer : part) x = layer(std::move(x));
      return x;
    };
    input = last ? run(std::move(input)) : checkpoint(options, std::move(run), std::move(input));
  }
  return input;
}

::torch::Tensor checkpoint_sequential(const ::torch::nn::Sequential& model, int64_t segments,
                                      ::torch::Tensor input, const CheckpointOptions& options) {
  return checkpoint_sequential(layers_of(model), segments, std::move(input), options);
}

}  // namespace tonnage
