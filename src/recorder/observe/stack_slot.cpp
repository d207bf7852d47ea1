#include "recorder/observe/stack_slot.h"

#include "recorder/observe/thread.h"

namespace tonnage::recorder {

StackSlot* stack_slot(uint64_t hash) {
  ThreadState* state = thread_state();
  return state ? &state->caches.stacks[hash % LookupCaches::kStacks] : nullptr;
}

}  // namespace tonnage::recorder
