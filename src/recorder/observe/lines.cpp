#include "recorder/observe/lines.h"

#include "recorder/observe/python_api.h"
#include "recorder/observe/stacks.h"
#include "recorder/observe/thread.h"
#include "recorder/state.h"

namespace tonnage::recorder {

void take_stack(ThreadState& thread) {
  if (!recorder().settings.stacks) return;
  LineState& lines = thread.lines;
  if (const uint32_t stack = python_stack(/*may_wait=*/true, &lines.depth)) {
    lines.stack = stack;
    lines.native_stack = false;
  } else if (thread.phases.backward_depth == 0) {
    lines.stack = 0;
    lines.native_stack = !python_api().present;
  }
}

void drop_stack(ThreadState& thread) {
  thread.lines.stack = 0;
  thread.lines.native_stack = false;
}

void take_native_stack(ThreadState& thread) {
  if (thread.lines.native_stack && thread.lines.stack == 0 && recorder().settings.stacks)
    thread.lines.stack = native_stack();
}

}  // namespace tonnage::recorder
