#include "tonnage/torch/saved_tensor_hooks.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>
#include <torch/csrc/autograd/variable.h>

#include <mutex>
#include <typeinfo>
#include <vector>

namespace tonnage {
namespace {

using ::torch::Tensor;
using ::torch::autograd::Engine;
using ::torch::autograd::SavedVariableHooks;

thread_local std::vector<std::shared_ptr<SavedTensorHooks>> hooks_stack;

class Adapter : public SavedVariableHooks {
 public:
  explicit Adapter(std::shared_ptr<SavedTensorHooks> hooks) : hooks_(std::move(hooks)) {}

  void call_pack_hook(const Tensor& tensor) override {
    at::NoGradGuard no_grad;
    sizes_ = tensor.sizes();
    type_ = tensor.scalar_type();
    device_ = tensor.device();
    packed_ = hooks_->pack(tensor);
    if (!packed_) packed_ = pack_unchanged(tensor);
  }

  Tensor call_unpack_hook() override {
    at::NoGradGuard no_grad;
    Tensor tensor = packed_->unpack();
    TORCH_CHECK(tensor.defined(),
                "saved tensor hooks: unpack() returned an undefined tensor; it must give back what "
                "pack() got");
    // A wrong one would be read as if it were right by the kernels of the backward pass.
    TORCH_CHECK(tensor.sizes() == c10::IntArrayRef(sizes_) && tensor.scalar_type() == type_ &&
                    tensor.device() == device_,
                "saved tensor hooks: unpack() returned a ", tensor.scalar_type(), " tensor ",
                tensor.sizes(), " on ", tensor.device(), "; pack() got ", type_, " ",
                c10::IntArrayRef(sizes_), " on ", device_, ". It must give back what pack() got");
    return tensor;
  }

 private:
  std::shared_ptr<SavedTensorHooks> hooks_;  // also holds what the packed tensors refer to
  std::unique_ptr<PackedTensor> packed_;
  at::DimVector sizes_;
  c10::ScalarType type_ = c10::kFloat;
  c10::Device device_ = c10::kCPU;
};

class ToolkitEngine : public Engine {
 public:
  ToolkitEngine() = default;
  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (hooks_stack.empty() || !hooks_stack.back()) return nullptr;
    return std::make_unique<Adapter>(hooks_stack.back());
  }

  // libtorch starts an engine's device threads once per process, in the first backward pass of any
  // engine. If that was the other one's, this one's are to be started here.
  void start_as_other(const Engine& other) {
    if (other.*(&ToolkitEngine::thread_pool_shared_)) start_device_threads();
  }
};

// Never destroyed: its device threads may outlive every static object.
ToolkitEngine& toolkit_engine() {
  static ToolkitEngine* engine = new ToolkitEngine();
  return *engine;
}

Engine& toolkit_engine_stub() { return toolkit_engine(); }

// False if the process has another engine than libtorch's own.
bool try_install_engine() {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  Engine& current = Engine::get_default_engine();
  if (&current == &toolkit_engine()) return true;
  if (typeid(current) != typeid(Engine)) return false;
  toolkit_engine().start_as_other(current);
  ::torch::autograd::set_default_engine_stub(&toolkit_engine_stub);
  return true;
}

// Before the program's first backward pass: a second engine has threads of its own, and cuBLAS and
// cuDNN keep a workspace on the device for every thread.
[[maybe_unused]] const bool installed_when_loaded = try_install_engine();

void install_engine() {
  TORCH_CHECK(try_install_engine(),
              "saved tensor hooks: this process has another autograd engine, most likely Python's. "
              "In a Python "
              "process use torch.autograd.graph.saved_tensors_hooks and torch.utils.checkpoint; "
              "the toolkit's "
              "are for C++ programs");
}

class WithFunction : public PackedTensor {
 public:
  WithFunction(Tensor packed, std::function<Tensor(const Tensor&)> unpack)
      : packed_(std::move(packed)), unpack_(std::move(unpack)) {}
  Tensor unpack() override { return unpack_(packed_); }

 private:
  Tensor packed_;
  std::function<Tensor(const Tensor&)> unpack_;
};

class Unchanged : public PackedTensor {
 public:
  explicit Unchanged(const Tensor& tensor)
      : tensor_(tensor.detach()), version_(tensor.is_inference() ? 0 : tensor._version()) {}
  Tensor unpack() override {
    const int64_t now = tensor_.is_inference() ? 0 : tensor_._version();
    TORCH_CHECK(now == version_,
                "one of the variables needed for gradient computation has been modified by an "
                "inplace operation: a ",
                tensor_.toString(), " of shape ", tensor_.sizes(), " is at version ", now,
                ", but version ", version_,
                " was saved. Use the out-of-place operation, or change it after the backward pass");
    return tensor_;
  }

 private:
  Tensor tensor_;
  int64_t version_;
};

bool is_leaf_with_gradient(const Tensor& tensor) {
  return tensor.is_leaf() && tensor.requires_grad();
}

}  // namespace

std::unique_ptr<PackedTensor> pack_with(Tensor packed,
                                        std::function<Tensor(const Tensor&)> unpack) {
  TORCH_CHECK(packed.defined() && unpack, "pack_with: needs a defined tensor and a function");
  return std::make_unique<WithFunction>(std::move(packed), std::move(unpack));
}

std::unique_ptr<PackedTensor> pack_unchanged(const Tensor& tensor) {
  return std::make_unique<Unchanged>(tensor);
}

bool is_parameter_storage(const Tensor& tensor) {
  if (!tensor.defined()) return false;
  if (is_leaf_with_gradient(tensor)) return true;
  if (!tensor.is_view()) return false;
  const Tensor base(tensor._base());
  return base.defined() && is_leaf_with_gradient(base);
}

SavedTensorHooksGuard::SavedTensorHooksGuard(std::shared_ptr<SavedTensorHooks> hooks) {
  install_engine();
  hooks_stack.push_back(std::move(hooks));
}

SavedTensorHooksGuard::~SavedTensorHooksGuard() { hooks_stack.pop_back(); }

std::shared_ptr<SavedTensorHooks> current_saved_tensor_hooks() {
  return hooks_stack.empty() ? nullptr : hooks_stack.back();
}

}  // namespace tonnage
