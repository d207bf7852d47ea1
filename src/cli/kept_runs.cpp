#include "cli/kept_runs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string>
#include <vector>

namespace tonnage::cli {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPrefix = "run-", kSuffix = ".tonnage", kUnfinished = ".unfinished-";
constexpr time_t kUnfinishedSeconds = 24 * 3600;  // then nobody is still writing it
constexpr int kMostRuns = 10000;

struct KeptRun {
  std::string name;
  uint64_t bytes;
};

Error folder_error(const std::string& reason, const fs::path& folder) {
  return Error{ErrorCode::kIo, "the run is not kept for `tonnage explain`: " + reason,
               folder.string(), ""};
}

// The folder, open: ours, private and not behind a link. -1: errno says why.
int open_folder(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return -1;
  struct stat is {};
  const bool ours = ::fstat(fd, &is) == 0 && is.st_uid == ::geteuid();
  if (ours && ((is.st_mode & 077) == 0 || ::fchmod(fd, 0700) == 0)) return fd;
  ::close(fd);
  errno = EPERM;
  return -1;
}

bool make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder.parent_path(), error);
  return ::mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST;
}

// Calls visit(name, its lstat) for each entry. The folder stays the one that was opened, whatever
// its path leads to by now.
template <class Visit>
void visit_folder(int folder, Visit&& visit) {
  const int fd = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const entries = fd < 0 ? nullptr : ::fdopendir(fd);
  if (entries == nullptr) {
    if (fd >= 0) ::close(fd);
    return;
  }
  while (const dirent* entry = ::readdir(entries)) {
    // Opened for its name only, and not through a link. fstatat would need glibc 2.33.
    const int file = ::openat(folder, entry->d_name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0) continue;
    struct stat is {};
    if (::fstat(file, &is) == 0 && S_ISREG(is.st_mode)) visit(std::string(entry->d_name), is);
    ::close(file);
  }
  ::closedir(entries);
}

std::vector<KeptRun> runs_in(int folder) {  // oldest first
  std::vector<KeptRun> runs;
  visit_folder(folder, [&](std::string name, const struct stat& is) {
    if (name.starts_with(kPrefix) && name.ends_with(kSuffix) && is.st_uid == ::geteuid())
      runs.push_back({std::move(name), static_cast<uint64_t>(is.st_size)});
  });
  std::ranges::sort(runs, {}, &KeptRun::name);
  return runs;
}

// Sorts by time; no two runs have the same.
std::string name_now() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  tm parts{};
  ::gmtime_r(&now.tv_sec, &parts);
  char date[32], name[96];
  ::strftime(date, sizeof date, "%Y%m%dT%H%M%S", &parts);
  std::snprintf(name, sizeof name, "%s%s.%09ld-%d%s", kPrefix.data(), date, now.tv_nsec,
                static_cast<int>(::getpid()), kSuffix.data());
  return name;
}

// 0, or errno.
int copy_bytes(int from, int to) {
  std::vector<char> buffer(1 << 20);
  for (;;) {
    const ssize_t n = ::read(from, buffer.data(), buffer.size());
    if (n == 0) return 0;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    for (ssize_t at = 0; at < n;) {
      const ssize_t written = ::write(to, buffer.data() + at, static_cast<size_t>(n - at));
      if (written < 0 && errno != EINTR) return errno;
      if (written > 0) at += written;
    }
  }
}

// A limit on the size of files is an error and does not end the process.
class NoSizeSignal {
 public:
  NoSizeSignal() {
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    ::sigaction(SIGXFSZ, &ignore, &before_);
  }
  ~NoSizeSignal() { ::sigaction(SIGXFSZ, &before_, nullptr); }
  NoSizeSignal(const NoSizeSignal&) = delete;
  NoSizeSignal& operator=(const NoSizeSignal&) = delete;

 private:
  struct sigaction before_ {};
};

int copy_into(int from, int folder, const std::string& name) {
  const NoSizeSignal no_signal;
  const std::string unfinished = std::string(kUnfinished) + name;
  const int to = ::openat(folder, unfinished.c_str(),
                          O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (to < 0) return errno;
  int error = copy_bytes(from, to);
  if (::close(to) != 0 && error == 0) error = errno;
  if (error == 0 && ::renameat(folder, unfinished.c_str(), folder, name.c_str()) != 0)
    error = errno;
  if (error != 0) ::unlinkat(folder, unfinished.c_str(), 0);
  return error;
}

void remove_unfinished(int folder) {
  std::vector<std::string> lost;
  visit_folder(folder, [&](std::string name, const struct stat& is) {
    if (name.starts_with(kUnfinished) && ::time(nullptr) - is.st_mtime > kUnfinishedSeconds)
      lost.push_back(std::move(name));
  });
  for (const std::string& name : lost) ::unlinkat(folder, name.c_str(), 0);
}

void prune_runs(int folder, const KeepLimits& limits) {
  const std::vector<KeptRun> runs = runs_in(folder);
  uint64_t bytes = 0;
  int kept = 0;
  bool full = false;
  for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
    full = full || kept >= limits.runs || run->bytes > limits.bytes - std::min(bytes, limits.bytes);
    if (full) {
      ::unlinkat(folder, run->name.c_str(), 0);
    } else {
      bytes += run->bytes;
      ++kept;
    }
  }
  remove_unfinished(folder);
}

// Another run's copy takes the room of the oldest ones before it is given up.
int copy_with_room(int from, int folder, const std::string& name, const KeepLimits& limits,
                   uint64_t size_bytes) {
  int error = copy_into(from, folder, name);
  if (error != ENOSPC && error != EDQUOT) return error;
  prune_runs(folder,
             {.runs = limits.runs / 2, .bytes = limits.bytes - std::min(limits.bytes, size_bytes)});
  if (::lseek(from, 0, SEEK_SET) != 0) return error;
  return copy_into(from, folder, name);
}

}  // namespace

KeepLimits keep_limits() {
  KeepLimits limits;
  const char* text = ::getenv("TONNAGE_KEEP_RUNS");
  if (text == nullptr || *text == '\0') return limits;
  char* end = nullptr;
  const long runs = ::strtol(text, &end, 10);
  if (*end == '\0') limits.runs = static_cast<int>(std::clamp<long>(runs, 0, kMostRuns));
  return limits;
}

std::optional<fs::path> kept_runs_folder() {
  // A relative path means nothing here (XDG Base Directory Specification).
  if (const char* state = ::getenv("XDG_STATE_HOME"); state != nullptr && *state == '/')
    return fs::path(state) / "tonnage" / "runs";
  if (const char* home = ::getenv("HOME"); home != nullptr && *home == '/')
    return fs::path(home) / ".local" / "state" / "tonnage" / "runs";
  return std::nullopt;
}

Result<std::optional<fs::path>> keep_run(const fs::path& record, const fs::path& folder,
                                         const KeepLimits& limits) {
  std::optional<fs::path> kept;
  if (limits.runs <= 0) return kept;
  const int from = ::open(record.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat is {};
  if (from < 0 || ::fstat(from, &is) != 0) {
    const Error error = folder_error(std::string("cannot be read: ") + ::strerror(errno), record);
    if (from >= 0) ::close(from);
    return error;
  }
  const auto size_bytes = static_cast<uint64_t>(is.st_size);
  if (size_bytes > limits.bytes) {
    ::close(from);
    return folder_error(
        fmt::format("its record has {} MiB, and {} MiB are the most; --record FILE keeps it",
                    size_bytes >> 20, limits.bytes >> 20),
        folder);
  }
  const int to = make_folder(folder) ? open_folder(folder) : -1;
  if (to < 0) {
    const std::string why = errno == EPERM || errno == ELOOP || errno == ENOTDIR
                                ? "it is not this user's own folder"
                                : ::strerror(errno);
    ::close(from);
    return folder_error(why, folder);
  }
  const std::string name = name_now();
  const int error = copy_with_room(from, to, name, limits, size_bytes);
  ::close(from);
  if (error == 0) prune_runs(to, limits);
  ::close(to);
  if (error != 0) return folder_error(::strerror(error), folder);
  kept = folder / name;
  return kept;
}

std::optional<fs::path> kept_run(const fs::path& folder, size_t back) {
  const int fd = open_folder(folder);
  if (fd < 0) return std::nullopt;
  const std::vector<KeptRun> runs = runs_in(fd);
  ::close(fd);
  if (back >= runs.size()) return std::nullopt;
  return folder / runs[runs.size() - 1 - back].name;
}

std::optional<size_t> runs_back(std::string_view word) {
  if (word == "last") return 0;
  if (!word.starts_with("last~")) return std::nullopt;
  word.remove_prefix(5);
  size_t back = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), back);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return back;
}

Result<fs::path> find_kept_run(size_t back) {
  const std::string word = back == 0 ? "last" : fmt::format("last~{}", back);
  const auto folder = kept_runs_folder();
  if (!folder)
    return Error{ErrorCode::kNotFound, "no runs are kept: neither XDG_STATE_HOME nor HOME is set",
                 word, "give a file: tonnage run --record FILE writes one"};
  if (auto run = kept_run(*folder, back)) return *run;
  size_t there = 0;
  while (there < back && kept_run(*folder, there)) ++there;
  return Error{ErrorCode::kNotFound,
               there == 0 ? "no run has been kept"
                          : fmt::format("only {} run{} kept", there, there == 1 ? " is" : "s are"),
               word, "give a file, or run the command again: tonnage run -- python train.py"};
}

}  // namespace tonnage::cli
