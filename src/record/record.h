// Record: every reader makes one, and every analysis reads one. No other type goes between them.
//
// Readers: read_record (Tonnage's own file), read_snapshot (PyTorch's pickles). A Record is a
// value; analyses never change it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "abi/event.h"

namespace tonnage::record {

using abi::Frame;
using abi::MemoryEvent;

struct Device {
  int index = 0;
  std::string name;            // "" if unknown (a snapshot does not say)
  uint64_t total_bytes = 0;    // 0: unknown
  uint64_t context_bytes = 0;  // modelled
};

// The first write of the record that failed, in any process (disk full, file size limit): events
// are missing from then on, so the record allows no verdict.
struct WriteFailure {
  int error_number = 0;  // errno; 0: none failed
  int64_t pid = 0;
};

struct Process {
  int64_t pid = 0;
  std::string command;
  bool ended = false;  // its last chunk was written in order; false: killed, or still running
};

// Allocator settings, as PyTorch names them; missing ones are PyTorch's defaults.
struct AllocatorSettings {
  std::string text;  // PYTORCH_CUDA_ALLOC_CONF
  uint64_t max_split_size_bytes = UINT64_MAX;
  double garbage_collection_threshold = 0;
  bool expandable_segments = false;
  std::vector<uint32_t> roundup_power2_divisions;  // 16 entries (1 MiB .. 64 GiB) or empty
};

// A segment as a snapshot's end state gives it (a Tonnage record has none: its history is
// complete).
struct BlockState {
  uint64_t address = 0, size_bytes = 0, requested_bytes = 0;
  enum class State : uint8_t { kActive, kPendingFree, kInactive } state = State::kInactive;
  uint32_t stack = abi::kNoId;
};
struct SegmentState {
  int device = 0;
  uint64_t address = 0, total_bytes = 0, stream = 0;
  bool is_large = false, is_expandable = false;
  int64_t pool_first = 0, pool_second = 0;  // (0,0): the default pool
  uint32_t stack = abi::kNoId;
  std::vector<BlockState> blocks;
};

// An error that a Python process of the command died of, as it said itself.
struct CommandError {
  int64_t pid = 0;
  uint64_t unix_ns = 0;
  std::string type;  // "ValueError", "torch.OutOfMemoryError"
  std::string text;  // one line of its message
  std::string file, function;
  uint32_t line = 0;
  bool memory = false;       // it, or the error that it came from, says that memory was missing
  bool interrupted = false;  // KeyboardInterrupt
};

// A limit of the host's that ended the command from outside. The driver's own events tell of
// others.
struct HostLimit {
  std::string name;    // "cgroup_memory"; "": none did
  uint64_t bytes = 0;  // 0: not known
};

// How the command of `tonnage run` ended.
struct CommandEnd {
  bool known = false;
  int exit_code = 0;  // 128 + signal if one killed it
  int signal = 0;     // 0: it exited
  uint64_t wall_ns = 0;
  std::vector<CommandError> errors;  // in time order
  // What the session's ledger says: true also where the events of a process that was killed are
  // lost. Empty, null: not known.
  std::vector<uint64_t> device_peak_bytes;  // the most that was ever in use, by device
  std::optional<uint64_t> drivers_loaded;   // processes that loaded the driver
  HostLimit host_limit;
  bool write_failed = false;  // a part of the record could not be written
};

// A way to need less: counted on what the command needed on a card without limit, or really run.
struct Remedy {
  enum class Kind : uint8_t { kSmallerBatch, kCheckpointing, kLogitsInPieces };
  std::vector<Kind> kinds;   // together
  bool enough = false;       // also where free memory lies in more pieces than before
  uint64_t needs_bytes = 0;  // what the device must have then
  double batch_share = 1;    // with kSmallerBatch: at most this part of the batch
  uint32_t blocks = 0;       // with kCheckpointing: alike layers
  // With kSmallerBatch alone, where the command line says the batch: the command ran with `batch`
  // on the user's own card, and `enough` and `needs_bytes` are what came out. too_large: the
  // smallest batch that ran and was not enough.
  bool was_run = false;
  uint64_t batch = 0, too_large = 0;
};

struct DeviceNeed {
  int device = 0;
  uint64_t device_bytes = 0, allocated_bytes = 0, reserved_bytes = 0;  // peaks
};

// What the command took when it ran once more on a card without limit.
struct TrueNeed {
  bool known = false;
  bool repeats = false;      // two steps had the same peak, or the command ended by itself
  bool takes_share = false;  // it takes a share of whatever the card has: it has no need of its own
  uint32_t steps = 0;        // complete ones
  uint64_t wall_ns = 0;
  std::vector<DeviceNeed> devices;
  std::vector<Remedy> remedies;  // for the device that lacks most; those that are enough first
};

struct Record {
  std::string source;  // file name, or "-" for standard input
  enum class Kind { kTonnage, kSnapshot } kind = Kind::kTonnage;
  std::string torch_version;                        // "" if unknown
  std::vector<std::string> strings{""};             // by id
  std::vector<std::vector<abi::Frame>> stacks{{}};  // by id, innermost first
  std::vector<Device> devices;
  std::vector<Process> processes;
  AllocatorSettings settings;
  std::vector<abi::MemoryEvent> events;      // in time order (per process in program order)
  std::vector<SegmentState> final_segments;  // snapshots only
  WriteFailure write_failure;
  bool history_truncated = false;  // the beginning was overwritten: figures before are partial
  bool has_session = false;        // made by `tonnage run`: its end is expected
  uint64_t missing_parts = 0;  // chunks that were lost or damaged, as far as that can be counted
  CommandEnd end;
  TrueNeed need;                            // of a run that ran out of memory
  std::vector<std::string> notes;           // what is missing or could not be read, for the report
  std::map<std::string, std::string> info;  // free-form facts: alloc_conf, versions

  const std::string& string(uint32_t id) const {
    return id < strings.size() ? strings[id] : strings[0];
  }
};

}  // namespace tonnage::record
