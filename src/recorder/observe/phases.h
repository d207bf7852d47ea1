// The phase that a thread is in: initialisation, forward pass, backward pass, optimizer, data,
// evaluation. And the scopes that PyTorch and the user name (record_function).
#pragma once

#include <string_view>

#include "abi/event.h"

namespace tonnage::recorder {

struct ThreadState;

abi::Phase current_phase(const ThreadState& thread);
// Records the phase if it is another than before.
void emit_phase(ThreadState& thread);

// The thread runs the backward pass, or what was queued for its end (FSDP's and DDP's last
// gradients).
bool in_backward(const ThreadState& thread);
// The thread runs an optimizer's step. A closure that the step calls (LBFGS; Lightning with every
// optimizer) runs with gradients enabled: it is a forward pass.
bool in_optimizer(const ThreadState& thread);

// A parameter was used by a layer, or with gradients enabled: initialisation has ended.
void note_model_ran();

// record_function scopes: optimizers and data loaders change the phase, others are annotations.
void user_scope_begins(ThreadState& thread, std::string_view name);
void user_scope_ends(ThreadState& thread, std::string_view name);

}  // namespace tonnage::recorder
