// Graphs (CUgraph, CUgraphExec) and the capture of streams: what the other entry points call.
//
// A stream that captures does not run its work; every call that submits work asks capture_state
// first and hands the work to the fitting capture_* function. Calls that could disturb a capture
// elsewhere ask capture_unsafe. With no capture in the process both cost one load. Sources: CUDA
// driver API manual, groups "Stream Management" and "Graph Management".
#pragma once

#include <cstdint>
#include <vector>

#include "driver/api/launch.h"
#include "driver/state.h"

namespace tonnage::driver {

// Before submitting work on `stream`: SUCCESS with *capturing false (run it now) or true (capture
// it); STREAM_CAPTURE_INVALIDATED if its capture is broken; STREAM_CAPTURE_IMPLICIT if this is the
// legacy stream and a blocking stream of its context is capturing (that breaks the other capture,
// as on a real driver).
CUresult capture_state(Stream* stream, bool* capturing);

// Before a call that is not allowed while a capture is going on (memory allocation and free,
// synchronous copies, queries): SUCCESS, or STREAM_CAPTURE_UNSUPPORTED, which breaks the captures
// concerned. Honours cuThreadExchangeStreamCaptureMode.
CUresult capture_unsafe();

// Before synchronising or querying this stream, or the whole context: breaks its capture if it has
// one; for a stream without it is an unsafe call (capture_unsafe).
CUresult capture_refuse_wait(Stream* stream);
CUresult capture_refuse_wait(Context* context);
// Before cuEventQuery, cuEventSynchronize, cuEventElapsedTime: CAPTURED_EVENT if it was last
// recorded in a capture; else an unsafe call.
CUresult capture_refuse_event(Event* event);

// The work of a capturing stream becomes a node of its graph. Parameters are copied.
CUresult capture_kernel(Stream* stream, const KernelLaunch& launch);
CUresult capture_memcpy(Stream* stream, const CUDA_MEMCPY3D& copy);
CUresult capture_memset(Stream* stream, const CUDA_MEMSET_NODE_PARAMS& memset);
CUresult capture_host(Stream* stream, CUhostFn function, void* data);
CUresult capture_batch_mem_op(Stream* stream, unsigned count,
                              const CUstreamBatchMemOpParams* operations, unsigned flags);
// cuEventRecord: remembers the stream's place in the event (external: flag
// CU_EVENT_RECORD_EXTERNAL, makes a node).
CUresult capture_event_record(Stream* stream, Event* event, unsigned flags);
// cuStreamWaitEvent where the stream captures, or the event was recorded in a capture (then the
// stream joins it). *handled is false if it is neither: the caller waits as usual.
CUresult capture_event_wait(Stream* stream, Event* event, unsigned flags, bool* handled);
// Stream-ordered allocation inside a capture (memory_pools.cpp).
CUresult capture_mem_alloc(Stream* stream, const CUmemPoolProps& pool, size_t bytes,
                           CUdeviceptr* out);
CUresult capture_mem_free(Stream* stream, CUdeviceptr address);
// An event recorded outside a capture leaves its captured state; called by cuEventRecord on a
// stream that runs.
void capture_forget_event(Event* event);
// A stream or context that goes away: its capture is broken.
void capture_stream_destroyed(Stream* stream);
// Graph-owned memory that cuMemFree or cuMemFreeAsync may free (allocated by a launched graph
// without a free node).
bool free_graph_memory(CUdeviceptr address);

// Does a copy or memset in shadow memory now: device memory, host memory and arrays
// (graph_copy.cpp). Host memory that is read into gets the known bytes and zeros for the rest. No
// virtual time, no checks of the ranges.
void run_memcpy(const CUDA_MEMCPY3D& copy);
void run_memset(const CUDA_MEMSET_NODE_PARAMS& memset);

}  // namespace tonnage::driver
