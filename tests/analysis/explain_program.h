// A training program made by hand, whose pieces can be bent into every kind of failure, and what
// tests ask of an explanation.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "analysis/analysis_builder.h"
#include "analysis/diagnosis/findings.h"

namespace tonnage::analysis::testing {

using abi::EventKind;

inline const Finding* primary(const Explanation& explanation) {
  for (const Finding& finding : explanation.findings) {
    if (finding.primary) return &finding;
  }
  return nullptr;
}

inline bool has_cause(const Explanation& explanation, Cause cause) {
  return std::any_of(explanation.findings.begin(), explanation.findings.end(),
                     [cause](const Finding& f) { return f.cause == cause; });
}

// A training program: `layers` activations a step, gradients, an optimizer; its pieces can be bent
// into every kind of failure.
struct Program {
  RecordBuilder out;
  PlainAllocator allocator{out};
  uint32_t forward, loss, step_state, step_copies, eval, eval_same_line, checkpointed, load;
  std::vector<uint64_t> parameters, gradients, state;

  Program() {
    const std::string torch = "/venv/lib/python3.11/site-packages/torch/";
    const RecordBuilder::FrameText main{"/home/u/train.py", 90, "main"};
    forward = out.stack({{"/home/u/model.py", 21, "forward"},
                         {torch + "nn/modules/module.py", 1790, "_call_impl"},
                         main});
    loss = out.stack(
        {{torch + "nn/functional.py", 3504, "cross_entropy"}, {"/home/u/train.py", 91, "main"}});
    step_state = out.stack({{torch + "optim/adam.py", 178, "_init_group"},
                            {torch + "optim/adam.py", 238, "step"},
                            {"/home/u/train.py", 95, "main"}});
    step_copies = out.stack({{torch + "optim/adam.py", 500, "_multi_tensor_adam"},
                             {torch + "optim/adam.py", 240, "step"},
                             {"/home/u/train.py", 95, "main"}});
    eval = out.stack({{"/home/u/model.py", 22, "forward"},
                      {torch + "nn/modules/module.py", 1790, "_call_impl"},
                      {"/home/u/train.py", 120, "evaluate"}});
    eval_same_line = out.stack({{"/home/u/model.py", 21, "forward"},
                                {torch + "nn/modules/module.py", 1790, "_call_impl"},
                                {"/home/u/train.py", 120, "evaluate"}});
    checkpointed = out.stack({{"/home/u/model.py", 21, "forward"},
                              {torch + "utils/checkpoint.py", 490, "checkpoint"},
                              {"/home/u/model.py", 30, "forward"},
                              main});
    load = out.stack({{"/home/u/train.py", 80, "main"}});
    out.record.kind = record::Record::Kind::kTonnage;
    out.record.devices[0].total_bytes = 4096 * kMiB;
  }
  uint64_t make(Phase phase, uint32_t stack, uint64_t size, Category label = Category::kUnknown) {
    out.in(phase).from(stack);
    const uint64_t address = allocator.alloc(size);
    if (label != Category::kUnknown)
      out.add(EventKind::kLabel, address, 0, static_cast<uint64_t>(label), "t");
    return address;
  }
  void drop(Phase phase, uint64_t address) {
    out.in(phase).from(0);
    allocator.release(address);
  }
  void add_parameters(uint64_t size, int count) {
    for (int i = 0; i < count; ++i)
      parameters.push_back(make(Phase::kInit, load, size, Category::kParameter));
  }
  // One step; keep: tensors that stay, of those the forward pass makes.
  std::vector<uint64_t> train_step(uint64_t number, int layers, uint64_t size, int keep = 0,
                                   bool with_state = true) {
    std::vector<uint64_t> live, kept;
    for (int i = 0; i < layers; ++i)
      live.push_back(make(Phase::kForward, forward, size, Category::kActivation));
    for (int i = 0; i < keep; ++i) kept.push_back(make(Phase::kForward, forward, size));
    if (gradients.empty()) {
      for (size_t i = 0; i < parameters.size(); ++i)
        gradients.push_back(make(Phase::kBackward, 0, 10 * kMiB, Category::kGradient));
    }
    for (auto it = live.rbegin(); it != live.rend(); ++it) drop(Phase::kBackward, *it);
    if (with_state && state.empty()) {
      for (size_t i = 0; i < parameters.size(); ++i)
        state.push_back(make(Phase::kOptimizer, step_state, 10 * kMiB, Category::kOptimizerState));
    }
    out.in(Phase::kOther).from(0);
    out.add(EventKind::kStep, 0, 0, number);
    return kept;
  }
  // PyTorch gives its free segments back before it gives up.
  void fail(Phase phase, uint32_t stack, uint64_t size, uint64_t free) {
    allocator.empty_cache();
    out.in(phase).from(stack);
    out.add(EventKind::kOom, 0, size, free);
  }
  Explanation explain() { return analysis::explain(std::make_shared<record::Record>(out.record)); }
};

}  // namespace tonnage::analysis::testing
