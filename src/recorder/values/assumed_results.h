// Assumed results of operators with unknown inputs: checks of whole tensors pass, comparisons
// compare numbers near 1, choices are spread evenly.
#pragma once

#include <ATen/core/ivalue.h>

namespace tonnage::recorder {

struct Frame;
struct ThreadState;

// Keeps what the rule needs at the end of the call, for the case that the results are not known
// then.
void begin_assuming(Frame& frame, c10::ArrayRef<const c10::IValue> inputs);
void end_assuming(ThreadState& thread, Frame& frame, c10::ArrayRef<const c10::IValue> outputs);

}  // namespace tonnage::recorder
