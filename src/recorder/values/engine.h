// Value propagation: operators whose inputs are known and whose results are small are computed by
// PyTorch's own CPU operators, and the result becomes the content of the device tensor. Everything
// else makes its outputs unknown.
//
// begin_values looks at the inputs; most calls need nothing more. end_values computes the result,
// or marks the outputs as unknown.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstddef>
#include <vector>

#include "recorder/observe/operator_info.h"
#include "recorder/values/device.h"

namespace tonnage::recorder {

struct Frame;
struct ThreadState;

// A call that may be computed. What it reads only is loaded when it is known that the result is
// small enough; what it writes is loaded before it runs.
struct PendingCompute {
  std::vector<c10::IValue> inputs;  // the call's own
  std::vector<c10::IValue>
      arguments;  // the CPU operator's: device tensors replaced by copies; empty until prepared
  struct Written {
    size_t argument;
    int element;  // in a list; -1: the argument itself
    at::Tensor device;
    at::Tensor copy;  // what was in it before; after computing, what is in it now
  };
  std::vector<Written> written;
  std::vector<c10::IValue> results;  // computed already (operators with data-dependent sizes)
  bool has_results = false;
  bool may_stand_in = false;  // unknown arguments that are only moved (OpInfo::may_be_unknown) need
                              // not stop it
  bool partial = false;       // there are such: worked out twice, with different stand-ins for them
  int stand_in = 0;
  device::RandomState random;  // what the generator was about to draw
};

void begin_values(ThreadState& thread, Frame& frame);
void end_values(ThreadState& thread, Frame& frame);
// Takes back what the driver was told for the duration of the call, even if the end of the call was
// not seen.
void drop_values(Frame& frame);

// Computes a pending call now, before its own host code runs; its results are stored when that has
// made the outputs. False: some content is unknown, and nothing is pending any more.
bool compute_now(Frame& frame);
// Nothing is pending any more: the results become unknown.
void drop_pending(Frame& frame);

}  // namespace tonnage::recorder
