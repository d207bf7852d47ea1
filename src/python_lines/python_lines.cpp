// libtonnage_python.so: the Python line behind each allocation, for programs that use the GPU
// without PyTorch (JAX, TensorFlow, CuPy, Numba, Warp), and what they say of their own allocators.
//
// Python loads it when it imports such a framework (python/tonnage/frameworks.py), and calls
// tonnage_python_start while it holds the GIL: only then can the places of an interpreter's fields
// be checked. From there on nothing here waits for the GIL: these frameworks call the driver
// without it, some under locks of their own.
#include <cuda.h>
#include <dlfcn.h>

#include <cstring>

#include "abi/bridge.h"
#include "abi/session.h"
#include "recorder/observe/python_api.h"
#include "recorder/observe/stack_slot.h"
#include "recorder/observe/stacks.h"

namespace tonnage::recorder {

// Driver events are few, and so are their stacks.
StackSlot* stack_slot(uint64_t hash) {
  constexpr size_t kSlots = 64;
  thread_local StackSlot slots[kSlots];
  return &slots[hash % kSlots];
}

}  // namespace tonnage::recorder

namespace {

using tonnage::abi::Bridge;
using tonnage::abi::EventKind;
using tonnage::abi::MemoryEvent;

// The driver that this process has or will have: the first on the library path. It is only loaded
// here, not started.
const Bridge* find_bridge() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (!driver) return nullptr;
  auto get_table = reinterpret_cast<decltype(&cuGetExportTable)>(dlsym(driver, "cuGetExportTable"));
  CUuuid id;
  std::memcpy(&id, tonnage::abi::kBridgeUuid, sizeof id);
  const void* table = nullptr;
  if (!get_table || get_table(&table, &id) != CUDA_SUCCESS || !table) return nullptr;
  const auto* bridge = static_cast<const Bridge*>(table);
  if (bridge->struct_bytes < sizeof(Bridge) || bridge->version != tonnage::abi::kBridgeVersion)
    return nullptr;
  return bridge;
}

const Bridge* g_bridge = nullptr;

void fill_line(MemoryEvent* event) noexcept {
  if (!g_bridge->session || (g_bridge->session->flags & tonnage::abi::kFlagNoStacks)) return;
  try {
    event->stack = tonnage::recorder::python_stack(/*may_wait=*/false);
  } catch (...) {  // no memory: an event without its line
  }
}

}  // namespace

#define TONNAGE_EXPORT extern "C" __attribute__((visibility("default")))

// With the GIL held. `lines`: record the lines of what the driver does; the recorder for PyTorch
// takes over when it comes, and where it is there already nothing may be taken from it. 0 if it
// worked.
TONNAGE_EXPORT int tonnage_python_start(int lines) {
  try {
    if (g_bridge) return 0;
    const Bridge* bridge = find_bridge();
    if (!bridge || !tonnage::recorder::python_api().present) return 1;
    g_bridge = bridge;
    if (!lines) return 0;
    tonnage::recorder::stacks_start(bridge);
    tonnage::recorder::python_stack(/*may_wait=*/true);
    bridge->set_context_provider(&fill_line);
    return 0;
  } catch (...) {
    return 2;
  }
}

// Whether the program has started the driver.
TONNAGE_EXPORT int tonnage_python_driver_runs() { return g_bridge && g_bridge->session ? 1 : 0; }

// A note for the report. Nothing happens where the driver was never started.
TONNAGE_EXPORT void tonnage_python_note(const char* text) {
  try {
    if (!g_bridge || !g_bridge->session) return;
    MemoryEvent event;
    event.kind = EventKind::kMessage;
    event.name = g_bridge->intern_string(text, std::strlen(text));
    g_bridge->emit(&event);
  } catch (...) {
  }
}

// A framework's own allocator refused `bytes` when `free_bytes` of what it holds were free: the
// driver was not asked. With the GIL held, from where the program gets the error.
TONNAGE_EXPORT void tonnage_python_refused(const char* framework, int device, uint64_t bytes,
                                           uint64_t free_bytes) {
  try {
    if (!g_bridge || !g_bridge->session) return;
    MemoryEvent event;
    event.kind = EventKind::kDeviceOom;
    event.device = static_cast<uint8_t>(device);
    event.size_bytes = bytes;
    event.value = free_bytes;
    event.name = g_bridge->intern_string(framework, std::strlen(framework));
    fill_line(&event);
    g_bridge->emit(&event);
    g_bridge->flush();
  } catch (...) {
  }
}
