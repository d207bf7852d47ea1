// What a thread is doing: operator, line, module, phase, step. Followed with RecordFunction's
// callbacks, and attached to every event that is recorded on the thread.
#pragma once

#include "abi/event.h"
#include "recorder/state.h"

namespace tonnage::recorder {

// Fills op, stack, module, phase and step of this thread. May be called under any lock: never waits
// for the GIL.
void fill_context(abi::MemoryEvent* event);

// Registers the callbacks; once.
void observe_operators();

// Phase of this thread now.
abi::Phase current_phase(const ThreadState& thread);

// A training step ended on this thread (an optimizer's step returned). Steps without a backward
// pass since the last one do not count again: several optimizers that step together are one step.
void note_optimizer_step(ThreadState& thread);

// Ends a step that is known to be over only at the next one's beginning (C++ optimizers).
void finish_pending_step();

}  // namespace tonnage::recorder
