// For long output that is never in memory as a whole: it goes to a Sink in pieces.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <iterator>
#include <string>
#include <string_view>

namespace tonnage::report {

// Takes the next piece; false: it could not, and nothing more is wanted. Whoever made the sink
// knows why.
using Sink = std::function<bool(std::string_view)>;

class SinkBuffer {
 public:
  explicit SinkBuffer(const Sink& sink) : sink_(sink) {}

  bool ok() const { return ok_; }
  void put(std::string_view text) {
    buffer_ += text;
    if (buffer_.size() >= kPieceBytes) flush();
  }
  template <class... Args>
  void print(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(buffer_), format, std::forward<Args>(args)...);
    if (buffer_.size() >= kPieceBytes) flush();
  }
  bool flush() {
    ok_ = ok_ && (buffer_.empty() || sink_(buffer_));
    buffer_.clear();
    return ok_;
  }

 private:
  static constexpr size_t kPieceBytes = 1 << 18;
  const Sink& sink_;
  std::string buffer_;
  bool ok_ = true;
};

}  // namespace tonnage::report
