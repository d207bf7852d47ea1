// The recorder's beginning and end. The driver loads this library into a process in which it finds PyTorch, at the process's
// first call into CUDA, and calls tonnage_torch_start; nothing else is needed, in Python and in C++ programs alike.
#include <cstdlib>

#include "shim_torch/allocator.h"
#include "shim_torch/context.h"
#include "shim_torch/labels.h"
#include "shim_torch/mailbox.h"
#include "shim_torch/python_api.h"
#include "shim_torch/shim_key.h"
#include "shim_torch/stacks.h"
#include "shim_torch/state.h"

namespace tonnage::shim {
namespace {

// The driver's own events get the thread's context; its first allocation for PyTorch is also the moment when the allocator is
// known to be there, before that allocator's first event.
void fill_for_driver(record::Event* event) noexcept {
  try {
    if (event->kind == record::EventKind::kDeviceAlloc) attach_allocator();
    fill_context(event);
  } catch (...) {
    shim().counters.exceptions.fetch_add(1, std::memory_order_relaxed);
  }
}

void at_process_end() {
  try {
    finish_pending_step();
    record_counters();
    const Counters& c = shim().counters;
    if (uint64_t n = c.exceptions.load())
      message(std::to_string(n) + " operators could not be followed by Tonnage's recorder", true);
    bridge().flush();
  } catch (...) {
  }
}

}  // namespace
}  // namespace tonnage::shim

extern "C" __attribute__((visibility("default"))) int tonnage_torch_start(const tonnage::vgpu::Bridge* bridge) {
  using namespace tonnage;
  if (!bridge || bridge->struct_bytes < sizeof(vgpu::Bridge) || bridge->version != vgpu::kBridgeVersion) return 1;
  if (shim::shim().bridge) return 0;
  try {
    shim::Shim& s = shim::shim();
    if (const vgpu::Session* session = bridge->session) {
      s.settings.known_values = !(session->flags & vgpu::kFlagNoKnownValues);
      s.settings.stacks = !(session->flags & vgpu::kFlagNoStacks);
      s.settings.known_integer_bytes = session->known_integer_bytes;
      s.settings.known_float_elements = session->known_float_elements;
      s.settings.assume_selected = session->assume_selected;
    }
    s.bridge = bridge;
    shim::python_api();
    shim::stacks_start(bridge);
    shim::observe_operators();
    shim::announce_rank();
    if (shim::python_api().present) shim::fact("python_version=" + shim::python_api().version);
    bridge->set_context_provider(&shim::fill_for_driver);
    std::atexit(&shim::at_process_end);
    return 0;
  } catch (...) {
    return 2;
  }
}

// For a process that is about to leave without its exit handlers (os._exit): what they would have written.
extern "C" __attribute__((visibility("default"))) void tonnage_torch_finish() {
  if (tonnage::shim::shim().bridge) tonnage::shim::at_process_end();
}
