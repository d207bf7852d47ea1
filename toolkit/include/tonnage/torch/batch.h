// Batches that are too large: accumulates gradients over parts, finds the largest batch that fits,
// and continues after an out-of-memory error with less work per step.
//
//   tonnage::GradientAccumulator accumulator(optimizer, {.window = 8});
//   for (auto& batch : loader) {
//     auto loss = mean_loss(model->forward(batch.data), batch.target);
//     accumulator.backward(loss, batch.target.numel());   // every 8th call updates the parameters
//   }
//   accumulator.finish();                                 // the last, partial window
//
//   int64_t largest = tonnage::find_batch_size([&](int64_t n) { train_step(n); });
//
//   tonnage::run_or_degrade([&](const tonnage::Workload& w) { train_epoch(w); },
//                           {.batch_size = 64, .resolution = 224});
//
// Threads: everything runs on the caller's, one call at a time per object. Owns: nothing; optimizer
// and scaler must outlive the accumulator. Devices: any; caches are released on all CUDA devices
// that this process uses.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tonnage/torch/precision.h"

namespace tonnage {

// --- Accumulating gradients ---

// How the learning rate follows the batch size.
enum class LearningRateRule : uint8_t {
  kConstant,
  kLinear,      // Goyal et al. 2017: for SGD
  kSquareRoot,  // Krizhevsky 2014; for Adam Malladi et al. 2022
};

// The learning rate for `batch`, if `base_rate` is right for `base_batch`; both > 0.
double scaled_learning_rate(double base_rate, int64_t base_batch, int64_t batch,
                            LearningRateRule rule);

struct AccumulatorOptions {
  int64_t window = 1;  // parts per update
  // The last window of an epoch may be shorter. For its update, this rule sets the learning rate by
  // its size.
  LearningRateRule partial_window_rule = LearningRateRule::kConstant;
  GradScaler* scaler = nullptr;  // float16: scales the losses, steps and updates; not owned
  std::function<void()>
      before_step{};        // gradients are complete and (with a scaler) unscaled: clipping
  bool set_to_none = true;  // zero_grad after an update frees the gradients
};

// The gradient of a window is that of the mean over all its units (samples, or tokens), as in one
// large batch, also if the parts have different numbers of units; a mean of the parts' means is
// not. Equal parts give the same bits as dividing every loss by `window`. Gradients are summed in
// the parameters' .grad; no memory of its own. Errors: c10::Error for window < 1, units < 1, or a
// loss that is not one number. If a backward pass throws (out of memory), the window is left
// incomplete: reset() and feed it again.
class GradientAccumulator {
 public:
  GradientAccumulator(::torch::optim::Optimizer& optimizer, const AccumulatorOptions& options);

  // `mean_loss`: the mean over `units` of this part. True: the window was complete and the
  // parameters were updated (or, with a scaler, the update was skipped because of an infinity).
  bool backward(const ::torch::Tensor& mean_loss, int64_t units);

  // Updates with what there is of a window. False: nothing was.
  bool finish();

  // Drops the gradients of an incomplete window.
  void reset();

  int64_t parts() const { return parts_; }  // in the window so far
  int64_t updates() const { return updates_; }

 private:
  void update(bool partial);
  void scale_gradients(double factor);

  ::torch::optim::Optimizer& optimizer_;
  AccumulatorOptions options_;
  int64_t parts_ = 0, units_ = 0, first_units_ = 0, updates_ = 0;
  double full_units_ =
      0;  // units of the last complete window, or those that the first part promises
};

// --- Out of memory ---

// True for c10::OutOfMemoryError, std::bad_alloc, and other errors that mean out of memory
// (workspaces of cuBLAS and cuDNN, the driver).
bool is_out_of_memory(const std::exception& error);

// Releases cached device memory of all CUDA devices. Only useful outside of the scope that failed:
// an exception in flight, and variables of frames that are not left yet, hold tensors.
void release_cached_memory();

struct FindBatchOptions {
  int64_t start = 1;  // tried first
  int64_t max = int64_t{1} << 20;
  int64_t multiple_of = 1;  // only such sizes are tried
  double keep_free =
      0;  // share of the result that is given up as a reserve, 0 to 0.9 (0.05: 5 % smaller)
};

// The largest batch size for which `attempt` does not run out of memory: doubles, then halves the
// interval. Attempts run on a released cache, each after the last one has been unwound. 0: not even
// the smallest fits. Other exceptions are passed through. A step's memory may grow in its second
// run (optimizer state): let `attempt` do two.
int64_t find_batch_size(const std::function<void(int64_t batch_size)>& attempt,
                        const FindBatchOptions& options = {});

// What run_or_degrade may lower. Zero: the program has no such knob.
struct Workload {
  int64_t batch_size = 0;
  int64_t resolution = 0;  // pixels of an image's side, or tokens of a sequence
  double width = 1;        // factor on the model's hidden sizes
  bool frozen = false;     // train the head only
  c10::DeviceType device = c10::kCUDA;
  double learning_rate_factor = 1;  // that the smaller batch asks for
};

struct DegradeOptions {
  int64_t min_batch_size = 1;
  int64_t min_resolution = 0;  // 0: the resolution stays
  int64_t resolution_multiple = 32;
  double min_width = 1;  // 1: the width stays
  bool may_freeze = false;
  bool may_use_cpu = false;
  LearningRateRule learning_rate_rule = LearningRateRule::kLinear;
  std::function<void(const std::string& what)> on_change{};  // "batch size 64 -> 32"
};

struct DegradeResult {
  Workload workload;                 // that worked
  std::vector<std::string> changes;  // in order
};

// Runs `attempt`; if it runs out of memory, its stack is unwound, the cache is released, and it
// runs again with less work. The order is batch, resolution, width, freezing, CPU; each goes to its
// end before the next. If nothing is left, the last error is thrown, with the list of what was
// tried. `attempt` must leave nothing behind when it fails (build the model inside of it, or load
// it from a checkpoint).
DegradeResult run_or_degrade(const std::function<void(const Workload&)>& attempt, Workload start,
                             const DegradeOptions& options = {});

}  // namespace tonnage
