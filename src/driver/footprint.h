// What a card loses to the driver itself: machine code, modules' variables, streams, the buffers of
// device-side printf and assert, and local memory. Measured on an H200 (tools/device,
// docs/exactness.md); shown as modelled.
//
// All of it comes from the same addresses as allocations do, so it also shifts those.
#pragma once

#include "driver/state.h"

namespace tonnage::driver {

struct Function;

// An address for a module's variable.
CUresult place_variable(Context* context, Device* device, size_t bytes, CUdeviceptr* out);
void release_variable(Device* device, CUdeviceptr address);

// A stream's queue. Taken when it is created, given back with it. OUT_OF_MEMORY: the card is full,
// nothing was taken, as with all that take here.
CUresult charge_stream(Device* device);
void refund_stream(Device* device);

// What an executable graph takes while it is there; by tools/device/graphs.cpp. Memsets and host
// nodes take nothing.
struct GraphFootprint {
  uint64_t branches = 0;  // chains of nodes that can run at the same time
  uint64_t copies = 0;
  uint64_t small_kernels = 0, medium_kernels = 0,
           large_kernels = 0;  // by the size of their parameters
  int pool = -1;               // of the nodes; set by charge_graph
};
// Nodes of kernels with so many bytes of parameters; the limits lie between sizes that were measured.
inline constexpr size_t kMostOfSmallKernel = 1200;   // 1,100 and 1,300
inline constexpr size_t kMostOfMediumKernel = 2250;  // 2,000 and 2,500
CUresult charge_graph(Device* device, GraphFootprint* footprint);
void refund_graph(Device* device, const GraphFootprint& footprint);

// What the driver holds when a context has been made (part of CardDesc::context_bytes): only
// addresses.
void prepare_context_memory(Device* device);

}  // namespace tonnage::driver
