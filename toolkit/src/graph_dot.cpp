#include "tonnage/torch/graph_dot.h"

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <map>
#include <sstream>
#include <unordered_map>

#include "tonnage/torch/memory.h"
#include "tonnage/torch/saved_tensor_hooks.h"

namespace tonnage {

// A node takes its sequence number when it is made, just before it saves: the number before the
// next one is the saver's.
struct GraphRecorder::Hooks : SavedTensorHooks {
  struct Saved {
    const void* storage = nullptr;
    int64_t bytes = 0;
    bool is_parameter = false;
    bool counted = false;  // the first time that this storage was saved
  };

  std::unique_ptr<PackedTensor> pack(const ::torch::Tensor& tensor) override {
    if (!tensor.has_storage()) return nullptr;
    Saved saved{tensor.storage().unsafeGetStorageImpl(),
                static_cast<int64_t>(tensor.storage().nbytes()), is_parameter_storage(tensor),
                false};
    auto& list = by_node[at::sequence_number::peek() - 1];
    for (const Saved& s : list)
      if (s.storage == saved.storage) return nullptr;
    // The storage cannot go, and its address not come back, while the graph that saved it is there.
    saved.counted = seen.emplace(saved.storage, tensor.storage().getWeakStorageImpl()).second;
    list.push_back(saved);
    return nullptr;
  }

  std::unordered_map<uint64_t, std::vector<Saved>> by_node;
  std::unordered_map<const void*, c10::weak_intrusive_ptr<c10::StorageImpl>> seen;
};

GraphRecorder::GraphRecorder()
    : hooks_(std::make_shared<Hooks>()), guard_(std::make_unique<SavedTensorHooksGuard>(hooks_)) {}

GraphRecorder::~GraphRecorder() = default;

void GraphRecorder::stop() { guard_.reset(); }

std::vector<GraphNode> GraphRecorder::nodes(const std::vector<::torch::Tensor>& outputs,
                                            const ::torch::nn::Module* model) const {
  using ::torch::autograd::AccumulateGrad;
  using ::torch::autograd::Node;
  std::unordered_map<const void*, std::string> parameter_names;
  if (model)
    for (const auto& p : model->named_parameters())
      parameter_names[p.value().unsafeGetTensorImpl()] = p.key();
  std::unordered_map<const Node*, size_t> index;
  std::vector<const Node*> order;
  auto visit = [&](const Node* node) {
    auto [found, made] = index.emplace(node, order.size());
    if (made) order.push_back(node);
    return found->second;
  };
  for (const auto& output : outputs) {
    TORCH_CHECK(
        output.defined() && output.grad_fn(),
        "GraphRecorder: an output has no graph; it must come from operators with gradients");
    visit(output.grad_fn().get());
  }
  std::vector<GraphNode> out;
  for (size_t i = 0; i < order.size(); i++) {
    GraphNode node;
    if (const auto* leaf = dynamic_cast<const AccumulateGrad*>(order[i])) {
      auto found = parameter_names.find(leaf->variable.unsafeGetTensorImpl());
      node.name = found == parameter_names.end() ? "leaf" : found->second;
      node.parameter_bytes = static_cast<int64_t>(leaf->variable.nbytes());
    } else {
      node.name = order[i]->name();
      if (auto saved = hooks_->by_node.find(order[i]->sequence_nr());
          saved != hooks_->by_node.end())
        for (const auto& s : saved->second)
          (s.is_parameter ? node.parameter_bytes
           : s.counted    ? node.saved_bytes
                          : node.shared_bytes) += s.bytes;
    }
    for (const auto& edge : order[i]->next_edges())
      if (edge.function) node.inputs.push_back(visit(edge.function.get()));
    out.push_back(std::move(node));
  }
  return out;
}

std::string GraphRecorder::dot(const std::vector<::torch::Tensor>& outputs,
                               const ::torch::nn::Module* model) const {
  const auto all = nodes(outputs, model);
  int64_t total = 0, largest = 1;
  for (const auto& n : all) {
    total += n.saved_bytes;
    largest = std::max(largest, n.saved_bytes);
  }
  std::ostringstream out;
  out << "digraph autograd {\n  label=\"" << all.size() << " nodes, " << format_bytes(total)
      << " saved\";\n"
      << "  node [shape=box, style=filled, fillcolor=white, fontname=\"Helvetica\"];\n";
  for (size_t i = 0; i < all.size(); i++) {
    const GraphNode& n = all[i];
    std::string name;
    for (char c : n.name) {
      if (c == '"' || c == '\\') name += '\\';
      name += c;
    }
    out << "  n" << i << " [label=\"" << name;
    if (n.saved_bytes) out << "\\n" << format_bytes(n.saved_bytes);
    if (n.shared_bytes) out << "\\n(" << format_bytes(n.shared_bytes) << " saved before)";
    if (n.inputs.empty() && n.parameter_bytes) out << "\\n" << format_bytes(n.parameter_bytes);
    out << '"';
    if (n.inputs.empty()) out << ", shape=ellipse, fillcolor=\"#dde8f0\"";
    // The more it keeps, the redder.
    if (n.saved_bytes) {
      char colour[16];
      std::snprintf(colour, sizeof colour, "0.05 %.2f 1.0",
                    0.08 + 0.6 * static_cast<double>(n.saved_bytes) / static_cast<double>(largest));
      out << ", fillcolor=\"" << colour << '"';
    }
    out << "];\n";
  }
  for (size_t i = 0; i < all.size(); i++)
    for (size_t input : all[i].inputs) out << "  n" << i << " -> n" << input << ";\n";
  out << "}\n";
  return out.str();
}

}  // namespace tonnage
