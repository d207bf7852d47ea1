#include "sources/messages/log_reader.h"

#include <algorithm>
#include <utility>

#include "sources/messages/log_lines.h"
#include "sources/messages/log_scan.h"
#include "sources/messages/message_table.h"
#include "sources/messages/trigger_index.h"

namespace tonnage::sources {
namespace {

constexpr size_t kMaxMessages = 1000;
constexpr size_t kWindowLines = 8;  // a wrapped message, or one with its fields below each other
constexpr size_t kBfcWindowLines =
    4000;  // TensorFlow prints a long list of chunks before its statistics
constexpr size_t kWindowBytes = 256 << 10;
constexpr size_t kWindowBudget = 64 << 20;  // of all windows of a log; then they are short
constexpr uint64_t kApplicationLines = 12;  // "unloading all models" comes that soon after it
constexpr size_t kMaxSummaries = 64;
constexpr uint64_t kSameFailureLines = 30;  // one failure is told in several lines, not far apart

// A line without one of these, or the beginning of a row of the table, is not looked at further.
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
                                          "Killed  ",
                                          "MemoryError",
                                          "Allocation on device"};

bool triggered(std::string_view line) {
  static const TriggerIndex* const index = [] {
    std::vector<std::string_view> literals(std::begin(kTriggers), std::end(kTriggers));
    for (const MessageRow& row : message_rows()) literals.push_back(first_literal(row.pattern));
    return new TriggerIndex(literals);  // lives as long as the program
  }();
  return index->occurs_in(line);
}

// How much of a message was understood.
int richness(const std::optional<LogOom>& oom) {
  if (!oom) return 0;
  int count = 1;
  for (const auto* size :
       {&oom->requested, &oom->capacity, &oom->free, &oom->allocated, &oom->reserved,
        &oom->unallocated, &oom->private_pools, &oom->allowed, &oom->other, &oom->peak})
    count += size->has_value();
  for (const auto* number : {&oom->tokens, &oom->tokens_that_fit, &oom->units, &oom->units_there})
    count += number->has_value();
  count += oom->fraction.has_value() + oom->program.has_value() + oom->outputs.has_value() +
           oom->temporaries.has_value() + oom->arguments.has_value();
  return count + static_cast<int>(oom->processes.size());
}

// The same failure printed twice: by the exception and by a logger, say.
bool same_message(const LogOom& a, const LogOom& b) {
  const auto same = [](const std::optional<LogSize>& x, const std::optional<LogSize>& y) {
    return x.has_value() == y.has_value() && (!x || x->bytes == y->bytes);
  };
  if (a.format != b.format || a.framework != b.framework || a.rank != b.rank ||
      a.device != b.device)
    return false;
  if (!a.requested && !a.allocated && !b.requested && !b.allocated) return a.detail == b.detail;
  return same(a.requested, b.requested) && same(a.free, b.free) && same(a.allocated, b.allocated) &&
         same(a.unallocated, b.unallocated);
}

// Whether the message says nothing but that memory ran out.
bool has_figures(const LogOom& oom) {
  return oom.requested || oom.allocated || oom.free || oom.tokens || oom.units;
}

// Whether `later` tells once more of the failure that `first` told of: the same library, and no
// other size.
bool tells_again(const LogOom& first, const LogOom& later) {
  if (first.rank && later.rank && first.rank != later.rank &&
      first.framework == LogFramework::kPyTorch)
    return false;
  const bool bare_driver = later.format == OomFormat::kCudaError && !has_figures(later);
  const bool bare_host =
      later.format == OomFormat::kHostKilled && first.format == OomFormat::kHostKilled;
  const bool old_twice =
      first.format == OomFormat::kTorchStorage && later.format == OomFormat::kTorchStorage;
  if (first.framework == LogFramework::kPyTorch && !bare_host && !old_twice) return false;
  // Ollama runs llama.cpp, and both tell of it.
  const bool runner =
      first.framework == LogFramework::kOllama || later.framework == LogFramework::kOllama;
  const bool llama =
      first.framework == LogFramework::kLlamaCpp || later.framework == LogFramework::kLlamaCpp;
  if (first.framework != later.framework && !bare_driver && !bare_host && !(runner && llama))
    return false;
  if (first.requested && later.requested) {
    const uint64_t a = first.requested->bytes, b = later.requested->bytes;
    const uint64_t off = a > b ? a - b : b - a;
    return off <= first.requested->plus_minus_bytes + later.requested->plus_minus_bytes + 4096;
  }
  return true;
}

// What the second telling knows besides.
void add_figures(const LogOom& from, LogOom& to) {
  for (std::optional<LogSize> LogOom::*field :
       {&LogOom::requested, &LogOom::capacity, &LogOom::free, &LogOom::allocated, &LogOom::reserved,
        &LogOom::unallocated, &LogOom::allowed, &LogOom::other, &LogOom::peak, &LogOom::arguments,
        &LogOom::outputs, &LogOom::temporaries, &LogOom::program, &LogOom::fragmentation}) {
    if (!(to.*field)) to.*field = from.*field;
  }
  for (std::optional<uint64_t> LogOom::*field :
       {&LogOom::device, &LogOom::rank, &LogOom::tokens, &LogOom::tokens_that_fit, &LogOom::units,
        &LogOom::units_there}) {
    if (!(to.*field)) to.*field = from.*field;
  }
  if (!to.fraction) to.fraction = from.fraction;
  if (to.shape.empty()) {
    to.shape = from.shape;
    to.dtype = from.dtype;
  }
  if (to.detail.empty()) to.detail = from.detail;
  if (to.frames.empty()) to.frames = from.frames;
}

// Whose program wrote the line, where it has a mark of its own.
std::optional<LogFramework> application_of(std::string_view line) {
  struct Mark {
    const char* part;
    LogFramework framework;
  };
  constexpr Mark kMarks[] = {{"Got an OOM, unloading all loaded models", LogFramework::kComfyUi},
                             {"(EngineCore", LogFramework::kVllm},
                             {"(VllmWorker", LogFramework::kVllm},
                             {"text_generation_launcher", LogFramework::kTgi}};
  for (const Mark& mark : kMarks)
    if (line.find(mark.part) != std::string_view::npos) return mark.framework;
  return std::nullopt;
}

class LogReading {
 public:
  explicit LogReading(Input& input) : lines_(input) { log_.source = input.name(); }

  Result<Log> run() {
    std::string raw;
    while (lines_.next(raw)) {
      ++log_.lines;
      read_line(clean(raw));
    }
    log_.cards = table_.take();
    if (lines_.error()) {
      if (log_.lines == 0) return *lines_.error();
      log_.notes.push_back("partial: " + lines_.error()->message);
    }
    if (lines_.cut_a_line()) log_.notes.push_back("lines longer than 64 KiB were cut");
    if (dropped_)
      log_.notes.push_back(std::to_string(dropped_) +
                           " further out-of-memory messages were left out");
    return std::move(log_);
  }

 private:
  void read_line(std::string line) {
    const std::optional<uint64_t> rank = take_rank(line);
    const std::string previous = std::exchange(last_, line);
    if (log_.checkpoint_warning_line == 0 &&
        line.find("None of the inputs have requires_grad=True. Gradients will be None") !=
            std::string::npos)
      log_.checkpoint_warning_line = log_.lines;
    table_.line(line, log_.lines);
    look_around(line);
    std::optional<LogOom> oom;
    if (triggered(line)) oom = read_message(line, previous);
    if (!oom) {
      tracebacks_.line(line, rank);
      return;
    }
    if (rank) oom->rank = rank;
    oom->line_number = log_.lines;
    if (!oom->application) oom->application = application_of(line);
    if (oom->format == OomFormat::kMemorySummary) {
      oom->device = summary_device_;
      if (oom->ooms.value_or(0) == 0) {
        if (log_.summaries.size() < kMaxSummaries) log_.summaries.push_back(std::move(*oom));
        return;
      }
    }
    last_.clear();  // is no beginning of the next message
    if (auto frames = tracebacks_.take(rank); !frames.empty()) oom->frames = std::move(frames);
    oom->is_trial = searching_batch_ && oom->frames.empty();
    keep(std::move(*oom));
  }

  // What other lines say of a message: whose program it is, whether a search tried it on purpose.
  void look_around(const std::string& line) {
    if (!log_.ooms.empty() && log_.lines - last_kept_line_ <= kApplicationLines) {
      if (const auto who = application_of(line); who && !log_.ooms.back().application)
        log_.ooms.back().application = who;
    }
    if (const size_t at = line.find("AutoBatch: "); at != std::string::npos) {
      if (line.find("Computing optimal batch size", at) != std::string::npos)
        searching_batch_ = true;
      else if (line.find("batch-size", at) != std::string::npos)
        searching_batch_ = false;
    }
    constexpr std::string_view kSummary = "memory summary, device ID ";
    if (const size_t at = line.find(kSummary); at != std::string::npos)
      summary_device_ = LogScan(line, at + kSummary.size()).number();
  }

  // The message that begins in this line.
  std::optional<LogOom> read_message(const std::string& line, const std::string& previous) {
    int more_lines = 0;
    auto oom = parse_oom_message(line, more_lines);
    // Perhaps the rest is on the following lines: wrapped, or a table.
    const bool bfc = line.find("trying to allocate") != std::string::npos &&
                     line.find("Allocator (") != std::string::npos;
    const bool incomplete = !oom || oom->format == OomFormat::kPyTorchCut || more_lines > 0 ||
                            oom->format == OomFormat::kCudaMallocAsync ||
                            oom->format == OomFormat::kTensorFlowBfc ||
                            (oom->format == OomFormat::kPyTorch21 && !oom->unallocated) ||
                            (oom->format == OomFormat::kMps && !oom->requested);
    if (!incomplete) return oom;
    const Window window = window_of(line, bfc, static_cast<size_t>(more_lines));
    auto whole = parse_oom_message(window.text);
    // The runtime's words, and in the next line whose they were.
    if (oom && whole && oom->format == OomFormat::kCudaError &&
        whole->format == OomFormat::kLibraryRequest && whole->device)
      return whole;
    // Each line with its logger's prefix; or broken at the terminal's width, within words.
    for (const std::string* text : {&window.bare, &window.joined}) {
      if (bfc || (whole && whole->format == OomFormat::kCudaMallocAsync)) break;
      auto other = parse_oom_message(*text);
      if (richness(other) > richness(whole) &&
          (!whole || other->format == whole->format || whole->format == OomFormat::kPyTorchCut))
        whole = std::move(other);
    }
    if (!whole && line.find("Tried to allocate") != std::string::npos)
      whole = oom = parse_oom_message(previous + '\n' + window.text);
    if (whole && !oom) {
      // Found in the window only: is it all on later lines? Then it comes by itself.
      const size_t first_end = window.text.find('\n');
      if (first_end != std::string::npos &&
          parse_oom_message(std::string_view(window.text).substr(first_end + 1)))
        whole.reset();
    }
    if (whole && (!oom || whole->format == oom->format || oom->format == OomFormat::kPyTorchCut ||
                  (more_lines > 0 && whole->framework == oom->framework))) {
      if (bfc) whole->text = line.substr(0, 2000);
      oom = std::move(whole);
    }
    return oom;
  }

  struct Window {
    std::string text, bare, joined;  // with line ends; without loggers' prefixes; without line ends
  };
  Window window_of(const std::string& line, bool bfc, size_t more_lines) {
    Window window{line, line, line};
    size_t most = std::max(bfc ? kBfcWindowLines : kWindowLines, more_lines);
    if (window_bytes_ > kWindowBudget) most = std::min<size_t>(most, kWindowLines);
    for (size_t i = 0; i < most && window.text.size() < kWindowBytes; ++i) {
      const std::string* next = lines_.peek(i);
      if (!next) break;
      std::string more = clean(*next);
      take_rank(more);
      // Another message, or a traceback, begins: not ours any more.
      if (more.find("Traceback (most recent call last)") != std::string::npos ||
          (more.find("Tried to allocate") != std::string::npos &&
           window.text.find("MPS") == std::string::npos))
        break;
      window.text += '\n' + more;
      window.bare.append(1, '\n').append(without_prefix(more));
      window.joined += more;
      if (bfc && more.find("MaxInUse:") != std::string::npos) break;
    }
    window_bytes_ += window.text.size();
    return window;
  }

  void keep(LogOom oom) {
    const auto known = std::find_if(log_.ooms.rbegin(), log_.ooms.rend(),
                                    [&](const LogOom& other) { return same_message(other, oom); });
    if (known != log_.ooms.rend()) {
      ++known->count;
      if (known->frames.empty()) known->frames = std::move(oom.frames);
    } else if (!log_.ooms.empty() && log_.lines - last_kept_line_ <= kSameFailureLines &&
               tells_again(log_.ooms.back(), oom)) {
      add_figures(oom, log_.ooms.back());
      if (oom.framework == LogFramework::kOllama) log_.ooms.back().framework = oom.framework;
    } else if (log_.ooms.size() < kMaxMessages) {
      log_.ooms.push_back(std::move(oom));
    } else {
      ++dropped_;
    }
    last_kept_line_ = log_.lines;
  }

  Lines lines_;
  Log log_;
  Tracebacks tracebacks_;
  SmiTable table_;
  std::string last_;
  bool searching_batch_ = false;            // within Ultralytics' AutoBatch
  std::optional<uint64_t> summary_device_;  // of the table that was begun
  uint64_t dropped_ = 0, last_kept_line_ = 0;
  size_t window_bytes_ = 0;
};

}  // namespace

Result<Log> read_log(Input& input) { return LogReading(input).run(); }

Result<Log> read_log(const std::string& path) {
  auto input = Input::open(path);
  if (!input) return input.error();
  return read_log(**input);
}

}  // namespace tonnage::sources
