// Events of PyTorch's caching allocator, with the context of the thread that caused them.
#pragma once

namespace tonnage::recorder {

struct Frame;
struct ThreadState;

// Attaches to the allocator as soon as it exists; cheap afterwards, and as long as it does not
// exist. PyTorch calls the tracker under the device allocator's lock. A history that the program
// itself records is not disturbed.
void attach_allocator();

// Labels memory that an operator leaves allocated and that is none of its results, as a workspace
// (cuBLAS keeps its workspace).
void label_scratch(ThreadState& thread, Frame& frame);

// PyTorch's own peaks, as counters; at steps and at the end.
void record_counters();

}  // namespace tonnage::recorder
