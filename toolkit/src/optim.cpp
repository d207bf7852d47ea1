#include "tonnage/torch/optim.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>
#include <type_traits>
#include <vector>

#include "optim_groups.h"

namespace tonnage {

// A scaled step of which the host does not know yet whether it was taken.
struct detail::UnsettledStep {
  ::torch::Tensor found_inf;         // on the CPU
  std::optional<c10::Event> copied;  // found_inf has its value
  std::vector<::torch::Tensor>
      params;  // that were counted as updated; of SGD only those whose momentum is new
};

namespace {

using ::torch::Tensor;
using Tensors = std::vector<Tensor>;
namespace to = ::torch::optim;

// Parameters of one device, type and number of steps: what one kernel takes. The lists are parallel.
struct ParamBatch {
  int64_t step = 0;  // of this update; 1 for the first
  Tensors params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, momentum;
};
using BatchKey = std::tuple<c10::DeviceType, int, at::ScalarType, int64_t>;

BatchKey key_of(const Tensor& p, int64_t step) {
  return {p.device().type(), p.device().index(), p.scalar_type(), step};
}

template <class Plain>
struct Traits;
template <>
struct Traits<to::Adam> {
  using Options = to::AdamOptions;
  using State = to::AdamParamState;
  static constexpr bool decoupled = false;
};
template <>
struct Traits<to::AdamW> {
  using Options = to::AdamWOptions;
  using State = to::AdamWParamState;
  static constexpr bool decoupled = true;
};

// Adam's batches of a group. All states exist, and no step is counted, when this returns.
template <class Plain>
std::map<BatchKey, ParamBatch> adam_batches(to::Optimizer& optimizer,
                                            const to::OptimizerParamGroup& group,
                                            const Tensors& params) {
  using State = typename Traits<Plain>::State;
  const auto& options = static_cast<const typename Traits<Plain>::Options&>(group.options());
  std::map<BatchKey, ParamBatch> batches;
  for (const Tensor& p : params) {
    State& state = optim::state_of<State>(optimizer, p, [&](State& fresh) {
      fresh.step(0);
      fresh.exp_avg(optim::zeros_for(p));
      fresh.exp_avg_sq(optim::zeros_for(p));
    });
    if (options.amsgrad() && !state.max_exp_avg_sq().defined()) {
      state.max_exp_avg_sq(optim::zeros_for(p));
      label_state(p, state);
    }
    ParamBatch& batch = batches[key_of(p, state.step())];
    batch.step = state.step() + 1;
    batch.params.push_back(p);
    batch.grads.push_back(p.grad());
    batch.exp_avgs.push_back(state.exp_avg());
    batch.exp_avg_sqs.push_back(state.exp_avg_sq());
    if (options.amsgrad()) batch.max_exp_avg_sqs.push_back(state.max_exp_avg_sq());
  }
  return batches;
}

template <class Plain>
void count_step(to::Optimizer& optimizer, const ParamBatch& batch) {
  for (const Tensor& p : batch.params)
    static_cast<typename Traits<Plain>::State&>(*optimizer.state()[p.unsafeGetTensorImpl()])
        .step(batch.step);
}

// A GradScaler's two scalars on the devices where kernels need them. Without one both are undefined.
class Scaling {
 public:
  Scaling(const Tensor& grad_scale, const Tensor& found_inf)
      : grad_scale_(grad_scale), found_inf_(found_inf) {}
  std::optional<Tensor> grad_scale(c10::Device device) { return on(device, grad_scale_, 0); }
  std::optional<Tensor> found_inf(c10::Device device) { return on(device, found_inf_, 1); }

 private:
  std::optional<Tensor> on(c10::Device device, const Tensor& value, int which) {
    if (!value.defined()) return std::nullopt;
    if (value.device() == device) return value;
    Tensor& copy = copies_[{which, device.type(), device.index()}];
    if (!copy.defined()) copy = value.to(device, /*non_blocking=*/true);
    return copy;
  }
  Tensor grad_scale_, found_inf_;
  std::map<std::tuple<int, c10::DeviceType, int>, Tensor> copies_;
};

template <class Plain>
void fused_adam(const ParamBatch& batch, const typename Traits<Plain>::Options& options,
                Scaling& scaling) {
  const auto [beta1, beta2] = options.betas();
  const Tensor step = at::full({}, static_cast<double>(batch.step),
                               batch.params[0].options().dtype(at::kFloat).requires_grad(false));
  const Tensors steps(batch.params.size(), step);
  const auto update = [&](auto kernel) {
    kernel(batch.params, batch.grads, batch.exp_avgs, batch.exp_avg_sqs, batch.max_exp_avg_sqs,
           steps, options.lr(), beta1, beta2, options.weight_decay(), options.eps(),
           options.amsgrad(), /*maximize=*/false, scaling.grad_scale(step.device()),
           scaling.found_inf(step.device()));
  };
  if constexpr (Traits<Plain>::decoupled)
    update([](auto&&... arguments) { at::_fused_adamw_(arguments...); });
  else
    update([](auto&&... arguments) { at::_fused_adam_(arguments...); });
}

// [begin, end) of the next slice of at most kForeachSliceBytes; at least one parameter.
size_t slice_end(const Tensors& params, size_t begin) {
  int64_t bytes = 0;
  size_t end = begin;
  while (end < params.size() &&
         (end == begin || bytes + static_cast<int64_t>(params[end].nbytes()) <= kForeachSliceBytes))
    bytes += static_cast<int64_t>(params[end++].nbytes());
  return end;
}

Tensors slice(const Tensors& all, size_t begin, size_t end) {
  return all.empty() ? Tensors()
                     : Tensors(all.begin() + static_cast<long>(begin),
                               all.begin() + static_cast<long>(end));
}

template <class Plain>
void foreach_adam(const ParamBatch& batch, const typename Traits<Plain>::Options& options) {
  const auto [beta1, beta2] = options.betas();
  const double correction1 = 1 - std::pow(beta1, batch.step),
               correction2 = 1 - std::pow(beta2, batch.step);
  for (size_t begin = 0, end; begin < batch.params.size(); begin = end) {
    end = slice_end(batch.params, begin);
    Tensors params = slice(batch.params, begin, end), grads = slice(batch.grads, begin, end);
    Tensors averages = slice(batch.exp_avgs, begin, end),
            squares = slice(batch.exp_avg_sqs, begin, end);
    if (options.weight_decay() != 0) {
      if constexpr (Traits<Plain>::decoupled)
        at::_foreach_mul_(params, 1 - options.lr() * options.weight_decay());
      else
        grads = at::_foreach_add(grads, params, options.weight_decay());
    }
    at::_foreach_lerp_(averages, grads, 1 - beta1);
    at::_foreach_mul_(squares, beta2);
    at::_foreach_addcmul_(squares, grads, grads, 1 - beta2);
    grads.clear();  // with weight decay they are temporary
    Tensors largest = slice(batch.max_exp_avg_sqs, begin, end);
    if (options.amsgrad()) at::_foreach_maximum_(largest, squares);
    Tensors denominators = at::_foreach_sqrt(options.amsgrad() ? largest : squares);
    at::_foreach_div_(denominators, std::sqrt(correction2));
    at::_foreach_add_(denominators, options.eps());
    at::_foreach_addcdiv_(params, averages, denominators, -options.lr() / correction1);
  }
}

// SGD's batches. The key's last part says whether the momentum buffers are new (0) or have been
// filled (1).
std::map<BatchKey, ParamBatch> sgd_batches(to::Optimizer& optimizer, const to::SGDOptions& options,
                                           const Tensors& params) {
  std::map<BatchKey, ParamBatch> batches;
  for (const Tensor& p : params) {
    int64_t filled = 0;
    Tensor buffer;
    if (options.momentum() != 0) {
      auto& slot = optimizer.state()[p.unsafeGetTensorImpl()];
      if (slot) buffer = static_cast<to::SGDParamState&>(*slot).momentum_buffer();
      filled = buffer.defined();
      if (!filled) buffer = at::empty_like(p.detach(), at::MemoryFormat::Preserve);
    }
    ParamBatch& batch = batches[key_of(p, filled)];
    batch.step = filled;
    batch.params.push_back(p);
    batch.grads.push_back(p.grad());
    if (buffer.defined()) batch.momentum.push_back(buffer);
  }
  return batches;
}

// New momentum buffers have their values: now they are the state.
void keep_momentum(to::Optimizer& optimizer, const ParamBatch& batch) {
  if (batch.momentum.empty() || batch.step != 0) return;
  for (size_t i = 0; i < batch.params.size(); i++) {
    auto state = std::make_unique<to::SGDParamState>();
    state->momentum_buffer(batch.momentum[i]);
    label_state(batch.params[i], *state);
    optimizer.state()[batch.params[i].unsafeGetTensorImpl()] = std::move(state);
  }
}

void fused_sgd(const ParamBatch& batch, const to::SGDOptions& options, Scaling& scaling) {
  const c10::Device device = batch.params[0].device();
  at::_fused_sgd_(batch.params, batch.grads, batch.momentum, options.weight_decay(),
                  options.momentum(), options.lr(), options.dampening(), options.nesterov(),
                  /*maximize=*/false, /*is_first_step=*/!batch.momentum.empty() && batch.step == 0,
                  scaling.grad_scale(device), scaling.found_inf(device));
}

void foreach_sgd(const ParamBatch& batch, const to::SGDOptions& options) {
  for (size_t begin = 0, end; begin < batch.params.size(); begin = end) {
    end = slice_end(batch.params, begin);
    Tensors params = slice(batch.params, begin, end), updates = slice(batch.grads, begin, end);
    if (options.weight_decay() != 0)
      updates = at::_foreach_add(updates, params, options.weight_decay());
    if (options.momentum() != 0) {
      Tensors buffers = slice(batch.momentum, begin, end);
      if (batch.step == 0) {
        at::_foreach_copy_(buffers, updates);
      } else {
        at::_foreach_mul_(buffers, options.momentum());
        at::_foreach_add_(buffers, updates, 1 - options.dampening());
      }
      updates =
          options.nesterov() ? at::_foreach_add(updates, buffers, options.momentum()) : buffers;
    }
    at::_foreach_add_(params, updates, -options.lr());
  }
}

template <class Plain, class AdamStep, class SgdStep>
void update_all(to::Optimizer& optimizer, const char* name, AdamStep adam_step, SgdStep sgd_step) {
  std::vector<Tensors> ready;  // all groups are checked before the first is changed
  for (const auto& group : optimizer.param_groups())
    ready.push_back(optim::ready_parameters(group, name));
  for (size_t i = 0; i < ready.size(); i++) {
    const auto& group = optimizer.param_groups()[i];
    if constexpr (std::is_same_v<Plain, to::SGD>) {
      const auto& options = static_cast<const to::SGDOptions&>(group.options());
      for (auto& [key, batch] : sgd_batches(optimizer, options, ready[i])) {
        sgd_step(batch, options);
        keep_momentum(optimizer, batch);
      }
    } else {
      const auto& options = static_cast<const typename Traits<Plain>::Options&>(group.options());
      for (auto& [key, batch] : adam_batches<Plain>(optimizer, group, ready[i])) {
        adam_step(batch, options);
        count_step<Plain>(optimizer, batch);
      }
    }
  }
}

template <class Plain>
constexpr bool is_sgd = std::is_same_v<Plain, to::SGD>;

// counted: gets the parameters whose state would be wrong if the kernels changed nothing.
template <class Plain>
void fused_update(to::Optimizer& optimizer, const Tensor& grad_scale, const Tensor& found_inf,
                  Tensors* counted) {
  Scaling scaling(grad_scale, found_inf);
  const auto count = [&](const ParamBatch& batch) {
    if (counted) counted->insert(counted->end(), batch.params.begin(), batch.params.end());
  };
  const auto adam = [&](const ParamBatch& batch, const auto& options) {
    if constexpr (!is_sgd<Plain>) fused_adam<Plain>(batch, options, scaling);
    count(batch);
  };
  const auto sgd = [&](const ParamBatch& batch, const to::SGDOptions& options) {
    fused_sgd(batch, options, scaling);
    if (!batch.momentum.empty() && batch.step == 0) count(batch);
  };
  update_all<Plain>(optimizer, "Fused optimizer", adam, sgd);
}

}  // namespace

template <class Plain>
void Fused<Plain>::update(const Tensor& grad_scale, const Tensor& found_inf) {
  RECORD_USER_SCOPE("Optimizer.step#Fused.step");
  fused_update<Plain>(*this, grad_scale, found_inf, unsettled_ ? &unsettled_->params : nullptr);
}

template <class Plain>
Tensor Fused<Plain>::step(to::Optimizer::LossClosure closure) {
  ::torch::NoGradGuard no_grad;
  settle();
  Tensor loss = optim::run_closure(closure);
  update({}, {});
  return loss;
}

template <class Plain>
void Fused<Plain>::step_scaled(const Tensor& grad_scale, const Tensor& found_inf) {
  const auto is_scalar = [](const Tensor& t) {
    return t.defined() && t.scalar_type() == at::kFloat && t.numel() == 1;
  };
  TORCH_CHECK(is_scalar(found_inf) && (!grad_scale.defined() || is_scalar(grad_scale)),
              "Fused optimizer: grad_scale and found_inf must be float tensors of one element. "
              "GradScaler::step() passes them");
  ::torch::NoGradGuard no_grad;
  settle();
  auto record = std::make_shared<detail::UnsettledStep>();
  if (found_inf.is_cpu()) {
    record->found_inf = found_inf.clone();
  } else {
    // Asked for before the update is queued, so that settle() waits for the check alone.
    record->found_inf =
        at::empty(found_inf.sizes(), at::TensorOptions().dtype(at::kFloat).pinned_memory(true))
            .copy_(found_inf, /*non_blocking=*/true);
    record->copied.emplace(found_inf.device().type());
    record->copied->record(
        c10::impl::VirtualGuardImpl(found_inf.device().type()).getStream(found_inf.device()));
  }
  unsettled_ = std::move(record);
  update(grad_scale, found_inf);
  if (found_inf.is_cpu()) settle();
}

template <class Plain>
void Fused<Plain>::settle() {
  if (!unsettled_) return;
  const auto record = std::move(unsettled_);
  unsettled_ = nullptr;
  if (record->copied) record->copied->synchronize();
  if (record->found_inf.template item<float>() == 0) return;
  auto& states = this->state();
  for (const Tensor& p : record->params) {
    const auto found = states.find(p.unsafeGetTensorImpl());
    if (found == states.end()) continue;
    if constexpr (is_sgd<Plain>) {
      states.erase(found);  // momentum that was never written
    } else {
      auto& state = static_cast<typename Traits<Plain>::State&>(*found->second);
      state.step(state.step() - 1);
    }
  }
}

template <class Plain>
void Fused<Plain>::save(::torch::serialize::OutputArchive& archive) const {
  const_cast<Fused*>(this)->settle();  // the same state, written down late
  Plain::save(archive);
}

template <class Plain>
void Fused<Plain>::load(::torch::serialize::InputArchive& archive) {
  settle();
  Plain::load(archive);
}

template <class Plain>
Tensor Foreach<Plain>::step(to::Optimizer::LossClosure closure) {
  ::torch::NoGradGuard no_grad;
  Tensor loss = optim::run_closure(closure);
  RECORD_USER_SCOPE("Optimizer.step#Foreach.step");
  const auto adam = [](const ParamBatch& batch, const auto& options) {
    if constexpr (!is_sgd<Plain>) foreach_adam<Plain>(batch, options);
  };
  update_all<Plain>(*this, "Foreach optimizer", adam, foreach_sgd);
  return loss;
}

template class Fused<to::Adam>;
template class Fused<to::AdamW>;
template class Fused<to::SGD>;
template class Foreach<to::Adam>;
template class Foreach<to::AdamW>;
template class Foreach<to::SGD>;

}  // namespace tonnage
