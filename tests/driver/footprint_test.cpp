// What machine code takes of the card, and when: tests/data/image/runtime.cu has a kernel that
// asserts, prints and allocates.
#include <fstream>
#include <iterator>
#include <vector>

#include "driver/driver_library.h"
#include "image/image.h"
#include "image/resident.h"

namespace tonnage::driver::test {
namespace {

class CodeMemoryTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    std::ifstream file(std::string(TONNAGE_SOURCE_DIR) + "/tests/data/image/runtime_90.cubin",
                       std::ios::binary);
    image_.assign(std::istreambuf_iterator<char>(file), {});
    ASSERT_FALSE(image_.empty());
    before_ = used();
  }
  uint64_t taken() { return used() - before_; }
  void launch(CUfunction function) {
    CUdeviceptr null = 0;
    void* arguments[] = {&null};
    CU_OK(CU(cuLaunchKernel)(function, 1, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr));
  }

  std::vector<char> image_;
  uint64_t before_ = 0;
};

// The figures are an H200's, for a program with the same kernels: printf 62 MiB, assertions 28,
// malloc 48, variables 2; and 10 MiB for malloc's heap.
constexpr uint64_t kWithFirstKernel = 146800640, kHeap = 10485760;

TEST_F(CodeMemoryTest, ComesWithTheFirstHandleAndTheFirstLaunch) {
  CUmodule module = nullptr;
  CU_OK(CU(cuModuleLoadData)(&module, image_.data()));
  EXPECT_EQ(0u, taken());
  CUfunction quiet = nullptr, through = nullptr, uses = nullptr;
  CU_OK(CU(cuModuleGetFunction)(&quiet, module, "quiet"));
  EXPECT_EQ(kWithFirstKernel, taken());
  launch(quiet);
  CU_OK(CU(cuModuleGetFunction)(&through, module, "through"));
  CU_OK(CU(cuModuleGetFunction)(&uses, module, "uses"));
  EXPECT_EQ(kWithFirstKernel, taken());
  // Room for reports costs the card nothing, but 10 MiB of addresses: a hole of just that size is
  // gone after the launch.
  CUdeviceptr hole = 0, above = 0, again = 0;
  CU_OK(CU(cuMemAlloc_v2)(&hole, 10 << 20));
  CU_OK(CU(cuMemAlloc_v2)(&above, 2 << 20));
  CU_OK(CU(cuMemFree_v2)(hole));
  launch(through);
  CU_OK(CU(cuMemAlloc_v2)(&again, 10 << 20));
  EXPECT_NE(hole, again);
  CU_OK(CU(cuMemFree_v2)(again));
  CU_OK(CU(cuMemFree_v2)(above));
  EXPECT_EQ(kWithFirstKernel, taken());
  launch(uses);
  launch(uses);
  EXPECT_EQ(kWithFirstKernel + kHeap, taken());
}

TEST_F(CodeMemoryTest, ALibrarysKernelComesWithItsOccupancy) {
  CUlibrary library = nullptr;
  CU_OK(CU(cuLibraryLoadData)(&library, image_.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUkernel kernel = nullptr;
  CU_OK(CU(cuLibraryGetKernel)(&kernel, library, "quiet"));
  EXPECT_EQ(0u, taken());
  int blocks = 0;
  CU_OK(CU(cuOccupancyMaxActiveBlocksPerMultiprocessor)(
      &blocks, reinterpret_cast<CUfunction>(kernel), 32, 0));
  EXPECT_EQ(kWithFirstKernel, taken());
}

// A library's code is on every device that uses it, and each device's variables are its own.
TEST_F(CodeMemoryTest, ALibrarysKernelComesToEachDevice) {
  CUcontext other = nullptr;
  CU_OK(CU(cuDevicePrimaryCtxRetain)(&other, 1));
  CUlibrary library = nullptr;
  CU_OK(CU(cuLibraryLoadData)(&library, image_.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUkernel kernel = nullptr;
  CU_OK(CU(cuLibraryGetKernel)(&kernel, library, "quiet"));
  CUfunction function = nullptr;
  const uint64_t before_other = used(1);
  CU_OK(CU(cuKernelGetFunction)(&function, kernel));
  EXPECT_EQ(kWithFirstKernel, taken());
  EXPECT_EQ(before_other, used(1));
  CUdeviceptr here = 0, there = 0;
  CU_OK(CU(cuLibraryGetGlobal)(&here, nullptr, library, "shared_counter"));
  CU_OK(CU(cuCtxSetCurrent)(other));
  launch(reinterpret_cast<CUfunction>(kernel));
  EXPECT_EQ(before_other + kWithFirstKernel, used(1));
  EXPECT_EQ(kWithFirstKernel, taken());
  CU_OK(CU(cuLibraryGetGlobal)(&there, nullptr, library, "shared_counter"));
  EXPECT_NE(here, there);
  CU_OK(CU(cuCtxSetCurrent)(context_));
}

// Of the streams of one process on an H200: four share 2 MiB, and the 36th, the 79th and the 122nd
// take 2 MiB more. The test's own stream is the first.
TEST_F(CodeMemoryTest, StreamsTakeMemoryInTwoWays) {
  std::vector<int> more;
  for (int number = 2; number <= 130; number++) {
    const uint64_t before = used();
    CUstream stream = nullptr;
    CU_OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    const uint64_t shared = number % 4 == 2 ? 2 * kMiB : 0;
    if (used() - before != shared) {
      EXPECT_EQ(shared + 2 * kMiB, used() - before);
      more.push_back(number);
    }
  }
  EXPECT_EQ((std::vector<int>{36, 79, 122}), more);
}

// Functions that are not in a kernel come with the first kernel of their module, once.
TEST_F(CodeMemoryTest, FunctionsComeWithTheFirstKernel) {
  std::ifstream file(std::string(TONNAGE_SOURCE_DIR) + "/tests/data/image/functions_90.cubin",
                     std::ios::binary);
  const std::vector<char> image(std::istreambuf_iterator<char>(file), {});
  ASSERT_FALSE(image.empty());
  int status = 0;
  const auto read = image::Module::open(
      image::Bytes{reinterpret_cast<const uint8_t*>(image.data()), image.size()}, 9, 0, &status);
  ASSERT_TRUE(read && read->code());
  EXPECT_EQ(2u, read->code()->functions);
  EXPECT_EQ(read->code()->code_bytes, read->code()->function_bytes +
                                          read->kernel("calls")->code_bytes +
                                          read->kernel("alone")->code_bytes);
  // Modules until the pool of code is full: with their functions, fewer fit than by their kernels
  // alone.
  const uint64_t module_bytes = image::resident_function_bytes(*read->code()) +
                                image::resident_code_bytes(*read->kernel("alone"));
  int modules = 0;
  for (uint64_t variables = 0; taken() - variables == 0; modules++) {
    CUmodule module = nullptr;
    CU_OK(CU(cuModuleLoadData)(&module, image.data()));
    CUdeviceptr table = 0;
    CU_OK(CU(cuModuleGetGlobal_v2)(&table, nullptr, module, "table"));
    variables = taken();
    CUfunction alone = nullptr;
    CU_OK(CU(cuModuleGetFunction)(&alone, module, "alone"));
  }
  EXPECT_EQ(static_cast<int>(image::kFirstCodeChunkFree / module_bytes) + 1, modules);
}

}  // namespace
}  // namespace tonnage::driver::test
