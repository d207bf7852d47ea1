// Several threads in the driver at once, as a training program's loader, autograd and communication
// threads are. What each sees is checked; ThreadSanitizer (preset tsan) finds what they share
// without a lock.
#include <barrier>
#include <cstring>
#include <thread>
#include <vector>

#include "driver/driver_library.h"

namespace tonnage::driver::test {
namespace {

constexpr int kThreads = 4, kRounds = 50;

class ThreadsTest : public DriverTest {
 protected:
  // All threads wait here for each other. What they do next is ordered by the driver's own locks
  // only: without this, a busy machine runs one thread after the other.
  void meet() { barrier_.arrive_and_wait(); }

  // Runs work(number) in each thread, in the test's context.
  template <class Work>
  void run_threads(Work work) {
    std::vector<std::thread> threads;
    for (int number = 0; number < kThreads; number++) {
      threads.emplace_back([this, work, number] {
        EXPECT_EQ(CUDA_SUCCESS, CU(cuCtxSetCurrent)(context_));
        work(number);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  std::barrier<> barrier_{kThreads};
};

// Each thread keeps a pattern of its own in memory of its own, and reads it back.
TEST_F(ThreadsTest, MemoryAndItsContent) {
  const uint64_t before = used();
  run_threads([this](int number) {
    for (int round = 0; round < kRounds; round++) {
      CUdeviceptr address = 0;
      EXPECT_EQ(CUDA_SUCCESS, CU(cuMemAlloc_v2)(&address, (number + 1) * kMiB));
      meet();
      const auto pattern = static_cast<unsigned char>(number * kRounds + round);
      EXPECT_EQ(CUDA_SUCCESS, CU(cuMemsetD8_v2)(address, pattern, kMiB));
      const std::vector<unsigned char> sent(512, static_cast<unsigned char>(~pattern));
      EXPECT_EQ(CUDA_SUCCESS, CU(cuMemcpyHtoD_v2)(address + 4096, sent.data(), sent.size()));
      std::vector<unsigned char> got(512);
      EXPECT_EQ(CUDA_SUCCESS, CU(cuMemcpyDtoH_v2)(got.data(), address, got.size()));
      EXPECT_EQ(std::vector<unsigned char>(512, pattern), got);
      EXPECT_EQ(CUDA_SUCCESS, CU(cuMemcpyDtoH_v2)(got.data(), address + 4096, got.size()));
      EXPECT_EQ(sent, got);
      EXPECT_EQ(CUDA_SUCCESS, CU(cuMemFree_v2)(address));
    }
  });
  EXPECT_EQ(before, used());
}

TEST_F(ThreadsTest, StreamsEventsAndPools) {
  CUmemoryPool pool = nullptr;
  CU_OK(CU(cuDeviceGetDefaultMemPool)(&pool, 0));
  CU_OK(CU(cuMemPoolTrimTo)(pool, 0));
  const uint64_t before = used();
  run_threads([this](int) {
    for (int round = 0; round < kRounds; round++) {
      CUstream stream = nullptr;
      CUevent event = nullptr;
      CUdeviceptr address = 0;
      meet();
      EXPECT_EQ(CUDA_SUCCESS, CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
      EXPECT_EQ(CUDA_SUCCESS, CU(cuEventCreate)(&event, 0));
      EXPECT_EQ(CUDA_SUCCESS, CU(cuMemAllocAsync)(&address, kMiB, stream));
      EXPECT_EQ(CUDA_SUCCESS, CU(cuEventRecord)(event, stream));
      EXPECT_EQ(CUDA_SUCCESS, CU(cuStreamWaitEvent)(stream, event, 0));
      EXPECT_EQ(CUDA_SUCCESS, CU(cuMemFreeAsync)(address, stream));
      EXPECT_EQ(CUDA_SUCCESS, CU(cuStreamSynchronize)(stream));
      EXPECT_EQ(CUDA_SUCCESS, CU(cuEventDestroy_v2)(event));
      EXPECT_EQ(CUDA_SUCCESS, CU(cuStreamDestroy_v2)(stream));
    }
  });
  CU_OK(CU(cuMemPoolTrimTo)(pool, 0));
  EXPECT_GE(before + kMiB * 4, used());  // streams may leave a granule or two of the driver's own
}

// Each thread captures, instantiates and launches graphs; a capture belongs to its thread.
TEST_F(ThreadsTest, GraphsAreCapturedByEach) {
  run_threads([this](int) {
    CUstream stream = nullptr;
    CUdeviceptr address = 0;
    EXPECT_EQ(CUDA_SUCCESS, CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    EXPECT_EQ(CUDA_SUCCESS, CU(cuMemAlloc_v2)(&address, kMiB));
    for (int round = 0; round < kRounds / 5; round++) {
      CUgraph graph = nullptr;
      CUgraphExec exec = nullptr;
      meet();
      EXPECT_EQ(CUDA_SUCCESS,
                CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
      EXPECT_EQ(CUDA_SUCCESS, CU(cuMemsetD8Async)(address, 1, kMiB, stream));
      EXPECT_EQ(CUDA_SUCCESS, CU(cuStreamEndCapture)(stream, &graph));
      EXPECT_EQ(CUDA_SUCCESS, CU(cuGraphInstantiateWithFlags)(&exec, graph, 0));
      EXPECT_EQ(CUDA_SUCCESS, CU(cuGraphLaunch)(exec, stream));
      EXPECT_EQ(CUDA_SUCCESS, CU(cuGraphExecDestroy)(exec));
      EXPECT_EQ(CUDA_SUCCESS, CU(cuGraphDestroy)(graph));
    }
    EXPECT_EQ(CUDA_SUCCESS, CU(cuMemFree_v2)(address));
    EXPECT_EQ(CUDA_SUCCESS, CU(cuStreamDestroy_v2)(stream));
  });
}

// Pinned memory, and what a pointer is asked about, while others allocate.
TEST_F(ThreadsTest, PinnedMemoryAndQuestions) {
  run_threads([this](int) {
    for (int round = 0; round < kRounds; round++) {
      void* host = nullptr;
      size_t free_bytes = 0, total_bytes = 0;
      unsigned type = 0;
      meet();
      EXPECT_EQ(CUDA_SUCCESS, CU(cuMemHostAlloc)(&host, 1 << 16, CU_MEMHOSTALLOC_PORTABLE));
      memset(host, 1, 1 << 16);
      EXPECT_EQ(CUDA_SUCCESS, CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                                        reinterpret_cast<CUdeviceptr>(host)));
      EXPECT_EQ(unsigned{CU_MEMORYTYPE_HOST}, type);
      EXPECT_EQ(CUDA_SUCCESS, CU(cuMemGetInfo_v2)(&free_bytes, &total_bytes));
      EXPECT_EQ(kCardBytes, total_bytes);
      EXPECT_EQ(CUDA_SUCCESS, CU(cuMemFreeHost)(host));
    }
  });
}

}  // namespace
}  // namespace tonnage::driver::test
