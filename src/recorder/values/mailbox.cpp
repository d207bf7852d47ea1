#include "recorder/values/mailbox.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <set>
#include <utility>

namespace tonnage::recorder {
namespace {

std::atomic<double> g_patience_seconds{300}, g_patience_for_absent_seconds{20};
constexpr uint32_t kMagic = 0x53474d54;  // "TMGS"
constexpr uint64_t kMaxParts = 1 << 20;
constexpr size_t kMaxThrownAway = 1 << 14;

const std::string& folder() {
  static const std::string& path = *[] {
    const char* session = ::getenv("TONNAGE_SESSION");
    auto* text = new std::string(session ? session : "");
    text->resize(text->rfind('/') == std::string::npos ? 0 : text->rfind('/'));
    return text;
  }();
  return path;
}

// Where messages go when the session's file system is full: a folder of the same name in memory,
// private. "" if it cannot be had.
const std::string& spare_folder(bool make) {
  static const std::string& path = *[] {
    const std::string& session = folder();
    auto* text = new std::string;
    if (const size_t slash = session.rfind('/'); slash != std::string::npos)
      *text = "/dev/shm" + session.substr(slash);
    return text;
  }();
  static const std::string& none = *new std::string;
  if (path.empty() || path == folder()) return none;
  if (make) ::mkdir(path.c_str(), 0700);
  struct stat info = {};
  const bool ours = ::lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) &&
                    info.st_uid == ::geteuid() && (info.st_mode & 077) == 0;
  return ours ? path : none;
}

std::string prefix_of(uint64_t group, int from) {
  char text[64];
  std::snprintf(text, sizeof text, "values-%016llx-%d-", static_cast<unsigned long long>(group),
                from);
  return text;
}

std::string path_of(const MessageName& name, const std::string& where = folder()) {
  char tail[64];
  std::snprintf(tail, sizeof tail, "%d-%c%llu", name.to, name.pair ? 'p' : 'c',
                static_cast<unsigned long long>(name.sequence));
  return where + "/" + prefix_of(name.group, name.from) + tail;
}

// Messages that are not wanted, and may not have come yet.
struct ThrownAway {
  static constexpr size_t kLooks = 64;  // at a time: most have come when they are looked for
  std::mutex mutex;
  std::deque<std::string> paths;

  void add(std::string path) {
    if (::unlink(path.c_str()) == 0) return;
    std::lock_guard<std::mutex> lock(mutex);
    if (paths.size() < kMaxThrownAway) paths.push_back(std::move(path));
  }
  void look_again() {
    std::lock_guard<std::mutex> lock(mutex);
    for (size_t i = std::min(paths.size(), kLooks); i > 0; i--) {
      std::string path = std::move(paths.front());
      paths.pop_front();
      if (::unlink(path.c_str()) != 0) paths.push_back(std::move(path));
    }
  }
};
ThrownAway& thrown_away() {
  static auto& instance = *new ThrownAway;
  return instance;
}

// Ranks by whether they have answered, in each group. Ranks that are not under this run are waited
// for once in all: after that a rank of which nothing has come, in any group, is given up at once,
// unless as many of its group are silent as are missing.
class Ranks {
 public:
  using Rank = std::pair<uint64_t, int>;  // group, rank in it

  bool is_silent(const Rank& rank) {
    std::lock_guard<std::mutex> lock(mutex_);
    return silent_.count(rank) != 0;
  }
  bool counts_as_absent(const Rank& rank, long missing) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!waited_for_absent_ || heard_.count(rank)) return false;
    long silent = 0;
    for (const Rank& other : silent_) silent += other.first == rank.first;
    return silent < missing;
  }
  void note_heard(const Rank& rank) {
    std::lock_guard<std::mutex> lock(mutex_);
    heard_.insert(rank);
  }
  void note_silent(const Rank& rank, bool absent) {
    std::lock_guard<std::mutex> lock(mutex_);
    silent_.insert(rank);
    waited_for_absent_ |= absent;
  }

 private:
  std::mutex mutex_;
  std::set<Rank> silent_, heard_;
  bool waited_for_absent_ = false;
};
Ranks& ranks() {
  static auto& instance = *new Ranks;
  return instance;
}

template <class T>
void append(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof value);
}
template <class T>
bool take(const std::string& in, size_t* at, T* value) {
  if (in.size() - *at < sizeof *value) return false;
  std::memcpy(value, in.data() + *at, sizeof *value);
  *at += sizeof *value;
  return true;
}

// Keeps the signal of a file size limit from ending the program.
class NoSizeSignal {
 public:
  NoSizeSignal() {
    sigemptyset(&size_limit_);
    sigaddset(&size_limit_, SIGXFSZ);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGXFSZ) == 1;
    ::pthread_sigmask(SIG_BLOCK, &size_limit_, &before_);
  }
  ~NoSizeSignal() {
    const timespec at_once = {};
    if (!was_pending_) ::sigtimedwait(&size_limit_, nullptr, &at_once);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSizeSignal(const NoSizeSignal&) = delete;
  NoSizeSignal& operator=(const NoSizeSignal&) = delete;

 private:
  sigset_t size_limit_, before_;
  bool was_pending_;
};

bool write_file(const std::string& path, const std::string& bytes) {
  const NoSizeSignal no_signal;
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  ::close(fd);
  return done == bytes.size();
}

// The file is written completely, then linked to its names. So a receiver sees all of it or
// nothing. Returns the names that could not be written.
std::vector<MessageName> post_in(const std::string& where, const std::vector<MessageName>& names,
                                 const std::string& bytes) {
  static std::atomic<uint64_t> number{0};
  const std::string draft =
      where + "/draft-" + std::to_string(::getpid()) + "-" + std::to_string(number.fetch_add(1));
  bool whole = write_file(draft, bytes);
  std::vector<MessageName> left;
  for (const MessageName& name : names) {
    const std::string path = path_of(name, where);
    if (whole && ::link(draft.c_str(), path.c_str()) == 0) continue;
    // Perhaps a file system without links.
    if (whole && ::rename(draft.c_str(), path.c_str()) == 0)
      whole = write_file(draft, bytes);
    else
      left.push_back(name);
  }
  ::unlink(draft.c_str());
  return left;
}

// False if it is not there.
bool read_file(const std::string& path, std::string* bytes) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  struct stat info = {};
  if (::fstat(fd, &info) == 0 && info.st_size > 0) bytes->resize(static_cast<size_t>(info.st_size));
  size_t done = 0;
  while (done < bytes->size()) {
    const ssize_t n = ::read(fd, bytes->data() + done, bytes->size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  ::close(fd);
  bytes->resize(done);
  return true;
}

std::vector<Contribution> parse(const std::string& bytes) {
  std::vector<Contribution> parts;
  size_t at = 0;
  uint32_t magic = 0;
  uint64_t count = 0;
  if (!take(bytes, &at, &magic) || magic != kMagic || !take(bytes, &at, &count) ||
      count > kMaxParts)
    return {};
  for (uint64_t i = 0; i < count; i++) {
    Contribution part;
    uint8_t known = 0;
    uint64_t size = 0;
    if (!take(bytes, &at, &known) || !take(bytes, &at, &size) || bytes.size() - at < size)
      return {};
    part.known = known != 0;
    part.bytes.assign(bytes, at, size);
    at += size;
    parts.push_back(std::move(part));
  }
  return parts;
}

double now_seconds() {
  timespec t = {};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Starts with what other starts of the program do not have.
std::string presence_prefix() {
  std::string text = "rank-";
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT"}) {
    const char* value = ::getenv(name);
    for (const char* c = value ? value : ""; *c; c++)
      text += std::isalnum(static_cast<unsigned char>(*c)) ? *c : '_';
    text += '-';
  }
  return text;
}

// Ranks of this program that are not under this run; 0 where nobody says how many there are.
long missing_ranks() {
  const char* world = ::getenv("WORLD_SIZE");
  const long expected = world ? std::strtol(world, nullptr, 10) : 0;
  if (expected < 2 || !::getenv("RANK")) return 0;
  DIR* listing = ::opendir(folder().c_str());
  if (!listing) return 0;
  const std::string prefix = presence_prefix();
  long found = 0;
  while (const dirent* entry = ::readdir(listing))
    found += std::strncmp(entry->d_name, prefix.c_str(), prefix.size()) == 0;
  ::closedir(listing);
  return std::max(0L, expected - found);
}

enum class Waited { kCame, kLate, kAbsent };

Waited wait_for(const MessageName& name, std::string* bytes) {
  const Ranks::Rank rank(name.group, name.from);
  const std::string path = path_of(name);
  if (read_file(path, bytes)) return Waited::kCame;
  if (ranks().is_silent(rank)) return Waited::kLate;
  if (ranks().counts_as_absent(rank, missing_ranks())) return Waited::kAbsent;
  const double start = now_seconds();
  bool looked = false;
  long pause_ns = 20'000;
  const auto read_from_spare = [&] {
    const std::string& spare = spare_folder(false);
    return !spare.empty() && read_file(path_of(name, spare), bytes);
  };
  while (!read_file(path, bytes) && !read_from_spare()) {
    const double waited = now_seconds() - start;
    if (waited > g_patience_seconds.load()) return Waited::kLate;
    if (!looked && waited > g_patience_for_absent_seconds.load()) {
      if (missing_ranks() > 0) return Waited::kAbsent;
      looked = true;
    }
    const timespec pause = {0, pause_ns};
    ::nanosleep(&pause, nullptr);
    if (pause_ns < 1'000'000) pause_ns += pause_ns / 2;
  }
  return Waited::kCame;
}

}  // namespace

void post(const std::vector<MessageName>& names, const std::vector<Contribution>& contents) {
  if (names.empty() || folder().empty()) return;
  thrown_away().look_again();
  std::string bytes;
  append(&bytes, kMagic);
  append(&bytes, static_cast<uint64_t>(contents.size()));
  for (const Contribution& part : contents) {
    append(&bytes, static_cast<uint8_t>(part.known));
    append(&bytes, static_cast<uint64_t>(part.bytes.size()));
    bytes += part.bytes;
  }
  std::vector<MessageName> left = post_in(folder(), names, bytes);
  if (!left.empty() && !spare_folder(true).empty()) left = post_in(spare_folder(true), left, bytes);
  // An empty message says that there is none: nobody has to wait for it.
  if (!left.empty()) post_in(folder(), left, "");
}

Arrival::~Arrival() {
  if (!taken_ && !folder().empty()) thrown_away().add(path_of(name_));
}

const Contribution* Arrival::get(size_t index) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!taken_ && !folder().empty()) {
    const Ranks::Rank rank(name_.group, name_.from);
    std::string bytes;
    const Waited waited = wait_for(name_, &bytes);
    if (waited == Waited::kCame) {
      ::unlink(path_of(name_).c_str());
      if (const std::string& spare = spare_folder(false); !spare.empty())
        ::unlink(path_of(name_, spare).c_str());
      contents_ = parse(bytes);
      taken_ = true;
      ranks().note_heard(rank);
    } else {
      ranks().note_silent(rank, waited == Waited::kAbsent);
    }
  }
  return index < contents_.size() ? &contents_[index] : nullptr;
}

void set_patience(double seconds, double seconds_for_absent) {
  g_patience_seconds.store(seconds);
  g_patience_for_absent_seconds.store(seconds_for_absent);
}

void announce_rank() {
  const char* rank = ::getenv("RANK");
  if (!rank || !::getenv("WORLD_SIZE") || folder().empty()) return;
  write_file(folder() + "/" + presence_prefix() + std::to_string(std::strtol(rank, nullptr, 10)),
             "");
}

void clear_posted(uint64_t group, int from) {
  if (folder().empty()) return;
  DIR* listing = ::opendir(folder().c_str());
  if (!listing) return;
  const std::string prefix = prefix_of(group, from);
  while (const dirent* entry = ::readdir(listing))
    if (std::strncmp(entry->d_name, prefix.c_str(), prefix.size()) == 0)
      ::unlink((folder() + "/" + entry->d_name).c_str());
  ::closedir(listing);
}

}  // namespace tonnage::recorder
