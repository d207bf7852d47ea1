// A cursor over text for matching messages: literals (any run of white space matches any other),
// numbers, sizes.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "sources/messages/log_oom.h"

namespace tonnage::sources {

class LogScan {
 public:
  explicit LogScan(std::string_view text, size_t at = 0) : text_(text), at_(at) {}

  size_t at() const { return at_; }
  void seek(size_t at) { at_ = at; }
  bool ended() const { return at_ >= text_.size(); }
  std::string_view rest() const { return text_.substr(at_); }
  bool literal(std::string_view pattern);  // consumes it, or nothing
  bool find(std::string_view pattern);     // goes behind its first occurrence, or stays
  std::optional<uint64_t> number();
  std::optional<LogSize> size();  // "1.12 GiB", "0 bytes", "6.27GiB", "23.43G"
  std::string_view until(std::string_view stops,
                         size_t limit);  // up to one of the characters, or the end
  void spaces();

 private:
  std::string_view text_;
  size_t at_;
};

}  // namespace tonnage::sources
