#include "sources/messages/log_lines.h"

#include <algorithm>
#include <cstring>

#include "sources/messages/log_scan.h"

namespace tonnage::sources {
namespace {

constexpr size_t kMaxLine = 64 << 10;
constexpr size_t kMaxFrames = 200;

}  // namespace

std::string clean(std::string_view line) {
  if (const size_t carriage = line.rfind('\r');
      carriage != std::string_view::npos && carriage + 1 < line.size())
    line.remove_prefix(carriage + 1);
  std::string out;
  out.reserve(line.size());
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b' && i + 1 < line.size() && line[i + 1] == '[') {
      i += 2;
      while (i < line.size() && !(line[i] >= '@' && line[i] <= '~')) ++i;
      continue;
    }
    if (line[i] != '\r' && line[i] != '\0') out += line[i];
  }
  return out;
}

std::optional<uint64_t> take_rank(std::string& line) {
  for (const std::string_view prefix : {"[rank", "[default", "[Rank "}) {
    const size_t at = line.find(prefix);
    if (at == std::string::npos || at > 40) continue;
    LogScan scan(line, at + prefix.size());
    const auto rank = scan.number();
    if (!rank || !scan.literal("]")) continue;
    if (scan.literal(":") && !scan.ended() && line[scan.at()] == ' ') scan.seek(scan.at() + 1);
    line.erase(0, scan.at());
    return rank;
  }
  return std::nullopt;
}

std::string_view without_prefix(std::string_view line) {
  const auto skip = [&](std::string_view characters) {
    line.remove_prefix(std::min(line.find_first_not_of(characters), line.size()));
  };
  for (int i = 0; i < 8; ++i) {
    skip(" \t|:-,");
    while (line.starts_with("│")) {
      line.remove_prefix(std::string_view("│").size());
      skip(" \t");
    }
    if (line.empty()) break;
    if (line.front() == '[' || (line.front() == '(' && line.find("pid=") < line.find(')'))) {
      const size_t end = line.find(line.front() == '[' ? ']' : ')');
      if (end == std::string_view::npos || end > 60) break;
      line.remove_prefix(end + 1);
      continue;
    }
    // A word of digits and the marks of dates and times; sizes ("20.00 MiB") have no colon, dash or
    // T.
    const size_t end = std::min(line.find(' '), line.size());
    const std::string_view word = line.substr(0, end);
    const bool time = word.size() >= 4 &&
                      word.find_first_not_of("0123456789-:./,TZ+") == std::string_view::npos &&
                      word.find_first_of(":-") != std::string_view::npos;
    const bool level = word == "INFO" || word == "ERROR" || word == "WARNING" || word == "WARN" ||
                       word == "INFO:" || word == "ERROR:" || word == "WARNING:" ||
                       word == "stderr" || word == "stdout";
    if (!time && !level) break;
    line.remove_prefix(end);
  }
  return line;
}

bool Lines::read(std::string& line) {
  line.clear();
  bool any = false;
  for (;;) {
    if (at_ == size_) {
      if (ended_) return any;
      auto got = input_.read(buffer_.data(), buffer_.size());
      if (!got) error_ = got.error();
      size_ = got ? *got : 0;
      at_ = 0;
      if (size_ == 0) {
        ended_ = true;
        return any;
      }
    }
    any = true;
    const char* start = buffer_.data() + at_;
    const auto* newline = static_cast<const char*>(std::memchr(start, '\n', size_ - at_));
    const size_t take = newline ? static_cast<size_t>(newline - start) : size_ - at_;
    std::string_view part(start, take);
    // What a progress bar overwrote is not needed.
    if (part.size() > kMaxLine - line.size()) {
      if (const size_t carriage = part.rfind('\r');
          carriage != std::string_view::npos && carriage + 1 < part.size()) {
        part.remove_prefix(carriage + 1);
        line.clear();
      } else if (const size_t earlier = line.rfind('\r'); earlier != std::string::npos) {
        line.erase(0, earlier + 1);
      }
    }
    const size_t room = kMaxLine - line.size();
    line.append(part.substr(0, room));
    cut_ |= part.size() > room;
    at_ += take + (newline ? 1 : 0);
    if (newline) return true;
  }
}

void Tracebacks::line(const std::string& text, std::optional<uint64_t> rank) {
  if (by_rank_.size() > 1024) by_rank_.clear();
  Stack& stack = by_rank_[rank ? static_cast<int64_t>(*rank) : -1];
  if (text.find("Traceback (most recent call last)") != std::string::npos) {
    stack = {};
    return;
  }
  LogScan scan(text);
  if (scan.find("File \"")) {
    LogFrame frame;
    frame.file = std::string(scan.until("\"", 1000));
    if (scan.literal("\", line ")) {
      if (const auto number = scan.number()) {
        frame.line = static_cast<uint32_t>(std::min<uint64_t>(*number, INT32_MAX));
        if (scan.literal(", in ")) frame.function = std::string(scan.until("\r\n", 200));
        if (stack.frames.size() >= kMaxFrames) stack.frames.erase(stack.frames.begin());
        stack.frames.push_back(std::move(frame));
        stack.wants_code = true;
        return;
      }
    }
  }
  if (stack.wants_code && !stack.frames.empty()) {
    const size_t first = text.find_first_not_of(" \t");
    // Python prints the source line deeper than the File line; "^^^^" marks follow.
    if (first != std::string::npos && first >= 2)
      stack.frames.back().code = text.substr(first, 300);
    stack.wants_code = false;
  }
}

std::vector<LogFrame> Tracebacks::take(std::optional<uint64_t> rank) {
  Stack& stack = by_rank_[rank ? static_cast<int64_t>(*rank) : -1];
  std::vector<LogFrame> frames = std::move(stack.frames);
  stack = {};
  return frames;
}

}  // namespace tonnage::sources
