#include "recorder/observe/labels.h"

#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "recorder/observe/operator_observer.h"
#include "recorder/observe/python_api.h"
#include "recorder/state.h"
#include "recorder/values/data_dependent.h"
#include "recorder/values/engine.h"

namespace tonnage::recorder {
namespace {

constexpr int kMaxNamings =
    8;  // asking Python for names walks all modules; new ones are rare after the first step

constexpr uint32_t kRoot = UINT32_MAX;

struct Parameters {
  std::mutex mutex;  // also taken under the allocator's lock; nothing is called while it is held
  std::unordered_map<uint64_t, uint32_t>
      module_at;  // by address; 0: no name known; kRoot: a parameter of no module
  std::unordered_map<uint32_t, std::string> names;  // of modules
  std::unordered_map<uint64_t, uint32_t> outer;     // module and levels -> module
  std::atomic<size_t> size{0};
  std::atomic<uint64_t> changes{
      1};  // of module_at: what threads remember of it holds while this stays
  std::atomic<uint8_t> filter[1 << 12] =
      {};  // by address: lets most frees pass without the lock; only ever set

  static size_t slot(uint64_t address) { return (address >> 9) * 0x9e3779b97f4a7c15ull >> 52; }
  std::atomic<int> namings{0};
  std::atomic<uint32_t> last_naming_step{UINT32_MAX};
};

Parameters& parameters() {
  static Parameters* instance = new Parameters();
  return *instance;
}

std::atomic<int> python_state{0};  // 0: not asked, 1: injected, 2: not injected or failed

std::string own_path() {
  Dl_info info{};
  return dladdr(reinterpret_cast<void*>(&own_path), &info) && info.dli_fname ? info.dli_fname : "";
}

// Calls a function of tonnage.labels with one string; false if that module was not injected or
// failed.
bool call_python(const char* function, const std::string& argument) {
  PythonScope scope;
  if (!scope.entered()) return false;
  const PythonApi& api = python_api();
  void* modules = api.module_dict();
  void* module = modules ? api.dict_get(modules, "tonnage.labels") : nullptr;
  if (!module) return false;
  ThreadState* thread = thread_state();
  if (thread) thread->busy = true;
  void* result = api.call_method(module, function, "s", argument.c_str());
  if (thread) thread->busy = false;
  if (!result) {
    api.error_clear();
    return false;
  }
  api.decref(result);
  return true;
}

// The Python object of a tensor, borrowed; null where there is none. The slot's interface differs
// between PyTorch versions.
template <class Slot>
const void* object_in(const Slot& slot) {
  if constexpr (requires { slot.load_pyobj(); })
    return slot.load_pyobj();
  else
    return slot._unchecked_untagged_pyobj();
}

// Asks Python for the names of all parameters: not from under a lock, on a thread that may take the
// GIL.
void ask_for_names() {
  if (python_state.load() != 1) return;
  uint32_t step = recorder().steps.load();
  if (parameters().last_naming_step.exchange(step) == step && step > 0) return;  // once a step
  if (parameters().namings.fetch_add(1) >= kMaxNamings) return;
  call_python("name_tensors", "");
}

}  // namespace

void label(uint64_t address, abi::Category category, uint32_t name) {
  abi::MemoryEvent event;
  event.kind = abi::EventKind::kLabel;
  event.step = recorder().steps.load(std::memory_order_relaxed);
  event.address = address;
  event.value = static_cast<uint64_t>(category);
  event.name = name;
  bridge().emit(&event);
}

void fact(const std::string& text) {
  abi::MemoryEvent event;
  event.kind = abi::EventKind::kFact;
  event.name = bridge().intern_string(text.data(), text.size());
  bridge().emit(&event);
}

void message(const std::string& text, bool warning) {
  abi::MemoryEvent event;
  event.kind = abi::EventKind::kMessage;
  event.value = warning;
  event.name = bridge().intern_string(text.data(), text.size());
  bridge().emit(&event);
}

void attach_python() {
  if (python_state.load(std::memory_order_relaxed) != 0 || !python_api().running()) return;
  int expected = 0;
  if (!python_state.compare_exchange_strong(expected, 2)) return;
  if (call_python("attach", own_path()))
    python_state = 1;
  else
    message(
        "Names of parameters and optimizer states are missing: Tonnage's Python part was not "
        "loaded (python -I, -S or -E, or "
        "another PYTHONPATH)",
        false);
}

uint32_t module_of_parameter(ThreadState& thread, const at::Tensor& parameter) {
  if (!plain_cuda(parameter) || parameter.numel() == 0) return 0;
  uint64_t address = address_of(parameter);
  Parameters& p = parameters();
  const uint64_t changes = p.changes.load(std::memory_order_acquire);
  auto& recent = thread.parameters[Parameters::slot(address) % kParameterSlots];
  if (recent.address == address && recent.changes == changes) return recent.module;
  {
    std::lock_guard<std::mutex> lock(p.mutex);
    auto found = p.module_at.find(address);
    if (found != p.module_at.end() && found->second != 0) {
      const uint32_t module = found->second == kRoot ? 0 : found->second;
      recent = {address, changes, module};
      return module;
    }
    if (found == p.module_at.end()) {
      p.filter[Parameters::slot(address)].store(1, std::memory_order_relaxed);
      p.module_at.emplace(address, 0);
      p.size = p.module_at.size();
    } else if (p.last_naming_step.load() == recorder().steps.load()) {
      return 0;  // asked in this step already
    }
  }
  attach_python();
  ask_for_names();
  const auto module_now = [&]() -> uint32_t {
    std::lock_guard<std::mutex> lock(p.mutex);
    auto found = p.module_at.find(address);
    return found == p.module_at.end() ? 0 : found->second;
  };
  uint32_t module = module_now();
  if (module == 0) {
    const void* object = python_state.load() == 1
                             ? object_in(*parameter.unsafeGetTensorImpl()->pyobj_slot())
                             : nullptr;
    if (object)
      call_python("meet_leaf", std::to_string(reinterpret_cast<uintptr_t>(object)));
    else
      label(address, abi::Category::kParameter, 0);
    module = module_now();
  }
  return module == kRoot ? 0 : module;
}

void parameter_updated(const at::Tensor& parameter) {
  if (!plain_cuda(parameter) || parameter.numel() == 0) return;
  const uint64_t address = address_of(parameter);
  {
    Parameters& p = parameters();
    std::lock_guard<std::mutex> lock(p.mutex);
    auto found = p.module_at.find(address);
    if (found == p.module_at.end() || found->second != 0) return;
    found->second = kRoot;
    p.changes.fetch_add(1, std::memory_order_release);
  }
  label(address, abi::Category::kParameter, 0);
}

uint32_t outer_module(uint32_t module, size_t levels) {
  Parameters& p = parameters();
  std::lock_guard<std::mutex> lock(p.mutex);
  auto [entry, made] = p.outer.try_emplace(uint64_t{module} << 32 | levels, 0);
  if (!made) return entry->second;
  auto name = p.names.find(module);
  if (name == p.names.end()) return 0;
  std::string_view rest = name->second;
  for (; levels > 0 && !rest.empty(); levels--) {
    size_t dot = rest.rfind('.');
    rest = dot == std::string_view::npos ? std::string_view() : rest.substr(0, dot);
  }
  entry->second = rest.empty() ? 0 : bridge().intern_string(rest.data(), rest.size());
  return entry->second;
}

void address_freed(uint64_t address) {
  forget_assumption(address);
  Parameters& p = parameters();
  if (p.size.load(std::memory_order_relaxed) == 0 ||
      !p.filter[Parameters::slot(address)].load(std::memory_order_relaxed))
    return;
  std::lock_guard<std::mutex> lock(p.mutex);
  if (p.module_at.erase(address)) p.changes.fetch_add(1, std::memory_order_release);
  p.size = p.module_at.size();
}

}  // namespace tonnage::recorder

// What python/tonnage/labels.py calls through ctypes.
extern "C" {

// n addresses, categories (abi::Category) and names; a parameter's name also names its module
// ("layer1.0.conv1.weight").
__attribute__((visibility("default"))) void tonnage_torch_label(size_t n, const uint64_t* addresses,
                                                                const uint8_t* categories,
                                                                const char* const* names) {
  using namespace tonnage;
  for (size_t i = 0; i < n; i++) {
    std::string_view name = names[i] ? names[i] : "";
    uint32_t id = recorder::bridge().intern_string(name.data(), name.size());
    recorder::label(addresses[i], static_cast<abi::Category>(categories[i]), id);
    if (static_cast<abi::Category>(categories[i]) != abi::Category::kParameter) continue;
    size_t dot = name.rfind('.');
    std::string module(dot == std::string_view::npos ? std::string_view() : name.substr(0, dot));
    uint32_t module_id = module.empty()
                             ? recorder::kRoot
                             : recorder::bridge().intern_string(module.data(), module.size());
    auto& p = recorder::parameters();
    std::lock_guard<std::mutex> lock(p.mutex);
    p.filter[recorder::Parameters::slot(addresses[i])].store(1, std::memory_order_relaxed);
    p.module_at[addresses[i]] = module_id;
    p.changes.fetch_add(1, std::memory_order_release);
    if (!module.empty()) p.names.emplace(module_id, std::move(module));
    p.size = p.module_at.size();
  }
}

// The optimizer's step has returned (its record-function scope is still open).
__attribute__((visibility("default"))) void tonnage_torch_step() {
  using namespace tonnage;
  if (recorder::ThreadState* thread = recorder::thread_state())
    recorder::note_optimizer_step(*thread);
}

__attribute__((visibility("default"))) void tonnage_torch_observe_all() {
  tonnage::recorder::observe_plain_views();
}

__attribute__((visibility("default"))) void tonnage_torch_message(const char* text, int warning) {
  if (text) tonnage::recorder::message(text, warning != 0);
}
}
