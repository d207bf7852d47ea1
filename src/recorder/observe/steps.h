// Training steps: when one has ended, and whether parameters are being updated now.
//
// A step ends when an optimizer's step() returns. Where no optimizer of torch.optim runs (C++
// programs, other libraries, updates by hand), it ends when the next forward pass begins after
// parameters were written.
#pragma once

namespace tonnage::recorder {

struct ThreadState;

// A node of the backward pass runs.
void note_backward();
bool backward_since_step();

// A scope of torch.optim was entered. From now on, only such scopes mark steps.
void note_optimizer_scope();

// An optimizer's step() returned on this thread. Without a backward pass since the last one it does
// not count again: several optimizers that step together are one step.
void note_optimizer_step(ThreadState& thread);

// Between backward pass and forward pass, outside torch.optim, a gradient was read or memory like a
// parameter's was made (note_update), or a parameter was written (note_parameter_written).
void note_update();
void note_parameter_written(bool gradients_enabled);
bool update_runs();
// The work above is over: a forward pass or a backward pass begins.
void note_update_over();
// Data came from the host, or a tensor was created. It belongs to the next step, except in the
// first step, in which an optimizer makes its state.
void note_new_data();

// Ends a step of which it becomes clear only now that it has ended. `forward_began`: a parameter is
// used with gradients; else an operator runs with gradients enabled, which ends updates that were
// made without.
void finish_pending_step(bool forward_began);

}  // namespace tonnage::recorder
