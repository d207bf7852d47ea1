// Lines of the forward pass, for the backward pass. Autograd numbers the nodes that each thread
// makes; the backward pass names number and thread of the node that it runs.
#pragma once

#include <cstdint>

namespace torch::autograd {
struct Node;
}

namespace tonnage::recorder {

struct ThreadState;

// The node with this number is being made: where the thread is now is its line.
void remember_forward(ThreadState& thread, int64_t sequence);
// The nodes with numbers from `first` up to the last one that was given.
void remember_forward_since(ThreadState& thread, uint64_t first);
// From now on the thread has the line at which this node was made. A node without a line of its own
// (AccumulateGrad) has the line of the node before it, from which its gradient came.
void recall_forward(ThreadState& thread, const torch::autograd::Node* node);

}  // namespace tonnage::recorder
