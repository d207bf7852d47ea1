#include "sources/messages/log_reader.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <utility>

#include "sources/messages/log_scan.h"

namespace tonnage::sources {
namespace {

constexpr size_t kMaxLine = 64 << 10;
constexpr size_t kMaxMessages = 1000;
constexpr size_t kMaxFrames = 200;
constexpr size_t kWindowLines = 8;  // a wrapped message, or one with its fields below each other
constexpr size_t kBfcWindowLines =
    4000;  // TensorFlow prints a long list of chunks before its statistics
constexpr size_t kWindowBytes = 256 << 10;

// A line without one of these is not looked at further.
constexpr std::string_view kTriggers[] = {"ut of memory",
                                          "OOM when alloc",
                                          "ALLOC_FAILED",
                                          "ALLOCATION_FAILED",
                                          "NVML_SUCCESS ==",
                                          "CUDA calloc",
                                          "exceed allowed memory",
                                          "OUT_OF_MEMORY",
                                          "Failed to allocate request",
                                          "an out of memory",
                                          "cudaErrorMemoryAllocation",
                                          "allocate memory",
                                          "NvMapMemAlloc",
                                          "oom-kill:",
                                          "exitcode",
                                          "SIGKILL: 9",
                                          "ut of host memory",
                                          "Tried to allocate",
                                          "NOT_INITIALIZED",
                                          "INITIALIZATION_FAILED",
                                          "find an engine",
                                          "valid cuDNN algorithm",
                                          "Cuda failure",
                                          "OOMKilled",
                                          "oom_kill",
                                          "Unable to allocate",
                                          "unable to write to file </torch_",
                                          "shared memory",
                                          "signal: Killed",
                                          "ignal 9",
                                          " 137",
                                          "Attempting to",
                                          "Allocation on device"};

// Terminal colours and carriage returns of progress bars are not part of the text.
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

// "[rank3]: …", "[default3]:…", "3: …" is not taken: too common.
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

bool triggered(std::string_view line) {
  return std::any_of(std::begin(kTriggers), std::end(kTriggers), [line](std::string_view trigger) {
    return line.find(trigger) != std::string_view::npos;
  });
}

// What loggers put before a message: a time, [rank0], (pid=12), INFO, "name - ", "│".
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
    const bool time = word.size() >= 8 &&
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

// How much of a message was understood.
int richness(const std::optional<LogOom>& oom) {
  if (!oom) return 0;
  int count = 1;
  for (const auto* size :
       {&oom->requested, &oom->capacity, &oom->free, &oom->allocated, &oom->reserved,
        &oom->unallocated, &oom->private_pools, &oom->allowed, &oom->other, &oom->peak})
    count += size->has_value();
  return count + static_cast<int>(oom->processes.size());
}

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
  bool read(std::string& line) {
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
  void line(const std::string& text, std::optional<uint64_t> rank) {
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
  std::vector<LogFrame> take(std::optional<uint64_t> rank) {
    Stack& stack = by_rank_[rank ? static_cast<int64_t>(*rank) : -1];
    std::vector<LogFrame> frames = std::move(stack.frames);
    stack = {};
    return frames;
  }

 private:
  struct Stack {
    std::vector<LogFrame> frames;
    bool wants_code = false;
  };
  std::map<int64_t, Stack> by_rank_;
};

// The same failure printed twice: by the exception and by a logger, say.
bool same_message(const LogOom& a, const LogOom& b) {
  const auto same = [](const std::optional<LogSize>& x, const std::optional<LogSize>& y) {
    return x.has_value() == y.has_value() && (!x || x->bytes == y->bytes);
  };
  if (a.format != b.format || a.rank != b.rank || a.device != b.device) return false;
  if (!a.requested && !a.allocated) return a.detail == b.detail;
  return same(a.requested, b.requested) && same(a.free, b.free) && same(a.allocated, b.allocated) &&
         same(a.unallocated, b.unallocated);
}

}  // namespace

Result<Log> read_log(Input& input) {
  Log log;
  log.source = input.name();
  Lines lines(input);
  Tracebacks tracebacks;
  uint64_t dropped = 0;
  std::string raw, last;
  while (lines.next(raw)) {
    ++log.lines;
    std::string line = clean(raw);
    const std::optional<uint64_t> rank = take_rank(line);
    const std::string previous = std::exchange(last, line);
    if (log.checkpoint_warning_line == 0 &&
        line.find("None of the inputs have requires_grad=True. Gradients will be None") !=
            std::string::npos)
      log.checkpoint_warning_line = log.lines;
    if (!triggered(line)) {
      tracebacks.line(line, rank);
      continue;
    }
    auto oom = parse_oom_message(line);
    // Perhaps the rest is on the following lines: wrapped, or a table.
    const bool bfc = line.find("trying to allocate") != std::string::npos &&
                     line.find("Allocator (") != std::string::npos;
    const bool incomplete = !oom || oom->format == OomFormat::kPyTorchCut ||
                            oom->format == OomFormat::kCudaMallocAsync ||
                            oom->format == OomFormat::kTensorFlowBfc ||
                            (oom->format == OomFormat::kPyTorch21 && !oom->unallocated) ||
                            (oom->format == OomFormat::kMps && !oom->requested);
    if (incomplete) {
      std::string window = line, bare = line, joined = line;
      for (size_t i = 0; i < (bfc ? kBfcWindowLines : kWindowLines) && window.size() < kWindowBytes;
           ++i) {
        const std::string* next = lines.peek(i);
        if (!next) break;
        std::string more = clean(*next);
        take_rank(more);
        // Another message, or a traceback, begins: not ours any more.
        if (more.find("Traceback (most recent call last)") != std::string::npos ||
            (more.find("Tried to allocate") != std::string::npos &&
             window.find("MPS") == std::string::npos))
          break;
        window += '\n' + more;
        bare.append(1, '\n').append(without_prefix(more));
        joined += more;
        if (bfc && more.find("MaxInUse:") != std::string::npos) break;
      }
      auto whole = parse_oom_message(window);
      // Each line with its logger's prefix; or broken at the terminal's width, in the middle of
      // words.
      for (const std::string* text : {&bare, &joined}) {
        if (bfc || (whole && whole->format == OomFormat::kCudaMallocAsync)) break;
        if (auto other = parse_oom_message(*text);
            richness(other) > richness(whole) &&
            (!whole || other->format == whole->format || whole->format == OomFormat::kPyTorchCut))
          whole = std::move(other);
      }
      if (!whole && line.find("Tried to allocate") != std::string::npos)
        whole = oom = parse_oom_message(previous + '\n' + window);
      if (whole && !oom) {
        // Found in the window only: is it all on later lines? Then it comes by itself.
        const size_t first_end = window.find('\n');
        if (first_end != std::string::npos &&
            parse_oom_message(std::string_view(window).substr(first_end + 1)))
          whole.reset();
      }
      if (whole &&
          (!oom || whole->format == oom->format || oom->format == OomFormat::kPyTorchCut)) {
        if (bfc) whole->text = line.substr(0, 2000);
        oom = std::move(whole);
      }
    }
    if (!oom) {
      tracebacks.line(line, rank);
      continue;
    }
    oom->rank = rank;
    oom->line_number = log.lines;
    last.clear();  // is no beginning of the next message
    oom->frames = tracebacks.take(rank);
    const auto known = std::find_if(log.ooms.rbegin(), log.ooms.rend(),
                                    [&](const LogOom& other) { return same_message(other, *oom); });
    if (known != log.ooms.rend()) {
      ++known->count;
      if (known->frames.empty()) known->frames = std::move(oom->frames);
    } else if (log.ooms.size() < kMaxMessages) {
      log.ooms.push_back(std::move(*oom));
    } else {
      ++dropped;
    }
  }
  if (lines.error()) {
    if (log.lines == 0) return *lines.error();
    log.notes.push_back("partial: " + lines.error()->message);
  }
  if (lines.cut_a_line()) log.notes.push_back("lines longer than 64 KiB were cut");
  if (dropped)
    log.notes.push_back(std::to_string(dropped) + " further out-of-memory messages were left out");
  return log;
}

Result<Log> read_log(const std::string& path) {
  auto input = Input::open(path);
  if (!input) return input.error();
  return read_log(**input);
}

}  // namespace tonnage::sources
