// The autograd graph as a Graphviz drawing, with the bytes that each node keeps for the backward
// pass.
//
//   tonnage::GraphRecorder recorder;
//   auto loss = criterion(model->forward(x), y);
//   std::ofstream("graph.dot") << recorder.dot({loss}, model.get());
//   // then: dot -Tsvg graph.dot > graph.svg
//
// Between its construction and stop() the recorder notes what this thread's operators save. A
// node's bytes are those of the storages that it saved, each counted once; one that several nodes
// saved is counted at the first of them, and the others name it. Parameters (and their views) are
// counted apart, as the graph does not make them. Saved tensors are kept as they are: memory and
// gradients are the same as without. Nodes that were built before or by other threads are drawn
// without bytes. Threads: it belongs to the one that made it. Owns: no tensor; `model` is only read
// in the call. Errors: c10::Error if an output has no graph. See saved_tensor_hooks.h for processes
// with Python's engine.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tonnage {

struct GraphNode {
  std::string name;          // "ConvolutionBackward0"; for a leaf its parameter's name, or "leaf"
  int64_t saved_bytes = 0;   // counted here
  int64_t shared_bytes = 0;  // saved here too, but counted at an earlier node
  int64_t parameter_bytes = 0;  // of parameters that it refers to
  std::vector<size_t> inputs;   // nodes that its gradients go to
};

class GraphRecorder {
 public:
  GraphRecorder();
  ~GraphRecorder();
  GraphRecorder(const GraphRecorder&) = delete;
  GraphRecorder& operator=(const GraphRecorder&) = delete;

  void stop();

  // The nodes that `outputs` depend on, from the outputs on. `model` (may be null) names the leaves.
  std::vector<GraphNode> nodes(const std::vector<::torch::Tensor>& outputs,
                               const ::torch::nn::Module* model = nullptr) const;
  std::string dot(const std::vector<::torch::Tensor>& outputs,
                  const ::torch::nn::Module* model = nullptr) const;

 private:
  struct Hooks;
  std::shared_ptr<Hooks> hooks_;
  std::unique_ptr<class SavedTensorHooksGuard> guard_;
};

}  // namespace tonnage
