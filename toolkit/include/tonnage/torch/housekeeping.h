// Housekeeping in a long run: cached blocks, cuFFT's plans, settings of the allocator.
//
//   tonnage::EmptyCacheSchedule schedule({.unused_fraction = 0.3});
//   for (...) { train_step(); schedule.step(); tonnage::mark_step(); }      // mark_step: recorder.h
//
// Devices are CUDA devices; torch::kCUDA alone is the current one. Sizes are bytes. Errors:
// c10::Error for another device, or for options that make no sense. Threads: any, a schedule one at
// a time; they act on the whole process. Owns: nothing.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace tonnage {

struct EmptyCacheOptions {
  int64_t every_steps = 0;  // 0: not by count
  double unused_fraction =
      1;  // when reserved minus allocated is more than this share of the card; 1: never
  c10::Device device = c10::kCUDA;
};

// Gives cached blocks back to the driver when it is time. Doing so waits for the device and makes
// the next allocations slow: for runs whose shapes change, between phases, or beside other processes.
class EmptyCacheSchedule {
 public:
  explicit EmptyCacheSchedule(const EmptyCacheOptions& options);
  // Once per training step. Bytes that were given back; 0 if it was not time.
  int64_t step();

 private:
  EmptyCacheOptions options_;
  int64_t steps_ = 0;
};

// Gives all cached blocks of the device back. Bytes.
int64_t empty_cache(c10::Device device = c10::kCUDA);

// cuFFT keeps a plan, with its workspace on the device, for every size of transform that was used.
int64_t cufft_plan_cache_size(c10::Device device = c10::kCUDA);                      // plans
void set_cufft_plan_cache_max_size(int64_t plans, c10::Device device = c10::kCUDA);  // 0: keep none
void clear_cufft_plan_cache(c10::Device device = c10::kCUDA);

// The allocator's settings in the form of PYTORCH_CUDA_ALLOC_CONF:
// "max_split_size_mb:128,garbage_collection_threshold:0.8". They hold from the next allocation on.
// A setting that is not named goes back to its default, or keeps its value; this depends on the
// libtorch version. Error: c10::Error for a text that it does not understand; the settings before
// are put back.
void set_allocator_settings(const std::string& settings);
std::string allocator_settings();

}  // namespace tonnage
