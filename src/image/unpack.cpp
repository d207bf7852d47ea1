#include "image/unpack.h"

#include <lz4.h>
#include <zstd.h>

#include <new>

namespace tonnage::image {
namespace {

// The largest single entry seen in NVIDIA's libraries unpacks to about 60 MB.
constexpr uint64_t kMaxUnpackedBytes = 1ull << 30;

}  // namespace

Bytes unpack(const Entry& entry, std::unique_ptr<uint8_t[]>* owned, int* status) {
  *status = kSuccess;
  if (entry.packing == Packing::kNone) return entry.payload;
  const uint64_t size = entry.unpacked_bytes;
  *status = kInvalidImage;
  if (size == 0 || size > kMaxUnpackedBytes || entry.payload.size > kMaxUnpackedBytes) return {};
  if (entry.packing == Packing::kZstd) {
    const unsigned long long stated =
        ZSTD_getFrameContentSize(entry.payload.data, entry.payload.size);
    if (stated == ZSTD_CONTENTSIZE_ERROR || (stated != ZSTD_CONTENTSIZE_UNKNOWN && stated > size))
      return {};
  } else if (size / 255 > entry.payload.size) {
    return {};  // LZ4 cannot pack that well
  }
  owned->reset(new (std::nothrow) uint8_t[size]);
  if (!*owned) {
    *status = kOutOfMemory;
    return {};
  }
  uint64_t written = 0;
  if (entry.packing == Packing::kLz4) {
    const int result = LZ4_decompress_safe(
        reinterpret_cast<const char*>(entry.payload.data), reinterpret_cast<char*>(owned->get()),
        static_cast<int>(entry.payload.size), static_cast<int>(size));
    if (result <= 0) return {};
    written = static_cast<uint64_t>(result);
  } else {
    const size_t result =
        ZSTD_decompress(owned->get(), size, entry.payload.data, entry.payload.size);
    if (ZSTD_isError(result)) return {};
    written = result;
  }
  *status = kSuccess;
  return {owned->get(), written};
}

}  // namespace tonnage::image
