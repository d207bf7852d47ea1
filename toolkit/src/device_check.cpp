#include "tonnage/torch/device_check.h"

#include <sstream>

#include "optimizer_states.h"

namespace tonnage {
namespace {

using Named = std::vector<std::pair<std::string, ::torch::Tensor>>;

void check(const Named& tensors, c10::Device device, const std::string& whose, const char* advice) {
  constexpr int kShown = 10;
  std::ostringstream list;
  int wrong = 0;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined()) continue;
    const c10::Device there = tensor.device();
    if (there.type() == device.type() && (!device.has_index() || there.index() == device.index()))
      continue;
    if (wrong++ < kShown) list << "\n  " << name << " " << tensor.sizes() << " is on " << there;
  }
  if (wrong > kShown) list << "\n  and " << wrong - kShown << " more";
  TORCH_CHECK(wrong == 0, "assert_on_device: ", wrong, wrong == 1 ? " tensor" : " tensors", whose,
              " not on ", device, ":", list.str(), "\n", advice);
}

}  // namespace

void assert_on_device(const Named& tensors, c10::Device device) {
  check(tensors, device, "", "Move them with .to(device).");
}

void assert_on_device(const ::torch::nn::Module& module, c10::Device device) {
  Named tensors;
  for (const auto& p : module.named_parameters()) {
    tensors.emplace_back(p.key(), p.value());
    tensors.emplace_back(p.key() + ".grad", p.value().grad());
  }
  for (const auto& b : module.named_buffers()) tensors.emplace_back(b.key(), b.value());
  check(tensors, device, " of " + module.name(),
        "Call module.to(device) before the optimizer is made; register tensors of the module as "
        "buffers so that they move along.");
}

void assert_on_device(const ::torch::optim::Optimizer& optimizer, c10::Device device) {
  Named tensors;
  size_t group_index = 0;
  for (const auto& group : optimizer.param_groups()) {
    for (size_t i = 0; i < group.params().size(); i++) {
      const std::string name =
          "group " + std::to_string(group_index) + " parameter " + std::to_string(i);
      const ::torch::Tensor& parameter = group.params()[i];
      tensors.emplace_back(name, parameter);
      auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (state == optimizer.state().end()) continue;
      for (auto& [what, tensor] : state_tensors(*state->second))
        tensors.emplace_back(name + " " + what, tensor);
    }
    group_index++;
  }
  check(tensors, device, " of the optimizer",
        "Move the module first and make the optimizer from its parameters then; states follow the "
        "parameters.");
}

}  // namespace tonnage
