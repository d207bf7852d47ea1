#include "report/trace/proto.h"

#include <algorithm>

namespace tonnage::report::trace {
namespace {

// The length of the character at the beginning; 0 if that is no UTF-8 (RFC 3629, section 4).
size_t character_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xc2 && lead <= 0xdf   ? 2
                        : lead >= 0xe0 && lead <= 0xef ? 3
                        : lead >= 0xf0 && lead <= 0xf4 ? 4
                                                       : 0;
  if (length == 0 || length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const unsigned char second = byte(1);
  if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) ||
      (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second > 0x8f))
    return 0;
  return length;
}

}  // namespace

void Message::text(uint32_t field, std::string_view value) {
  const bool ascii = std::all_of(value.begin(), value.end(),
                                 [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  if (ascii) return put_bytes(field, value);
  std::string valid;
  for (size_t i = 0; i < value.size();) {
    const size_t length = character_length(value.substr(i));
    valid += length == 0 ? "\xef\xbf\xbd" : value.substr(i, length);
    i += std::max<size_t>(length, 1);
  }
  put_bytes(field, valid);
}

}  // namespace tonnage::report::trace
