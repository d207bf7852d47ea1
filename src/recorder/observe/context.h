// What a thread is doing, attached to every event that is recorded on it: operator, line, module,
// phase, step.
#pragma once

#include "abi/event.h"

namespace tonnage::recorder {

// Fills op, stack, module, phase and step of this thread. May be called under any lock: never waits
// for the GIL.
void fill_context(abi::MemoryEvent* event);

}  // namespace tonnage::recorder
