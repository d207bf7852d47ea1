#include <algorithm>
#include <thread>

#include "image/image_support.h"

namespace tonnage::image {
namespace {

TEST(ImageModule, FollowsCallsThroughAddresses) {
  const std::string file = fixture("reports_90.cubin");
  int status = -1;
  const auto module = Module::open(bytes_of(file), 9, 0, &status);
  ASSERT_EQ(status, kSuccess);
  ASSERT_EQ(module->kernels().size(), 2u);
  EXPECT_TRUE(module->kernel("through_table")->calls_reporter);
  EXPECT_FALSE(module->kernel("alone")->calls_reporter);
  EXPECT_EQ(module->code()->functions, 2u);
  // The same with the pairs of a table's possible targets taken away, as where nvlink does not know
  // them.
  std::string unresolved = file;
  const char marker[] = {0, 0, 0, 0, '\xfc', '\xff', '\xff', '\xff'};
  const size_t pairs = unresolved.find(std::string(marker, sizeof marker));
  ASSERT_NE(pairs, std::string::npos);
  std::fill_n(unresolved.begin() + static_cast<long>(pairs) + 8, 16, '\0');
  const auto without = Module::open(bytes_of(unresolved), 9, 0, &status);
  ASSERT_EQ(status, kSuccess);
  EXPECT_TRUE(without->kernel("through_table")->calls_reporter);
  EXPECT_FALSE(without->kernel("alone")->calls_reporter);
}

TEST(ImageModule, ReadsEveryResourceOfAKernel) {
  const std::string file = fixture("kernels_90.cubin");
  int status = -1;
  const auto module = Module::open(bytes_of(file), 9, 0, &status);
  ASSERT_EQ(status, kSuccess);
  ASSERT_EQ(module->kernels().size(), 7u);

  const KernelInfo* bounded = module->kernel("bounded");
  ASSERT_NE(bounded, nullptr);
  EXPECT_EQ(bounded->max_threads, 192);
  EXPECT_EQ(bounded->static_shared_bytes, 2400u);  // 300 doubles, without the system's 1024
  EXPECT_EQ(bounded->barriers, 1);
  EXPECT_EQ(bounded->code_bytes, 0x200u);

  const KernelInfo* plain = module->kernel("plain");
  ASSERT_NE(plain, nullptr);
  EXPECT_EQ(plain->max_threads, 0);
  EXPECT_EQ(plain->static_shared_bytes, 0u);
  EXPECT_EQ(plain->const_bytes, 72u);
  EXPECT_EQ(plain->param_bytes, 12u);
  ASSERT_EQ(plain->params.size(), 2u);
  EXPECT_EQ(plain->params[1].offset_bytes, 8u);
  EXPECT_EQ(plain->params[1].size_bytes, 4u);
  EXPECT_EQ(plain->ptx_version, 90);
  EXPECT_EQ(plain->binary_version, 90);
  EXPECT_FALSE(plain->is_estimate);

  EXPECT_EQ(module->kernel("locals")->local_bytes, 256u);
  EXPECT_EQ(module->kernel("dynamic")->static_shared_bytes, 0u);

  const KernelInfo* params = module->kernel("params");
  ASSERT_EQ(params->params.size(), 4u);
  const uint32_t offsets[] = {0, 8, 16, 20}, sizes[] = {1, 8, 3, 4};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(params->params[i].offset_bytes, offsets[i]) << i;
    EXPECT_EQ(params->params[i].size_bytes, sizes[i]) << i;
  }
  EXPECT_EQ(params->param_bytes, 24u);

  const KernelInfo* clustered = module->kernel("clustered");
  EXPECT_EQ(clustered->required_cluster[0], 4);
  EXPECT_EQ(clustered->required_cluster[1], 2);
  EXPECT_EQ(clustered->required_cluster[2], 1);
  EXPECT_TRUE(clustered->explicit_cluster);

  EXPECT_NE(module->kernel("_Z6hiddenPf"), nullptr) << "local symbols are kernels too";
  EXPECT_EQ(module->kernel("absent"), nullptr);
  EXPECT_EQ(module->kernel(""), nullptr);
}

TEST(ImageModule, ReadsVariables) {
  const std::string file = fixture("kernels_90.cubin");
  int status = -1;
  const auto module = Module::open(bytes_of(file), 9, 0, &status);
  ASSERT_EQ(status, kSuccess);
  ASSERT_EQ(module->globals().size(), 3u);
  EXPECT_EQ(module->global("coefficients")->size_bytes, 72u);
  EXPECT_TRUE(module->global("coefficients")->is_constant);
  EXPECT_EQ(module->global("counter")->size_bytes, 4u);
  EXPECT_EQ(module->global("results")->size_bytes, 800u);
  EXPECT_FALSE(module->global("results")->is_constant);
  EXPECT_EQ(module->code()->variable_bytes, 804u);
  // .text: 180 + 100 + 200 + 180 + 1000 + 200 + 300 (hexadecimal, readelf)
  EXPECT_EQ(module->code()->code_bytes, 0x1b00u);
  EXPECT_EQ(module->loaded_bytes(),
            module->code()->code_bytes + 804 + module->code()->constant_bytes);
}

TEST(ImageModule, OldLayoutsAndNewer) {
  for (const char* name : {"kernels_75.cubin", "kernels_100f.cubin"}) {
    const std::string file = fixture(name);
    const bool old = std::string(name) == "kernels_75.cubin";
    int status = -1;
    const auto module = Module::open(bytes_of(file), old ? 7 : 10, old ? 5 : 0, &status);
    ASSERT_EQ(status, kSuccess) << name;
    ASSERT_NE(module->kernel("bounded"), nullptr) << name;
    EXPECT_EQ(module->kernel("bounded")->static_shared_bytes, 2400u) << name;
    EXPECT_EQ(module->kernel("bounded")->max_threads, 192) << name;
    EXPECT_EQ(module->kernel("plain")->const_bytes, 72u) << name;
    EXPECT_GT(module->kernel("plain")->registers, 4) << name;
    EXPECT_EQ(module->kernel("locals")->local_bytes, 256u) << name;
    EXPECT_EQ(module->kernel("plain")->binary_version, old ? 75 : 100) << name;
  }
}

// As an H200 with driver 580 answered cuModuleLoadData for each.
TEST(ImageModule, StatusForWhatCannotRun) {
  const std::string cubin = fixture("kernels_90.cubin");
  EXPECT_EQ(open_status(cubin, 9, 0), kSuccess);
  EXPECT_EQ(open_status(cubin, 8, 0), kNoBinaryForGpu);
  EXPECT_EQ(open_status(cubin, 10, 0), kNoBinaryForGpu);
  EXPECT_EQ(open_status(fixture("kernels_90a.cubin"), 9, 0), kSuccess);
  EXPECT_EQ(open_status(fixture("kernels_100f.cubin"), 10, 3), kSuccess);
  EXPECT_EQ(open_status(fixture("kernels_100f.cubin"), 9, 0), kNoBinaryForGpu);
  EXPECT_EQ(open_status(FatbinBuilder().add(2, 80, kFlagsPlain, cubin).finish(), 9, 0),
            kNoBinaryForGpu);
  EXPECT_EQ(open_status(FatbinBuilder().add(1, 100, kFlagsPlain, "").finish(), 9, 0),
            kNoBinaryForGpu);
  EXPECT_EQ(open_status("hello, this is no PTX", 9, 0), kInvalidImage);
  EXPECT_EQ(open_status(std::string("\x01\x02\x03\x04\x05\x06\x07\x08", 8), 9, 0), kInvalidImage);
  EXPECT_EQ(open_status(cubin.substr(0, 3000), 9, 0), kInvalidImage);
  EXPECT_EQ(open_status(".version 8.0\n.target sm_100\n.address_size 64\n", 9, 0), kInvalidPtx);
  EXPECT_EQ(open_status("// empty\n.version 8.0", 9, 0), kInvalidPtx);
  EXPECT_EQ(open_status(".version 99.0\n.target sm_90\n.address_size 64\n", 9, 0), kUnsupportedPtx);
}

TEST(ImageModule, ChoosesInsideAFatbin) {
  const std::string file = fixture("kernels_zstd.fatbin");
  int sm = 0;
  EntryKind kind = EntryKind::kElf;
  EXPECT_EQ(open_status(file, 9, 0, &sm, &kind), kSuccess);
  EXPECT_EQ(sm, 90);
  EXPECT_EQ(open_status(file, 7, 5, &sm, &kind), kSuccess);
  EXPECT_EQ(sm, 75);
  EXPECT_EQ(open_status(file, 8, 9, &sm, &kind), kSuccess);
  EXPECT_EQ(sm, 80);
  EXPECT_EQ(kind, EntryKind::kPtx);
  EXPECT_EQ(open_status(file, 7, 0, &sm, &kind), kNoBinaryForGpu);
  const std::string plain = fixture("kernels_speed.fatbin");  // nvcc stored it unpacked
  EXPECT_EQ(open_status(plain, 8, 9, &sm, &kind), kSuccess);
  EXPECT_EQ(sm, 86);
  EXPECT_EQ(open_status(plain, 8, 0, &sm, &kind), kNoBinaryForGpu);
}

// .reqntid is no launch bound for a driver: an H200 answers 1024 for it and the product for .maxntid.
TEST(ImageModule, LaunchBoundsAreMaxntidAlone) {
  const std::string text =
      ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry a() .reqntid 128 { ret; }\n"
      ".visible .entry b() .maxntid 96, 2, 1 { ret; }\n";
  int status = -1;
  const auto module = Module::open(bytes_of(text), 9, 0, &status);
  ASSERT_EQ(status, kSuccess);
  EXPECT_EQ(module->kernel("a")->max_threads, 0);
  EXPECT_EQ(module->kernel("a")->required_block[0], 128);
  EXPECT_EQ(module->kernel("b")->max_threads, 192);
}

TEST(ImageModule, RuntimeParts) {
  const std::string file = fixture("runtime_90.cubin");
  int status = -1;
  const auto module = Module::open(bytes_of(file), 9, 0, &status);
  ASSERT_EQ(status, kSuccess);
  EXPECT_TRUE(module->code()->uses_printf);
  EXPECT_TRUE(module->code()->uses_assert);
  EXPECT_TRUE(module->code()->uses_malloc);
  EXPECT_TRUE(module->code()->has_managed);
  EXPECT_TRUE(module->global("shared_counter")->is_managed);
  EXPECT_TRUE(module->kernel("uses")->calls_reporter);
  EXPECT_TRUE(module->kernel("through")->calls_reporter);
  EXPECT_FALSE(module->kernel("quiet")->calls_reporter);
  EXPECT_TRUE(module->kernel("uses")->calls_malloc);
  EXPECT_FALSE(module->kernel("through")->calls_malloc || module->kernel("quiet")->calls_malloc);
  EXPECT_FALSE(module->code()->relocatable);
  const std::string other = fixture("kernels_90.cubin");
  const auto without = Module::open(bytes_of(other), 9, 0, &status);
  EXPECT_FALSE(without->code()->uses_printf || without->code()->uses_assert ||
               without->code()->uses_malloc || without->code()->has_managed);
}

TEST(ImageModule, PointersWithoutLength) {
  const std::string cubin = fixture("kernels_90.cubin"), fat = fixture("kernels_zstd.fatbin"),
                    ptx = fixture("kernels_80.ptx");
  struct {
    uint32_t magic = kWrapperMagic, version = 1;
    const void* data;
    const void* file = nullptr;
  } wrapper;
  wrapper.data = fat.data();
  for (const void* data :
       {static_cast<const void*>(cubin.data()), static_cast<const void*>(fat.data()),
        static_cast<const void*>(ptx.c_str()), static_cast<const void*>(&wrapper)}) {
    int status = -1;
    const auto module = Module::open(data, 9, 0, &status);
    ASSERT_EQ(status, kSuccess);
    EXPECT_NE(module->kernel("bounded"), nullptr);
  }
  int status = -1;
  EXPECT_EQ(Module::open(nullptr, 9, 0, &status), nullptr);
  EXPECT_EQ(status, kInvalidImage);
  // A pointer inside bytes of known length is not followed.
  EXPECT_EQ(Module::open(Bytes{reinterpret_cast<const uint8_t*>(&wrapper), sizeof wrapper}, 9, 0,
                         &status),
            nullptr);
  EXPECT_EQ(status, kInvalidImage);
}

TEST(ImageModule, CallersBytesMayGoAway) {
  int status = -1;
  std::unique_ptr<Module> module;
  {
    std::string file = fixture("kernels_zstd.fatbin");
    module =
        Module::open(static_cast<const void*>(file.data()), 9, 0, &status);  // heap: read at once
    ASSERT_EQ(status, kSuccess);
    std::fill(file.begin(), file.end(), '\x5a');
  }
  EXPECT_EQ(module->kernel("bounded")->max_threads, 192);
}

TEST(ImageModule, ManyThreadsReadOnce) {
  const std::string file = fixture("kernels_zstd.fatbin");
  int status = -1;
  const auto module = Module::open(bytes_of(file), 9, 0, &status, Keep::kForever);
  ASSERT_EQ(status, kSuccess);
  const uint64_t before = module->loaded_bytes();
  std::vector<const KernelInfo*> seen(8);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < seen.size(); ++i)
    threads.emplace_back([&, i] { seen[i] = module->kernel("plain"); });
  for (std::thread& thread : threads) thread.join();
  for (const KernelInfo* kernel : seen) EXPECT_EQ(kernel, seen[0]);
  EXPECT_EQ(before, 19296u) << "before reading: the unpacked size";
  EXPECT_LT(module->loaded_bytes(), before);
}

TEST(ImageModule, DamagedEntriesFailWhenRead) {
  std::string image = FatbinBuilder().add(2, 90, kFlagsZstd, fixture("kernels_90.cubin")).finish();
  for (size_t i = 100; i < 400; ++i) image[16 + 64 + i] = 0;
  int status = -1;
  const auto module = Module::open(bytes_of(image), 9, 0, &status, Keep::kForever);
  ASSERT_EQ(status, kSuccess) << "headers are whole";
  EXPECT_EQ(module->code(&status), nullptr);
  EXPECT_EQ(status, kInvalidImage);
  EXPECT_EQ(module->kernel("plain"), nullptr);
  EXPECT_TRUE(module->kernels().empty());
}

TEST(ImageModule, PtxIsScanned) {
  const std::string text = fixture("kernels_80.ptx");
  int status = -1;
  const auto module = Module::open(bytes_of(text), 9, 0, &status);
  ASSERT_EQ(status, kSuccess);
  ASSERT_NE(module->kernel("bounded"), nullptr);
  EXPECT_EQ(module->kernel("bounded")->max_threads, 192);
  EXPECT_EQ(module->kernel("bounded")->static_shared_bytes, 2400u);
  EXPECT_TRUE(module->kernel("bounded")->is_estimate);
  const KernelInfo* params = module->kernel("params");
  ASSERT_EQ(params->params.size(), 4u);
  const uint32_t offsets[] = {0, 8, 16, 20}, sizes[] = {1, 8, 3, 4};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(params->params[i].offset_bytes, offsets[i]) << i;
    EXPECT_EQ(params->params[i].size_bytes, sizes[i]) << i;
  }
  EXPECT_EQ(params->ptx_version, 80);
  EXPECT_EQ(params->binary_version, 90);
  EXPECT_EQ(module->kernel("locals")->local_bytes, 256u);
  EXPECT_EQ(module->global("coefficients")->size_bytes, 72u);
  EXPECT_TRUE(module->global("coefficients")->is_constant);
  EXPECT_EQ(module->global("counter")->size_bytes, 4u);
  EXPECT_EQ(module->global("results")->size_bytes, 800u);
}

TEST(ImageModule, PtxDirectives) {
  const std::string text = R"(
    // a comment with .entry fake
    .version 8.3
    .target sm_90a, debug
    .address_size 64
    .extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
    .global .align 16 .b8 table[48] = {1, 2, 3};
    .const .align 8 .f64 weights[4];
    .visible .entry one(.param .align 16 .b8 blob[40], .param .u64 .ptr .global .align 8 p, .param .v2 .f32 pair)
      .maxntid 32, 4, 2 .maxnreg 24 { .shared .align 4 .b8 s[100]; .shared .f64 t; ret; }
    .weak .entry two() .reqntid 64 .reqnctapercluster 2, 2 { { ret; } }
  )";
  int status = -1;
  const auto module = Module::open(bytes_of(text), 9, 0, &status);
  ASSERT_EQ(status, kSuccess);
  ASSERT_EQ(module->kernels().size(), 2u);
  const KernelInfo* one = module->kernel("one");
  EXPECT_EQ(one->max_threads, 256);
  EXPECT_LE(one->registers, 24);
  EXPECT_EQ(one->static_shared_bytes, 112u);
  ASSERT_EQ(one->params.size(), 3u);
  EXPECT_EQ(one->params[1].offset_bytes, 40u);
  EXPECT_EQ(one->params[2].offset_bytes, 48u);
  EXPECT_EQ(one->params[2].size_bytes, 8u);
  const KernelInfo* two = module->kernel("two");
  EXPECT_EQ(two->required_block[0], 64);
  EXPECT_EQ(two->required_cluster[1], 2);
  EXPECT_EQ(module->global("table")->size_bytes, 48u);
  EXPECT_EQ(module->global("weights")->size_bytes, 32u);
  EXPECT_EQ(open_status(text, 10, 0), kInvalidPtx) << "sm_90a";
}

}  // namespace
}  // namespace tonnage::image
