#include "cli/kept_runs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
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

Error folder_error(const std::string& message, const fs::path& folder) {
  return Error{ErrorCode::kIo, message, folder.string(),
               "TONNAGE_KEEP_RUNS=0 keeps no runs, XDG_STATE_HOME names another place"};
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

std::vector<KeptRun> runs_in(const fs::path& folder) {  // oldest first
  std::vector<KeptRun> runs;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::string name = at->path().filename().string();
    struct stat is {};
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix) ||
        ::lstat(at->path().c_str(), &is) != 0 || !S_ISREG(is.st_mode))
      continue;
    runs.push_back({std::move(name), static_cast<uint64_t>(is.st_size)});
  }
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

int copy_into(int from, int folder, const std::string& name) {
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

void remove_unfinished(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    struct stat is {};
    if (at->path().filename().string().starts_with(kUnfinished) &&
        ::lstat(at->path().c_str(), &is) == 0 && ::time(nullptr) - is.st_mtime > kUnfinishedSeconds)
      ::unlink(at->path().c_str());
  }
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
    const Error error{ErrorCode::kIo, std::string("cannot be read: ") + ::strerror(errno),
                      record.string(), ""};
    if (from >= 0) ::close(from);
    return error;
  }
  if (static_cast<uint64_t>(is.st_size) > limits.bytes) {
    ::close(from);
    return kept;
  }
  const int to = make_folder(folder) ? open_folder(folder) : -1;
  if (to < 0) {
    const std::string why =
        errno == EPERM || errno == ELOOP || errno == ENOTDIR
            ? "the folder for kept runs is not this user's own folder"
            : std::string("cannot make the folder for kept runs: ") + ::strerror(errno);
    ::close(from);
    return folder_error(why, folder);
  }
  const std::string name = name_now();
  const int error = copy_into(from, to, name);
  ::close(from);
  ::close(to);
  if (error != 0)
    return folder_error(std::string("the run cannot be kept: ") + ::strerror(error), folder);
  prune_runs(folder, limits);
  kept = folder / name;
  return kept;
}

std::optional<fs::path> newest_run(const fs::path& folder) {
  const int fd = open_folder(folder);
  if (fd < 0) return std::nullopt;
  ::close(fd);
  const std::vector<KeptRun> runs = runs_in(folder);
  if (runs.empty()) return std::nullopt;
  return folder / runs.back().name;
}

void prune_runs(const fs::path& folder, const KeepLimits& limits) {
  const std::vector<KeptRun> runs = runs_in(folder);
  uint64_t bytes = 0;
  int kept = 0;
  bool full = false;
  for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
    full = full || kept >= limits.runs || run->bytes > limits.bytes - std::min(bytes, limits.bytes);
    if (full) {
      ::unlink((folder / run->name).c_str());
    } else {
      bytes += run->bytes;
      ++kept;
    }
  }
  remove_unfinished(folder);
}

}  // namespace tonnage::cli
