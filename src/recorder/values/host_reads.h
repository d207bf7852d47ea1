// Reads by the host: one scalar, or a copy of a tensor. All ways to read a number give the same
// value, because the value that is assumed at the first read stays (assumed.h).
#pragma once

#include <ATen/core/ivalue.h>

#include "recorder/values/slot.h"

namespace tonnage::recorder {

struct Frame;
struct ThreadState;

// _local_scalar_dense. Inside the recorder's own scope.
void begin_scalar_read(ThreadState& thread, Frame& frame, c10::ArrayRef<const c10::IValue> inputs);

// A copy_ that the driver itself sees as a copy, or one between host and device.
bool is_drivers_copy(c10::ArrayRef<const c10::IValue> inputs);
void begin_drivers_copy(ThreadState& thread, ValueSlot& slot,
                        c10::ArrayRef<const c10::IValue> inputs);

}  // namespace tonnage::recorder
