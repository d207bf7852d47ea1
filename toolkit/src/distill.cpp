#include "tonnage/torch/distill.h"

#include <torch/torch.h>

namespace tonnage {
namespace {

using ::torch::Tensor;
using ::torch::autograd::AutogradContext;
using ::torch::autograd::variable_list;

// The gradient is made in the forward pass, chunk by chunk, and scaled in the backward pass.
struct DistillationLoss : ::torch::autograd::Function<DistillationLoss> {
  static Tensor forward(AutogradContext* context, const Tensor& student, const Tensor& teacher,
                        const Tensor& labels, double temperature, double alpha,
                        int64_t ignore_index, int64_t chunk_rows) {
    const Tensor s_all = student.reshape({-1, student.size(-1)}),
                 t_all = teacher.reshape({-1, student.size(-1)}), l_all = labels.reshape({-1});
    const int64_t rows = s_all.size(0);
    const bool needs_gradient = student.requires_grad();
    Tensor gradient =
        needs_gradient ? at::empty(s_all.sizes(), s_all.options().requires_grad(false)) : Tensor();
    Tensor sum = at::zeros({}, s_all.options().dtype(at::kFloat).requires_grad(false));
    const Tensor counted = l_all.ne(ignore_index);
    const Tensor count = counted.sum().to(at::kFloat);
    for (int64_t begin = 0; begin < rows; begin += chunk_rows) {
      const int64_t end = std::min(rows, begin + chunk_rows);
      const Tensor s = s_all.slice(0, begin, end).to(at::kFloat),
                   t = t_all.slice(0, begin, end).to(at::kFloat);
      const Tensor counts = counted.slice(0, begin, end).unsqueeze(1);
      const Tensor label =
          l_all.slice(0, begin, end).masked_fill(counts.squeeze(1).logical_not(), 0).unsqueeze(1);
      Tensor log_s = at::log_softmax(s / temperature, 1);
      const Tensor log_t = at::log_softmax(t / temperature, 1), p_t = log_t.exp();
      const Tensor kl =
          (p_t * (log_t - log_s)).sum(1, /*keepdim=*/true) * (alpha * temperature * temperature);
      // d(T^2 KL)/d student = T * (softmax(student / T) - softmax(teacher / T))
      Tensor d = log_s.exp_().sub_(p_t).mul_(alpha * temperature);
      const Tensor log_p = at::log_softmax(s, 1);
      const Tensor row_loss = kl - log_p.gather(1, label) * (1 - alpha);
      sum.add_(row_loss.masked_fill(counts.logical_not(), 0).sum());
      if (!needs_gradient) continue;
      d.add_(log_p.exp(), 1 - alpha);
      d.scatter_add_(1, label, at::full_like(label, -(1 - alpha), d.options()));
      gradient.slice(0, begin, end).copy_(d.masked_fill_(counts.logical_not(), 0));
    }
    if (needs_gradient) context->save_for_backward({gradient.view(student.sizes()), count});
    return sum.div_(count);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    TORCH_CHECK(
        !at::GradMode::is_enabled(),
        "distillation_loss: double backward is not supported. Write the formula out for it");
    const auto saved = context->get_saved_variables();
    return {saved[0] * (grads[0] / saved[1]).to(saved[0].scalar_type()),
            Tensor(),
            Tensor(),
            Tensor(),
            Tensor(),
            Tensor(),
            Tensor()};
  }
};

}  // namespace

Tensor distillation_loss(const Tensor& student, const Tensor& teacher, const Tensor& labels,
                         const DistillationOptions& options) {
  TORCH_CHECK(options.temperature > 0, "distillation_loss: temperature is ", options.temperature,
              "; it must be positive");
  TORCH_CHECK(options.alpha >= 0 && options.alpha <= 1, "distillation_loss: alpha is ",
              options.alpha, "; it must be in [0, 1]");
  TORCH_CHECK(options.chunk_rows > 0, "distillation_loss: chunk_rows is ", options.chunk_rows,
              "; it must be positive");
  TORCH_CHECK(student.dim() >= 1 && student.sizes() == teacher.sizes(),
              "distillation_loss: student is ", student.sizes(), ", teacher ", teacher.sizes(),
              "; they must be of one shape (..., classes)");
  TORCH_CHECK(labels.sizes() == student.sizes().slice(0, student.dim() - 1) &&
                  labels.scalar_type() == at::kLong,
              "distillation_loss: labels are ", labels.dtype(), " ", labels.sizes(),
              "; they must be int64 ", student.sizes().slice(0, student.dim() - 1));
  TORCH_CHECK(
      at::isFloatingType(student.scalar_type()) && student.scalar_type() == teacher.scalar_type(),
      "distillation_loss: student is ", student.dtype(), ", teacher ", teacher.dtype(),
      "; they must be of one floating point type");
  TORCH_CHECK(student.device() == teacher.device() && student.device() == labels.device(),
              "distillation_loss: student is on ", student.device(), ", teacher on ",
              teacher.device(), ", labels on ", labels.device());
  return DistillationLoss::apply(student, teacher.detach(), labels, options.temperature,
                                 options.alpha, options.ignore_index, options.chunk_rows);
}

}  // namespace tonnage
