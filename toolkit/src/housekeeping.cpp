#include "tonnage/torch/housekeeping.h"

#include <ATen/Context.h>

#include "device_allocator.h"
#include "tonnage/torch/memory.h"

namespace tonnage {

EmptyCacheSchedule::EmptyCacheSchedule(const EmptyCacheOptions& options) : options_(options) {
  options_.device = checked_cuda_device(options.device, "EmptyCacheSchedule");
  TORCH_CHECK_VALUE(options.every_steps >= 0,
                    "EmptyCacheSchedule: every_steps must not be negative");
  TORCH_CHECK_VALUE(options.unused_fraction > 0 && options.unused_fraction <= 1,
                    "EmptyCacheSchedule: unused_fraction must be above 0 and at most 1");
  TORCH_CHECK_VALUE(options.every_steps > 0 || options.unused_fraction < 1,
                    "EmptyCacheSchedule: give every_steps or unused_fraction");
}

int64_t EmptyCacheSchedule::step() {
  steps_++;
  bool due = options_.every_steps > 0 && steps_ % options_.every_steps == 0;
  if (!due && options_.unused_fraction < 1) {
    const FreeMemory memory = free_memory(options_.device);
    due = static_cast<double>(memory.reserved_bytes - memory.allocated_bytes) >
          options_.unused_fraction * static_cast<double>(memory.total_bytes);
  }
  return due ? empty_cache(options_.device) : 0;
}

int64_t empty_cache(c10::Device device) {
  device = checked_cuda_device(device, "empty_cache");
  compat::DeviceAllocator* allocator = device_allocator(device);
  if (!allocator) return 0;
  const int64_t before = memory_stats(device).reserved_bytes.all.current;
  allocator->emptyCache();
  return before - memory_stats(device).reserved_bytes.all.current;
}

int64_t cufft_plan_cache_size(c10::Device device) {
  return at::detail::getCUDAHooks().cuFFTGetPlanCacheSize(
      checked_cuda_device(device, "cufft_plan_cache_size").index());
}

void set_cufft_plan_cache_max_size(int64_t plans, c10::Device device) {
  TORCH_CHECK_VALUE(plans >= 0,
                    "set_cufft_plan_cache_max_size: the number of plans must not be negative");
  at::detail::getCUDAHooks().cuFFTSetPlanCacheMaxSize(
      checked_cuda_device(device, "set_cufft_plan_cache_max_size").index(), plans);
}

void clear_cufft_plan_cache(c10::Device device) {
  at::detail::getCUDAHooks().cuFFTClearPlanCache(
      checked_cuda_device(device, "clear_cufft_plan_cache").index());
}

void set_allocator_settings(const std::string& settings) {
  const std::string before = compat::allocator_settings();
  try {
    compat::set_allocator_settings(settings);
  } catch (...) {
    compat::set_allocator_settings(before);
    throw;
  }
}

std::string allocator_settings() { return compat::allocator_settings(); }

}  // namespace tonnage
