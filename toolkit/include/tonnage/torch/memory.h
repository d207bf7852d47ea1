// Looking at memory: what the caching allocator of a device counts, a table of it, free memory, and
// the peak of a piece of code.
//
//   std::cout << tonnage::memory_summary();
//   auto free = tonnage::free_memory();     // of the card, and what other processes hold
//   tonnage::PeakScope scope;  train_step();  scope.peak_allocated_bytes();
//
// All sizes are bytes, all counts are numbers. "Allocated": in tensors, rounded up to the
// allocator's blocks; "active": allocated or waiting for a stream; "reserved": taken from the
// driver, cached blocks included; "requested": asked for, before rounding. A device is a CUDA
// device; its index -1 (torch::kCUDA alone) means the current one. Nothing here waits for the
// device or allocates on it.
//
// Errors: c10::Error if the device is not a CUDA device of this process (say which ones there are).
// A device that was not used yet counts zeros. Threads: any; the figures are of one moment each.
//
// The figures are those of torch.cuda.memory_stats in Python: same allocator, same names.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <string>

namespace tonnage {

struct MemoryFigure {
  int64_t current = 0;
  int64_t peak = 0;       // since the last reset_peak_memory_stats
  int64_t allocated = 0;  // all that was ever added
  int64_t freed = 0;      // all that was ever taken away
};

// A figure in all, and of the small (up to 1 MiB requests) and the large pool.
struct MemoryFigures {
  MemoryFigure all, small_pool, large_pool;
};

struct MemoryStats {
  MemoryFigures allocated_bytes, reserved_bytes, active_bytes, inactive_split_bytes,
      requested_bytes;
  MemoryFigures allocations, segments, active_blocks, inactive_split_blocks;
  MemoryFigure oversize_allocations, oversize_segments;
  int64_t alloc_retries = 0;  // allocations that had to release cached blocks first
  int64_t out_of_memory = 0;  // allocations that failed
  int64_t device_allocs = 0;  // calls of the driver
  int64_t device_frees = 0;
  int64_t max_split_size_bytes = -1;  // -1: no limit

  // With the keys of Python's memory_stats ("allocated_bytes.all.peak").
  std::map<std::string, int64_t> as_map() const;
};

MemoryStats memory_stats(c10::Device device = c10::kCUDA);

// Peaks start again from the current values. An open PeakScope still knows what was before.
void reset_peak_memory_stats(c10::Device device = c10::kCUDA);

struct MemorySummaryOptions {
  bool abbreviated = false;  // without the rows of the two pools
};

// A table like Python's torch.cuda.memory_summary.
std::string memory_summary(c10::Device device = c10::kCUDA,
                           const MemorySummaryOptions& options = {});

struct FreeMemory {
  int64_t total_bytes = 0;      // of the card, as the driver counts
  int64_t free_bytes = 0;       // that nobody has
  int64_t reserved_bytes = 0;   // by this process's allocator
  int64_t allocated_bytes = 0;  // of those, in tensors
  // Other processes, and this one's CUDA context, libraries and allocations outside of the allocator.
  int64_t other_bytes() const { return total_bytes - free_bytes - reserved_bytes; }
  // What tensors can still take, if nothing is lost to fragmentation.
  int64_t available_bytes() const { return free_bytes + reserved_bytes - allocated_bytes; }
};

FreeMemory free_memory(c10::Device device = c10::kCUDA);

// The peaks between its construction and stop() (or now). Scopes nest, and an outer one's peaks
// include the inner ones'; the allocator's own peak counters are reset by it. Scopes of one device
// end in reverse order, on the thread that made them.
class PeakScope {
 public:
  explicit PeakScope(c10::Device device = c10::kCUDA);
  ~PeakScope();
  PeakScope(const PeakScope&) = delete;
  PeakScope& operator=(const PeakScope&) = delete;

  void stop();
  int64_t peak_allocated_bytes() const;
  int64_t peak_reserved_bytes() const;
  int64_t begin_allocated_bytes() const { return begin_allocated_bytes_; }
  // What the scope needed on top of what was there when it began.
  int64_t added_peak_bytes() const { return peak_allocated_bytes() - begin_allocated_bytes_; }

 private:
  friend void reset_peak_memory_stats(c10::Device device);
  void fold() const;  // takes the allocator's peaks into this scope's

  c10::Device device_;
  PeakScope* outer_ = nullptr;
  int64_t begin_allocated_bytes_ = 0;
  mutable int64_t peak_allocated_bytes_ = 0, peak_reserved_bytes_ = 0;
  bool running_ = true;
};

// "1.50 GiB"; the exact number below 1 KiB.
std::string format_bytes(int64_t bytes);

}  // namespace tonnage
