// Reads machine-code images in place. Every access is checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace tonnage::image {

// Bytes that somebody else owns. An image whose length nobody knows (a pointer passed to
// cuModuleLoadData) has size kUnbounded; its readers then cut pieces off by the sizes that its
// headers state.
struct Bytes {
  static constexpr uint64_t kUnbounded = UINT64_MAX;

  const uint8_t* data = nullptr;
  uint64_t size = 0;

  bool covers(uint64_t offset, uint64_t count) const {
    return offset <= size && count <= size - offset;
  }

  // An empty piece (data == nullptr) where the range is not inside.
  Bytes piece(uint64_t offset, uint64_t count) const {
    if (!covers(offset, count)) return {};
    return {data + offset, count};
  }

  // Copies a plain struct out; false where it is not inside. Images need not be aligned.
  template <class T>
  bool read(uint64_t offset, T* out) const {
    if (!covers(offset, sizeof(T))) return false;
    std::memcpy(out, data + offset, sizeof(T));
    return true;
  }

  // The NUL-terminated text at `offset`; empty where there is none.
  std::string_view text(uint64_t offset) const {
    if (offset >= size || size == kUnbounded) return {};
    const char* begin = reinterpret_cast<const char*>(data) + offset;
    const void* end = std::memchr(begin, 0, size - offset);
    if (!end) return {};
    return {begin, static_cast<size_t>(static_cast<const char*>(end) - begin)};
  }

  bool empty() const { return data == nullptr || size == 0; }
};

}  // namespace tonnage::image
