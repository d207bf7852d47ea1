// Where the memory of a piece of code goes, by operator and by module; and tensors that are left
// behind from step to step.
//
//   tonnage::MemoryTables tables(model.get());
//   loss = model->forward(x);
//   loss.backward();
//   tables.stop();
//   std::cout << tables.to_string();
//
//   tonnage::LeakDetector detector;
//   for (...) {
//     { tonnage::MemoryScope scope("validation"); validate(); }
//     if (auto leaks = detector.step(); !leaks.empty()) std::cerr << tonnage::describe(leaks);
//   }
//
// Both see every allocation and every free of tensors on the device, made on this thread and in
// backward passes that it starts, while they are on. Sizes are bytes in the allocator's blocks
// (CUDA: multiples of 512; CPU: as asked for). They add about a microsecond to an operator. They
// use libtorch's reporting for its own profiler, so at most one of them can be on per thread, and
// no profiler.
//
// Errors: c10::Error if a profiler, or another of them, is on on this thread. Threads: made, used
// and ended on one. Owns: no tensor.
#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tonnage {

namespace detail {
class MemoryTrace;
}

struct OperatorMemory {
  std::string name;  // "aten::conv2d", in a backward pass "ConvolutionBackward0"; "(other)":
                     // outside of operators
  int64_t calls = 0;
  int64_t allocated_bytes = 0;  // in all calls together
  int64_t largest_bytes = 0;    // the largest single tensor
  int64_t at_peak_bytes = 0;    // what it had made and was still there at the peak
};

struct ModuleMemory {
  std::string name;  // "layer1.0.conv1"; "": no module
  int64_t parameter_bytes = 0, gradient_bytes = 0,
          buffer_bytes = 0;            // that it has itself, when the table is made
  int64_t allocated_bytes = 0;         // made in its forward and backward calls
  int64_t at_peak_bytes = 0;           // of those, there at the peak
  int64_t at_peak_backward_bytes = 0;  // of those, made in the backward pass
};

// An operator belongs to the module whose parameter it uses; one without parameters to the module
// that was last used, as activations and dropout follow their layer. What runs backward belongs to
// the module that ran forward.
class MemoryTables {
 public:
  // `model` may be null (no module table) and must live until the last by_module().
  explicit MemoryTables(const ::torch::nn::Module* model, c10::DeviceType device = c10::kCUDA);
  ~MemoryTables();
  MemoryTables(const MemoryTables&) = delete;
  MemoryTables& operator=(const MemoryTables&) = delete;

  void stop();

  // Largest at the peak first. The at_peak_bytes of a table add up to peak_bytes().
  std::vector<OperatorMemory> by_operator() const;
  std::vector<ModuleMemory> by_module() const;  // in the order of named_modules, then ""
  int64_t peak_bytes() const;                   // above what was there at the beginning

  std::string to_string(size_t rows = 20) const;

 private:
  const ::torch::nn::Module* model_;
  std::shared_ptr<detail::MemoryTrace> trace_;
};

// Names a piece of code, on this thread, for LeakDetector (and as an annotation for Tonnage's and
// PyTorch's recorders). Nests: "epoch/validation".
class MemoryScope {
 public:
  explicit MemoryScope(const std::string& name);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  struct Annotation;
  std::unique_ptr<Annotation> annotation_;
};

struct LeakOptions {
  c10::DeviceType device = c10::kCUDA;
  int64_t warmup_steps = 2;  // caches, optimizer states and workspaces are made in these
  int64_t in_a_row = 3;      // steps that must each have left something behind
  int64_t least_bytes = 1;   // per step
};

struct Leak {
  std::string scope;  // of MemoryScope; "" outside of all
  std::string operator_name;
  int64_t bytes_per_step = 0;
  int64_t tensors_per_step = 0;
  int64_t steps = 0;        // that left something behind so far
  int64_t total_bytes = 0;  // that are left now
};

// A tensor that was made in one step is left behind if it is still there when the next step has
// ended: gradients, running averages and prefetched batches are replaced by then. A place leaks if
// it leaves something behind in every one of `in_a_row` steps.
class LeakDetector {
 public:
  explicit LeakDetector(const LeakOptions& options = {});
  ~LeakDetector();
  LeakDetector(const LeakDetector&) = delete;
  LeakDetector& operator=(const LeakDetector&) = delete;

  // At the end of a step. What leaks as far as is known, the largest first; empty in a healthy
  // program.
  std::vector<Leak> step();

 private:
  LeakOptions options_;
  std::shared_ptr<detail::MemoryTrace> trace_;
};

std::string describe(const std::vector<Leak>& leaks);

}  // namespace tonnage
