// Virtual memory management: reservations, physical memory, mappings and their order.
#include <vector>

#include "driver/driver_library.h"

namespace tonnage::driver::test {
namespace {

class VirtualMemoryTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    prop_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop_.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    before_ = used();
  }
  CUmemGenericAllocationHandle create(size_t bytes) {
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(CUDA_SUCCESS, CU(cuMemCreate)(&handle, bytes, &prop_, 0));
    return handle;
  }
  CUdeviceptr reserve(size_t bytes, size_t alignment = 0) {
    CUdeviceptr address = 0;
    EXPECT_EQ(CUDA_SUCCESS, CU(cuMemAddressReserve)(&address, bytes, alignment, 0, 0));
    return address;
  }
  CUmemAllocationProp prop_ = {};
  CUmemAccessDesc access_ = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  uint64_t before_ = 0;
};

TEST_F(VirtualMemoryTest, MemoryIsTakenWhenItIsMadeAndGivenBackWithItsLastUse) {
  const CUdeviceptr address = reserve(64 * kMiB);
  EXPECT_EQ(before_, used());  // addresses cost nothing
  const CUmemGenericAllocationHandle handle = create(20 * kMiB);
  EXPECT_EQ(20 * kMiB, used() - before_);
  CU_OK(CU(cuMemMap)(address, 20 * kMiB, 0, handle, 0));
  CU_OK(CU(cuMemRelease)(handle));
  EXPECT_EQ(20 * kMiB, used() - before_);  // the mapping holds it
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemRelease)(handle));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemAddressFree)(address, 64 * kMiB));  // still mapped
  CU_OK(CU(cuMemUnmap)(address, 20 * kMiB));
  EXPECT_EQ(before_, used());
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemAddressFree)(address, 32 * kMiB));
  CU_OK(CU(cuMemAddressFree)(address, 64 * kMiB));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemAddressFree)(address, 64 * kMiB));
}

TEST_F(VirtualMemoryTest, TheCardFillsUp) {
  CU_OK(CU(cuCtxSynchronize)());  // pools give back what other tests left in them
  const uint64_t before = used_here();
  CUmemGenericAllocationHandle handle = 0;
  CU_FAILS(CUDA_ERROR_OUT_OF_MEMORY, CU(cuMemCreate)(&handle, kCardBytes, &prop_, 0));
  const CUmemGenericAllocationHandle most = create(3 * kGiB);
  CU_FAILS(CUDA_ERROR_OUT_OF_MEMORY, CU(cuMemCreate)(&handle, kGiB, &prop_, 0));
  CU_OK(CU(cuMemRelease)(most));
  EXPECT_EQ(before, used_here());
}

TEST_F(VirtualMemoryTest, GranularityRulesSizes) {
  size_t granularity = 0;
  CU_OK(CU(cuMemGetAllocationGranularity)(&granularity, &prop_, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  EXPECT_EQ(2 * kMiB, granularity);
  CU_OK(CU(cuMemGetAllocationGranularity)(&granularity, &prop_,
                                          CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  EXPECT_EQ(2 * kMiB, granularity);
  CUmemGenericAllocationHandle handle = 0;
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemCreate)(&handle, kMiB, &prop_, 0));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemCreate)(&handle, 0, &prop_, 0));
  CUdeviceptr address = 0;
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemAddressReserve)(&address, kMiB, 0, 0, 0));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemAddressReserve)(&address, 2 * kMiB, 3, 0, 0));
  EXPECT_EQ(0u, reserve(4 * kMiB, kGiB) % kGiB);
  prop_.location.id = 9;
  CU_FAILS(CUDA_ERROR_INVALID_DEVICE, CU(cuMemCreate)(&handle, 2 * kMiB, &prop_, 0));
}

TEST_F(VirtualMemoryTest, MappingsDoNotOverlapAndAreTakenDownWhole) {
  const CUdeviceptr address = reserve(32 * kMiB);
  const CUmemGenericAllocationHandle a = create(4 * kMiB), b = create(4 * kMiB);
  CU_OK(CU(cuMemMap)(address, 4 * kMiB, 0, a, 0));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemMap)(address + 2 * kMiB, 4 * kMiB, 0, b, 0));
  CU_FAILS(CUDA_ERROR_NOT_SUPPORTED,
           CU(cuMemMap)(address + 4 * kMiB, 8 * kMiB, 0, b, 0));  // larger than the memory
  CU_FAILS(CUDA_ERROR_NOT_SUPPORTED,
           CU(cuMemMap)(address + 4 * kMiB, 2 * kMiB, 0, b, 0));  // a part of it
  CU_FAILS(CUDA_ERROR_NOT_SUPPORTED, CU(cuMemMap)(address + 4 * kMiB, 4 * kMiB, 2 * kMiB, b, 0));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE,
           CU(cuMemMap)(address + 30 * kMiB, 4 * kMiB, 0, b, 0));  // past the reservation
  CU_OK(CU(cuMemMap)(address + 4 * kMiB, 4 * kMiB, 0, b, 0));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemUnmap)(address, 2 * kMiB));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemUnmap)(address + 2 * kMiB, 6 * kMiB));
  CU_OK(CU(cuMemUnmap)(address, 10 * kMiB));  // what is not mapped does not matter
  CU_OK(CU(cuMemUnmap)(address, 8 * kMiB));
  CU_OK(CU(cuMemRelease)(a));
  CU_OK(CU(cuMemRelease)(b));
  CU_OK(CU(cuMemAddressFree)(address, 32 * kMiB));
  EXPECT_EQ(before_, used());
}

TEST_F(VirtualMemoryTest, AccessIsPerDeviceAndNeedsAMapping) {
  const CUdeviceptr address = reserve(32 * kMiB);
  const CUmemGenericAllocationHandle handle = create(4 * kMiB);
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemSetAccess)(address, 4 * kMiB, &access_, 1));
  CU_OK(CU(cuMemMap)(address, 4 * kMiB, 0, handle, 0));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemSetAccess)(address, 8 * kMiB, &access_, 1));
  unsigned long long flags = 99;
  CU_OK(CU(cuMemGetAccess)(&flags, &access_.location, address));
  EXPECT_EQ(0u, flags);
  CU_OK(CU(cuMemSetAccess)(address, 4 * kMiB, &access_, 1));
  CU_OK(CU(cuMemGetAccess)(&flags, &access_.location, address + kMiB));
  EXPECT_EQ(static_cast<unsigned long long>(CU_MEM_ACCESS_FLAGS_PROT_READWRITE), flags);
  const CUmemLocation other = {CU_MEM_LOCATION_TYPE_DEVICE, 1};
  CU_OK(CU(cuMemGetAccess)(&flags, &other, address));
  EXPECT_EQ(0u, flags);
  CU_OK(CU(cuMemUnmap)(address, 4 * kMiB));
  CU_OK(CU(cuMemRelease)(handle));
}

TEST_F(VirtualMemoryTest, ContentDiesWithTheMapping) {
  const CUdeviceptr address = reserve(32 * kMiB);
  const CUmemGenericAllocationHandle handle = create(2 * kMiB);
  CU_OK(CU(cuMemMap)(address, 2 * kMiB, 0, handle, 0));
  CU_OK(CU(cuMemSetAccess)(address, 2 * kMiB, &access_, 1));
  const uint64_t written = 0x1122334455667788;
  uint64_t read = 0;
  CU_OK(CU(cuMemcpyHtoD_v2)(address + 4096, &written, 8));
  CU_OK(CU(cuMemcpyDtoH_v2)(&read, address + 4096, 8));
  EXPECT_EQ(written, read);
  CU_OK(CU(cuMemUnmap)(address, 2 * kMiB));
  CU_OK(CU(cuMemMap)(address, 2 * kMiB, 0, handle, 0));
  CU_OK(CU(cuMemcpyDtoH_v2)(&read, address + 4096, 8));
  EXPECT_EQ(0u, read);
  CUmemGenericAllocationHandle again = 0;
  CU_OK(CU(cuMemRetainAllocationHandle)(&again, reinterpret_cast<void*>(address + kMiB)));
  EXPECT_EQ(handle, again);
  CU_OK(CU(cuMemUnmap)(address, 2 * kMiB));
  CU_OK(CU(cuMemRelease)(handle));
  EXPECT_EQ(2 * kMiB, used() - before_);  // retained once more
  CU_OK(CU(cuMemRelease)(again));
  EXPECT_EQ(before_, used());
}

TEST_F(VirtualMemoryTest, ReservationsKeepApartFromEachOtherAndFromAllocations) {
  CUdeviceptr plain = 0;
  CU_OK(CU(cuMemAlloc_v2)(&plain, 8 * kMiB));
  const uint64_t size = 96 * kMiB;
  std::vector<CUdeviceptr> starts;
  for (int i = 0; i < 8; i++) starts.push_back(reserve(size));
  for (size_t i = 0; i < starts.size(); i++) {
    EXPECT_TRUE(starts[i] + size <= plain || starts[i] >= plain + 8 * kMiB);
    for (size_t j = 0; j < i; j++)
      EXPECT_TRUE(starts[i] + size <= starts[j] || starts[i] >= starts[j] + size);
  }
  for (CUdeviceptr start : starts) CU_OK(CU(cuMemAddressFree)(start, size));
  CU_OK(CU(cuMemFree_v2)(plain));
}

TEST_F(VirtualMemoryTest, OnlyWhatWasAskedForCanBeExported) {
  int fd = -1;
  const CUmemGenericAllocationHandle plain = create(2 * kMiB);
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemExportToShareableHandle)(
                                         &fd, plain, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  prop_.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
  CUmemGenericAllocationHandle handle = 0;
  CU_FAILS(CUDA_ERROR_NOT_PERMITTED, CU(cuMemCreate)(&handle, 2 * kMiB, &prop_, 0));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE,
           CU(cuMemImportFromShareableHandle)(&handle, reinterpret_cast<void*>(0),
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  CU_OK(CU(cuMemRelease)(plain));
}

TEST_F(VirtualMemoryTest, ImportedMemoryCountsOnce) {
  prop_.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  const CUmemGenericAllocationHandle owner = create(6 * kMiB);
  int fd = -1;
  CU_OK(CU(cuMemExportToShareableHandle)(&fd, owner, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  ASSERT_GE(fd, 0);
  CUmemGenericAllocationHandle imported = 0;
  CU_OK(CU(cuMemImportFromShareableHandle)(&imported,
                                           reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(fd);
  EXPECT_EQ(6 * kMiB, used() - before_);
  CUmemAllocationProp got = {};
  CU_OK(CU(cuMemGetAllocationPropertiesFromHandle)(&got, imported));
  EXPECT_EQ(CU_MEM_ALLOCATION_TYPE_PINNED, got.type);
  const CUdeviceptr address = reserve(32 * kMiB);
  CU_OK(CU(cuMemMap)(address, 6 * kMiB, 0, imported, 0));
  CU_OK(CU(cuMemRelease)(owner));  // the importer still has it
  EXPECT_EQ(6 * kMiB, used() - before_);
  CU_OK(CU(cuMemUnmap)(address, 6 * kMiB));
  CU_OK(CU(cuMemRelease)(imported));
  EXPECT_EQ(before_, used());
}

}  // namespace
}  // namespace tonnage::driver::test
