// Memory, pointers, copies, contexts, streams and events of the virtual driver, through its
// exported functions.
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <regex>
#include <sstream>
#include <thread>
#include <vector>

#include "driver/driver_library.h"

namespace tonnage::driver::test {
namespace {

class MemoryTest : public DriverTest {};

TEST(EntryPoints, EveryFunctionOfTheHeaderIsThere) {
  std::ifstream header(std::string(TONNAGE_CUDA_INCLUDE) + "/cuda.h");
  ASSERT_TRUE(header);
  std::stringstream text;
  text << header.rdbuf();
  const std::string body = text.str();
  const std::regex declared("CUDAAPI\\s+(cu[A-Z]\\w+)\\s*\\(");
  int count = 0;
  for (std::sregex_iterator it(body.begin(), body.end(), declared), end; it != end; ++it, ++count) {
    const std::string name = (*it)[1];
    EXPECT_NE(nullptr, dlsym(library(), name.c_str())) << name;
  }
  EXPECT_GT(count, 500);
}

TEST(EntryPoints, AnswerByNameAndVersion) {
  CU_OK(CU(cuInit)(0));
  void* old_one = nullptr;
  void* new_one = nullptr;
  CUdriverProcAddressQueryResult status{};
  CU_OK(CU(cuGetProcAddress_v2)("cuCtxCreate", &old_one, 11040, 0, &status));
  EXPECT_EQ(old_one, dlsym(library(), "cuCtxCreate_v3"));
  CU_OK(CU(cuGetProcAddress_v2)("cuCtxCreate", &new_one, 13000, 0, &status));
  EXPECT_EQ(new_one, dlsym(library(), "cuCtxCreate_v4"));
  CU_FAILS(CUDA_ERROR_NOT_FOUND,
           CU(cuGetProcAddress_v2)("cuMemPoolCreate", &new_one, 11000, 0, &status));
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  CU_FAILS(CUDA_ERROR_NOT_FOUND,
           CU(cuGetProcAddress_v2)("cuNoSuchFunction", &new_one, 13000, 0, &status));
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  EXPECT_EQ(new_one, nullptr);
}

TEST_F(MemoryTest, TakesGranulesAndGivesThemBack) {
  const uint64_t before = used();
  CUdeviceptr address = 0;
  CU_OK(CU(cuMemAlloc_v2)(&address, 5 * kMiB));
  EXPECT_EQ(used(), before + 6 * kMiB);
  EXPECT_EQ(address % (2 * kMiB), 0u);
  CU_OK(CU(cuMemFree_v2)(address));
  EXPECT_EQ(used(), before);
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemFree_v2)(address));
  CU_OK(CU(cuMemFree_v2)(0));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemAlloc_v2)(&address, 0));
}

TEST_F(MemoryTest, SmallOnesShareAGranule) {
  const uint64_t before = used();
  std::vector<CUdeviceptr> addresses(100);
  for (auto& address : addresses) CU_OK(CU(cuMemAlloc_v2)(&address, 1000));
  EXPECT_LE(used(), before + 2 * kMiB);
  for (size_t i = 1; i < addresses.size(); i++) EXPECT_GE(addresses[i] - addresses[i - 1], 1000u);
  for (auto address : addresses) CU_OK(CU(cuMemFree_v2)(address));
  EXPECT_EQ(used(), before);
}

TEST_F(MemoryTest, RunsOutAsTheCardDoes) {
  size_t free_bytes = 0, total = 0;
  CU_OK(CU(cuMemGetInfo_v2)(&free_bytes, &total));
  EXPECT_EQ(total, kCardBytes);
  CUdeviceptr all = 0, more = 0;
  CU_FAILS(CUDA_ERROR_OUT_OF_MEMORY, CU(cuMemAlloc_v2)(&all, free_bytes + 1));
  CU_OK(CU(cuMemAlloc_v2)(&all, free_bytes));
  CU_FAILS(CUDA_ERROR_OUT_OF_MEMORY, CU(cuMemAlloc_v2)(&more, 2 * kMiB));
  EXPECT_EQ(more, 0u);
  CU_OK(CU(cuMemFree_v2)(all));
}

TEST_F(MemoryTest, TortureAgainstAPlainAccount) {
  std::map<CUdeviceptr, size_t> live;
  const uint64_t before = used();
  std::mt19937 random(11);
  for (int i = 0; i < 4000; i++) {
    if (!live.empty() && (random() % 2 || live.size() > 60)) {
      auto victim = live.begin();
      std::advance(victim, static_cast<long>(random() % live.size()));
      CU_OK(CU(cuMemFree_v2)(victim->first));
      live.erase(victim);
    } else {
      const size_t bytes = random() % 4 ? 1 + random() % (40 * kMiB) : 1 + random() % 100000;
      CUdeviceptr address = 0;
      CU_OK(CU(cuMemAlloc_v2)(&address, bytes));
      auto after = live.lower_bound(address);
      if (after != live.end()) {
        ASSERT_LE(address + bytes, after->first);
      }
      if (after != live.begin()) {
        ASSERT_LE(std::prev(after)->first + std::prev(after)->second, address);
      }
      live[address] = bytes;
    }
    if (i % 97 == 0 && !live.empty()) {
      CUdeviceptr base = 0;
      size_t size = 0;
      CU_OK(CU(cuMemGetAddressRange_v2)(&base, &size,
                                        live.begin()->first + live.begin()->second - 1));
      EXPECT_EQ(base, live.begin()->first);
      EXPECT_EQ(size, live.begin()->second);
    }
  }
  for (auto& [address, bytes] : live) CU_OK(CU(cuMemFree_v2)(address));
  EXPECT_EQ(used(), before);
}

TEST_F(MemoryTest, PointersSayWhatTheyAre) {
  CUdeviceptr device = 0;
  void* host = nullptr;
  CU_OK(CU(cuMemAlloc_v2)(&device, kMiB));
  CU_OK(CU(cuMemHostAlloc)(&host, 4096, 0));
  unsigned type = 0;
  int ordinal = -1;
  CU_OK(CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device + 100));
  EXPECT_EQ(type, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
  CU_OK(CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                  reinterpret_cast<CUdeviceptr>(host)));
  EXPECT_EQ(type, static_cast<unsigned>(CU_MEMORYTYPE_HOST));
  int local = 0;
  CU_FAILS(CUDA_ERROR_INVALID_VALUE,
           CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                     reinterpret_cast<CUdeviceptr>(&local)));
  CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void* answers[] = {&type, &ordinal};
  CU_OK(CU(cuPointerGetAttributes)(2, wanted, answers, reinterpret_cast<CUdeviceptr>(&local)));
  EXPECT_EQ(type, 0u);
  EXPECT_EQ(ordinal, -2);
  CU_OK(CU(cuMemFreeHost)(host));
  CU_OK(CU(cuMemFree_v2)(device));
}

// Small pieces of pinned memory share blocks of 2 MiB: the sequence that an H200 answered, each
// piece at the same offset of the same block.
TEST_F(MemoryTest, PinnedMemoryIsPlacedAsOnARealCard) {
  std::ifstream file(std::string(TONNAGE_SOURCE_DIR) + "/tests/data/addresses/h200-pinned.txt");
  ASSERT_TRUE(file);
  constexpr uint64_t kBlock = 2 * kMiB;
  std::map<uint64_t, uint64_t> blocks;  // the card's -> ours
  std::map<uint64_t, void*> host;       // by the card's address
  std::vector<CUdeviceptr> device;
  std::string line;
  int compared = 0;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string kind, result, address;
    uint64_t size = 0, flags = 0;
    words >> kind;
    if (kind == "dev") {
      words >> size;
      CUdeviceptr p = 0;
      CU_OK(CU(cuMemAlloc_v2)(&p, size));
      device.push_back(p);
    } else if (kind == "host") {
      words >> size >> flags >> result >> address;
      const uint64_t real = std::stoull(address, nullptr, 16);
      void* p = nullptr;
      CU_OK(CU(cuMemHostAlloc)(&p, size, static_cast<unsigned>(flags)));
      std::memset(p, 1, size);
      host[real] = p;
      const auto ours = reinterpret_cast<uint64_t>(p);
      EXPECT_EQ(ours % kBlock, real % kBlock) << line;
      if (size > kMiB) continue;
      const auto known = blocks.emplace(real / kBlock, ours / kBlock).first;
      EXPECT_EQ(known->second, ours / kBlock) << line;
      compared++;
    } else if (kind == "freehost") {
      words >> result >> address;
      const uint64_t real = std::stoull(address, nullptr, 16);
      CU_OK(CU(cuMemFreeHost)(host.at(real)));
      host.erase(real);
    }
  }
  EXPECT_GT(compared, 70);
  for (auto& [real, p] : host) CU_OK(CU(cuMemFreeHost)(p));
  for (CUdeviceptr p : device) CU_OK(CU(cuMemFree_v2)(p));
}

TEST_F(MemoryTest, CopiesCarryWhatIsKnown) {
  CUdeviceptr a = 0, b = 0;
  CU_OK(CU(cuMemAlloc_v2)(&a, kMiB));
  CU_OK(CU(cuMemAlloc_v2)(&b, kMiB));
  const std::vector<int> up = {1, 2, 3, 4};
  std::vector<int> down(4, 9);
  CU_OK(CU(cuMemcpyHtoD_v2)(a, up.data(), 16));
  CU_OK(CU(cuMemcpyDtoDAsync_v2)(b + 64, a, 16, stream_));
  CU_OK(CU(cuMemcpyDtoH_v2)(down.data(), b + 64, 16));
  EXPECT_EQ(down, up);
  CU_OK(CU(cuMemcpyDtoH_v2)(down.data(), b, 16));  // unknown: zeros
  EXPECT_EQ(down, std::vector<int>(4, 0));
  CU_OK(CU(cuMemsetD32Async)(b, 7, 2, stream_));
  CU_OK(CU(cuMemcpyDtoH_v2)(down.data(), b, 16));
  EXPECT_EQ(down, (std::vector<int>{7, 7, 0, 0}));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpyHtoD_v2)(a, up.data(), 10 * kMiB));
  CU_OK(CU(cuMemFree_v2)(a));
  CU_OK(CU(cuMemFree_v2)(b));
}

TEST_F(MemoryTest, AHostAccessFaults) {
  CUdeviceptr address = 0;
  CU_OK(CU(cuMemAlloc_v2)(&address, 4 * kMiB));
  EXPECT_DEATH(*reinterpret_cast<volatile int*>(address) = 1, "");
  CU_OK(CU(cuMemFree_v2)(address));
}

TEST_F(MemoryTest, ManagedMemoryIsTheHostsUntilMoved) {
  CUdeviceptr address = 0;
  const uint64_t before = used();
  CU_OK(CU(cuMemAllocManaged)(&address, 64 * kMiB, CU_MEM_ATTACH_GLOBAL));
  *reinterpret_cast<int*>(address) = 5;
  EXPECT_EQ(used(), before);
  int back = 0;
  CU_OK(CU(cuMemPrefetchAsync)(address, 64 * kMiB, 0, stream_));
  EXPECT_EQ(used(), before + 64 * kMiB);
  CU_OK(CU(cuMemPrefetchAsync)(address, 32 * kMiB, CU_DEVICE_CPU, stream_));
  EXPECT_EQ(used(), before + 32 * kMiB);
  CU_OK(CU(cuMemcpyDtoH_v2)(&back, address, 4));
  EXPECT_EQ(back, 5);
  CU_OK(CU(cuMemFree_v2)(address));
  EXPECT_EQ(used(), before);
}

TEST_F(MemoryTest, AMemsetOfManagedMemoryTakesTheCardsAndNotTheHosts) {
  CUdeviceptr address = 0;
  const uint64_t before = used();
  const size_t bytes = kCardBytes / 2;
  CU_OK(CU(cuMemAllocManaged)(&address, bytes, CU_MEM_ATTACH_GLOBAL));
  CU_OK(CU(cuMemsetD32_v2)(address, 7, bytes / 4));
  EXPECT_EQ(used(), before + bytes);
  EXPECT_EQ(reinterpret_cast<const int*>(address)[bytes / 8], 7);
  // Plain memory comes first: managed memory gives way, and does not make the card run out.
  CUdeviceptr plain = 0, larger = 0;
  CU_OK(CU(cuMemAlloc_v2)(&plain, 3 * kGiB));
  EXPECT_EQ(used(), before + 3 * kGiB);
  CU_OK(CU(cuMemFree_v2)(plain));
  CU_OK(CU(cuMemAllocManaged)(&larger, 70ull * 1000 * 1000 * 1000, CU_MEM_ATTACH_GLOBAL));
  CU_OK(CU(cuMemsetD8_v2)(larger, 3, 70ull * 1000 * 1000 * 1000));
  EXPECT_EQ(reinterpret_cast<const char*>(larger)[69ull * 1000 * 1000 * 1000], 3);
  CU_OK(CU(cuMemFree_v2)(larger));
  CU_OK(CU(cuMemFree_v2)(address));
  EXPECT_EQ(used(), before);
}

TEST_F(MemoryTest, ContextsAreAStackOfTheThread) {
  CUcontext top = nullptr, popped = nullptr;
  CU_OK(CU(cuCtxPushCurrent_v2)(context_));
  CU_OK(CU(cuCtxPopCurrent_v2)(&popped));
  EXPECT_EQ(popped, context_);
  std::thread([&] {
    EXPECT_EQ(CUDA_SUCCESS, CU(cuCtxGetCurrent)(&top));
    EXPECT_EQ(top, nullptr);
    CUdeviceptr address = 0;
    EXPECT_EQ(CUDA_ERROR_INVALID_CONTEXT, CU(cuMemAlloc_v2)(&address, kMiB));
  }).join();
  CUcontext other = nullptr;
  const uint64_t before = used(1);
  CU_OK(CU(cuCtxCreate_v2)(&other, 0, 1));
  EXPECT_EQ(used(1), before + kContextBytes);
  CUdeviceptr left = 0;
  CU_OK(CU(cuMemAlloc_v2)(&left, 8 * kMiB));
  CU_OK(CU(cuCtxDestroy_v2)(other));  // takes its memory with it
  EXPECT_EQ(used(1), before);
  CU_OK(CU(cuCtxSetCurrent)(context_));
}

TEST_F(MemoryTest, EventsTellVirtualTime) {
  CUevent start = nullptr, end = nullptr;
  CU_OK(CU(cuEventCreate)(&start, 0));
  CU_OK(CU(cuEventCreate)(&end, 0));
  float milliseconds = -1;
  CU_FAILS(CUDA_ERROR_INVALID_HANDLE, CU(cuEventElapsedTime)(&milliseconds, start, end));
  CUdeviceptr address = 0;
  CU_OK(CU(cuMemAlloc_v2)(&address, kMiB));
  CU_OK(CU(cuEventRecord)(start, stream_));
  for (int i = 0; i < 100; i++) CU_OK(CU(cuMemsetD8Async)(address, 0, 100, stream_));
  CU_OK(CU(cuEventRecord)(end, stream_));
  CU_OK(CU(cuEventElapsedTime)(&milliseconds, start, end));
  EXPECT_GT(milliseconds, 1.0f);
  EXPECT_LT(milliseconds, 100.0f);
  CU_OK(CU(cuEventDestroy_v2)(start));
  CU_OK(CU(cuEventDestroy_v2)(end));
  CU_OK(CU(cuMemFree_v2)(address));
}

TEST_F(MemoryTest, GarbageIsNoModule) {
  CUmodule module = nullptr;
  EXPECT_EQ(CUDA_ERROR_INVALID_IMAGE,
            CU(cuModuleLoadData)(&module, "this is neither machine code nor PTX"));
  EXPECT_EQ(CUDA_ERROR_FILE_NOT_FOUND, CU(cuModuleLoad)(&module, "/nonexistent.cubin"));
  CUfunction function = nullptr;
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, CU(cuModuleGetFunction)(&function, nullptr, "kernel"));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE,
            CU(cuLaunchKernel)(nullptr, 1, 1, 1, 1, 1, 1, 0, stream_, nullptr, nullptr));
}

}  // namespace
}  // namespace tonnage::driver::test
