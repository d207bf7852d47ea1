#include "tonnage/torch/memory.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "device_allocator.h"

namespace tonnage {
namespace {

using c10::CachingDeviceAllocator::Stat;
using c10::CachingDeviceAllocator::StatArray;
using c10::CachingDeviceAllocator::StatType;

MemoryFigure figure(const Stat& s) { return {s.current, s.peak, s.allocated, s.freed}; }

MemoryFigures figures(const StatArray& s) {
  return {figure(s[static_cast<size_t>(StatType::AGGREGATE)]),
          figure(s[static_cast<size_t>(StatType::SMALL_POOL)]),
          figure(s[static_cast<size_t>(StatType::LARGE_POOL)])};
}

struct Row {
  const char* title;
  const char* key;  // Python's
  MemoryFigures MemoryStats::*figures;
  bool is_bytes;
};

constexpr Row kRows[] = {
    {"Allocated memory", "allocated_bytes", &MemoryStats::allocated_bytes, true},
    {"Active memory", "active_bytes", &MemoryStats::active_bytes, true},
    {"Requested memory", "requested_bytes", &MemoryStats::requested_bytes, true},
    {"GPU reserved memory", "reserved_bytes", &MemoryStats::reserved_bytes, true},
    {"Non-releasable memory", "inactive_split_bytes", &MemoryStats::inactive_split_bytes, true},
    {"Allocations", "allocation", &MemoryStats::allocations, false},
    {"Active allocs", "active", &MemoryStats::active_blocks, false},
    {"GPU reserved segments", "segment", &MemoryStats::segments, false},
    {"Non-releasable allocs", "inactive_split", &MemoryStats::inactive_split_blocks, false},
};

thread_local PeakScope* innermost_scope = nullptr;

void add_figure(std::map<std::string, int64_t>& out, const std::string& key,
                const MemoryFigure& f) {
  out[key + ".current"] = f.current;
  out[key + ".peak"] = f.peak;
  out[key + ".allocated"] = f.allocated;
  out[key + ".freed"] = f.freed;
}

void add_line(std::string& out, const char* title, const MemoryFigure& f, bool is_bytes) {
  auto text = [is_bytes](int64_t v) { return is_bytes ? format_bytes(v) : std::to_string(v); };
  char line[160];
  std::snprintf(line, sizeof line, "| %-22s| %11s | %11s | %11s | %11s |\n", title,
                text(f.current).c_str(), text(f.peak).c_str(), text(f.allocated).c_str(),
                text(f.freed).c_str());
  out += line;
}

std::string rule_of(char c) {
  std::string out(82, c);
  out.front() = out[80] = '|';
  out.back() = '\n';
  return out;
}

std::string centred(const std::string& text, size_t width) {
  const size_t left = text.size() < width ? (width - text.size()) / 2 : 0;
  std::string out = std::string(left, ' ') + text;
  out.resize(std::max(width, out.size()), ' ');
  return out;
}

}  // namespace

std::map<std::string, int64_t> MemoryStats::as_map() const {
  std::map<std::string, int64_t> out;
  for (const Row& row : kRows) {
    const MemoryFigures& f = this->*row.figures;
    add_figure(out, std::string(row.key) + ".all", f.all);
    add_figure(out, std::string(row.key) + ".small_pool", f.small_pool);
    add_figure(out, std::string(row.key) + ".large_pool", f.large_pool);
  }
  add_figure(out, "oversize_allocations", oversize_allocations);
  add_figure(out, "oversize_segments", oversize_segments);
  out["num_alloc_retries"] = alloc_retries;
  out["num_ooms"] = out_of_memory;
  out["num_device_alloc"] = device_allocs;
  out["num_device_free"] = device_frees;
  out["max_split_size"] = max_split_size_bytes;
  return out;
}

MemoryStats memory_stats(c10::Device device) {
  device = checked_cuda_device(device, "memory_stats");
  MemoryStats out;
  compat::DeviceAllocator* allocator = device_allocator(device);
  if (!allocator) return out;
  const auto s = allocator->getDeviceStats(device.index());
  out.allocated_bytes = figures(s.allocated_bytes);
  out.reserved_bytes = figures(s.reserved_bytes);
  out.active_bytes = figures(s.active_bytes);
  out.inactive_split_bytes = figures(s.inactive_split_bytes);
  out.requested_bytes = figures(s.requested_bytes);
  out.allocations = figures(s.allocation);
  out.segments = figures(s.segment);
  out.active_blocks = figures(s.active);
  out.inactive_split_blocks = figures(s.inactive_split);
  out.oversize_allocations = figure(s.oversize_allocations);
  out.oversize_segments = figure(s.oversize_segments);
  out.alloc_retries = s.num_alloc_retries;
  out.out_of_memory = s.num_ooms;
  out.device_allocs = s.num_device_alloc;
  out.device_frees = s.num_device_free;
  out.max_split_size_bytes = s.max_split_size;
  return out;
}

void reset_peak_memory_stats(c10::Device device) {
  device = checked_cuda_device(device, "reset_peak_memory_stats");
  compat::DeviceAllocator* allocator = device_allocator(device);
  if (!allocator) return;
  for (PeakScope* scope = innermost_scope; scope; scope = scope->outer_)
    if (scope->device_ == device) scope->fold();
  allocator->resetPeakStats(device.index());
}

std::string memory_summary(c10::Device device, const MemorySummaryOptions& options) {
  device = checked_cuda_device(device, "memory_summary");
  const MemoryStats stats = memory_stats(device);
  const std::string rule = rule_of('-'), heavy = rule_of('=');
  std::string out = heavy;
  out += "|" + centred("Memory of device " + device.str(), 79) + "|\n" + rule;
  out += "|" +
         centred("Out of memory: " + std::to_string(stats.out_of_memory) +
                     "   Retries after releasing the cache: " + std::to_string(stats.alloc_retries),
                 79) +
         "|\n" + heavy;
  char header[160];
  std::snprintf(header, sizeof header, "| %-22s| %11s | %11s | %11s | %11s |\n", "", "Now", "Peak",
                "Ever added", "Ever freed");
  out += header;
  for (const Row& row : kRows) {
    const MemoryFigures& f = stats.*row.figures;
    out += rule;
    add_line(out, row.title, f.all, row.is_bytes);
    if (options.abbreviated) continue;
    add_line(out, "  from large pool", f.large_pool, row.is_bytes);
    add_line(out, "  from small pool", f.small_pool, row.is_bytes);
  }
  out += rule;
  add_line(out, "Oversize allocations", stats.oversize_allocations, false);
  add_line(out, "Oversize segments", stats.oversize_segments, false);
  return out + heavy;
}

FreeMemory free_memory(c10::Device device) {
  device = checked_cuda_device(device, "free_memory");
  FreeMemory out;
  const auto [free, total] = compat::memory_info(device);
  out.free_bytes = static_cast<int64_t>(free);
  out.total_bytes = static_cast<int64_t>(total);
  const MemoryStats stats = memory_stats(device);
  out.reserved_bytes = stats.reserved_bytes.all.current;
  out.allocated_bytes = stats.allocated_bytes.all.current;
  return out;
}

PeakScope::PeakScope(c10::Device device) : device_(checked_cuda_device(device, "PeakScope")) {
  reset_peak_memory_stats(device_);  // scopes further out take what was before
  begin_allocated_bytes_ = memory_stats(device_).allocated_bytes.all.current;
  outer_ = innermost_scope;
  innermost_scope = this;
}

PeakScope::~PeakScope() {
  try {
    stop();
  } catch (const c10::Error&) {  // the device is gone: nothing to measure
  }
}

void PeakScope::stop() {
  if (!running_) return;
  running_ = false;
  // First out of the list, whatever the allocator says.
  for (PeakScope** at = &innermost_scope; *at; at = &(*at)->outer_)
    if (*at == this) {
      *at = outer_;
      break;
    }
  fold();
  for (PeakScope* scope = outer_; scope; scope = scope->outer_)
    if (scope->device_ == device_) {
      scope->peak_allocated_bytes_ = std::max(scope->peak_allocated_bytes_, peak_allocated_bytes_);
      scope->peak_reserved_bytes_ = std::max(scope->peak_reserved_bytes_, peak_reserved_bytes_);
    }
}

void PeakScope::fold() const {
  const MemoryStats stats = memory_stats(device_);
  peak_allocated_bytes_ = std::max(peak_allocated_bytes_, stats.allocated_bytes.all.peak);
  peak_reserved_bytes_ = std::max(peak_reserved_bytes_, stats.reserved_bytes.all.peak);
}

int64_t PeakScope::peak_allocated_bytes() const {
  if (running_) fold();
  return peak_allocated_bytes_;
}

int64_t PeakScope::peak_reserved_bytes() const {
  if (running_) fold();
  return peak_reserved_bytes_;
}

std::string format_bytes(int64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (std::abs(value) >= 1024 && unit + 1 < std::size(units)) {
    value /= 1024;
    unit++;
  }
  char text[40];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
  return text;
}

}  // namespace tonnage
