#include "tonnage/torch/grow.h"

#include <torch/torch.h>

namespace tonnage {

using ::torch::Tensor;
namespace nn = ::torch::nn;

GrowingStackImpl::GrowingStackImpl(int64_t largest, MakeBlock make, c10::Device device)
    : largest_(largest), make_(std::move(make)), device_(device) {
  TORCH_CHECK(largest_ > 0 && make_,
              "GrowingStack: there must be at least one block, and a function that makes it");
}

std::vector<Tensor> GrowingStackImpl::grow(int64_t count, bool copy_last) {
  TORCH_CHECK(count > 0 && size() + count <= largest_, "GrowingStack: ", count,
              " blocks more are asked for; there are ", size(), " of ", largest_);
  TORCH_CHECK(!copy_last || !blocks_.empty(),
              "GrowingStack: there is no block yet whose parameters could be copied");
  std::vector<nn::AnyModule> fresh;
  std::vector<Tensor> added;
  for (int64_t i = 0; i < count; i++) {
    nn::AnyModule block = make_(size() + i);
    block.ptr()->to(device_);
    block.ptr()->train(is_training());
    if (copy_last) {
      ::torch::NoGradGuard no_grad;
      const auto from = blocks_.back().ptr()->named_parameters(),
                 to = block.ptr()->named_parameters();
      const auto from_buffers = blocks_.back().ptr()->named_buffers(),
                 to_buffers = block.ptr()->named_buffers();
      TORCH_CHECK(from.size() == to.size() && from_buffers.size() == to_buffers.size(),
                  "GrowingStack: block ", size() + i, " has ", to.size(),
                  " parameters, the last one ", from.size(), ". Only equal blocks can be copied");
      for (const auto& item : to) {
        Tensor target = item.value();
        target.copy_(from[item.key()]);
      }
      for (const auto& item : to_buffers) {
        Tensor target = item.value();
        target.copy_(from_buffers[item.key()]);
      }
    }
    fresh.push_back(std::move(block));
  }
  faded_from_ = size();
  for (nn::AnyModule& block : fresh) {
    register_module(std::to_string(size()), block.ptr());
    for (const Tensor& p : block.ptr()->parameters()) added.push_back(p);
    blocks_.push_back(std::move(block));
  }
  return added;
}

void GrowingStackImpl::set_fade(double fade) {
  TORCH_CHECK(fade >= 0 && fade <= 1, "GrowingStack: fade is ", fade, "; it must be in [0, 1]");
  fade_ = fade;
}

Tensor GrowingStackImpl::forward(Tensor x) {
  for (int64_t i = 0; i < size(); i++) {
    Tensor y = blocks_[static_cast<size_t>(i)].forward<Tensor>(x);
    x = i >= faded_from_ && fade_ < 1 ? at::lerp(x, y, fade_) : y;
  }
  return x;
}

std::pair<nn::Linear, nn::Linear> widen(const nn::Linear& in, const nn::Linear& out,
                                        int64_t new_hidden, double noise) {
  const int64_t hidden = in->weight.size(0);
  TORCH_CHECK(out->weight.size(1) == hidden, "widen: the first layer has ", hidden,
              " outputs, the second ", out->weight.size(1), " inputs");
  TORCH_CHECK(new_hidden > hidden, "widen: new_hidden is ", new_hidden,
              "; it must be more than the ", hidden, " that there are");
  TORCH_CHECK(noise >= 0, "widen: noise is ", noise, "; it must not be negative");
  ::torch::NoGradGuard no_grad;
  const auto longs = at::TensorOptions(at::kLong).device(in->weight.device());
  const Tensor copied =
      at::randint(hidden, {new_hidden - hidden}, at::kLong).to(in->weight.device());
  const Tensor source = at::cat({at::arange(hidden, longs), copied});
  const Tensor copies =
      at::bincount(source, {}, hidden).index_select(0, source).to(out->weight.scalar_type());
  nn::Linear wide_in(nn::LinearOptions(in->weight.size(1), new_hidden).bias(in->bias.defined()));
  nn::Linear wide_out(nn::LinearOptions(new_hidden, out->weight.size(0)).bias(out->bias.defined()));
  wide_in->to(in->weight.device(), in->weight.scalar_type());
  wide_out->to(out->weight.device(), out->weight.scalar_type());
  wide_in->weight.copy_(in->weight.index_select(0, source));
  if (noise > 0) {
    Tensor added = wide_in->weight.slice(0, hidden, new_hidden);
    added.add_(at::randn_like(added).mul_(in->weight.std() * noise));
  }
  if (in->bias.defined()) wide_in->bias.copy_(in->bias.index_select(0, source));
  wide_out->weight.copy_(out->weight.index_select(1, source) / copies);
  if (out->bias.defined()) wide_out->bias.copy_(out->bias);
  return {wide_in, wide_out};
}

nn::Linear deepen(int64_t width, bool bias, const ::torch::TensorOptions& options) {
  TORCH_CHECK(width > 0, "deepen: width is ", width, "; it must be positive");
  ::torch::NoGradGuard no_grad;
  nn::Linear layer(nn::LinearOptions(width, width).bias(bias));
  layer->to(options.device(), c10::typeMetaToScalarType(options.dtype()));
  layer->weight.copy_(at::eye(width));
  if (bias) layer->bias.zero_();
  return layer;
}

GrowthSchedule::GrowthSchedule(std::vector<Stage> stages) : stages_(std::move(stages)) {
  TORCH_CHECK(!stages_.empty() && stages_[0].first_step == 0,
              "GrowthSchedule: the first stage must begin at step 0");
  for (size_t i = 0; i < stages_.size(); i++) {
    TORCH_CHECK(stages_[i].size > 0, "GrowthSchedule: the size of stage ", i, " is ",
                stages_[i].size, "; it must be positive");
    TORCH_CHECK(i == 0 || stages_[i].first_step > stages_[i - 1].first_step,
                "GrowthSchedule: stage ", i, " begins at step ", stages_[i].first_step,
                ", not after the one before it");
  }
}

int64_t GrowthSchedule::size_at(int64_t step) const {
  size_t i = stages_.size() - 1;
  while (i > 0 && stages_[i].first_step > step) i--;
  return stages_[i].size;
}

double GrowthSchedule::fade_at(int64_t step, int64_t fade_steps) const {
  TORCH_CHECK(fade_steps > 0, "GrowthSchedule: fade_steps is ", fade_steps,
              "; it must be positive");
  size_t i = stages_.size() - 1;
  while (i > 0 && stages_[i].first_step > step) i--;
  return i == 0 ? 1
                : std::min(1.0, static_cast<double>(step - stages_[i].first_step) /
                                    static_cast<double>(fade_steps));
}

}  // namespace tonnage
