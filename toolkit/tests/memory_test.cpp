#include "tonnage/torch/memory.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "sizes.h"
#include "tonnage/torch/device_check.h"
#include "tonnage/torch/housekeeping.h"

namespace {

using tonnage_test::kMiB;

TEST(Memory, TellsThatThereIsNoDevice) {
  EXPECT_THROW(tonnage::memory_stats(torch::kCPU), c10::Error);
  EXPECT_THROW(tonnage::PeakScope(torch::kCPU), c10::Error);
  if (!torch::cuda::is_available()) {
    EXPECT_THROW(tonnage::free_memory(), c10::Error);
  }
}

TEST(Memory, FormatsBytes) {
  EXPECT_EQ(tonnage::format_bytes(0), "0 B");
  EXPECT_EQ(tonnage::format_bytes(1023), "1023 B");
  EXPECT_EQ(tonnage::format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(tonnage::format_bytes(-(int64_t{3} << 30)), "-3.00 GiB");
}

TEST(DeviceCheck, NamesWhatIsElsewhere) {
  torch::nn::Linear model(2, 3);
  EXPECT_NO_THROW(tonnage::assert_on_device(*model, torch::kCPU));
  torch::optim::Adam optimizer(model->parameters());
  model(torch::ones({1, 2})).sum().backward();
  optimizer.step();
  EXPECT_NO_THROW(tonnage::assert_on_device(optimizer, torch::kCPU));
  EXPECT_THROW(tonnage::assert_on_device(optimizer, torch::kCUDA), c10::Error);
  struct Mixed : torch::nn::Module {
    Mixed() {
      register_parameter("weight", torch::ones({2, 3}));
      register_parameter("bias", torch::empty({3}, torch::kMeta));
      register_buffer("count", torch::empty({}, torch::kMeta));
    }
  };
  try {
    tonnage::assert_on_device(Mixed(), torch::kCPU);
    FAIL();
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    EXPECT_NE(text.find("2 tensors"), std::string::npos) << text;
    EXPECT_NE(text.find("bias [3] is on meta"), std::string::npos) << text;
    EXPECT_NE(text.find("count [] is on meta"), std::string::npos) << text;
  }
  EXPECT_THROW(
      tonnage::assert_on_device({{"x", torch::ones({2})}, {"none", torch::Tensor()}}, torch::kCUDA),
      c10::Error);
}

TEST(GpuMemory, CountsToTheByte) {
  const auto before = tonnage::memory_stats();
  const auto free_before = tonnage::free_memory();
  auto a = torch::empty({30 * kMiB}, torch::dtype(torch::kByte).device(torch::kCUDA));
  auto b = torch::empty({1000}, torch::dtype(torch::kByte).device(torch::kCUDA));
  const auto after = tonnage::memory_stats();
  EXPECT_EQ(after.allocated_bytes.all.current - before.allocated_bytes.all.current,
            30 * kMiB + 1024);
  EXPECT_EQ(after.requested_bytes.all.current - before.requested_bytes.all.current,
            30 * kMiB + 1000);
  EXPECT_EQ(after.allocated_bytes.small_pool.current - before.allocated_bytes.small_pool.current,
            1024);
  EXPECT_EQ(after.allocations.all.current - before.allocations.all.current, 2);
  EXPECT_EQ(after.as_map().at("allocated_bytes.all.current"), after.allocated_bytes.all.current);
  const auto free_after = tonnage::free_memory();
  EXPECT_EQ(free_after.total_bytes, free_before.total_bytes);
  EXPECT_EQ(free_before.free_bytes - free_after.free_bytes,
            free_after.reserved_bytes - free_before.reserved_bytes);
  EXPECT_EQ(free_after.total_bytes,
            free_after.free_bytes + free_after.reserved_bytes + free_after.other_bytes());
  const std::string table = tonnage::memory_summary();
  EXPECT_NE(table.find("Allocated memory"), std::string::npos);
  EXPECT_NE(table.find("from small pool"), std::string::npos);
  size_t line = 0;
  for (size_t end; (end = table.find('\n', line)) != std::string::npos; line = end + 1)
    EXPECT_EQ(end - line, 81u) << table;
}

TEST(GpuMemory, PeakScopesNest) {
  auto bytes = [](int64_t n) {
    return torch::empty({n}, torch::dtype(torch::kByte).device(torch::kCUDA));
  };
  auto held = bytes(4 * kMiB);
  const int64_t base = tonnage::memory_stats().allocated_bytes.all.current;
  tonnage::PeakScope outer;
  { auto a = bytes(8 * kMiB); }
  EXPECT_EQ(outer.added_peak_bytes(), 8 * kMiB);
  {
    tonnage::PeakScope inner;
    { auto b = bytes(6 * kMiB); }
    EXPECT_EQ(inner.added_peak_bytes(), 6 * kMiB);
    tonnage::reset_peak_memory_stats();  // somebody else's reset loses nothing
    EXPECT_EQ(inner.added_peak_bytes(), 6 * kMiB);
  }
  EXPECT_EQ(outer.added_peak_bytes(), 8 * kMiB);
  {
    tonnage::PeakScope inner;
    auto c = bytes(20 * kMiB);
    inner.stop();
    { auto d = bytes(40 * kMiB); }
    EXPECT_EQ(inner.added_peak_bytes(), 20 * kMiB);
  }
  outer.stop();
  EXPECT_EQ(outer.peak_allocated_bytes(), base + 60 * kMiB);
  EXPECT_EQ(outer.begin_allocated_bytes(), base);
}

TEST(GpuHousekeeping, GivesBackCachedBlocks) {
  tonnage::empty_cache();
  const int64_t before = tonnage::memory_stats().reserved_bytes.all.current;
  { auto a = torch::empty({64 * kMiB}, torch::dtype(torch::kByte).device(torch::kCUDA)); }
  tonnage::EmptyCacheSchedule schedule({.every_steps = 3});
  EXPECT_EQ(schedule.step(), 0);
  EXPECT_EQ(schedule.step(), 0);
  EXPECT_EQ(schedule.step(), 64 * kMiB);
  EXPECT_EQ(tonnage::memory_stats().reserved_bytes.all.current, before);
  { auto a = torch::empty({64 * kMiB}, torch::dtype(torch::kByte).device(torch::kCUDA)); }
  EXPECT_EQ(tonnage::EmptyCacheSchedule({.unused_fraction = 0.5}).step(),
            0);  // 64 MiB are little of an H200
  EXPECT_EQ(tonnage::EmptyCacheSchedule({.unused_fraction = 0.0001}).step(), 64 * kMiB);
  EXPECT_THROW(tonnage::EmptyCacheSchedule({}), c10::Error);
}

TEST(GpuHousekeeping, FftPlansAndAllocatorSettings) {
  torch::fft::fft(torch::ones({64}, torch::kCUDA));
  EXPECT_EQ(tonnage::cufft_plan_cache_size(), 1);
  tonnage::clear_cufft_plan_cache();
  EXPECT_EQ(tonnage::cufft_plan_cache_size(), 0);
  const std::string before = tonnage::allocator_settings();
  // A cached block of 100 MiB serves a request for 70 MiB by being divided, unless blocks of that
  // size are not to be.
  auto grows_by = [] {
    tonnage::empty_cache();
    { auto cached = torch::empty({100 * kMiB}, torch::dtype(torch::kByte).device(torch::kCUDA)); }
    const int64_t reserved = tonnage::memory_stats().reserved_bytes.all.current;
    auto smaller = torch::empty({70 * kMiB}, torch::dtype(torch::kByte).device(torch::kCUDA));
    return tonnage::memory_stats().reserved_bytes.all.current - reserved;
  };
  EXPECT_EQ(grows_by(), 0);
  tonnage::set_allocator_settings("max_split_size_mb:64");
  EXPECT_EQ(grows_by(), 70 * kMiB);
  EXPECT_THROW(tonnage::set_allocator_settings("no_such_setting:1"), c10::Error);
  EXPECT_EQ(tonnage::allocator_settings(), "max_split_size_mb:64");
  EXPECT_EQ(grows_by(), 70 * kMiB);
  tonnage::set_allocator_settings(before.empty() ? "max_split_size_mb:20000" : before);
  EXPECT_EQ(grows_by(), 0);
}

}  // namespace
