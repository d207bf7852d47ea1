// Findings about a record or a log, as plain values: causes, statements and remedies with their
// figures. The words are in src/report/words/.
//
//   const auto explanation = explain(record, {});     // a snapshot, or a record of `tonnage run`
//   explanation.findings[0].cause                     // Cause::kActivations
//   report::words_of(explanation.findings[0]).text    // "4.9 GiB of the 6.2 GiB allocated are …"
//
// Every finding carries its evidence (figures, events, addresses, lines) and advice ranked by what
// it would free. Nothing is said that the data does not show: what cannot be known is in `limits`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "analysis/diagnosis/facts.h"
#include "analysis/diagnosis/fragmentation.h"
#include "analysis/report.h"
#include "analysis/timeline/timeline.h"
#include "record/record.h"
#include "sources/messages/log_reader.h"

namespace tonnage::analysis {

// JSON has the names (cause_name): append only.
enum class Cause : uint8_t {
  kUnknown,
  // Out of memory.
  kRequestTooLarge,     // one tensor alone does not fit
  kModelState,          // parameters, gradients and optimizer state
  kOptimizerFirstStep,  // the optimizer makes its state
  kActivations,
  kLogits,           // of the loss over a large vocabulary
  kLargeSample,      // one long or large sample
  kKeptAcrossSteps,  // memory that each step leaves behind
  kEvalWithGraph,    // evaluation that records a graph
  kFragmentation,
  kMemoryFraction,    // PyTorch's own cap
  kOtherProcess,      // other processes on the card
  kOutsideAllocator,  // this process, but not PyTorch's allocator
  kOptimizerCopies,   // foreach temporaries
  kAutocastCopies,
  kCheckpointInactive,
  kWorkspaces,
  kCapacity,        // the card is full; the message does not say of what
  kNotCapacity,     // enough was free: the driver, a limit of the platform, or a stale figure
  kOversubscribed,  // more allocated than the card has (Windows, WSL)
  kLibrary,         // a library could not make its handle: an out-of-memory in disguise
  kNccl,
  kHostMemory,   // the host's memory, not the GPU's
  kDriverError,  // "CUDA error: out of memory": no figures
  kHarmless,     // the framework tried again with less
  // Without a failure.
  kLeak,
  kReservedUnused,  // reserved far above allocated
  // Out of memory, again.
  kKeptByException,  // what an earlier failed attempt made is still alive
  // Of other libraries and of the host.
  kKvCache,          // an inference server's key-value cache
  kKernelResources,  // shared memory, registers or threads of one kernel
  kPoolLimit,        // the limit of a library's own pool
  kOutputs,          // what a compiled program returns
  kPrivatePool,      // free segments of a pool that is in use
};
const char* cause_name(Cause cause);

enum class FindingKind : uint8_t { kOutOfMemory, kLeak, kFragmentation, kOutside };
const char* finding_kind_name(FindingKind kind);

struct Finding {
  FindingKind kind = FindingKind::kOutOfMemory;
  Cause cause = Cause::kUnknown;
  bool primary = false;   // the main reason of an out-of-memory; at most one per failure
  double confidence = 1;  // our own estimate
  int device = 0;
  int failure = -1;          // index into Explanation::failures; -1: not about one
  Fact title;                // "Activations fill the card"
  std::vector<Fact> text;    // two or three sentences
  uint64_t bytes = 0;        // what it is about; findings are ranked by it
  std::optional<Site> site;  // the line to look at
  std::vector<Evidence> evidence;
  std::vector<Advice> advice;
  // Growth (kLeak, kKeptAcrossSteps, kEvalWithGraph).
  std::optional<uint64_t> bytes_per_step;
  std::optional<uint64_t> fails_at_step;  // forecast, from the start of the record
};

// One out-of-memory, whether from a record or from a log.
struct Failure {
  int device = 0;
  std::optional<uint64_t> rank;
  uint64_t request_bytes = 0;             // 0: not known
  std::optional<uint64_t> segment_bytes;  // what PyTorch asked the driver for
  std::optional<uint64_t> free_bytes, capacity_bytes, allocated_bytes, reserved_bytes;
  std::optional<uint64_t> limit_bytes;  // what PyTorch could reserve: the card's end or its cap
  bool limit_is_cap = false;
  bool limit_is_estimate = false;  // then limit_bytes is its upper bound, and this its lower one:
  uint64_t limit_at_least_bytes = 0;
  bool recovered = false;  // the program went on
  Moment moment;           // records
  std::vector<SegmentMap>
      segments;  // records: where everything was, one map per process on the device
  std::optional<sources::LogOom> message;  // logs
};

struct Explanation {
  std::string source;
  enum class Kind : uint8_t { kSnapshot, kRecord, kLog } kind = Kind::kSnapshot;
  std::vector<Failure> failures;
  int lead_failure = 0;                  // the one that the summary is about
  uint64_t failures_left_out = 0;        // earlier ones, beyond those that are explained
  std::vector<Finding> findings;         // most important first
  std::vector<Fact> limits;              // what cannot be known, and why
  std::vector<std::string> notes;        // from the reader
  std::shared_ptr<const Report> report;  // records: peaks, breakdown, steps
  std::shared_ptr<const Timeline>
      timeline;  // records: for charts; refers to the record, which must outlive it
  std::shared_ptr<const record::Record> record;
  uint64_t log_lines = 0;
};

struct ExplainOptions {
  std::optional<uint64_t> memory_bytes;  // of the card, if the user says so
  std::optional<sources::LogOom>
      message;  // the message of the same failure, if there is a log beside the snapshot
};

// Cost: that of make_report, plus one replay of the allocator's events for each failure.
Explanation explain(std::shared_ptr<const record::Record> record,
                    const ExplainOptions& options = {});
Explanation explain(const sources::Log& log, const ExplainOptions& options = {});

// "9.71 GiB", "512 B": as the reports write it.
std::string size_text(uint64_t bytes);
// "train.py:69"; with its function "train.py:69 in main"; "" if nothing is known.
std::string place_text(const Place& place, bool function = false);
// The user's own line first, a library's beside it: "train.py:9 (in functional.py:3504)"; where no
// line is known "in aten::mm".
std::string site_text(const Site& site);

}  // namespace tonnage::analysis
