// What a piece of a forward pass depends on besides its inputs and the model: random generators and
// autocast.
#pragma once

#include <ATen/core/Generator.h>
#include <torch/types.h>

#include <vector>

namespace tonnage {

struct AmbientState {
  struct RandomState {
    at::Generator generator;
    ::torch::Tensor state;
  };
  struct Autocast {
    c10::DeviceType device_type = c10::kCPU;
    bool enabled = false;
    c10::ScalarType dtype = c10::kFloat;
  };
  std::vector<RandomState> random;
  std::vector<Autocast> autocast;
  bool autocast_cache = true;

  // The state now: of the CPU, of the CUDA devices among `tensors`, or else of the current one
  // where CUDA is in use.
  static AmbientState capture(const std::vector<::torch::Tensor>& tensors, bool with_random);
};

// Puts a state back for a scope, and the one before it at the scope's end.
class AmbientStateGuard {
 public:
  explicit AmbientStateGuard(const AmbientState& state);
  ~AmbientStateGuard();
  AmbientStateGuard(const AmbientStateGuard&) = delete;
  AmbientStateGuard& operator=(const AmbientStateGuard&) = delete;

 private:
  AmbientState before_;
};

}  // namespace tonnage
