#include "tonnage/torch/offloaded_adamw.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <map>
#include <optional>

#include "optim_groups.h"

namespace tonnage {

using ::torch::Tensor;
using AdamWState = ::torch::optim::AdamWParamState;
using ::torch::optim::AdamWOptions;

namespace offloaded {

constexpr size_t kSlots = 3;  // one bucket comes, one is computed, one goes

// Parameters of one group, device and type whose moments lie side by side.
struct Bucket {
  std::vector<Tensor> params;
  std::vector<int64_t> offsets;  // in elements
  int64_t elements = 0;
  Tensor host;  // (2, elements), pinned: exp_avg, exp_avg_sq
};

// The part of a moment's row that belongs to a parameter, in the parameter's shape and memory order.
inline Tensor view_of(const Tensor& moments, int64_t row, const Tensor& p, int64_t offset) {
  return moments.select(0, row).as_strided(p.sizes(), p.strides(),
                                           moments.select(0, row).storage_offset() + offset);
}

struct StagingSlot {
  Tensor moments;  // (2, elements of the largest bucket), on the device
  c10::Event arrived, computed, left;
  explicit StagingSlot(c10::DeviceType type) : arrived(type), computed(type), left(type) {}
};

}  // namespace offloaded

struct OffloadedAdamW::Impl {
  int64_t bucket_bytes = 0;
  std::vector<std::vector<offloaded::Bucket>> buckets;  // by group
  std::unordered_map<const void*, std::pair<size_t, size_t>>
      place;  // parameter -> bucket of its group, position in it
  std::optional<c10::Stream> in, out;

  void add_to_buckets(size_t group, const std::vector<Tensor>& params);
  void adopt_states(OffloadedAdamW& optimizer, size_t group);
  void update_group(OffloadedAdamW& optimizer, size_t group);
};

// New parameters get buckets; those that have one keep it.
void OffloadedAdamW::Impl::add_to_buckets(size_t group, const std::vector<Tensor>& params) {
  if (buckets.size() <= group) buckets.resize(group + 1);
  std::map<std::pair<int, at::ScalarType>, offloaded::Bucket> open;
  std::vector<offloaded::Bucket> done;
  const auto finish = [&](offloaded::Bucket& bucket) {
    if (bucket.params.empty()) return;
    bucket.host = at::zeros(
        {2, bucket.elements},
        bucket.params[0].options().device(at::kCPU).requires_grad(false).pinned_memory(true));
    done.push_back(std::move(bucket));
    bucket = offloaded::Bucket();
  };
  for (const Tensor& p : params) {
    if (!p.is_cuda() || place.count(p.unsafeGetTensorImpl())) continue;
    TORCH_CHECK(p.is_non_overlapping_and_dense(), "OffloadedAdamW: a parameter (", p.sizes(),
                ", strides ", p.strides(), ") has gaps in memory. Make it contiguous");
    offloaded::Bucket& bucket = open[{p.device().index(), p.scalar_type()}];
    if (!bucket.params.empty() &&
        (bucket.elements + p.numel()) * static_cast<int64_t>(p.element_size()) > bucket_bytes)
      finish(bucket);
    bucket.params.push_back(p);
    bucket.offsets.push_back(bucket.elements);
    bucket.elements += (p.numel() + 63) / 64 * 64;  // each begins at a full cache line
  }
  for (auto& [key, bucket] : open) finish(bucket);
  for (offloaded::Bucket& bucket : done) {
    for (size_t i = 0; i < bucket.params.size(); i++)
      place[bucket.params[i].unsafeGetTensorImpl()] = {buckets[group].size(), i};
    buckets[group].push_back(std::move(bucket));
  }
}

// States are views of the buckets; those that were loaded from a file are copied into them.
void OffloadedAdamW::Impl::adopt_states(OffloadedAdamW& optimizer, size_t group) {
  for (offloaded::Bucket& bucket : buckets[group])
    for (size_t i = 0; i < bucket.params.size(); i++) {
      const Tensor& p = bucket.params[i];
      AdamWState& state =
          optim::state_of<AdamWState>(optimizer, p, [](AdamWState& fresh) { fresh.step(0); });
      const Tensor average = offloaded::view_of(bucket.host, 0, p, bucket.offsets[i]),
                   square = offloaded::view_of(bucket.host, 1, p, bucket.offsets[i]);
      if (state.exp_avg().defined() && state.exp_avg().const_data_ptr() == average.const_data_ptr())
        continue;
      if (state.exp_avg().defined()) {
        average.copy_(state.exp_avg());
        square.copy_(state.exp_avg_sq());
      }
      state.exp_avg(average);
      state.exp_avg_sq(square);
    }
}

void OffloadedAdamW::Impl::update_group(OffloadedAdamW& optimizer, size_t group) {
  const auto& options = static_cast<const AdamWOptions&>(optimizer.param_groups()[group].options());
  const auto [beta1, beta2] = options.betas();
  std::map<std::pair<int, at::ScalarType>, std::vector<offloaded::Bucket*>> lines;
  for (offloaded::Bucket& bucket : buckets[group])
    lines[{bucket.params[0].device().index(), bucket.params[0].scalar_type()}].push_back(&bucket);
  for (auto& [key, line] : lines) {
    const c10::Device device = line[0]->params[0].device();
    const c10::impl::VirtualGuardImpl guard(device.type());
    const c10::DeviceGuard on_device(device);
    if (!in || in->device() != device) {
      in = guard.getStreamFromGlobalPool(device);
      out = guard.getStreamFromGlobalPool(device);
    }
    const c10::Stream current = guard.getStream(device);
    int64_t largest = 0;
    for (const offloaded::Bucket* bucket : line) largest = std::max(largest, bucket->elements);
    std::vector<offloaded::StagingSlot> slots;
    for (size_t i = 0; i < std::min(offloaded::kSlots, line.size()); i++) {
      slots.emplace_back(device.type());
      slots[i].moments = at::empty({2, largest}, line[0]->params[0].options().requires_grad(false));
    }
    c10::Event begin(device.type());
    begin.record(
        current);  // the slots' memory is free only after what the current stream has yet to do
    begin.block(*in);
    begin.block(*out);
    const auto load = [&](size_t i) {
      offloaded::StagingSlot& slot = slots[i % slots.size()];
      const c10::StreamGuard on_stream(*in);
      if (i >= slots.size()) slot.left.block(*in);
      slot.moments.narrow(1, 0, line[i]->elements).copy_(line[i]->host, /*non_blocking=*/true);
      slot.arrived.record(*in);
    };
    for (size_t i = 0; i < line.size() && i + 1 < offloaded::kSlots; i++) load(i);
    for (size_t i = 0; i < line.size(); i++) {
      if (i + offloaded::kSlots - 1 < line.size()) load(i + offloaded::kSlots - 1);
      offloaded::Bucket& bucket = *line[i];
      offloaded::StagingSlot& slot = slots[i % slots.size()];
      slot.arrived.block(current);
      std::vector<Tensor> params, grads, averages, squares, steps;
      std::map<int64_t, Tensor> step_tensors;
      std::vector<AdamWState*> states;
      for (size_t j = 0; j < bucket.params.size(); j++) {
        const Tensor& p = bucket.params[j];
        if (!p.grad().defined()) continue;
        auto& state = static_cast<AdamWState&>(*optimizer.state()[p.unsafeGetTensorImpl()]);
        Tensor& step = step_tensors[state.step() + 1];
        if (!step.defined())
          step = at::full({}, static_cast<double>(state.step() + 1),
                          p.options().dtype(at::kFloat).requires_grad(false));
        params.push_back(p);
        grads.push_back(p.grad());
        averages.push_back(offloaded::view_of(slot.moments, 0, p, bucket.offsets[j]));
        squares.push_back(offloaded::view_of(slot.moments, 1, p, bucket.offsets[j]));
        steps.push_back(step);
        states.push_back(&state);
      }
      if (!params.empty())
        at::_fused_adamw_(params, grads, averages, squares, {}, steps, options.lr(), beta1, beta2,
                          options.weight_decay(), options.eps(),
                          /*amsgrad=*/false, /*maximize=*/false);
      for (AdamWState* state : states) state->step(state->step() + 1);
      slot.computed.record(current);
      slot.computed.block(*out);
      const c10::StreamGuard on_stream(*out);
      bucket.host.copy_(slot.moments.narrow(1, 0, bucket.elements), /*non_blocking=*/true);
      slot.left.record(*out);
    }
    // The slots' memory goes back to the current stream, which must not use it earlier.
    for (offloaded::StagingSlot& slot : slots) slot.left.block(current);
  }
}

OffloadedAdamW::OffloadedAdamW(const std::vector<::torch::optim::OptimizerParamGroup>& groups,
                               AdamWOptions defaults, int64_t bucket_bytes)
    : AdamW(groups, defaults), impl_(std::make_unique<Impl>()) {
  TORCH_CHECK(bucket_bytes > 0, "OffloadedAdamW: bucket_bytes is ", bucket_bytes,
              "; it must be positive");
  TORCH_CHECK(!defaults.amsgrad(),
              "OffloadedAdamW: amsgrad is not supported. Use FusedAdamW for it");
  impl_->bucket_bytes = bucket_bytes;
}

OffloadedAdamW::OffloadedAdamW(std::vector<Tensor> parameters, AdamWOptions defaults,
                               int64_t bucket_bytes)
    : OffloadedAdamW(
          std::vector<::torch::optim::OptimizerParamGroup>{
              ::torch::optim::OptimizerParamGroup(std::move(parameters))},
          std::move(defaults), bucket_bytes) {}

OffloadedAdamW::~OffloadedAdamW() {
  try {
    synchronize();  // the pinned memory must outlive the copies into it
  } catch (...) {
  }
}

Tensor OffloadedAdamW::step(LossClosure closure) {
  ::torch::NoGradGuard no_grad;
  Tensor loss = optim::run_closure(closure);
  RECORD_USER_SCOPE("Optimizer.step#OffloadedAdamW.step");
  std::vector<std::vector<Tensor>> ready;
  for (const auto& group : param_groups_) {
    TORCH_CHECK(!static_cast<const AdamWOptions&>(group.options()).amsgrad(),
                "OffloadedAdamW: amsgrad is not supported. Use FusedAdamW for it");
    ready.push_back(optim::ready_parameters(group, "OffloadedAdamW"));
  }
  for (size_t i = 0; i < ready.size(); i++) {
    impl_->add_to_buckets(i, ready[i]);
    impl_->adopt_states(*this, i);
  }
  for (size_t i = 0; i < ready.size(); i++) {
    impl_->update_group(*this, i);
    const auto& options = static_cast<const AdamWOptions&>(param_groups_[i].options());
    const auto [beta1, beta2] = options.betas();
    for (const Tensor& p : ready[i]) {
      if (p.is_cuda()) continue;
      AdamWState& state = optim::state_of<AdamWState>(*this, p, [&](AdamWState& fresh) {
        fresh.step(0);
        fresh.exp_avg(optim::zeros_for(p));
        fresh.exp_avg_sq(optim::zeros_for(p));
      });
      const Tensor step = at::full({}, static_cast<double>(state.step() + 1), at::kFloat);
      at::_fused_adamw_({p}, {p.grad()}, {state.exp_avg()}, {state.exp_avg_sq()}, {}, {step},
                        options.lr(), beta1, beta2, options.weight_decay(), options.eps(),
                        /*amsgrad=*/false, /*maximize=*/false);
      state.step(state.step() + 1);
    }
  }
  return loss;
}

void OffloadedAdamW::save(::torch::serialize::OutputArchive& archive) const {
  synchronize();
  AdamW::save(archive);
}

void OffloadedAdamW::synchronize() const {
  if (impl_->out) impl_->out->synchronize();
}

int64_t OffloadedAdamW::host_bytes() const {
  int64_t bytes = 0;
  for (const auto& group : impl_->buckets)
    for (const offloaded::Bucket& bucket : group)
      bytes += static_cast<int64_t>(bucket.host.nbytes());
  return bytes;
}

}  // namespace tonnage
