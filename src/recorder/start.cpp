// The recorder's beginning and end. The driver loads this library into a process in which it finds
// PyTorch, at the process's first call into CUDA, and calls tonnage_torch_start; nothing else is
// needed, in Python and in C++ programs alike.
#include <stdlib.h>

#include <string>

#include "abi/recorder_key.h"
#include "recorder/observe/allocator.h"
#include "recorder/observe/context.h"
#include "recorder/observe/labels.h"
#include "recorder/observe/operator_observer.h"
#include "recorder/observe/python_api.h"
#include "recorder/observe/stacks.h"
#include "recorder/observe/steps.h"
#include "recorder/state.h"
#include "recorder/values/mailbox.h"

namespace tonnage::recorder {
namespace {

// The driver's own events get the thread's context; its first allocation for PyTorch is also the
// moment when the allocator is known to be there, before that allocator's first event.
void fill_for_driver(tonnage::abi::MemoryEvent* event) noexcept {
  try {
    if (event->kind == tonnage::abi::EventKind::kDeviceAlloc) attach_allocator();
    fill_context(event);
  } catch (...) {
    count_exception();
  }
}

void at_process_end(int = 0, void* = nullptr) {
  try {
    finish_pending_step(/*forward_began=*/true);
    record_counters();
    const Counters& c = recorder().counters;
    if (uint64_t n = c.exceptions.load())
      message(std::to_string(n) + " operators could not be followed by Tonnage's recorder", true);
    bridge().flush();
  } catch (...) {
  }
}

}  // namespace
}  // namespace tonnage::recorder

extern "C" __attribute__((visibility("default"))) int tonnage_torch_start(
    const tonnage::abi::Bridge* bridge) {
  using namespace tonnage;
  if (!bridge || bridge->struct_bytes < sizeof(tonnage::abi::Bridge) ||
      bridge->version != tonnage::abi::kBridgeVersion)
    return 1;
  if (recorder::recorder().bridge) return 0;
  try {
    recorder::Recorder& s = recorder::recorder();
    if (const tonnage::abi::Session* session = bridge->session) {
      s.settings.known_values = !(session->flags & tonnage::abi::kFlagNoKnownValues);
      s.settings.stacks = !(session->flags & tonnage::abi::kFlagNoStacks);
      s.settings.known_integer_bytes = session->known_integer_bytes;
      s.settings.known_float_elements = session->known_float_elements;
      s.settings.assume_selected = session->assume_selected;
    }
    s.bridge = bridge;
    recorder::python_api();
    recorder::stacks_start(bridge);
    recorder::observe_operators();
    recorder::announce_rank();
    if (recorder::python_api().present)
      recorder::fact("python_version=" + recorder::python_api().version);
    bridge->set_context_provider(&recorder::fill_for_driver);
    on_exit(&recorder::at_process_end, nullptr);  // atexit would not do: see static_objects.cpp
    return 0;
  } catch (...) {
    return 2;
  }
}

// For a process that is about to leave without its exit handlers (os._exit): what they would have
// written.
extern "C" __attribute__((visibility("default"))) void tonnage_torch_finish() {
  if (tonnage::recorder::recorder().bridge) tonnage::recorder::at_process_end();
}
