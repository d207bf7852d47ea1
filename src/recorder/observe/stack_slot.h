// Where a thread keeps the stacks that it saw last, so that most of them are found without a lock.
// stacks.cpp is part of two libraries: the recorder for PyTorch, and libtonnage_python.so, for
// programs without it (src/python_lines). Each has its own threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tonnage::recorder {

struct StackSlot {
  uint64_t hash = 0;
  uint32_t id = 0;
};

// The slot of this thread for stacks with this hash; null while the thread is ending.
StackSlot* stack_slot(uint64_t hash);

}  // namespace tonnage::recorder
