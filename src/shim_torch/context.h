// What a thread is doing: operator, line, module, phase, step. Followed with RecordFunction's callbacks, and attached to every
// event that is recorded on the thread.
#pragma once

#include "record/event.h"
#include "shim_torch/state.h"

namespace tonnage::shim {

// Fills op, stack, module, phase and step of this thread. May be called under any lock: never waits for the GIL.
void fill_context(record::Event* event);

// Registers the callbacks; once.
void observe_operators();

// Phase of this thread now.
record::Phase current_phase(const ThreadState& thread);

// A training step ended on this thread (an optimizer's step returned). Steps without a backward pass since the last one do not
// count again: several optimizers that step together are one step.
void note_optimizer_step(ThreadState& thread);

// Ends a step that is known to be over only at the next one's beginning (C++ optimizers).
void finish_pending_step();

}  // namespace tonnage::shim
