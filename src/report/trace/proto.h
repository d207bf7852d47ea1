// Protocol buffers' wire format, as far as writing needs it
// (https://protobuf.dev/programming-guides/encoding).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tonnage::report::trace {

class Message {
 public:
  const std::string& bytes() const { return bytes_; }
  void clear() { bytes_.clear(); }

  void number(uint32_t field, uint64_t value) {
    put_varint(field << 3);
    put_varint(value);
  }
  // What is not UTF-8 becomes U+FFFD: readers refuse a string that is not.
  void text(uint32_t field, std::string_view value);
  void message(uint32_t field, const Message& inner) { put_bytes(field, inner.bytes_); }

 private:
  void put_varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }
  void put_bytes(uint32_t field, std::string_view value) {
    put_varint(field << 3 | 2);
    put_varint(value.size());
    bytes_ += value;
  }

  std::string bytes_;
};

}  // namespace tonnage::report::trace
