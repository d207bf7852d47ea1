// The source line of a thread, for operators: the stack at the outermost operator that runs.
#pragma once

namespace tonnage::recorder {

struct ThreadState;

// An operator begins that no other has called.
void take_stack(ThreadState& thread);
// No operator runs on the thread any more.
void drop_stack(ThreadState& thread);
// Return addresses, if there are no Python frames and they are not known yet: they take some
// microseconds.
void take_native_stack(ThreadState& thread);

}  // namespace tonnage::recorder
