#include "tonnage/torch/prune.h"

#include <torch/torch.h>

namespace tonnage {
namespace {

using ::torch::Tensor;

std::vector<std::pair<std::string, Tensor>> choose(const ::torch::nn::Module& module,
                                                   const ParameterFilter& filter, const char* who) {
  std::vector<std::pair<std::string, Tensor>> chosen;
  for (const auto& item : module.named_parameters()) {
    if (filter ? !filter(item.key(), item.value()) : item.value().dim() < 2) continue;
    bool again = false;  // tied parameters have several names
    for (const auto& other : chosen) again |= other.second.is_same(item.value());
    if (!again) chosen.emplace_back(item.key(), item.value());
  }
  TORCH_CHECK(!chosen.empty(), who, ": no parameter was chosen",
              filter ? " by the filter" : "; by default those with two or more dimensions are");
  return chosen;
}

// True for all but the `zeros` smallest; equal ones by position.
Tensor keep_largest(const Tensor& magnitudes, int64_t zeros) {
  Tensor keep = at::ones({magnitudes.numel()}, magnitudes.options().dtype(at::kBool));
  const Tensor order =
      std::get<1>(magnitudes.flatten().sort(/*stable=*/true, /*dim=*/0, /*descending=*/false));
  return keep.index_fill_(0, order.slice(0, 0, zeros), false);
}

// A pruned weight has a magnitude below all others, so that pruning again keeps it.
Tensor magnitudes_of(const Tensor& parameter, const std::vector<Pruner::Entry>& entries) {
  Tensor magnitudes = parameter.detach().abs().to(at::kFloat);
  for (const auto& entry : entries)
    if (entry.parameter.is_same(parameter))
      magnitudes = magnitudes.masked_fill(entry.mask.logical_not(), -1);
  return magnitudes;
}

void put(std::vector<Pruner::Entry>& entries, std::vector<Pruner::Entry> fresh) {
  for (Pruner::Entry& f : fresh) {
    auto old = std::find_if(entries.begin(), entries.end(),
                            [&](const auto& e) { return e.parameter.is_same(f.parameter); });
    if (old == entries.end())
      entries.push_back(std::move(f));
    else
      *old = std::move(f);
  }
}

}  // namespace

void Pruner::magnitude(::torch::nn::Module& module, double share, Scope scope,
                       const ParameterFilter& filter) {
  TORCH_CHECK(share >= 0 && share < 1, "Pruner::magnitude: share is ", share,
              "; it must be in [0, 1)");
  ::torch::NoGradGuard no_grad;
  const auto chosen = choose(module, filter, "Pruner::magnitude");
  std::vector<Tensor> magnitudes;
  int64_t total = 0;
  for (const auto& [name, p] : chosen) {
    magnitudes.push_back(magnitudes_of(p, entries_));
    total += p.numel();
  }
  std::vector<Entry> fresh;
  Tensor all;
  if (scope == Scope::kGlobal) {
    std::vector<Tensor> flat;
    for (const Tensor& m : magnitudes) flat.push_back(m.flatten().to(magnitudes[0].device()));
    all = keep_largest(at::cat(flat), static_cast<int64_t>(share * static_cast<double>(total)));
  }
  int64_t offset = 0;
  for (size_t i = 0; i < chosen.size(); i++) {
    const Tensor& p = chosen[i].second;
    Tensor keep = all.defined()
                      ? all.slice(0, offset, offset + p.numel()).to(p.device()).clone()
                      : keep_largest(magnitudes[i],
                                     static_cast<int64_t>(share * static_cast<double>(p.numel())));
    offset += p.numel();
    fresh.push_back({chosen[i].first, p, keep.view(p.sizes())});
  }
  put(entries_, std::move(fresh));
  apply();
}

void Pruner::two_of_four(::torch::nn::Module& module, const ParameterFilter& filter) {
  ::torch::NoGradGuard no_grad;
  std::vector<Entry> fresh;
  for (const auto& [name, p] : choose(module, filter, "Pruner::two_of_four")) {
    const int64_t inputs = p.dim() < 2 ? 0 : p.numel() / std::max<int64_t>(p.size(0), 1);
    TORCH_CHECK(p.dim() >= 2 && inputs % 4 == 0, "Pruner::two_of_four: ", name, " is ", p.sizes(),
                ": its ", inputs, " inputs are no multiple of 4. Leave it out by a filter");
    const Tensor fours = magnitudes_of(p, entries_).reshape({-1, 4});
    const Tensor order = std::get<1>(fours.sort(/*stable=*/true, /*dim=*/1, /*descending=*/true));
    Tensor keep = at::zeros_like(fours, at::kBool).scatter_(1, order.slice(1, 0, 2), true);
    fresh.push_back({name, p, keep.view(p.sizes())});
  }
  put(entries_, std::move(fresh));
  apply();
}

void Pruner::apply(bool masked_gradients) {
  ::torch::NoGradGuard no_grad;
  for (const Entry& e : entries_)
    TORCH_CHECK(e.mask.device() == e.parameter.device(), "Pruner::apply: ", e.name,
                " has moved to ", e.parameter.device(), ", its mask is on ", e.mask.device(),
                ". Move the model before pruning");
  for (Entry& e : entries_) {
    e.parameter.mul_(e.mask);
    if (masked_gradients && e.parameter.grad().defined()) e.parameter.mutable_grad().mul_(e.mask);
  }
}

void Pruner::forget() { entries_.clear(); }

double Pruner::sparsity() const {
  int64_t all = 0, kept = 0;
  for (const Entry& e : entries_) {
    all += e.mask.numel();
    kept += e.mask.sum().item<int64_t>();
  }
  return all == 0 ? 0 : 1 - static_cast<double>(kept) / static_cast<double>(all);
}

int64_t Pruner::mask_bytes() const {
  int64_t bytes = 0;
  for (const Entry& e : entries_) bytes += static_cast<int64_t>(e.mask.nbytes());
  return bytes;
}

int64_t Pruner::compact_bytes() const {
  int64_t bytes = 0;
  for (const Entry& e : entries_)
    bytes += e.parameter.numel() / 2 * static_cast<int64_t>(e.parameter.element_size()) +
             e.parameter.numel() / 8;
  return bytes;
}

}  // namespace tonnage
