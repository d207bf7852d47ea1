// Reads NVIDIA's and PyTorch's own libraries, where they are installed, and compares every kernel
// that a real H200 was asked about. bench/image_truth.sh runs it; without TONNAGE_SITE_PACKAGES it
// is skipped.
#include <elf.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "cards/kernel_attributes.h"
#include "image/image.h"

namespace tonnage::image {
namespace {

struct Expected {
  std::vector<std::string> fields;  // of tests/data/h200/kernel-attributes.txt, without the name
  std::set<std::string> found;      // the fields that we give, of every kernel of that name
};

struct Totals {
  int images = 0, without_code = 0;
  uint64_t kernels = 0, unpacked_bytes = 0, loaded_bytes = 0;
  double open_s = 0, read_s = 0;
};

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string given_by(const KernelInfo& info, const abi::CardDesc& card) {
  std::string out;
  const cards::KernelAttributes kernel = cards::resolve(info, cards::KernelSettings{}, card);
  for (const int attribute : {0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 15, 8}) {
    int value = -1;
    EXPECT_EQ(cards::get_kernel_attribute(kernel, attribute, &value), 0);
    out += std::to_string(value) + " ";
  }
  return out;
}

class Library {
 public:
  Library(std::map<std::string, Expected>* expected, const abi::CardDesc* card)
      : expected_(expected), card_(card) {}

  void read(const std::filesystem::path& path) {
    const int file = ::open(path.c_str(), O_RDONLY);
    struct stat status;
    if (file < 0 || fstat(file, &status) != 0) return;
    const size_t size = static_cast<size_t>(status.st_size);
    void* map = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
    ::close(file);
    if (map == MAP_FAILED) return;
    const Bytes whole{static_cast<const uint8_t*>(map), size};
    Elf64_Ehdr header;
    if (whole.read(0, &header) && std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0) {
      for (int i = 0; i < header.e_shnum; ++i) {
        Elf64_Shdr section;
        if (!whole.read(header.e_shoff + static_cast<uint64_t>(i) * header.e_shentsize, &section) ||
            section.sh_type != SHT_PROGBITS)
          continue;
        if (section.sh_flags & SHF_EXECINSTR) continue;
        const Bytes bytes = whole.piece(section.sh_offset, section.sh_size);
        if (!bytes.empty()) read_section(bytes);
      }
    }
    munmap(map, size);
  }

  const Totals& totals() const { return totals_; }

 private:
  // Fat binaries may lie anywhere among a library's data, and cuBLASLt also keeps cubins as bare
  // zstd frames.
  void read_section(Bytes section) {
    const uint8_t fat[8] = {0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0};
    const uint8_t zstd[4] = {0x28, 0xb5, 0x2f, 0xfd};
    uint64_t at = 0;
    while (at < section.size) {
      const uint8_t* start = section.data + at;
      const size_t left = section.size - at;
      const auto* found = static_cast<const uint8_t*>(memmem(start, left, fat, sizeof fat));
      const size_t until = found ? static_cast<size_t>(found - start) : left;
      read_frames(Bytes{start, until}, zstd);
      if (!found) return;
      at += until;
      uint64_t entries = 0;
      section.read(at + 8, &entries);
      take(section.piece(at, section.size - at));
      at += section.covers(at + 16, entries) ? 16 + entries : 8;
    }
  }

  void read_frames(Bytes bytes, const uint8_t (&magic)[4]) {
    uint64_t at = 0;
    while (at < bytes.size) {
      const auto* found = static_cast<const uint8_t*>(
          memmem(bytes.data + at, bytes.size - at, magic, sizeof magic));
      if (!found) return;
      at = static_cast<uint64_t>(found - bytes.data);
      const size_t packed = ZSTD_findFrameCompressedSize(found, bytes.size - at);
      const unsigned long long unpacked = ZSTD_getFrameContentSize(found, bytes.size - at);
      if (ZSTD_isError(packed) || unpacked > (1ull << 30) || unpacked < 64) {
        ++at;
        continue;
      }
      std::vector<uint8_t> image(unpacked);
      if (!ZSTD_isError(ZSTD_decompress(image.data(), image.size(), found, packed)) &&
          std::memcmp(image.data(),
                      "\x7f"
                      "ELF",
                      4) == 0) {
        take(Bytes{image.data(), image.size()});
      }
      at += packed;
    }
  }

  void take(Bytes image) {
    int status = -1;
    const double start = now_s();
    const auto module = Module::open(image, 9, 0, &status, Keep::kForever);
    const double opened = now_s();
    totals_.open_s += opened - start;
    ++totals_.images;
    if (!module) {
      EXPECT_EQ(status, kNoBinaryForGpu);
      ++totals_.without_code;
      return;
    }
    totals_.unpacked_bytes += module->entry().unpacked_bytes;
    ASSERT_NE(module->code(&status), nullptr) << status;
    totals_.read_s += now_s() - opened;
    totals_.loaded_bytes += module->loaded_bytes();
    totals_.kernels += module->kernels().size();
    for (const KernelInfo& kernel : module->kernels()) {
      const auto wanted = expected_->find(std::string(kernel.name));
      if (wanted != expected_->end()) wanted->second.found.insert(given_by(kernel, *card_));
    }
  }

  std::map<std::string, Expected>* expected_;
  const abi::CardDesc* card_;
  Totals totals_;
};

TEST(ImageTruth, EveryAnswerOfTheRealCard) {
  const char* packages = std::getenv("TONNAGE_SITE_PACKAGES");
  if (!packages)
    GTEST_SKIP() << "TONNAGE_SITE_PACKAGES names no folder with torch and nvidia packages";
  const std::string data = std::string(TONNAGE_SOURCE_DIR) + "/tests/data/";
  abi::CardDesc card;
  std::memset(&card, 0, sizeof card);
  card.cc_major = 9;
  card.register_allocation_unit = 256;
  std::ifstream attributes(data + "h200-attributes.txt");
  for (int number, value; attributes >> number >> value;) card.attributes[number] = value;

  std::map<std::string, Expected> expected;
  std::ifstream truth(data + "h200/kernel-attributes.txt");
  for (std::string line; std::getline(truth, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream in(line);
    std::vector<std::string> fields;
    for (std::string field; in >> field;) fields.push_back(field);
    ASSERT_EQ(fields.size(), 19u);
    const std::string name = fields.back();
    fields.pop_back();
    if (fields[0] != "-") expected[name].fields = fields;
  }
  ASSERT_GT(expected.size(), 100u);

  Totals all;
  for (const char* folder : {"torch/lib", "nvidia"}) {
    const std::filesystem::path root = std::filesystem::path(packages) / folder;
    if (!std::filesystem::exists(root)) continue;
    for (const auto& item : std::filesystem::recursive_directory_iterator(root)) {
      const std::string name = item.path().filename();
      if (!item.is_regular_file() || name.find(".so") == std::string::npos) continue;
      Library library(&expected, &card);
      library.read(item.path());
      const Totals& t = library.totals();
      if (t.images == 0) continue;
      std::printf(
          "%-44s images %5d, without code %5d, kernels %6llu, unpacked %6.1f MB, loaded %6.1f MB, "
          "open %.3f s, read %.3f s\n",
          name.c_str(), t.images, t.without_code, static_cast<unsigned long long>(t.kernels),
          t.unpacked_bytes / 1e6, t.loaded_bytes / 1e6, t.open_s, t.read_s);
      all.images += t.images;
      all.kernels += t.kernels;
    }
  }
  int same = 0, missing = 0;
  for (const auto& [name, kernel] : expected) {
    if (kernel.found.empty()) {
      ++missing;
      continue;
    }
    std::string wanted;
    for (size_t i = 0; i < 13; ++i) wanted += kernel.fields[i] + " ";
    // The answers to 8 are the default before, and what was set after.
    std::set<std::string> dynamic, set;
    for (auto [from, to] : {std::pair{13, &dynamic}, std::pair{15, &set}}) {
      std::istringstream in(kernel.fields[static_cast<size_t>(from)]);
      for (std::string value; std::getline(in, value, ',');) to->insert(value);
    }
    // Several libraries may have a kernel of the same name (and other constants); the card was
    // asked about one of them.
    std::set<std::string> defaults;
    std::string others;
    for (const std::string& given : kernel.found) {
      if (given.substr(0, wanted.size()) == wanted)
        defaults.insert(given.substr(wanted.size(), given.size() - wanted.size() - 1));
      others += "\n  given " + given;
    }
    EXPECT_FALSE(defaults.empty()) << name << "\n  wanted " << wanted << others;
    for (const std::string& value : dynamic)
      EXPECT_TRUE(defaults.count(value) || set.count(value)) << name << " " << value;
    ++same;
  }
  std::printf(
      "%d images, %llu kernels; of %zu kernels that the card was asked about %d found and "
      "compared, %d not found\n",
      all.images, static_cast<unsigned long long>(all.kernels), expected.size(), same, missing);
  EXPECT_GT(same, 0);
}

}  // namespace
}  // namespace tonnage::image
