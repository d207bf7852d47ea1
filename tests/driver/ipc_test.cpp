// Memory between processes of a session, and access between devices.
//
// The other process is this test program again, running one of the disabled tests at the end; what
// it needs is in TONNAGE_TEST_ARG.
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>

#include <vector>

#include "driver/driver_library.h"

extern char** environ;

namespace tonnage::driver::test {
namespace {

using IpcTest = DriverTest;

std::string hex(const void* bytes, size_t n) {
  std::string out;
  char digits[3];
  for (size_t i = 0; i < n; i++) {
    snprintf(digits, sizeof digits, "%02x", static_cast<const unsigned char*>(bytes)[i]);
    out += digits;
  }
  return out;
}

void unhex(const std::string& text, void* out, size_t n) {
  for (size_t i = 0; i < n && 2 * i + 2 <= text.size(); i++)
    static_cast<unsigned char*>(out)[i] =
        static_cast<unsigned char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
}

// Runs one disabled test in a process of its own; its exit status.
int run_other(const char* test, const std::string& argument) {
  setenv("TONNAGE_TEST_ARG", argument.c_str(), 1);
  const std::string filter = std::string("--gtest_filter=IpcOther.DISABLED_") + test;
  const std::string self = "/proc/self/exe", disabled = "--gtest_also_run_disabled_tests";
  char* const args[] = {const_cast<char*>(self.c_str()), const_cast<char*>(filter.c_str()),
                        const_cast<char*>(disabled.c_str()), nullptr};
  pid_t pid = 0;
  if (posix_spawn(&pid, self.c_str(), nullptr, nullptr, args, environ) != 0) return -1;
  int status = 0;
  waitpid(pid, &status, 0);
  unsetenv("TONNAGE_TEST_ARG");
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::string argument() {
  const char* text = getenv("TONNAGE_TEST_ARG");
  return text ? text : "";
}

TEST_F(IpcTest, MemoryOpensInAnotherProcessOnly) {
  CUdeviceptr address = 0;
  CU_OK(CU(cuMemAlloc_v2)(&address, 8 * kMiB));
  const uint64_t before = used_here();
  CUipcMemHandle handle;
  CU_OK(CU(cuIpcGetMemHandle)(&handle, address));
  CUdeviceptr opened = 0;
  CU_FAILS(CUDA_ERROR_INVALID_CONTEXT,
           CU(cuIpcOpenMemHandle_v2)(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  EXPECT_EQ(0, run_other("OpensMemory", hex(&handle, sizeof handle)));
  EXPECT_EQ(before, used_here());
  CU_OK(CU(cuMemFree_v2)(address));
}

TEST_F(IpcTest, ANewAllocationHasANewHandle) {
  CUdeviceptr address = 0, again = 0;
  CUipcMemHandle first, second;
  CU_OK(CU(cuMemAlloc_v2)(&address, 32 * kMiB));
  CU_OK(CU(cuIpcGetMemHandle)(&first, address));
  CU_OK(CU(cuMemFree_v2)(address));
  CU_OK(CU(cuMemAlloc_v2)(&again, 32 * kMiB));
  ASSERT_EQ(address, again);
  CU_OK(CU(cuIpcGetMemHandle)(&second, again));
  EXPECT_NE(0, memcmp(&first, &second, sizeof first));
  CU_OK(CU(cuMemFree_v2)(again));
}

TEST_F(IpcTest, HandlesAreCheckedNotTrusted) {
  CUipcMemHandle handle = {};
  CUdeviceptr opened = 0;
  CU_FAILS(CUDA_ERROR_INVALID_VALUE,
           CU(cuIpcOpenMemHandle_v2)(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  memset(&handle, 0xff, sizeof handle);
  CU_FAILS(CUDA_ERROR_INVALID_VALUE,
           CU(cuIpcOpenMemHandle_v2)(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuIpcGetMemHandle)(&handle, 12345));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuIpcCloseMemHandle)(12345));
  CUdeviceptr pooled = 0;
  CU_OK(CU(cuMemAllocAsync)(&pooled, kMiB, stream_));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE,
           CU(cuIpcGetMemHandle)(&handle, pooled));  // pools have a way of their own
  CU_OK(CU(cuMemFreeAsync)(pooled, stream_));
}

TEST_F(IpcTest, EventsOpenInAnotherProcess) {
  CUevent plain = nullptr, shared = nullptr;
  CUipcEventHandle handle;
  CU_OK(CU(cuEventCreate)(&plain, CU_EVENT_DISABLE_TIMING));
  CU_FAILS(CUDA_ERROR_INVALID_HANDLE, CU(cuIpcGetEventHandle)(&handle, plain));
  CU_OK(CU(cuEventCreate)(&shared, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
  CU_OK(CU(cuIpcGetEventHandle)(&handle, shared));
  EXPECT_EQ(0, run_other("OpensEvent", hex(&handle, sizeof handle)));
}

TEST_F(IpcTest, ExportedMemoryTravelsAsAFileDescriptor) {
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle memory = 0;
  CU_OK(CU(cuMemCreate)(&memory, 10 * kMiB, &prop, 0));
  int fd = -1;
  CU_OK(CU(cuMemExportToShareableHandle)(&fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  ASSERT_EQ(0, fcntl(fd, F_SETFD, 0));  // inherited
  EXPECT_EQ(0, run_other("ImportsMemory", std::to_string(fd)));
  const uint64_t before = used();
  CU_OK(CU(cuMemRelease)(memory));
  EXPECT_EQ(before - 10 * kMiB, used());  // the other process gave it back
  close(fd);
}

TEST_F(IpcTest, PoolsTravelWithTheirPointers) {
  CUmemPoolProps props = {};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemoryPool pool = nullptr;
  CU_OK(CU(cuMemPoolCreate)(&pool, &props));
  CUdeviceptr address = 0;
  CU_OK(CU(cuMemAllocFromPoolAsync)(&address, 5 * kMiB, pool, stream_));
  CUmemPoolPtrExportData data;
  CU_FAILS(CUDA_ERROR_INVALID_VALUE,
           CU(cuMemPoolExportPointer)(&data, address));  // before the pool itself
  int fd = -1;
  CU_OK(
      CU(cuMemPoolExportToShareableHandle)(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  CU_OK(CU(cuMemPoolExportPointer)(&data, address));
  ASSERT_EQ(0, fcntl(fd, F_SETFD, 0));
  EXPECT_EQ(0, run_other("ImportsPool", std::to_string(fd) + ":" + hex(&data, sizeof data)));
  CU_OK(CU(cuMemFreeAsync)(address, stream_));
  CU_OK(CU(cuMemPoolDestroy)(pool));
  close(fd);
}

TEST_F(IpcTest, PeersAreOtherDevices) {
  int can = -1;
  CU_OK(CU(cuDeviceCanAccessPeer)(&can, 0, 0));
  EXPECT_EQ(0, can);
  CU_OK(CU(cuDeviceCanAccessPeer)(&can, 0, 1));
  EXPECT_EQ(1, can);
  CU_FAILS(CUDA_ERROR_INVALID_DEVICE, CU(cuDeviceCanAccessPeer)(&can, 0, 2));
  CUcontext other = nullptr;
  CU_OK(CU(cuDevicePrimaryCtxRetain)(&other, 1));
  CU_FAILS(CUDA_ERROR_INVALID_CONTEXT, CU(cuCtxEnablePeerAccess)(context_, 0));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuCtxEnablePeerAccess)(other, 1));
  CU_FAILS(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, CU(cuCtxDisablePeerAccess)(other));
  CU_OK(CU(cuCtxEnablePeerAccess)(other, 0));
  CU_FAILS(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, CU(cuCtxEnablePeerAccess)(other, 0));
  CU_OK(CU(cuCtxDisablePeerAccess)(other));
  int value = -1;
  CU_OK(CU(cuDeviceGetP2PAttribute)(&value, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, 0, 1));
  EXPECT_EQ(1, value);
  CU_FAILS(CUDA_ERROR_INVALID_DEVICE,
           CU(cuDeviceGetP2PAttribute)(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 0));
  CU_OK(CU(cuDevicePrimaryCtxRelease_v2)(1));
}

// --- In the other process ---

using IpcOther = DriverTest;

TEST_F(IpcOther, DISABLED_OpensMemory) {
  CUipcMemHandle handle = {};
  unhex(argument(), &handle, sizeof handle);
  const uint64_t before = used();
  CUdeviceptr first = 0, second = 0, base = 0;
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuIpcOpenMemHandle_v2)(&first, handle, 0));
  CU_OK(CU(cuIpcOpenMemHandle_v2)(&first, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  CU_OK(CU(cuIpcOpenMemHandle_v2)(&second, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  EXPECT_EQ(first, second);
  EXPECT_EQ(before, used());  // no memory of its own
  size_t bytes = 0;
  CU_OK(CU(cuMemGetAddressRange_v2)(&base, &bytes, first + kMiB));
  EXPECT_EQ(8 * kMiB, bytes);
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemFree_v2)(first));
  CU_OK(CU(cuIpcCloseMemHandle)(first));
  CU_OK(CU(cuIpcCloseMemHandle)(first));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuIpcCloseMemHandle)(first));
}

TEST_F(IpcOther, DISABLED_OpensEvent) {
  CUipcEventHandle handle = {};
  unhex(argument(), &handle, sizeof handle);
  CUevent event = nullptr;
  CU_OK(CU(cuIpcOpenEventHandle)(&event, handle));
  CU_OK(CU(cuEventQuery)(event));
  CU_OK(CU(cuStreamWaitEvent)(stream_, event, 0));
  CU_OK(CU(cuEventDestroy_v2)(event));
}

TEST_F(IpcOther, DISABLED_ImportsMemory) {
  const int fd = std::stoi(argument());
  const uint64_t before = used();
  CUmemGenericAllocationHandle memory = 0;
  CU_OK(CU(cuMemImportFromShareableHandle)(&memory,
                                           reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  CUdeviceptr address = 0;
  CU_OK(CU(cuMemAddressReserve)(&address, 32 * kMiB, 0, 0, 0));
  CU_OK(CU(cuMemMap)(address, 10 * kMiB, 0, memory, 0));
  EXPECT_EQ(before, used());
  CU_OK(CU(cuMemUnmap)(address, 10 * kMiB));
  CU_OK(CU(cuMemRelease)(memory));
  EXPECT_EQ(before, used());
}

TEST_F(IpcOther, DISABLED_ImportsPool) {
  const std::string text = argument();
  const size_t colon = text.find(':');
  ASSERT_NE(std::string::npos, colon);
  const int fd = std::stoi(text.substr(0, colon));
  CUmemPoolPtrExportData data = {};
  unhex(text.substr(colon + 1), &data, sizeof data);
  CUmemoryPool pool = nullptr;
  const uint64_t before = used();
  CU_OK(CU(cuMemPoolImportFromShareableHandle)(&pool,
                                               reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  CUdeviceptr address = 0;
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemAllocFromPoolAsync)(&address, kMiB, pool, stream_));
  CU_OK(CU(cuMemPoolImportPointer)(&address, pool, &data));
  EXPECT_EQ(before, used());
  CU_OK(CU(cuMemFreeAsync)(address, stream_));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemFreeAsync)(address, stream_));
  CU_OK(CU(cuMemPoolDestroy)(pool));
}

}  // namespace
}  // namespace tonnage::driver::test
