#include "image/fatbin.h"
#include "image/image_support.h"
#include "image/unpack.h"

namespace tonnage::image {
namespace {

TEST(ImageFatbin, ListsWhatNvccWrote) {
  const std::string file = fixture("kernels_zstd.fatbin");
  std::vector<Entry> entries;
  ASSERT_EQ(list_entries(bytes_of(file), &entries), kSuccess);
  ASSERT_EQ(entries.size(), 6u);
  const int sms[] = {75, 90, 90, 90, 100, 80};
  const ArchSuffix suffixes[] = {ArchSuffix::kNone,         ArchSuffix::kNone,
                                 ArchSuffix::kArchSpecific, ArchSuffix::kArchSpecific,
                                 ArchSuffix::kFamily,       ArchSuffix::kNone};
  for (size_t i = 0; i < entries.size(); ++i) {
    EXPECT_EQ(entries[i].sm, sms[i]) << i;
    EXPECT_EQ(entries[i].suffix, suffixes[i]) << i;
    EXPECT_EQ(entries[i].packing, Packing::kZstd) << i;
    EXPECT_EQ(entries[i].kind, i == 3 || i == 5 ? EntryKind::kPtx : EntryKind::kElf) << i;
  }
  EXPECT_EQ(entries[0].unpacked_bytes, 15088u);
  EXPECT_EQ(entries[0].payload.size, 3198u);
  EXPECT_EQ(entries[5].ptx_isa, 90);
  // What was packed is what nvcc writes alone.
  std::unique_ptr<uint8_t[]> owned;
  int status = -1;
  const Bytes unpacked = unpack(entries[1], &owned, &status);
  ASSERT_EQ(status, kSuccess);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(unpacked.data), unpacked.size),
            fixture("kernels_90.cubin"));
}

TEST(ImageFatbin, EveryPackingGivesTheSameKernels) {
  const std::string cubin = fixture("kernels_90.cubin");
  for (const uint64_t flags : {kFlagsPlain, kFlagsLz4, kFlagsZstd}) {
    const std::string image = FatbinBuilder().add(2, 90, flags, cubin).finish();
    int status = -1;
    const auto module = Module::open(bytes_of(image), 9, 0, &status);
    ASSERT_EQ(status, kSuccess) << flags;
    ASSERT_NE(module->kernel("bounded"), nullptr) << flags;
    EXPECT_EQ(module->kernel("bounded")->static_shared_bytes, 2400u) << flags;
    EXPECT_EQ(module->kernels().size(), 7u) << flags;
  }
}

// The rules that an H200 (driver 580) was seen to follow, and the compatibility rules of the
// programming guide.
TEST(ImageFatbin, ChoosesAsTheDriverDoes) {
  auto choose = [](std::vector<std::tuple<int, int, uint64_t>> builds, int major, int minor) {
    std::vector<Entry> entries;
    for (const auto& [kind, sm, flags] : builds) {
      Entry entry;
      entry.kind = static_cast<EntryKind>(kind);
      entry.sm = sm;
      entry.suffix = flags == kFlagsArch     ? ArchSuffix::kArchSpecific
                     : flags == kFlagsFamily ? ArchSuffix::kFamily
                                             : ArchSuffix::kNone;
      entries.push_back(entry);
    }
    const Entry* best = select_entry(entries, major, minor);
    return best ? static_cast<int>(best - entries.data()) : -1;
  };
  constexpr int kPtx = 1, kElf = 2;
  EXPECT_EQ(choose({{kElf, 80, kFlagsPlain},
                    {kElf, 86, kFlagsPlain},
                    {kElf, 89, kFlagsPlain},
                    {kElf, 90, kFlagsPlain}},
                   8, 6),
            1);
  EXPECT_EQ(choose({{kElf, 80, kFlagsPlain}, {kElf, 86, kFlagsPlain}}, 8, 9), 1);
  EXPECT_EQ(choose({{kElf, 86, kFlagsPlain}, {kElf, 80, kFlagsPlain}}, 8, 0), 1);
  EXPECT_EQ(choose({{kElf, 80, kFlagsPlain}}, 9, 0), -1) << "another major";
  EXPECT_EQ(choose({{kElf, 80, kFlagsPlain}, {kPtx, 80, kFlagsPlain}}, 9, 0), 1);
  EXPECT_EQ(choose({{kPtx, 80, kFlagsPlain}, {kPtx, 90, kFlagsPlain}}, 9, 0), 1);
  EXPECT_EQ(choose({{kPtx, 100, kFlagsPlain}}, 9, 0), -1);
  EXPECT_EQ(choose({{kElf, 80, kFlagsPlain}, {kPtx, 86, kFlagsPlain}}, 8, 6), 0)
      << "machine code before PTX";
  EXPECT_EQ(choose({{kElf, 90, kFlagsPlain}, {kElf, 90, kFlagsArch}}, 9, 0), 1);
  EXPECT_EQ(choose({{kElf, 90, kFlagsArch}, {kElf, 90, kFlagsPlain}}, 9, 0), 0);
  EXPECT_EQ(choose({{kElf, 100, kFlagsArch}, {kElf, 100, kFlagsFamily}}, 10, 3), 1)
      << "100a runs on 10.0 alone";
  EXPECT_EQ(choose({{kElf, 103, kFlagsArch}, {kElf, 100, kFlagsFamily}}, 10, 0), 1);
  EXPECT_EQ(choose({{kPtx, 90, kFlagsArch}}, 10, 0), -1);
  EXPECT_EQ(choose({{kPtx, 90, kFlagsArch}}, 9, 0), 0);
  EXPECT_EQ(choose({{kPtx, 100, kFlagsFamily}}, 12, 0), -1);
  EXPECT_EQ(choose({}, 9, 0), -1);
}

TEST(ImageFatbin, UnknownKindsAreSkippedAndCounted) {
  const std::string image = FatbinBuilder()
                                .add(8, 90, 0x12011, "intermediate code")
                                .add(2, 90, kFlagsPlain, fixture("kernels_90.cubin"))
                                .finish();
  std::vector<Entry> entries;
  int skipped = 0;
  ASSERT_EQ(list_entries(bytes_of(image), &entries, &skipped), kSuccess);
  EXPECT_EQ(entries.size(), 1u);
  EXPECT_EQ(skipped, 1);
}

TEST(ImageFatbin, SizesThatReachOutsideAreRefused) {
  const std::string good =
      FatbinBuilder().add(2, 90, kFlagsZstd, fixture("kernels_90.cubin")).finish();
  auto with = [&good](size_t offset, uint64_t value, int bytes) {
    std::string image = good;
    for (int i = 0; i < bytes; ++i)
      image[offset + static_cast<size_t>(i)] = static_cast<char>(value >> (8 * i));
    return open_status(image, 9, 0);
  };
  EXPECT_EQ(with(0, 0x1234, 4), kInvalidImage);       // magic
  EXPECT_EQ(with(6, 3, 2), kInvalidImage);            // the header's own size
  EXPECT_EQ(with(8, good.size(), 8), kInvalidImage);  // all entries
  EXPECT_EQ(with(8, UINT64_MAX - 4, 8), kInvalidImage);
  EXPECT_EQ(with(16 + 4, 8, 4), kInvalidImage);  // an entry's header
  EXPECT_EQ(with(16 + 4, UINT32_MAX, 4), kInvalidImage);
  EXPECT_EQ(with(16 + 8, UINT64_MAX - 63, 8), kInvalidImage);
  EXPECT_EQ(with(16 + 16, UINT32_MAX, 4), kInvalidImage);  // packed size
  EXPECT_EQ(with(16 + 56, UINT64_MAX, 8), kInvalidImage);  // unpacked size: not allocated
  EXPECT_EQ(with(16 + 56, 100, 8), kInvalidImage);         // too small
  EXPECT_EQ(with(16 + 64 + 100, 0xdeadbeef, 4), kInvalidImage);
}

// Bytes changed anywhere, and images cut anywhere, end in a status and never outside the buffer
// (run it with ASan).
TEST(ImageFatbin, DamagedImagesAreSurvived) {
  const std::string files[] = {
      fixture("kernels_90.cubin"), fixture("kernels_zstd.fatbin"), fixture("kernels_80.ptx"),
      FatbinBuilder().add(2, 90, kFlagsLz4, fixture("kernels_90.cubin")).finish()};
  uint32_t random = 12345;
  auto next = [&random] { return random = random * 1664525u + 1013904223u, random >> 8; };
  int opened = 0, refused = 0;
  for (const std::string& file : files) {
    for (int round = 0; round < 400; ++round) {
      std::string image = file;
      const uint32_t changes = next() % 6;
      for (uint32_t i = 0; i < changes; ++i)
        image[next() % image.size()] = static_cast<char>(next());
      if (round % 3 == 0) image.resize(next() % image.size());
      const std::vector<uint8_t> exact(image.begin(), image.end());  // no slack behind the end
      int status = -1;
      const auto module = Module::open(Bytes{exact.data(), exact.size()}, 9, 0, &status);
      (module ? opened : refused)++;
      if (!module) continue;
      for (const KernelInfo& kernel : module->kernels())
        EXPECT_EQ(module->kernel(kernel.name)->name, kernel.name);
    }
  }
  EXPECT_GT(opened, 100);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace tonnage::image
