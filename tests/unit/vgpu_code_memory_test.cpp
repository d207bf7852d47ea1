// What machine code takes of the card, and when: tests/data/image/runtime.cu has a kernel that asserts, prints and allocates.
#include <fstream>
#include <iterator>
#include <vector>

#include "vgpu_driver.h"

namespace tonnage::vgpu::test {
namespace {

class CodeMemoryTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    std::ifstream file(std::string(TONNAGE_SOURCE_DIR) + "/tests/data/image/runtime_90.cubin", std::ios::binary);
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

// The figures are an H200's, for a program with the same kernels: printf 62 MiB, assertions 28, malloc 48, variables 2; and
// 10 MiB for malloc's heap.
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
  // Room for reports costs the card nothing, but 10 MiB of addresses: a hole of just that size is gone after the launch.
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
  CU_OK(CU(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&blocks, reinterpret_cast<CUfunction>(kernel), 32, 0));
  EXPECT_EQ(kWithFirstKernel, taken());
}

}  // namespace
}  // namespace tonnage::vgpu::test
