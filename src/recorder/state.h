// What the recorder keeps: one process-wide Recorder and one ThreadState per thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "abi/bridge.h"
#include "abi/session.h"

namespace torch::autograd {
struct AccumulateGrad;
}

namespace tonnage::recorder {

struct OpInfo;
struct PendingCompute;
struct PendingCollective;
struct ForwardTable;

struct Settings {
  bool known_values = true;
  bool stacks = true;
  uint64_t known_integer_bytes = 64ull << 20;
  uint64_t known_float_elements = 16384;
  double assume_selected = -1;
};

// Counted, and told in the record at the end: what did not work.
struct Counters {
  std::atomic<uint64_t> computed{0}, failed{0}, exceptions{0};
};

struct Recorder {
  const abi::Bridge* bridge = nullptr;
  Settings settings;
  Counters counters;
  std::atomic<uint32_t> steps{0};  // training steps completed
};

// The one instance; set up by tonnage_torch_start before any callback can run, never destroyed.
Recorder& recorder();
inline const abi::Bridge& bridge() { return *recorder().bridge; }
inline uint32_t intern(std::string_view text) {
  return bridge().intern_string(text.data(), text.size());
}

// A fill_ or arange whose result follows from its arguments alone. PyTorch's own CPU operators
// would be run from a cold cache, once or twice in a step, which takes a hundred times longer.
struct PendingFormula {
  at::Tensor target;
  uint32_t pattern = 0;  // fill_: bytes that repeat, as many as `width`
  unsigned width = 0;    // 0: a range of whole numbers
  int64_t start = 0, step = 0;
};

// Frames of RecordFunction on this thread, outermost first.
struct OpFrame {
  enum class Kind : uint8_t { kOperator, kNamed, kBackward };
  const at::RecordFunction* function = nullptr;
  const OpInfo* info = nullptr;  // kOperator only
  torch::autograd::AccumulateGrad* accumulates =
      nullptr;  // kBackward: the node, which lives as long as the frame
  Kind kind = Kind::kNamed;
  bool depth_added = false;  // the driver was told that launches here are accounted for
  bool delegated = false;  // a call of the same operator inside it does the work (autocast, modes)
  bool posted = false;     // a data-dependent count was posted for the driver
  bool upload_policy = false;  // the driver was told not to keep what this copies up
  bool read_answered =
      false;  // the content that a host read asks for was made up, until the read is over
  bool from_host = false;  // its result is a copy of host data
  bool opaque = false;     // tensors that are not plain CUDA tensors: leave it alone
  bool gradient_expected =
      false;                 // kBackward: an AccumulateGrad that has not yet kept its gradient
  bool closed = false;       // what it calls is not looked at
  uint32_t name = 0;         // interned
  uint32_t serial = 0;       // of this thread; tells apart calls that follow each other
  uint32_t outer_stack = 0;  // what the thread had before this frame
  uint32_t outer_module = 0;
  uint64_t first_sequence = 0;  // closed: the number of the first autograd node made inside
  uint64_t read_address = 0, read_size = 0;  // of a scalar read
  int64_t expected_count = -1;               // elements that a selection inside will take, if known
  std::optional<bool> known_equal;           // equal: what its host code will read
  int64_t choice_size = 0, choice_dim = 0;   // topk: size of the dimension that it chooses from
  std::vector<c10::IValue>
      arguments;  // kept where something is assumed of the result: they are gone when the call ends
  at::Tensor indices;  // coalesce: those of the result, if known
  std::unique_ptr<PendingFormula> formula;
  std::unique_ptr<PendingCompute> pending;
  std::shared_ptr<PendingCollective> collective;  // what a c10d operator will have written
};

// An allocation of the innermost operator, until the operator ends: scratch memory is told from
// results by it.
struct RecentAlloc {
  uint64_t address = 0;
  uint32_t serial = 0;
  bool direct = false;  // asked for by the operator itself, not by an aten::empty inside
};

inline constexpr size_t kRecentAllocs = 16;
inline constexpr size_t kOperatorSlots = 1024, kStackSlots = 4096, kParameterSlots = 1024,
                        kNodeNameBits = 6;

struct ThreadState {
  std::vector<OpFrame> frames;
  uint32_t next_serial = 1;
  uint32_t stack = 0;         // of the outermost operator running
  bool native_stack = false;  // no Python frames: take return addresses when something is recorded
  size_t depth = 0;           // frames of `stack`
  uint32_t module = 0;        // where the thread is, by the module whose parameters it used last
  uint32_t parameter_module = 0;  // that module, and how deep the stack was there
  size_t parameter_depth = 0;
  bool busy = false;  // the recorder itself is calling PyTorch
  const at::RecordFunction* closed =
      nullptr;         // the operator whose inside is not looked at, until it ends
  bool quiet = false;  // and PyTorch was told not to call the recorder for what is inside
  ForwardTable* forward = nullptr;   // lines of the nodes that this thread makes
  ForwardTable* recalled = nullptr;  // those of the thread whose nodes it runs
  uint64_t recalled_thread = 0;
  uint32_t node_stack = 0, node_module = 0;  // of the last node that had them
  int backward_depth = 0;
  int optimizer_depth = 0;
  int data_depth = 0;
  int named_depth = 0;      // Python autograd functions and the like
  uint32_t scope_name = 0;  // optimizer or loader of the scope above
  uint8_t emitted_phase = 0;
  uint64_t thread_id = 0;  // RecordFunction's
  RecentAlloc recent[kRecentAllocs];
  uint32_t recent_next = 0;
  abi::MemoryEvent last_free;  // the last requested free, until it is completed
  struct {
    const void* schema = nullptr;
    const OpInfo* info = nullptr;
    uint64_t age = 0;
  } operators[kOperatorSlots];  // by the address of the schema
  struct {
    uint64_t address = 0, changes = 0;
    uint32_t module = 0;
  } parameters[kParameterSlots];  // used last, by their address; while nothing changed
  struct {
    std::string text;
    uint32_t id = 0;
  } node_names[1 << kNodeNameBits];  // of autograd nodes, seen last
  struct {
    uint64_t hash = 0;
    uint32_t id = 0;
  } stacks[kStackSlots];  // seen last, by their hash
};

// This thread's state; null while the thread is ending.
ThreadState* thread_state();

}  // namespace tonnage::recorder
