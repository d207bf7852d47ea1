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
  bool literal(std::string_view pattern);     // consumes it, or nothing
  bool find(std::string_view pattern);        // goes behind its first occurrence, or stays
  bool find_start(std::string_view pattern);  // goes to the beginning of its first occurrence
  std::optional<uint64_t> number();
  std::optional<uint64_t> grouped_number();  // also "7,270,534,144"
  std::optional<LogSize> size();  // "1.12 GiB", "0 bytes", "6.27GiB", "23.43G", "1,024 MB"
  // A number without a unit counts in this one; "": bytes. keep_word: stops before "bytes".
  std::optional<LogSize> size_or_number(std::string_view unit, bool keep_word);
  std::string_view until(std::string_view stops,
                         size_t limit);  // up to one of the characters, or the end
  void spaces();
  std::string_view text_from(size_t begin, size_t end) const {
    return text_.substr(begin, end - begin);
  }

 private:
  std::string_view text_;
  size_t at_;
};

}  // namespace tonnage::sources
