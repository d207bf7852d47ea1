// What a card loses to the driver itself: machine code, modules' variables, streams, the buffers of device-side printf and
// assert, and local memory. Measured on an H200 (tools/device, docs/exactness.md); shown as modelled.
//
// All of it comes from the same addresses as allocations do, so it also shifts those.
#pragma once

#include "vgpu/driver/state.h"

namespace tonnage::vgpu {

struct Function;

// An address for a module's variable.
CUresult place_variable(Context* context, Device* device, size_t bytes, CUdeviceptr* out);
void release_variable(Device* device, CUdeviceptr address);

// A stream's queue. Taken when it is created, given back with it.
void charge_stream(Device* device);
void refund_stream(Device* device);

// What the driver holds when a context has been made (part of CardDesc::context_bytes): only addresses.
void prepare_context_memory(Device* device);

}  // namespace tonnage::vgpu
