// For tests of the virtual driver: a session with two small cards, and the driver's functions from
// the library in this build.
#pragma once

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <new>
#include <string>

#include "abi/session.h"
#include "abi/session_locks.h"
#include "driver/api.h"

namespace tonnage::driver::test {

inline constexpr uint64_t kMiB = 1ull << 20, kGiB = 1ull << 30;
inline constexpr uint64_t kCardBytes = 4 * kGiB, kContextBytes = 64 * kMiB;

inline void fill_card(abi::CardDesc* card, int index) {
  snprintf(card->name, sizeof card->name, "Test card %d", index);
  card->uuid[0] = static_cast<uint8_t>(index + 1);
  card->cc_major = 9;
  card->pci_bus = index + 1;
  card->total_bytes = card->nvml_total_bytes = kCardBytes;
  card->context_bytes = kContextBytes;
  card->cuda_driver_version = 13000;
  card->register_allocation_unit = 256;
  card->warp_allocation_granularity = 4;
  card->shared_allocation_unit = 128;
  int32_t* a = card->attributes;
  a[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 1024;
  a[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X] = a[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y] = 1024;
  a[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z] = 64;
  a[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X] = 2147483647;
  a[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y] = a[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z] = 65535;
  a[CU_DEVICE_ATTRIBUTE_WARP_SIZE] = 32;
  a[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT] = 132;
  a[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] = 9;
  a[CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING] = 1;
  a[CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH] = 6016;
  a[CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED] = 1;
  a[CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED] = 1;
  a[CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED] = 1;
  a[CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY] = 1;
}

// The session of this process: the one that TONNAGE_SESSION names (a test's child process), or a
// new one.
inline abi::Session* session() {
  static abi::Session* instance = [] {
    const char* named = getenv("TONNAGE_SESSION");
    char path[] = "/tmp/tonnage-test-session-XXXXXX";
    const int fd = named ? open(named, O_RDWR) : mkstemp(path);
    if (fd < 0 || (!named && ftruncate(fd, sizeof(abi::Session)) != 0)) abort();
    void* memory = mmap(nullptr, sizeof(abi::Session), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (memory == MAP_FAILED) abort();
    if (named) return static_cast<abi::Session*>(memory);
    auto* made = new (memory) abi::Session{};
    made->magic = abi::kSessionMagic;
    made->version = abi::kSessionVersion;
    made->struct_bytes = sizeof(abi::Session);
    made->device_count = 2;
    made->start_ns = static_cast<uint64_t>(getpid()) + 1;
    made->known_integer_bytes = 64 * kMiB;
    for (int i = 0; i < 2; i++) fill_card(&made->devices[i], i);
    setenv("TONNAGE_SESSION", path, 1);
    static const std::string kept = path;
    atexit([] { unlink(kept.c_str()); });
    return made;
  }();
  return instance;
}

inline void* library() {
  static void* handle = [] {
    session();
    const auto here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
    const std::string path = (here / "../lib/vgpu/libcuda.so.1").lexically_normal().string();
    void* opened = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!opened) fprintf(stderr, "%s\n", dlerror());
    return opened;
  }();
  return handle;
}

template <class F>
F function(const char* name) {
  void* symbol = library() ? dlsym(library(), name) : nullptr;
  if (!symbol) {
    fprintf(stderr, "%s is not in the library\n", name);
    abort();
  }
  return reinterpret_cast<F>(symbol);
}

// CU(cuMemAlloc_v2)(&address, bytes) calls the function of that exported name.
#define CU(name) (::tonnage::driver::test::function<decltype(&::name)>(#name))
#define CU_OK(call) ASSERT_EQ(CUDA_SUCCESS, (call))
#define CU_FAILS(code, call) EXPECT_EQ(code, (call))

// Card memory in use by this session on a device.
inline uint64_t used(int device = 0) {
  static abi::SessionLocks& locks = *new abi::SessionLocks;
  [[maybe_unused]] static const bool opened = locks.open(getenv("TONNAGE_SESSION"));
  uint64_t sum = 0;
  for (int i = 0; i < session()->slots_used.load(); i++) {
    const abi::ProcessAccount& process = session()->processes[i];
    if (locks.slot_lives(i, process.pid.load())) sum += process.used_bytes[device].load();
  }
  return sum;
}

// This process's part of it.
inline uint64_t used_here(int device = 0) {
  for (const abi::ProcessAccount& process : session()->processes)
    if (process.pid.load() == getpid()) return process.used_bytes[device].load();
  return 0;
}

// A current primary context on device 0 for each test.
class DriverTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(nullptr, library());
    CU_OK(CU(cuInit)(0));
    CU_OK(CU(cuDevicePrimaryCtxRetain)(&context_, 0));
    CU_OK(CU(cuCtxSetCurrent)(context_));
    CU_OK(CU(cuStreamCreate)(&stream_, CU_STREAM_NON_BLOCKING));
  }
  void TearDown() override {
    const CUresult code = stream_ ? CU(cuStreamDestroy_v2)(stream_) : CUDA_SUCCESS;
    EXPECT_EQ(CUDA_SUCCESS, code);
  }
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
};

}  // namespace tonnage::driver::test
