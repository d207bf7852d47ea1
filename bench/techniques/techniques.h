// What the technique benchmark runs: a case is a training (or inference) step, made afresh,
// measured, and dropped.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace bench {

struct Step {
  std::function<void()> run;               // one step; what it holds lives as long as it
  std::function<double()> loss = nullptr;  // of the last step, if it says something
};

struct Case {
  std::string model;      // "resnet50" or "gpt2"
  std::string technique;  // "adam8bit"; a row of toolkit/docs/techniques.md
  std::string variant;    // "without", "with", or the name of the setting
  std::function<Step()> make;
};

// Each file of cases adds its own.
void add_model_cases(std::vector<Case>& cases);   // optimizers, models
void add_memory_cases(std::vector<Case>& cases);  // recomputation, offload, precision

// Steps on these sizes; the same in run_techniques.py.
inline constexpr int kResNetBatch = 128, kResNetSize = 224;
inline constexpr int kGptBatch = 8, kGptLength = 1024;

}  // namespace bench
