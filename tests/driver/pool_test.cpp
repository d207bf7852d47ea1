// Stream-ordered pools: what they take from the card, when they give it back, and what they refuse.
#include <set>

#include "driver/driver_library.h"

namespace tonnage::driver::test {
namespace {

class PoolTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    CUmemPoolProps props = {};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CU_OK(CU(cuMemPoolCreate)(&pool_, &props));
    CUmemoryPool standard = nullptr;
    CU_OK(CU(cuDeviceGetDefaultMemPool)(&standard, 0));
    CU_OK(CU(cuMemPoolTrimTo)(standard, 0));
    before_ = used();
  }
  void TearDown() override {
    for (CUdeviceptr address : live_) EXPECT_EQ(CUDA_SUCCESS, CU(cuMemFreeAsync)(address, stream_));
    CU(cuMemPoolDestroy)(pool_);  // refused if the test destroyed it
    EXPECT_EQ(before_, used());
    DriverTest::TearDown();
  }
  uint64_t attribute(CUmemPool_attribute which) {
    cuuint64_t value = ~0ull;
    EXPECT_EQ(CUDA_SUCCESS, CU(cuMemPoolGetAttribute)(pool_, which, &value));
    return value;
  }
  CUdeviceptr allocate(size_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(CUDA_SUCCESS, CU(cuMemAllocFromPoolAsync)(&address, bytes, pool_, stream_));
    live_.insert(address);
    return address;
  }
  void release(CUdeviceptr address) {
    EXPECT_EQ(CUDA_SUCCESS, CU(cuMemFreeAsync)(address, stream_));
    live_.erase(address);
  }

  CUmemoryPool pool_ = nullptr;
  std::set<CUdeviceptr> live_;
  uint64_t before_ = 0;
};

TEST_F(PoolTest, TakesWholeChunksAndSharesThem) {
  const CUdeviceptr a = allocate(1), b = allocate(1000);
  EXPECT_EQ(32 * kMiB, used() - before_);
  EXPECT_EQ(32 * kMiB, attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
  EXPECT_EQ(512u + 1024u, attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
  EXPECT_NE(a, b);
  EXPECT_EQ(0u, a % 512);
  EXPECT_EQ(0u, b % 512);
  release(a);
  release(b);
  EXPECT_EQ(0u, attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
  CU_OK(CU(cuMemPoolDestroy)(pool_));
  EXPECT_EQ(before_, used());
}

// The sequence and every figure as an H200 (driver 580) answered (tools/device, section memory).
TEST_F(PoolTest, GrowsAsAnH200) {
  const CUdeviceptr first = allocate(kMiB);
  const struct {
    uint64_t bytes, reserved;
  } steps[] = {{kMiB, 32},      {16 * kMiB, 32},   {20 * kMiB, 32},
               {33 * kMiB, 64}, {100 * kMiB, 128}, {kMiB * 3 / 2, 128}};
  for (const auto& step : steps) {
    const CUdeviceptr next = allocate(step.bytes);
    EXPECT_EQ(first + kMiB, next);  // blocks lie across chunks
    EXPECT_EQ(step.reserved * kMiB, attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
    EXPECT_EQ(kMiB + step.bytes, attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
    release(next);
    EXPECT_EQ(step.reserved * kMiB, attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
  }
  CU_OK(CU(cuStreamSynchronize)(stream_));
  EXPECT_EQ(32 * kMiB, attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
  CU_OK(CU(cuMemPoolTrimTo)(pool_, 0));
  EXPECT_EQ(32 * kMiB, attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
  release(first);
  CU_OK(CU(cuStreamSynchronize)(stream_));
  cuuint64_t threshold = ~0ull;
  CU_OK(CU(cuMemPoolSetAttribute)(pool_, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  CUdeviceptr blocks[5];
  uint64_t reserved = 0;
  const uint64_t grown[] = {64, 32, 32, 32, 64};
  for (int i = 0; i < 5; i++) {
    blocks[i] = allocate(40 * kMiB);
    EXPECT_EQ(reserved + grown[i] * kMiB, attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)) << i;
    reserved += grown[i] * kMiB;
  }
  for (CUdeviceptr block : blocks) release(block);
  CU_OK(CU(cuStreamSynchronize)(stream_));
  EXPECT_EQ(224 * kMiB, attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
  CU_OK(CU(cuMemPoolTrimTo)(pool_, 50 * kMiB));
  EXPECT_EQ(64 * kMiB, attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
}

TEST_F(PoolTest, FreedMemoryIsUsedAgain) {
  const CUdeviceptr first = allocate(10 * kMiB);
  release(first);
  EXPECT_EQ(first, allocate(10 * kMiB));
  EXPECT_EQ(32 * kMiB, used() - before_);
  // Neighbours that are free become one block again.
  const CUdeviceptr a = allocate(5 * kMiB), b = allocate(5 * kMiB), c = allocate(5 * kMiB);
  release(a);
  release(c);
  release(b);
  EXPECT_EQ(a, allocate(15 * kMiB));
  EXPECT_EQ(32 * kMiB, used() - before_);
}

TEST_F(PoolTest, KeepsItsThresholdWhenTheHostWaits) {
  cuuint64_t threshold = 64 * kMiB;
  CU_OK(CU(cuMemPoolSetAttribute)(pool_, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  CUdeviceptr blocks[4];
  for (CUdeviceptr& block : blocks) block = allocate(32 * kMiB);
  for (CUdeviceptr block : blocks) release(block);
  EXPECT_EQ(128 * kMiB, used() - before_);  // nothing is given back before a wait
  CU_OK(CU(cuStreamSynchronize)(stream_));
  EXPECT_EQ(64 * kMiB, used() - before_);
  CU_OK(CU(cuMemPoolTrimTo)(pool_, 32 * kMiB));
  EXPECT_EQ(32 * kMiB, used() - before_);
  threshold = 0;
  CU_OK(CU(cuMemPoolSetAttribute)(pool_, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  CU_OK(CU(cuCtxSynchronize)());
  EXPECT_EQ(before_, used());
  EXPECT_EQ(128 * kMiB, attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH));
}

TEST_F(PoolTest, WaitingDoesNotTakeMemoryInUse) {
  const CUdeviceptr kept = allocate(4096);
  release(allocate(100 * kMiB));
  CU_OK(CU(cuCtxSynchronize)());
  EXPECT_EQ(32 * kMiB, used() - before_);
  release(kept);
}

TEST_F(PoolTest, MarksCanOnlyBeReset) {
  release(allocate(20 * kMiB));
  EXPECT_EQ(20 * kMiB, attribute(CU_MEMPOOL_ATTR_USED_MEM_HIGH));
  cuuint64_t value = 5;
  CU_FAILS(CUDA_ERROR_INVALID_VALUE,
           CU(cuMemPoolSetAttribute)(pool_, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &value));
  value = 0;
  CU_OK(CU(cuMemPoolSetAttribute)(pool_, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &value));
  EXPECT_EQ(0u, attribute(CU_MEMPOOL_ATTR_USED_MEM_HIGH));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE,
           CU(cuMemPoolSetAttribute)(pool_, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value));
}

TEST_F(PoolTest, RunsOutAndMaySpendWhatOthersHoldUnused) {
  CUdeviceptr address = 0;
  CU_FAILS(CUDA_ERROR_OUT_OF_MEMORY,
           CU(cuMemAllocFromPoolAsync)(&address, kCardBytes, pool_, stream_));
  release(allocate(3 * kGiB));  // reserved, unused
  CUmemoryPool standard = nullptr;
  CU_OK(CU(cuDeviceGetDefaultMemPool)(&standard, 0));
  CU_OK(CU(cuMemAllocFromPoolAsync)(&address, 3 * kGiB, standard, stream_));
  EXPECT_EQ(0u, attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
  release(address);
  CU_OK(CU(cuMemPoolTrimTo)(standard, 0));
}

TEST_F(PoolTest, ADestroyedPoolLivesUntilItsLastBlock) {
  const CUdeviceptr address = allocate(kMiB);
  CU_OK(CU(cuMemPoolDestroy)(pool_));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemPoolTrimTo)(pool_, 0));
  CUdeviceptr other = 0;
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemAllocFromPoolAsync)(&other, kMiB, pool_, stream_));
  EXPECT_EQ(32 * kMiB, used() - before_);
  release(address);
  EXPECT_EQ(before_, used());
}

TEST_F(PoolTest, TheDevicesPoolIsTheOneThatIsSet) {
  CUmemoryPool standard = nullptr, current = nullptr;
  CU_OK(CU(cuDeviceGetDefaultMemPool)(&standard, 0));
  CU_OK(CU(cuDeviceGetMemPool)(&current, 0));
  EXPECT_EQ(standard, current);
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemPoolDestroy)(standard));
  CU_OK(CU(cuDeviceSetMemPool)(0, pool_));
  CUdeviceptr address = 0;
  CU_OK(CU(cuMemAllocAsync)(&address, kMiB, stream_));
  EXPECT_EQ(kMiB, attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuDeviceSetMemPool)(1, pool_));  // of another device
  release(address);
  CU_OK(CU(cuMemPoolDestroy)(pool_));
  CU_OK(CU(cuDeviceGetMemPool)(&current, 0));
  EXPECT_EQ(standard, current);
}

TEST_F(PoolTest, ContentDiesWithTheBlock) {
  const CUdeviceptr address = allocate(4096);
  CU_OK(CU(cuMemsetD32Async)(address, 7, 1024, stream_));
  uint32_t word = 0;
  CU_OK(CU(cuMemcpyDtoHAsync_v2)(&word, address, 4, stream_));
  EXPECT_EQ(7u, word);
  release(address);
  ASSERT_EQ(address, allocate(4096));
  CU_OK(CU(cuMemcpyDtoHAsync_v2)(&word, address, 4, stream_));
  EXPECT_EQ(0u, word);
}

TEST_F(PoolTest, RefusesNonsense) {
  CUdeviceptr address = 0;
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemAllocAsync)(nullptr, 1, stream_));
  address = 1;
  CU_OK(CU(cuMemAllocAsync)(&address, 0, stream_));
  EXPECT_EQ(0u, address);
  CU_OK(CU(cuMemFreeAsync)(0, stream_));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemFreeAsync)(12345, stream_));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemFreeAsync)(allocate(4096) + 512, stream_));
  CUmemPoolProps props = {};
  CUmemoryPool none_made = nullptr;
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemPoolCreate)(&none_made, &props));
  const CUmemAccessDesc none = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_NONE};
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemPoolSetAccess)(pool_, &none, 1));
  const CUmemAccessDesc other = {{CU_MEM_LOCATION_TYPE_DEVICE, 1},
                                 CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CU_OK(CU(cuMemPoolSetAccess)(pool_, &other, 1));
  CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, 1};
  CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  CU_OK(CU(cuMemPoolGetAccess)(&flags, pool_, &location));
  EXPECT_EQ(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, flags);
}

}  // namespace
}  // namespace tonnage::driver::test
