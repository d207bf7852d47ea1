// Activation checkpointing: a part of the forward pass keeps only its inputs. It runs again when
// the backward pass needs what it would have saved. So it saves memory and costs one more forward
// pass.
//
//   x = tonnage::checkpoint([block](torch::Tensor x) { return block->forward(x); }, x);
//
//   x = tonnage::checkpoint_sequential(sequential, /*segments=*/4, x);
//
// The gradients are the same bits as without: the graph is the one that the first run built; only
// what it had saved is computed again, with the random state (CPU, and the CUDA devices of the
// inputs, or the current one) and the autocast state of the first run. Inputs need not require
// gradients; torch::autograd::grad, retain_graph, create_graph and nesting work. The second run
// stops as soon as the last saved tensor is there (early stop), and what it made is released tensor
// by tensor as the backward pass uses it.
//
// Function: called with the inputs, once now and once per backward pass; it is copied, so let it
// hold modules (their holders), not activations. It must do the same both times: no changing state
// other than random numbers. Buffers that it updates (batch norm's running statistics) are updated
// twice. Inputs: tensors, std::vector or std::optional of tensors, and anything else that can be
// copied. Tensors must not be changed in place before the backward pass. Results: a tensor, or a
// std::vector, std::tuple, std::pair or std::array of tensors. Without grad mode the function is
// simply called.
//
// Errors (c10::Error): the function returned no tensor; the second run saved other tensors than the
// first (count, shape, type or device: which one is said); an input was changed in place. An
// exception of the function itself is passed through. Threads: the second run happens on the thread
// that runs the backward pass.
//
// Source of the method: Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost;
// recomputation through saved-tensor hooks as in PyTorch's torch.utils.checkpoint
// (use_reentrant=False).
#pragma once

#include <ATen/core/grad_mode.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace tonnage {

struct CheckpointOptions {
  bool preserve_rng =
      true;  // false: where nothing random is in the function; saves copying the generators' states
  bool early_stop = true;  // false: run the function to its end the second time too
  bool check_determinism =
      true;  // compare shape, type and device of every tensor of the second run
};

namespace detail {

using TensorList = std::vector<::torch::Tensor>;

template <class T>
void collect_tensors(const T&, TensorList&) {}
inline void collect_tensors(const ::torch::Tensor& t, TensorList& out) { out.push_back(t); }
inline void collect_tensors(const std::optional<::torch::Tensor>& t, TensorList& out) {
  out.push_back(t.value_or(::torch::Tensor()));
}
inline void collect_tensors(const TensorList& list, TensorList& out) {
  out.insert(out.end(), list.begin(), list.end());
}

// What is left of an argument without its tensors, and back.
template <class T>
void take_tensors(T&, const TensorList*, size_t&) {}
inline void take_tensors(::torch::Tensor& t, const TensorList* from, size_t& at) {
  t = from ? (*from)[at++] : ::torch::Tensor();
}
inline void take_tensors(std::optional<::torch::Tensor>& t, const TensorList* from, size_t& at) {
  if (!t) {
    at += from != nullptr;
    return;
  }
  t = from ? (*from)[at++] : ::torch::Tensor();
}
inline void take_tensors(TensorList& list, const TensorList* from, size_t& at) {
  for (::torch::Tensor& t : list) t = from ? (*from)[at++] : ::torch::Tensor();
}

template <class T>
struct IsResult : std::false_type {};
template <>
struct IsResult<::torch::Tensor> : std::true_type {};
template <>
struct IsResult<TensorList> : std::true_type {};
template <class... T>
struct IsResult<std::tuple<T...>> : std::conjunction<IsResult<T>...> {};
template <class A, class B>
struct IsResult<std::pair<A, B>> : std::conjunction<IsResult<A>, IsResult<B>> {};
template <size_t N>
struct IsResult<std::array<::torch::Tensor, N>> : std::true_type {};

inline bool has_tensor(const ::torch::Tensor& t) { return t.defined(); }
template <class T>
bool has_tensor(const T& results) {
  if constexpr (requires { results.begin(); }) {
    for (const auto& r : results)
      if (has_tensor(r)) return true;
    return false;
  } else {
    return std::apply([](const auto&... r) { return (has_tensor(r) || ...); }, results);
  }
}

class CheckpointSegment;

// The first run: its constructor keeps what the second run needs, and its hooks are active until it
// ends.
class CheckpointRun {
 public:
  CheckpointRun(const CheckpointOptions& options, const TensorList& inputs,
                std::function<void(const TensorList&)> again);
  ~CheckpointRun();
  CheckpointRun(const CheckpointRun&) = delete;
  CheckpointRun& operator=(const CheckpointRun&) = delete;

 private:
  struct Hooks;
  std::unique_ptr<Hooks> hooks_;
};

[[noreturn]] void throw_no_tensor();

}  // namespace detail

template <class Function, class... Inputs>
auto checkpoint(const CheckpointOptions& options, Function function, Inputs... inputs) {
  using Result = std::decay_t<std::invoke_result_t<Function&, Inputs&...>>;
  static_assert(detail::IsResult<Result>::value,
                "checkpoint: the function must return a tensor, or a vector, tuple, pair or array "
                "of tensors");
  if (!c10::GradMode::is_enabled()) {
    Result result = function(inputs...);
    if (!detail::has_tensor(result)) detail::throw_no_tensor();
    return result;
  }
  detail::TensorList tensors;
  (detail::collect_tensors(inputs, tensors), ...);
  std::tuple<Inputs...> kept(
      inputs...);  // without its tensors: those are saved like any other saved tensor
  size_t at = 0;
  std::apply([&](auto&... arguments) { (detail::take_tensors(arguments, nullptr, at), ...); },
             kept);
  auto again = [function, kept](const detail::TensorList& from) mutable {
    std::tuple<Inputs...> arguments = kept;
    size_t next = 0;
    std::apply([&](auto&... argument) { (detail::take_tensors(argument, &from, next), ...); },
               arguments);
    std::apply([&](auto&... argument) { (void)function(argument...); }, arguments);
  };
  Result result = [&] {
    detail::CheckpointRun run(options, tensors, std::move(again));
    return function(inputs...);
  }();
  if (!detail::has_tensor(result)) detail::throw_no_tensor();
  return result;
}

template <class Function, class... Inputs>
requires(!std::is_same_v<std::decay_t<Function>, CheckpointOptions>) auto checkpoint(
    Function function, Inputs... inputs) {
  return checkpoint(CheckpointOptions{}, std::move(function), std::move(inputs)...);
}

// A chain of layers, one after the other.
using Layer = std::function<::torch::Tensor(::torch::Tensor)>;

// The layers of a Sequential; they hold its modules. Each layer must take and return one tensor.
std::vector<Layer> layers_of(const ::torch::nn::Sequential& model);

// Runs the chain in `segments` parts of equal length, all but the last one checkpointed (the
// backward pass begins with that one). Error: segments < 1 or more than there are layers; no
// layers. For parts chosen by a budget of bytes see chain_plan.h.
::torch::Tensor checkpoint_sequential(const std::vector<Layer>& layers, int64_t segments,
                                      ::torch::Tensor input, const CheckpointOptions& options = {});
::torch::Tensor checkpoint_sequential(const ::torch::nn::Sequential& model, int64_t segments,
                                      ::torch::Tensor input, const CheckpointOptions& options = {});

}  // namespace tonnage
