// The walk over a module tree that replaces layers (replace_layers, quantize_dynamic_,
// prepare_qat_, convert_).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>

#include "tonnage/torch/replaceable.h"

namespace tonnage::detail {

// What is to become of a layer. Empty `make`: it would have to be replaced, and cannot be, because
// of `why`.
struct Choice {
  std::function<::torch::nn::AnyModule()> make;
  std::string why;
};
using Choose = std::function<std::optional<Choice>(
    const std::string& name, const std::shared_ptr<::torch::nn::Module>& layer)>;

// First everything is chosen, then made, then put in place: an exception leaves the model as it
// was. `who`: the public function.
ReplacedLayers replace_chosen(::torch::nn::Module& model, const Choose& choose,
                              const ReplaceOptions& options, const char* who);

// Names of the modules below `model` that `choose` chooses.
std::vector<std::string> chosen_below(const ::torch::nn::Module& model, const Choose& choose);

// A choice for layers that are exactly Layer (or the toolkit's replaceable one). A class derived
// from it may have another forward().
template <class Layer>
std::optional<Choice> choice_for(
    const std::shared_ptr<::torch::nn::Module>& module,
    std::function<::torch::nn::AnyModule(std::shared_ptr<Layer>)> make) {
  auto layer = std::dynamic_pointer_cast<Layer>(module);
  if (!layer) return std::nullopt;
  const ::torch::nn::Module& object = *module;
  if (typeid(object) != typeid(Layer) && !dynamic_cast<const Replaceable*>(&object))
    return Choice{nullptr,
                  "its class is derived from a layer, and what its forward() does is not known"};
  return Choice{[layer, make = std::move(make)] { return make(layer); }, ""};
}

}  // namespace tonnage::detail
