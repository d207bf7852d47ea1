// Report: everything that Tonnage says about one record, as plain values. The text, JSON and HTML
// renderers read only this.
//
// All sizes are bytes. A figure that is not known is std::nullopt (null in JSON), never 0.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "analysis/place.h"
#include "analysis/verdict.h"
#include "record/record.h"

namespace tonnage::analysis {

enum class Asker : uint8_t;
enum class Fate : uint8_t;

struct Moment {
  uint64_t event = 0;    // index into the record's events
  uint64_t time_ns = 0;  // since the session's start
  uint32_t step = 0;     // the step that was running, from 1; 0: the program has no steps
  Phase phase = Phase::kOther;
  int process = 0;  // index into Report::processes
  Site site;
};

struct BreakdownRow {
  Category category = Category::kUnknown;
  uint64_t bytes = 0;
  uint64_t inferred_bytes =
      0;  // the part whose category was inferred from its life, not told by the program
  double confidence = 1;  // mean over the row's bytes; 1: certain
  bool modelled = false;  // context and machine code
};

// Bytes at one moment on one device. The rows add up to total_bytes exactly.
struct Breakdown {
  uint64_t total_bytes = 0;  // device total if known, else reserved
  bool total_is_device =
      false;  // false: the record does not say what else was on the device (a PyTorch snapshot)
  uint64_t allocated_bytes = 0, reserved_bytes = 0;
  uint64_t requested_bytes = 0;    // of the live allocations
  uint64_t pending_bytes = 0;      // part of kCached: freed, but another stream may still use it
  std::vector<BreakdownRow> rows;  // in the report's order, rows of 0 bytes left out
};

// A group of live tensors (or device allocations) that are alike: count × size_bytes each.
struct LiveGroup {
  uint64_t count = 1;
  uint64_t size_bytes = 0;   // requested, each
  uint64_t block_bytes = 0;  // what the allocator set aside, each
  Category category = Category::kUnknown;
  bool inferred = false;
  std::string name;  // of the first one, if the program named it
  std::string kind;  // device allocations that are not PyTorch's: "plain", "virtual", …
  Site site;
  uint32_t step = 0;  // in which the first one was made, from 1; 0: no steps
};

struct Peak {
  uint64_t bytes = 0;
  Moment moment;
  Breakdown breakdown;
};

struct StepRow {
  uint32_t number = 0;   // from 1
  bool complete = true;  // false: the rest of the program after the last whole step
  uint64_t peak_allocated = 0, peak_reserved = 0;
  std::optional<uint64_t> peak_device;
  uint64_t allocated_after = 0;  // at the step's end
  uint64_t duration_ns = 0;
  std::optional<uint64_t> launches;
};

// A request that was refused, and that the program heard of.
struct OutOfMemory {
  uint64_t request_bytes = 0;
  std::optional<uint64_t> free_bytes;  // on the device, as the driver said
  uint64_t allocated_bytes = 0, reserved_bytes = 0;
  Asker asker{};             // timeline/failures.h
  std::string library;       // where the asker is another library: its name
  bool from_pytorch = true;  // its allocator asked
  bool ended = false;        // the command ended by it
  bool went_on = false;      // the opposite: the command got over it
  uint64_t count = 1;        // tries of one call
  Moment moment;
};

// A request that the host refused, not the card: a limit of its own is the reason.
struct HostRefusal {
  std::string limit;           // "address_space", "pinned_memory", "cgroup_memory"
  uint64_t request_bytes = 0;  // 0: not known
  uint64_t limit_bytes = 0;    // 0: none is set, or not known
  bool ended = false;          // the command ended by it
  uint64_t count = 1;
  std::optional<Moment> moment;
};

// PyTorch's own count beside ours, for one name as PyTorch's memory_stats has it.
struct CounterCheck {
  std::string name;
  int process = 0;
  uint64_t theirs = 0;
  std::optional<uint64_t> ours;  // null: Tonnage does not count this
  bool equal() const { return !ours || *ours == theirs; }
};

// Points of a chart: the largest value of each in an equal share of the events; peaks are exact.
struct Series {
  std::vector<uint64_t>
      event;  // at which the share's allocated (or, without PyTorch, device) peak is
  std::vector<uint64_t> time_ns;
  std::vector<uint64_t> allocated, reserved, device;
  std::vector<uint32_t> step_marks;  // indices of points in which a step ended
  bool has_device = false;
};

struct DeviceReport {
  int index = 0;
  std::string name;  // "" if unknown
  std::optional<uint64_t> total_bytes;
  Verdict verdict = Verdict::kUnknown;
  std::optional<uint64_t> headroom_bytes;  // total - device peak
  bool uses_pytorch = false;
  std::optional<Peak> allocated, reserved;  // PyTorch's; null without allocator events
  std::optional<Peak> device;               // null for a PyTorch snapshot
  // Where the device's peak comes after the last whole step (evaluation, export, the end of a
  // process group): the peak of the steps themselves.
  std::optional<uint64_t> peak_of_steps;
  bool rests_on_assumption = false;  // sizes assumed to be as large as they can be came before it
  uint64_t context_bytes = 0;        // modelled part of the device's peak
  std::vector<LiveGroup> largest;    // at the peak of allocated (or of the device), largest first
  // At the device's peak: local memory by the kernel that needed it, managed memory by its line.
  std::vector<LiveGroup> beside_pytorch;
  std::vector<StepRow> steps;
  std::vector<OutOfMemory> out_of_memory;  // in time order
  uint64_t retries = 0;     // refused, then served after something was freed (PyTorch's cache)
  uint64_t other_ways = 0;  // refused inside a library that did with less: no error was raised
  std::vector<CounterCheck> counters;
  Series series;
  std::map<std::string, uint64_t>
      device_bytes_by_kind;  // at the device's peak: "plain", "virtual", "pool", …
  uint64_t allocations = 0;
};

struct ProcessReport {
  int64_t pid = 0;
  std::string command;
  bool ended = false;
  std::optional<uint64_t> launches;
  std::map<int, uint64_t> peak_allocated, peak_reserved;  // by device
  std::map<int, uint64_t> peak_device;  // all that it had on the device, context and code too
};

// Reads of unknown content, or sizes that were assumed, by line.
struct LineCount {
  Site site;
  std::string name;  // operator
  uint64_t count = 0;
  uint64_t bytes = 0;  // read; for assumed sizes the largest upper bound
  uint64_t taken = 0;  // assumed sizes: elements taken in the last case
};

struct Message {
  std::string text;
  bool warning = false;
  uint64_t count = 1;
};

struct Report {
  std::string source;
  bool from_snapshot = false;
  bool history_truncated = false;  // figures before the first event kept are partial
  std::string torch_version, alloc_conf;
  std::map<std::string, std::string> info;
  uint64_t events = 0;
  std::vector<DeviceReport> devices;
  std::vector<ProcessReport> processes;
  std::vector<std::string>
      stub_calls;  // driver functions without an implementation: they may hide memory
  std::vector<LineCount> unknown_reads;  // most frequent first
  std::vector<LineCount> assumed_sizes;
  std::vector<Message> messages;
  uint64_t inconsistencies =
      0;  // allocator events that contradict the rules; 0 in a healthy record
  std::optional<uint64_t> launches;
  uint64_t host_pinned_peak_bytes = 0;
  std::vector<HostRefusal> host_refusals;  // in time order
  Verdict verdict = Verdict::kUnknown;     // of the whole command
  CutReason cut = CutReason::kNone;
  bool stopped = false;    // as asked: figures are those until then
  record::CommandEnd end;  // how the command ended
  std::string command;     // "" if not known
  record::TrueNeed need;   // of a run that ran out of memory
};

struct ReportOptions {
  size_t largest_count = 10;
  size_t series_points = 240;
};

class Timeline;

// Cost: about a second for a million events. Never fails: what the record lacks is null or a
// message in the report.
Report make_report(const record::Record& record, const ReportOptions& options = {});
// The same from a timeline that exists already, with its categories inferred (analysis/categories.h).
Report make_report(const Timeline& timeline, const ReportOptions& options = {});

// Names as JSON and text use them: "parameters", "optimizer_state"; "forward", "optimizer";
// "plain", "virtual".
const char* category_name(Category category);
const char* phase_name(Phase phase);
const char* memory_kind_name(abi::DeviceMemoryKind kind);

}  // namespace tonnage::analysis
