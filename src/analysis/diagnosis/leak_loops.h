// Iterations of a loop, where there are no training steps: an evaluation, an inference server, a
// script without an optimizer.
//
// A loop is found by a line of the user's own code, outside every module, that makes a tensor again
// and again (the batch, for example), with the allocations of a forward pass in between. The layers
// of one forward pass repeat, too, but inside the pass.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/timeline/timeline.h"

namespace tonnage::analysis {

struct Iteration {
  uint32_t number = 0;  // from 1; a step's own number
  uint32_t first_event = 0;
  uint32_t end_event = 0;  // half-open
};

struct IterationRange {
  std::vector<Iteration> iterations;  // complete ones
  bool are_steps = false;             // training steps; false: iterations of a loop
  Place anchor;                       // of a loop: the line that recurs
};

// The process's complete training steps.
IterationRange step_iterations(const Timeline& timeline, uint32_t process);

// The iterations of a loop within [first_event, end_event); empty if there is none (at least three
// are needed).
IterationRange loop_iterations(const Timeline& timeline, uint32_t process, uint32_t first_event,
                               uint32_t end_event);

}  // namespace tonnage::analysis
