#include "tonnage/torch/recorder.h"

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>

#include "optimizer_states.h"

namespace tonnage {
namespace {

// What the recorder exports (src/recorder/labels.cpp).
struct Recorder {
  void (*label)(size_t n, const uint64_t* addresses, const uint8_t* categories,
                const char* const* names) = nullptr;
  void (*step)() = nullptr;
};

// The recorder is loaded without making its names global, so it is looked for among the loaded
// libraries by its file's name.
int find_recorder_file(dl_phdr_info* info, size_t, void* out) {
  const char* path = info->dlpi_name;
  const char* file = path ? std::strrchr(path, '/') : nullptr;
  if (!file || std::strncmp(file, "/libtonnage_torch-", 18) != 0) return 0;
  *static_cast<std::string*>(out) = path;
  return 1;
}

const Recorder* find_recorder() {
  std::string path;
  dl_iterate_phdr(&find_recorder_file, &path);
  if (path.empty()) return nullptr;
  void* library =
      dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);  // keeps it loaded, as the driver does anyway
  if (!library) return nullptr;
  static Recorder found;
  found.label = reinterpret_cast<decltype(found.label)>(dlsym(library, "tonnage_torch_label"));
  found.step = reinterpret_cast<decltype(found.step)>(dlsym(library, "tonnage_torch_step"));
  return found.label && found.step ? &found : nullptr;
}

const Recorder* recorder() {
  static const Recorder* found = nullptr;
  static std::atomic<bool> looked{false};
  static std::mutex mutex;
  if (looked.load(std::memory_order_acquire)) return found;
  std::lock_guard<std::mutex> lock(mutex);
  if (looked.load(std::memory_order_relaxed)) return found;
  // It comes with the first use of the device: before that the answer is not final.
  if (!at::globalContext().hasCUDA() || !at::detail::getCUDAHooks().hasPrimaryContext(0))
    return nullptr;
  found = find_recorder();
  looked.store(true, std::memory_order_release);
  return found;
}

bool has_device_memory(const ::torch::Tensor& tensor) {
  return tensor.defined() && tensor.is_cuda() && tensor.layout() == c10::kStrided &&
         tensor.has_storage() && tensor.numel() > 0;
}

// Names of parameters that were labelled, for their optimizer states. A dead tensor's place in
// memory may be another's, hence the weak pointer.
class ParameterNames {
 public:
  void set(const ::torch::Tensor& parameter, const std::string& name) {
    std::lock_guard<std::mutex> lock(mutex_);
    names_.insert_or_assign(parameter.unsafeGetTensorImpl(),
                            Named{Weak(parameter.getIntrusivePtr()), name});
  }
  std::string get(const ::torch::Tensor& parameter) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = names_.find(parameter.unsafeGetTensorImpl());
    return found == names_.end() || found->second.tensor.expired() ? std::string()
                                                                   : found->second.name;
  }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Named {
    Weak tensor;
    std::string name;
  };
  std::mutex mutex_;
  std::unordered_map<const void*, Named> names_;
};

ParameterNames& parameter_names() {
  static auto* names = new ParameterNames();  // outlives all tensors
  return *names;
}

void add(std::vector<MemoryLabel>& labels, const ::torch::Tensor& tensor, MemoryCategory category,
         std::string name) {
  if (has_device_memory(tensor)) labels.push_back({tensor, category, std::move(name)});
}

}  // namespace

bool recorder_present() { return recorder() != nullptr; }

void label_tensors(const std::vector<MemoryLabel>& labels) {
  const Recorder* r = recorder();
  if (!r) return;
  std::vector<uint64_t> addresses;
  std::vector<uint8_t> categories;
  std::vector<const char*> names;
  for (const MemoryLabel& l : labels) {
    if (!has_device_memory(l.tensor)) continue;
    addresses.push_back(reinterpret_cast<uint64_t>(l.tensor.const_data_ptr()));
    categories.push_back(static_cast<uint8_t>(l.category));
    names.push_back(l.name.c_str());
    if (l.category == MemoryCategory::kParameter) parameter_names().set(l.tensor, l.name);
  }
  if (!addresses.empty())
    r->label(addresses.size(), addresses.data(), categories.data(), names.data());
}

void label_module(const ::torch::nn::Module& module) {
  if (!recorder()) return;
  std::vector<MemoryLabel> labels;
  for (const auto& parameter : module.named_parameters()) {
    add(labels, parameter.value(), MemoryCategory::kParameter, parameter.key());
    add(labels, parameter.value().grad(), MemoryCategory::kGradient, parameter.key() + ".grad");
  }
  for (const auto& buffer : module.named_buffers())
    add(labels, buffer.value(), MemoryCategory::kBuffer, buffer.key());
  label_tensors(labels);
}

void label_optimizer(const ::torch::optim::Optimizer& optimizer,
                     const ::torch::nn::Module& module) {
  if (!recorder()) return;
  std::unordered_map<const void*, std::string> name_of;
  for (const auto& parameter : module.named_parameters())
    name_of[parameter.value().unsafeGetTensorImpl()] = parameter.key();
  std::vector<MemoryLabel> labels;
  for (const auto& [key, state] : optimizer.state()) {
    auto found = name_of.find(key);
    const std::string name = found == name_of.end() ? std::string("optimizer") : found->second;
    for (const auto& [what, tensor] : state_tensors(*state))
      add(labels, tensor, MemoryCategory::kOptimizerState, name + "." + what);
  }
  label_tensors(labels);
}

void label_state(const ::torch::Tensor& parameter,
                 const ::torch::optim::OptimizerParamState& state) {
  if (!parameter.is_cuda() || !recorder()) return;
  const std::string name = parameter_names().get(parameter);
  std::vector<MemoryLabel> labels;
  for (const auto& [what, tensor] : state_tensors(state))
    add(labels, tensor, MemoryCategory::kOptimizerState, name.empty() ? what : name + "." + what);
  label_tensors(labels);
}

void mark_step() {
  if (const Recorder* r = recorder()) r->step();
}

}  // namespace tonnage
