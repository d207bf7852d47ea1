// Builders for the image tests: files of tests/data/image and fat binaries made in memory.
#pragma once

#include <gtest/gtest.h>
#include <lz4.h>
#include <zstd.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "image/image.h"

namespace tonnage::image {

inline std::string fixture(const std::string& name) {
  const std::string path = std::string(TONNAGE_SOURCE_DIR) + "/tests/data/image/" + name;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_FALSE(text.str().empty()) << path;
  return text.str();
}

inline Bytes bytes_of(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

struct FatbinBuilder {
  std::string entries;

  static void put(std::string* out, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(value >> (8 * i)));
  }

  FatbinBuilder& add(int kind, int sm, uint64_t flags, std::string payload, int isa_major = 8,
                     int isa_minor = 0) {
    const size_t unpacked = payload.size();
    bool packed = false;
    if (flags & 0x2000) {
      std::string out(LZ4_compressBound(static_cast<int>(payload.size())), '\0');
      out.resize(LZ4_compress_default(payload.data(), out.data(), static_cast<int>(payload.size()),
                                      static_cast<int>(out.size())));
      payload = out, packed = true;
    } else if (flags & 0x8000) {
      std::string out(ZSTD_compressBound(payload.size()), '\0');
      out.resize(ZSTD_compress(out.data(), out.size(), payload.data(), payload.size(), 3));
      payload = out, packed = true;
    }
    const size_t stored = payload.size();
    payload.resize((payload.size() + 7) / 8 * 8);
    put(&entries, kind, 2), put(&entries, 0x101, 2), put(&entries, 64, 4),
        put(&entries, payload.size(), 8);
    put(&entries, packed ? stored : 0, 4), put(&entries, 0, 4), put(&entries, isa_minor, 2),
        put(&entries, isa_major, 2);
    put(&entries, sm, 4), put(&entries, 0, 4), put(&entries, 0, 4), put(&entries, flags, 8),
        put(&entries, 0, 8);
    put(&entries, packed ? unpacked : 0, 8);
    entries += payload;
    return *this;
  }
  std::string finish() const {
    std::string out;
    put(&out, kFatbinMagic, 4), put(&out, 1, 2), put(&out, 16, 2), put(&out, entries.size(), 8);
    return out + entries;
  }
};

inline constexpr uint64_t kFlagsPlain = 0x11, kFlagsLz4 = 0x2011, kFlagsZstd = 0x8011,
                          kFlagsArch = 0x100011, kFlagsFamily = 0x200011;

// The status with which an image opens for a device; the architecture that was chosen goes to *sm.
inline int open_status(const std::string& image, int major, int minor, int* sm = nullptr,
                       EntryKind* kind = nullptr) {
  int status = -1;
  const auto module = Module::open(bytes_of(image), major, minor, &status);
  EXPECT_EQ(module != nullptr, status == kSuccess);
  if (module && sm) *sm = module->entry().sm;
  if (module && kind) *kind = module->entry().kind;
  return status;
}

}  // namespace tonnage::image
