// A Sequential with some of its modules replaced: the one container of torch::nn whose children can be.
#pragma once

#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>

#include <functional>
#include <memory>
#include <optional>

namespace tonnage {

// `replace` gives another module, or nothing to keep the one that it is shown. Names are kept.
inline ::torch::nn::Sequential map_sequential(
    const ::torch::nn::Sequential& from,
    const std::function<std::optional<::torch::nn::AnyModule>(const std::shared_ptr<::torch::nn::Module>&)>& replace) {
  ::torch::nn::Sequential to;
  to->train(from->is_training());  // while it has no children: theirs stays as it is
  const auto names = from->named_children().keys();
  size_t i = 0;
  for (auto& module : *from) {
    const std::string& name = names[i++];
    if (auto other = replace(module.ptr())) {
      other->ptr()->train(module.ptr()->is_training());
      to->push_back(name, *other);
    } else {
      to->push_back(name, module);
    }
  }
  return to;
}

}  // namespace tonnage
