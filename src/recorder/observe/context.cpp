#include "recorder/observe/context.h"

#include "recorder/observe/lines.h"
#include "recorder/observe/phases.h"
#include "recorder/observe/python_api.h"
#include "recorder/observe/stacks.h"
#include "recorder/observe/thread.h"
#include "recorder/state.h"

namespace tonnage::recorder {
namespace {

// The innermost operator, except one that only allocates memory: then the operator that called it.
uint32_t operator_name(const ThreadState& thread) {
  uint32_t name = 0;
  for (size_t i = thread.frames.size(); i-- > 0;) {
    const Frame& frame = thread.frames[i];
    if (frame.name == 0) continue;
    if (!frame.info || !frame.info->allocates_only) return frame.name;
    if (name == 0) name = frame.name;
  }
  return name;
}

}  // namespace

void fill_context(abi::MemoryEvent* event) {
  event->step = recorder().steps.load(std::memory_order_relaxed);
  ThreadState* thread = thread_state();
  if (!thread) return;
  event->phase = current_phase(*thread);
  event->module = thread->lines.module;
  if (const uint32_t name = operator_name(*thread)) event->op = name;
  if (!recorder().settings.stacks) return;
  if (thread->frames.empty()) {
    event->stack = python_api().present ? python_stack(/*may_wait=*/false) : native_stack();
    return;
  }
  take_native_stack(*thread);
  event->stack = thread->lines.stack;
}

}  // namespace tonnage::recorder
