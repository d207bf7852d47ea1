#include "optim_groups.h"

#include <torch/torch.h>

namespace tonnage::optim {

using ::torch::Tensor;

Tensor run_closure(const ::torch::optim::Optimizer::LossClosure& closure) {
  if (!closure) return {};
  at::AutoGradMode enable_grad(true);
  return closure();
}

std::vector<Tensor> ready_parameters(const ::torch::optim::OptimizerParamGroup& group,
                                     const char* optimizer) {
  std::vector<Tensor> ready;
  ready.reserve(group.params().size());
  for (size_t i = 0; i < group.params().size(); i++) {
    const Tensor& p = group.params()[i];
    const Tensor& grad = p.grad();
    if (!grad.defined()) continue;
    TORCH_CHECK(p.is_leaf(), optimizer, ": parameter ", i, " (", p.sizes(),
                ") is not a leaf: it was computed from others. Give the optimizer what it was "
                "computed from");
    TORCH_CHECK(at::isFloatingType(p.scalar_type()), optimizer, ": parameter ", i, " is ",
                p.dtype(),
                "; only real floating point parameters can be updated. Use torch::optim's "
                "optimizer for it");
    TORCH_CHECK(!grad.is_sparse() && grad.layout() == p.layout(), optimizer,
                ": the gradient of parameter ", i,
                " is sparse. Make it dense (Embedding: sparse(false)) or use torch::optim's "
                "optimizer for it");
    TORCH_CHECK(grad.device() == p.device(), optimizer, ": parameter ", i, " is on ", p.device(),
                ", its gradient on ", grad.device(), ". Move the model before the forward pass");
    TORCH_CHECK(grad.scalar_type() == p.scalar_type(), optimizer, ": parameter ", i, " is ",
                p.dtype(), ", its gradient ", grad.dtype(), ". Convert one of them");
    TORCH_CHECK(grad.sizes() == p.sizes(), optimizer, ": parameter ", i, " has shape ", p.sizes(),
                ", its gradient ", grad.sizes());
    ready.push_back(p);
  }
  return ready;
}

Tensor zeros_for(const Tensor& parameter) {
  return at::zeros_like(parameter.detach(), at::MemoryFormat::Preserve);
}

}  // namespace tonnage::optim
