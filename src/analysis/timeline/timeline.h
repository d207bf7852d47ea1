// Timeline: every allocation with its exact block and its life, and the memory of each device after
// every event.
//
// Built in one pass (two for snapshots that begin in the middle); everything else (breakdown,
// categories, report, findings) reads it. Event numbers are indices into Record::events. A moment
// "at event e" means: after event e.
//
// Cost: about 0.3 s and 100 MB for a million events.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "analysis/place.h"
#include "analysis/timeline/block_tracker.h"
#include "analysis/timeline/stacks.h"
#include "analysis/timeline/steps.h"
#include "record/record.h"

namespace tonnage::analysis {

inline constexpr uint32_t kNever = UINT32_MAX;

enum class CategorySource : uint8_t { kNone, kTold, kInferred };

// The life of one allocation of PyTorch's.
struct Allocation {
  uint32_t alloc_event = 0;          // kAlloc; 0 and before_history: older than the record
  uint32_t free_event = kNever;      // kFreeRequested (PyTorch stops counting it as allocated)
  uint32_t complete_event = kNever;  // kFreeCompleted (the block may be used again)
  uint32_t process = 0;
  uint64_t address = 0;
  uint64_t requested_bytes = 0;
  uint64_t block_bytes = 0;
  uint32_t stack = abi::kNoId;
  uint32_t name = abi::kNoId;  // string, from a label
  uint8_t device = 0;
  Category category = Category::kUnknown;
  CategorySource source = CategorySource::kNone;
  uint8_t confidence_percent = 0;  // 100: told by the program
  bool before_history = false;
  bool exact = true;  // false: the block's size is the rounded request, not known for certain

  bool live_at(uint64_t event) const {
    return (before_history || alloc_event <= event) && event < free_event;
  }
};

// The life of one allocation that the driver gave out.
struct DeviceAllocation {
  uint32_t alloc_event = 0;
  uint32_t free_event = kNever;
  uint32_t process = 0;
  uint8_t device = 0;
  abi::DeviceMemoryKind kind = abi::DeviceMemoryKind::kPlain;
  uint64_t address = 0;
  uint64_t size_bytes = 0;
  bool is_segment =
      false;  // PyTorch's allocator took it (expandable segments are not matched one by one)
  bool live_at(uint64_t event) const { return alloc_event <= event && event < free_event; }
};

// Local memory of kernels: one kernel that made the driver take more of it.
struct LocalMemory {
  uint32_t first_event = 0, end_event = kNever;
  uint32_t process = 0;
  uint8_t device = 0;
  uint64_t size_bytes = 0;
  uint32_t kernel = abi::kNoId;  // string
  bool live_at(uint64_t event) const { return first_event <= event && event < end_event; }
};

// Memory of one device after one event that changed it, over all processes.
struct Sample {
  uint32_t event = 0;
  uint64_t allocated_bytes = 0;
  uint64_t reserved_bytes = 0;
  uint64_t device_bytes =
      0;  // context, code and all device allocations; 0 where the record has no such events
};

struct DeviceTimeline {
  int device = 0;
  std::vector<Sample> samples;  // in event order; the first may be the state when the history began
  bool has_allocator = false;   // PyTorch's events were seen
  bool has_device = false;      // the driver's events were seen
  size_t allocated_peak =
      0;  // index of the sample; ties: the largest of the others, then the first
  size_t reserved_peak = 0;
  size_t device_peak = 0;
  uint64_t allocations = 0;
  uint64_t initial_allocated_bytes = 0, initial_reserved_bytes = 0;  // older than the history

  // State after the event: the last sample at or before it; null before the first.
  const Sample* at(uint64_t event) const;
};

// One step on one device, as PyTorch's own counters would show it if they were reset at its start.
struct StepPeak {
  uint64_t allocated = 0, reserved = 0, device = 0, allocated_after = 0;
};

struct ProcessPeak {
  uint64_t allocated = 0, reserved = 0, active = 0, requested = 0;  // peaks
  uint64_t allocated_end = 0, reserved_end = 0;
  uint64_t device = 0;  // peak of all that it had on the device
  uint64_t pinned = 0;  // host memory; on device 0 of the map
};

// What PyTorch itself counted (kCounter), beside our own state at that event. UINT64_MAX: Tonnage
// does not count it.
struct CounterSample {
  uint32_t event = 0;
  uint32_t process = 0;
  uint8_t device = 0;
  uint32_t name = abi::kNoId;
  uint64_t theirs = 0, ours = UINT64_MAX;
};

class Timeline {
 public:
  explicit Timeline(const record::Record& record);

  const record::Record& record() const { return *record_; }
  const Stacks& stacks() const { return stacks_; }
  const std::vector<Step>& steps() const { return steps_; }
  const std::vector<Allocation>& allocations() const {
    return allocations_;
  }  // by alloc_event; older ones first
  std::vector<Allocation>& allocations() { return allocations_; }  // for category inference
  const std::vector<DeviceAllocation>& device_allocations() const { return device_allocations_; }
  const std::vector<LocalMemory>& local_memory() const { return local_memory_; }
  const std::map<int, DeviceTimeline>& devices() const { return devices_; }
  const std::map<std::pair<uint32_t, int>, ProcessPeak>& processes() const { return processes_; }
  const std::vector<CounterSample>& counters() const { return counters_; }
  uint64_t inconsistencies() const { return inconsistencies_; }

  // Calls visit(allocation) for each that is live after the event on the device, oldest first.
  // Cost: proportional to the live set and to the number of chunks (allocations / 256) before the
  // event.
  void for_each_live(int device, uint64_t event,
                     const std::function<void(const Allocation&)>& visit) const;
  std::vector<uint32_t> live_set(int device, uint64_t event) const;  // indices into allocations()

  // Context, machine code and local memory of kernels on the device after the event (modelled), all
  // processes.
  uint64_t context_bytes(int device, uint64_t event) const;
  // Freed, but not yet usable again because another stream may still read it.
  uint64_t pending_bytes(int device, uint64_t event) const;

  // Peaks over the events in [first, end), including what was there when it began.
  StepPeak peak_between(int device, uint32_t first_event, uint32_t end_event) const;

 private:
  struct Builder;
  const record::Record* record_;
  Stacks stacks_;
  std::vector<Step> steps_;
  std::vector<Allocation> allocations_;
  std::vector<uint32_t> chunk_last_free_;  // largest free_event of each 256 allocations
  std::vector<DeviceAllocation> device_allocations_;
  std::vector<LocalMemory> local_memory_;
  std::map<int, DeviceTimeline> devices_;
  std::map<int, std::vector<std::pair<uint32_t, uint64_t>>> context_;  // event -> bytes after it
  std::map<std::pair<uint32_t, int>, ProcessPeak> processes_;
  std::vector<CounterSample> counters_;
  uint64_t inconsistencies_ = 0;
};

}  // namespace tonnage::analysis
