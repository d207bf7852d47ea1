#include "cli/wait_clock.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace tonnage::cli {
namespace {

constexpr uint64_t kSearchEveryNs = 1'000'000'000;  // it reads a file of each process there is

// The beginning of a small file of /proc; "" if it is gone.
std::string read_start(const std::string& path) {
  char text[512];
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "";
  const ssize_t n = ::read(fd, text, sizeof text);
  ::close(fd);
  return n > 0 ? std::string(text, static_cast<size_t>(n)) : "";
}

std::string file_of(pid_t pid, const char* name) {
  return "/proc/" + std::to_string(pid) + "/" + name;
}

// "pid (name) state parent …", and the name may have any character.
pid_t parent_of(pid_t pid) {
  const std::string text = read_start(file_of(pid, "stat"));
  const size_t name_end = text.rfind(')');
  int parent = 0;
  if (name_end == std::string::npos ||
      std::sscanf(text.c_str() + name_end + 1, " %*c %d", &parent) != 1)
    return 0;
  return parent;
}

// "ns on a processor, ns waited for one, times": of the process's first thread. 0 where the kernel
// does not count this.
uint64_t waited_by(pid_t pid) {
  unsigned long long ran = 0, waited = 0;
  const std::string text = read_start(file_of(pid, "schedstat"));
  return std::sscanf(text.c_str(), "%llu %llu", &ran, &waited) == 2 ? waited : 0;
}

}  // namespace

void WaitClock::find_processes(uint64_t now_ns) {
  last_search_ns_ = now_ns;
  std::multimap<pid_t, pid_t> children;
  if (DIR* folder = ::opendir("/proc"); folder != nullptr) {
    while (const dirent* entry = ::readdir(folder)) {
      char* end = nullptr;
      const long pid = std::strtol(entry->d_name, &end, 10);
      if (pid > 0 && *end == '\0')
        children.emplace(parent_of(static_cast<pid_t>(pid)), static_cast<pid_t>(pid));
    }
    ::closedir(folder);
  }
  processes_ = {root_};
  for (size_t i = 0; i < processes_.size(); ++i) {
    const auto [first, last] = children.equal_range(processes_[i]);
    for (auto it = first; it != last; ++it) processes_.push_back(it->second);
    children.erase(first, last);
  }
}

void WaitClock::look(uint64_t now_ns) {
  if (last_look_ns_ == 0) last_look_ns_ = now_ns;
  if (processes_.empty() || now_ns - last_search_ns_ >= kSearchEveryNs) find_processes(now_ns);
  std::map<pid_t, uint64_t> waits;
  uint64_t most = 0;
  for (const pid_t pid : processes_) {
    const uint64_t now = waited_by(pid);
    const auto before = waits_.find(pid);
    const uint64_t last = before == waits_.end() ? 0 : before->second;
    waits[pid] = std::max(now, last);
    most = std::max(most, now - std::min(now, last));
  }
  waited_ns_ += std::min(most, now_ns - last_look_ns_);
  waits_ = std::move(waits);
  last_look_ns_ = now_ns;
}

}  // namespace tonnage::cli
