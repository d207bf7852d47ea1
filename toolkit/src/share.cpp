#include "tonnage/torch/share.h"

#include <torch/torch.h>

#include <unordered_set>

namespace tonnage {
namespace {

using ::torch::Tensor;

// A module's own table of parameters, which only its descendants may name.
struct Table : ::torch::nn::Module {
  static ::torch::OrderedDict<std::string, Tensor>& of(::torch::nn::Module& module) {
    return module.*(&Table::parameters_);
  }
};

Tensor parameter_of(const ::torch::nn::Module& module, const std::string& name) {
  const auto parameters = module.named_parameters(/*recurse=*/false);
  const Tensor* found = parameters.find(name);
  std::string known;
  if (!found)
    for (const auto& key : parameters.keys()) known += (known.empty() ? "" : ", ") + key;
  TORCH_CHECK(found, "share_parameter: ", module.name(), " has no parameter \"", name,
              "\"; it has: ", known.empty() ? "none" : known);
  return *found;
}

template <class Change>
int64_t change_gradients(::torch::nn::Module& module, const ParameterFilter& filter, bool required,
                         Change change) {
  int64_t elements = 0;
  for (auto& item : module.named_parameters()) {
    Tensor& p = item.value();
    if (p.requires_grad() == required || (filter && !filter(item.key(), p))) continue;
    TORCH_CHECK(p.is_leaf(), "freeze: ", item.key(),
                " is computed from other tensors. Detach it first");
    change(p);
    elements += p.numel();
  }
  return elements;
}

}  // namespace

void share_parameter(const ::torch::nn::Module& from, const std::string& from_name,
                     ::torch::nn::Module& to, const std::string& to_name, Tensor& to_field) {
  const Tensor source = parameter_of(from, from_name), target = parameter_of(to, to_name);
  TORCH_CHECK(to_field.defined() && to_field.is_same(target),
              "share_parameter: the field that was given is not ", to.name(), "'s parameter \"",
              to_name, "\". Pass the member that holds it, e.g. head->weight");
  TORCH_CHECK(source.sizes() == target.sizes(), "share_parameter: shapes differ: ", from_name,
              " is ", source.sizes(), ", ", to_name, " is ", target.sizes());
  TORCH_CHECK(source.scalar_type() == target.scalar_type() && source.device() == target.device(),
              "share_parameter: ", from_name, " is ", source.dtype(), " on ", source.device(), ", ",
              to_name, " is ", target.dtype(), " on ", target.device(),
              ". Move or convert one first");
  Table::of(to)[to_name] = source;
  to_field = source;
}

std::vector<Tensor> unique_parameters(const ::torch::nn::Module& module) {
  std::vector<Tensor> unique;
  std::unordered_set<const void*> seen;
  for (Tensor& p : module.parameters())
    if (seen.insert(p.unsafeGetTensorImpl()).second) unique.push_back(std::move(p));
  return unique;
}

int64_t parameter_bytes(const ::torch::nn::Module& module) {
  int64_t bytes = 0;
  std::unordered_set<const void*> seen;
  for (const Tensor& p : module.parameters())
    if (p.has_storage() && seen.insert(p.storage().unsafeGetStorageImpl()).second)
      bytes += static_cast<int64_t>(p.storage().nbytes());
  return bytes;
}

int64_t freeze(::torch::nn::Module& module, const ParameterFilter& filter) {
  return change_gradients(module, filter, false, [](Tensor& p) {
    p.set_requires_grad(false);
    p.mutable_grad().reset();
  });
}

int64_t unfreeze(::torch::nn::Module& module, const ParameterFilter& filter) {
  return change_gradients(module, filter, true, [](Tensor& p) { p.set_requires_grad(true); });
}

}  // namespace tonnage
