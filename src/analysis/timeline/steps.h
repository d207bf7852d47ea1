// Steps: which events belong to which training step.
//
// In order of trust: the program's own step events (Tonnage's recorder); the end of the optimizer
// in profiler annotations
// ("Optimizer.step#AdamW.step", "ProfilerStep#3"); allocator events made inside torch/optim's
// step(); and, where nothing else tells, a period in the allocations themselves (the same request
// from the same line once per step).
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/timeline/stacks.h"
#include "record/record.h"

namespace tonnage::analysis {

enum class StepSource : uint8_t { kTold, kAnnotation, kOptimizer, kPeriod };

struct Step {
  uint32_t process = 0;
  uint32_t number = 0;  // from 1
  uint32_t first_event =
      0;  // the step's events are those of its process in [first_event, end_event)
  uint32_t end_event = 0;
  bool complete = true;  // false: what came after the last whole step
  StepSource source = StepSource::kTold;
};

// By process, then number. Processes without steps do not appear.
std::vector<Step> find_steps(const record::Record& record, const Stacks& stacks);

// The step of the process that the event belongs to; null if there is none.
const Step* step_at(const std::vector<Step>& steps, uint32_t process, uint64_t event);

}  // namespace tonnage::analysis
