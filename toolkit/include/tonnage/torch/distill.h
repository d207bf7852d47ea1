// Distillation loss: a small network learns from a large one's outputs and from the labels.
//
//   torch::Tensor teacher_logits;
//   { torch::NoGradGuard no_grad; teacher_logits = teacher->forward(x); }
//   auto loss = tonnage::distillation_loss(student->forward(x), teacher_logits, labels,
//                                          {.temperature = 4, .alpha = 0.7});
//
// loss = alpha * T^2 * KL(softmax(teacher / T) || softmax(student / T)) + (1 - alpha) *
// cross_entropy(student, labels), averaged over the rows (with `ignore_index`: over the rows that
// count).
//
// Shapes: student and teacher (..., classes) of one floating type and device; labels (...) int64.
// teacher gets no gradient. Memory: the gradient of the student's logits, in their type, is all
// that is kept for the backward pass: rows * classes elements. The plain formula keeps four such
// tensors. `chunk_rows` rows are worked on at a time, in float: 4 * chunk_rows * classes * 4 bytes.
//
// Devices: any. Threads: any. Owns: the gradient that the graph keeps.
//
// Errors: c10::Error for shapes, types or devices that do not fit, temperature <= 0, alpha outside
// [0, 1], and for double backward.
//
// Source of the method: Hinton, Vinyals, Dean, "Distilling the Knowledge in a Neural Network",
// 2015.
#pragma once

#include <torch/types.h>

#include <cstdint>

namespace tonnage {

struct DistillationOptions {
  double temperature = 2;
  double alpha = 0.5;           // weight of the teacher; 1 - alpha that of the labels
  int64_t ignore_index = -100;  // rows with this label do not count at all
  int64_t chunk_rows = 2048;
};

::torch::Tensor distillation_loss(const ::torch::Tensor& student, const ::torch::Tensor& teacher,
                                  const ::torch::Tensor& labels,
                                  const DistillationOptions& options = {});

}  // namespace tonnage
