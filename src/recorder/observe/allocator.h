// Events of PyTorch's caching allocator, with the context of the thread that caused them.
#pragma once

namespace tonnage::recorder {

struct Frame;
struct ThreadState;

// Attaches to the allocator once it is there; cheap when it is done or not yet possible. PyTorch
// calls the tracker under the device allocator's lock, whether or not the program records a history
// of its own, which is left alone.
void attach_allocator();

// Scratch memory of an operator that outlives it and is none of its results (cuBLAS keeps its
// workspace) is labelled so.
void label_scratch(ThreadState& thread, Frame& frame);

// PyTorch's own peaks, as counters; at steps and at the end.
void record_counters();

}  // namespace tonnage::recorder
