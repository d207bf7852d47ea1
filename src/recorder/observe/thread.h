// What the recorder keeps for a thread, and for each operator call on it that has not ended. Every
// observer has its own slot in both, and uses no other slot.
#pragma once

#include <ATen/record_function.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "abi/event.h"
#include "recorder/observe/operator_info.h"
#include "recorder/observe/stack_slot.h"
#include "recorder/values/budget.h"
#include "recorder/values/slot.h"

namespace torch::autograd {
struct AccumulateGrad;
}

namespace tonnage::recorder {

struct ForwardTable;

// --- A call (Frame) ---

// gradients.cpp, for a node of the backward pass that accumulates a gradient.
struct GradientSlot {
  torch::autograd::AccumulateGrad* node = nullptr;  // lives as long as the frame
  bool expected = false;                            // the gradient has not been kept yet
};

// quiet_calls.cpp, for a call whose inside is not observed.
struct QuietSlot {
  bool on = false;
  uint64_t first_sequence = 0;  // number of the first autograd node made inside
};

struct Frame {
  enum class Kind : uint8_t { kOperator, kNamed, kBackward };
  const at::RecordFunction* function = nullptr;
  const OpInfo* info = nullptr;  // kOperator only
  Kind kind = Kind::kNamed;
  bool from_host = false;           // what it allocates is a copy of host data
  bool launches_accounted = false;  // the driver was told that launches in it are accounted for
  bool grows_cache = false;         // caches.cpp: its result is a key-value cache
  uint32_t name = 0;                // interned
  uint32_t serial = 0;              // of this thread; tells apart calls that follow each other
  uint32_t outer_stack = 0;         // what the thread had before this call
  uint32_t outer_module = 0;
  QuietSlot quiet;
  GradientSlot gradient;
  ValueSlot values;
};

// --- A thread ---

// lines.cpp: where the thread is.
struct LineState {
  uint32_t stack = 0;         // of the outermost operator running
  bool native_stack = false;  // no Python frames: return addresses are taken when needed
  size_t depth = 0;           // frames of `stack`
  uint32_t module = 0;        // by the module whose parameters were used last
  uint32_t used_module = 0;   // that module, and how deep the stack was there
  size_t used_depth = 0;
};

// forward_lines.cpp
struct ForwardState {
  ForwardTable* own = nullptr;       // lines of the nodes that this thread makes
  ForwardTable* recalled = nullptr;  // those of the thread whose nodes it runs
  uint64_t recalled_thread = 0;
  uint32_t node_stack = 0, node_module = 0;  // of the last node that had them
};

// phases.cpp
struct PhaseState {
  int backward_depth = 0;
  int optimizer_depth = 0;
  int data_depth = 0;
  int named_depth = 0;      // Python autograd functions and the like
  uint32_t scope_name = 0;  // optimizer or loader of the scope above
  uint8_t emitted = 0;
};

// quiet_calls.cpp: the operator whose inside is not observed, until it ends.
struct QuietState {
  const at::RecordFunction* call = nullptr;
  bool callbacks_off = false;  // and PyTorch was told not to call the recorder inside
};

// allocator.cpp: allocations of the innermost operator, until it ends. They tell workspaces from
// results.
struct AllocationState {
  static constexpr size_t kRecent = 16;
  struct Recent {
    uint64_t address = 0;
    uint32_t serial = 0;  // of the operator's frame
    bool direct = false;  // asked for by the operator itself, not by an aten::empty inside
  };
  Recent recent[kRecent];
  uint32_t next = 0;
  abi::MemoryEvent last_free;  // the last requested free, until it is completed
};

// What was looked up last.
struct LookupCaches {
  static constexpr size_t kOperators = 1024, kStacks = 4096, kParameters = 1024, kNodeNameBits = 6;
  struct {
    const void* schema = nullptr;
    const OpInfo* info = nullptr;
    uint64_t age = 0;
  } operators[kOperators];  // by the address of the schema
  struct {
    uint64_t address = 0, changes = 0;
    uint32_t module = 0;
  } parameters[kParameters];  // by their address; valid while nothing changed
  struct {
    std::string text;
    uint32_t id = 0;
  } node_names[1 << kNodeNameBits];
  StackSlot stacks[kStacks];
};

struct ThreadState {
  std::vector<Frame> frames;  // outermost first
  uint32_t next_serial = 1;   // also the number of calls that were observed
  bool busy = false;          // the recorder itself is calling PyTorch
  LineState lines;
  ForwardState forward;
  PhaseState phases;
  QuietState quiet;
  AllocationState allocations;
  LookupCaches caches;
  ComputeBudget budget;

  bool in_operator() const {
    return !frames.empty() && frames.back().kind == Frame::Kind::kOperator;
  }
};

// This thread's state; null while the thread is ending.
ThreadState* thread_state();

}  // namespace tonnage::recorder
