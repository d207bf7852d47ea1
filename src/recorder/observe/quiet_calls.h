// Calls whose nested operators are not observed: views and casts of unknown inputs give unknown
// outputs. The memory of nested operators counts as the call's own.
#pragma once

#include <ATen/record_function.h>

#include "recorder/observe/operator_info.h"

namespace tonnage::recorder {

struct Frame;
struct ThreadState;

// Nothing inside this call is observed until it ends.
void make_quiet(ThreadState& thread, const at::RecordFunction& function);
void end_quiet(ThreadState& thread);

// Makes the call quiet if all its tensors are unknown ones of the card.
void make_quiet_if_unknown(ThreadState& thread, Frame& frame, const at::RecordFunction& function);

// Whether the call has tensors and all are on the host.
bool concerns_host_only(const OpInfo& info, const at::RecordFunction& function);

// torch.func transforms, tracing and dispatch modes see the call first; the real call comes after.
bool under_transform();

}  // namespace tonnage::recorder
