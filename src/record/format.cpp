#include "record/format.h"

#include <array>

namespace tonnage::record {

namespace {

using CrcTables = std::array<std::array<uint32_t, 256>, 8>;

constexpr CrcTables make_crc_tables() {
  CrcTables tables{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0xedb88320u : 0u);
    tables[0][i] = crc;
  }
  for (uint32_t i = 0; i < 256; ++i) {
    for (size_t t = 1; t < 8; ++t)
      tables[t][i] = (tables[t - 1][i] >> 8) ^ tables[0][tables[t - 1][i] & 0xff];
  }
  return tables;
}

constexpr CrcTables kCrc = make_crc_tables();

}  // namespace

uint32_t crc32(uint32_t crc, const void* bytes, size_t n) {
  const auto* p = static_cast<const uint8_t*>(bytes);
  crc = ~crc;
  for (; n >= 8; n -= 8, p += 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    word ^= crc;
    crc = 0;
    for (int t = 0; t < 8; ++t) crc ^= kCrc[7 - t][(word >> (8 * t)) & 0xff];
  }
  for (; n > 0; --n) crc = (crc >> 8) ^ kCrc[0][(crc ^ *p++) & 0xff];
  return ~crc;
}

}  // namespace tonnage::record
