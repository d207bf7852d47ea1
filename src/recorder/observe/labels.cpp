#include "recorder/observe/labels.h"

#include <dlfcn.h>

#include <atomic>
#include <string_view>

#include "recorder/observe/gradients.h"
#include "recorder/observe/operators.h"
#include "recorder/observe/parameters.h"
#include "recorder/observe/python_api.h"
#include "recorder/observe/steps.h"
#include "recorder/observe/thread.h"
#include "recorder/state.h"
#include "recorder/values/assumed.h"

namespace tonnage::recorder {
namespace {

// Asking Python for names walks all modules; new ones are rare after the first step.
constexpr int kMostNamings = 8;

enum class Python : int { kNotAsked, kInjected, kAbsent };
std::atomic<Python> python{Python::kNotAsked};
std::atomic<int> namings{0};
std::atomic<uint32_t> last_naming_step{UINT32_MAX};

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
  event.name = intern(text);
  bridge().emit(&event);
}

void message(const std::string& text, bool warning) {
  abi::MemoryEvent event;
  event.kind = abi::EventKind::kMessage;
  event.value = warning;
  event.name = intern(text);
  bridge().emit(&event);
}

void attach_python() {
  if (python.load(std::memory_order_relaxed) != Python::kNotAsked || !python_api().running())
    return;
  Python expected = Python::kNotAsked;
  if (!python.compare_exchange_strong(expected, Python::kAbsent)) return;
  if (call_python("attach", own_path()))
    python = Python::kInjected;
  else
    message(
        "Names of parameters and optimizer states are missing: Tonnage's Python part was not "
        "loaded (python -I, -S or -E, or another PYTHONPATH)",
        false);
}

bool python_names() { return python.load() == Python::kInjected; }

bool names_asked_in_this_step() { return last_naming_step.load() == recorder().steps.load(); }

void ask_for_names() {
  attach_python();
  if (!python_names()) return;
  const uint32_t step = recorder().steps.load();
  if (last_naming_step.exchange(step) == step && step > 0) return;
  if (namings.fetch_add(1) >= kMostNamings) return;
  call_python("name_tensors", "");
}

void ask_about_leaf(const void* python_object) {
  call_python("meet_leaf", std::to_string(reinterpret_cast<uintptr_t>(python_object)));
}

void address_freed(uint64_t address, uint64_t size_bytes) {
  forget_assumed_block(address, size_bytes);
  forget_gradient_address(address);
  forget_parameter(address);
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
    const std::string_view name = names[i] ? names[i] : "";
    const auto category = static_cast<abi::Category>(categories[i]);
    recorder::label(addresses[i], category, recorder::intern(name));
    if (category == abi::Category::kParameter) recorder::name_parameter(addresses[i], name);
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
