// The lines of a log, without colours and with a look ahead; and the tracebacks among them.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "sources/compressed_input.h"
#include "sources/messages/log_oom.h"

namespace tonnage::sources {

// Terminal colours and carriage returns of progress bars are not part of the text.
std::string clean(std::string_view line);
// "[rank3]: …" and "[default3]:…" are taken off; "3: …" is not: too common.
std::optional<uint64_t> take_rank(std::string& line);
// What loggers put before a message: a time, [rank0], (pid=12), INFO, "name - ", "│".
std::string_view without_prefix(std::string_view line);

class Lines {
 public:
  explicit Lines(Input& input) : input_(input), buffer_(256 << 10) {}

  // False at the end. A read error ends the text and is kept.
  bool next(std::string& line) {
    if (!ahead_.empty()) {
      line = std::move(ahead_.front());
      ahead_.pop_front();
      return true;
    }
    return read(line);
  }
  // The line `index` lines further on, without consuming it.
  const std::string* peek(size_t index) {
    while (ahead_.size() <= index) {
      std::string line;
      if (!read(line)) return nullptr;
      ahead_.push_back(std::move(line));
    }
    return &ahead_[index];
  }
  const std::optional<Error>& error() const { return error_; }
  bool cut_a_line() const { return cut_; }

 private:
  bool read(std::string& line);

  Input& input_;
  std::vector<char> buffer_;
  size_t at_ = 0, size_ = 0;
  bool ended_ = false, cut_ = false;
  std::optional<Error> error_;
  std::deque<std::string> ahead_;
};

// Python's tracebacks, one per rank.
class Tracebacks {
 public:
  void line(const std::string& text, std::optional<uint64_t> rank);
  std::vector<LogFrame> take(std::optional<uint64_t> rank);

 private:
  struct Stack {
    std::vector<LogFrame> frames;
    bool wants_code = false;
  };
  std::map<int64_t, Stack> by_rank_;
};

}  // namespace tonnage::sources
