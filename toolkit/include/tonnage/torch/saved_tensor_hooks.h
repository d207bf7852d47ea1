// Hooks on the tensors that autograd saves for the backward pass: they are called with every saved
// tensor, on the guard's thread, while the guard lives. checkpoint.h, offload.h and compress.h use
// them.
//
//   struct Halve : tonnage::SavedTensorHooks {            // keeps float activations as bfloat16
//     std::unique_ptr<tonnage::PackedTensor> pack(const torch::Tensor& t) override {
//       if (t.scalar_type() != torch::kFloat || tonnage::is_parameter_storage(t))
//         return nullptr;                               // kept as it is
//       return tonnage::pack_with(t.to(torch::kBFloat16),
//                                 [](const torch::Tensor& p) { return p.to(torch::kFloat); });
//     }
//   };
//   {
//     tonnage::SavedTensorHooksGuard guard(std::make_shared<Halve>());
//     loss = model->forward(x);
//   }
//   loss.backward();   // calls unpack(), on the thread of the tensor's device
//
// Rules. Guards nest; the innermost one is called. They belong to their thread: threads that the
// guarded code starts have none. pack() and unpack() run without autograd recording. What unpack()
// returns must have the shape, type and device of what was packed. With retain_graph, unpack() is
// called once per backward pass. Hooks and packed tensors live as long as the graph needs them. A
// tensor that is kept as it is and changed in place afterwards is an error in the backward pass, as
// without hooks; what pack() copied is not affected by later changes.
//
// Errors: c10::Error if unpack() returns another shape, type or device than pack() got; if this
// process has Python's autograd engine (libtorch_python), whose own hooks are to be used there; if
// pack() or unpack() throws, the exception comes out of the forward or backward call and the graph
// stays as it was.
//
// How: libtorch asks the autograd engine for default hooks at every save; the toolkit installs an
// engine that answers (torch::autograd::set_default_engine_stub). Same idea as
// torch.autograd.graph.saved_tensors_hooks in Python.
#pragma once

#include <torch/types.h>

#include <functional>
#include <memory>

namespace tonnage {

// One saved tensor in its packed form. Destroyed when the graph releases it.
class PackedTensor {
 public:
  virtual ~PackedTensor() = default;
  virtual ::torch::Tensor unpack() = 0;
};

class SavedTensorHooks {
 public:
  virtual ~SavedTensorHooks() = default;
  // Null: the tensor is kept as it is. To keep the tensor itself inside a PackedTensor, keep
  // tensor.detach(): the tensor would keep its own graph, and with it this hook, alive.
  virtual std::unique_ptr<PackedTensor> pack(const ::torch::Tensor& tensor) = 0;
};

// A packed tensor and the function that turns it back.
std::unique_ptr<PackedTensor> pack_with(
    ::torch::Tensor packed, std::function<::torch::Tensor(const ::torch::Tensor&)> unpack);

// The tensor as it is, with the check that nothing was written to it in between.
std::unique_ptr<PackedTensor> pack_unchanged(const ::torch::Tensor& tensor);

// True for a parameter (a leaf that requires a gradient) and for its views: their memory stays
// alive without the graph.
bool is_parameter_storage(const ::torch::Tensor& tensor);

// Hooks for the current thread until the guard ends; null: none, although there are some further
// out. Guards end in reverse order.
class SavedTensorHooksGuard {
 public:
  explicit SavedTensorHooksGuard(std::shared_ptr<SavedTensorHooks> hooks);
  ~SavedTensorHooksGuard();
  SavedTensorHooksGuard(const SavedTensorHooksGuard&) = delete;
  SavedTensorHooksGuard& operator=(const SavedTensorHooksGuard&) = delete;
};

// The hooks that a save on this thread would call now; null if none.
std::shared_ptr<SavedTensorHooks> current_saved_tensor_hooks();

}  // namespace tonnage
