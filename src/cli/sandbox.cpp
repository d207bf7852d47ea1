#include "cli/sandbox.h"

#include <fcntl.h>
#include <linux/landlock.h>
#include <net/if.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>

namespace tonnage::cli {

namespace {

// Numbers of the kernel's interface that older headers lack.
constexpr long kCreateRuleset = 444, kAddRule = 445, kRestrictSelf = 446;
constexpr uint32_t kAskVersion = 1;
constexpr uint64_t kRefer = 1ull << 13, kTruncate = 1ull << 14;
constexpr int kVersionWithRefer = 2, kVersionWithTruncate = 3;

int landlock_version() {
  return static_cast<int>(::syscall(kCreateRuleset, nullptr, 0, kAskVersion));
}

uint64_t rights_to_write(int version) {
  uint64_t rights = LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_DIR |
                    LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_CHAR |
                    LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG |
                    LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_MAKE_FIFO |
                    LANDLOCK_ACCESS_FS_MAKE_BLOCK | LANDLOCK_ACCESS_FS_MAKE_SYM;
  if (version >= kVersionWithRefer) rights |= kRefer;
  if (version >= kVersionWithTruncate) rights |= kTruncate;
  return rights;
}

bool write_text(const char* path, const std::string& text) {
  const int fd = ::open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool written = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  ::close(fd);
  return written;
}

}  // namespace

// Without the right to truncate (before Linux 6.2) an existing file could still be emptied.
bool can_protect_files() { return landlock_version() >= kVersionWithTruncate; }

bool protect_files(const std::vector<std::string>& writable) {
  const int version = landlock_version();
  if (version < kVersionWithTruncate) return false;
  const uint64_t rights = rights_to_write(version);
  const uint64_t attributes = rights;  // handled_access_fs, the first member of every version
  const int ruleset =
      static_cast<int>(::syscall(kCreateRuleset, &attributes, sizeof attributes, 0u));
  if (ruleset < 0) return false;
  for (const std::string& folder : writable) {
    const int fd = ::open(folder.c_str(), O_PATH | O_CLOEXEC);
    if (fd < 0) continue;  // not there: nothing is written there
    landlock_path_beneath_attr rule{};
    rule.allowed_access = rights;
    rule.parent_fd = fd;
    ::syscall(kAddRule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0u);
    ::close(fd);
  }
  const bool done =
      ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::syscall(kRestrictSelf, ruleset, 0u) == 0;
  ::close(ruleset);
  return done;
}

bool leave_network() {
  const auto user = ::getuid();
  const auto group = ::getgid();
  // A namespace for the host's name too: programs look for themselves under it.
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWUTS) != 0) return false;
  write_text("/proc/self/setgroups", "deny");
  write_text("/proc/self/uid_map", std::to_string(user) + " " + std::to_string(user) + " 1");
  write_text("/proc/self/gid_map", std::to_string(group) + " " + std::to_string(group) + " 1");
  [[maybe_unused]] const int named = ::sethostname("localhost", 9);
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return true;
  ifreq loopback{};
  ::strcpy(loopback.ifr_name, "lo");
  if (::ioctl(fd, SIOCGIFFLAGS, &loopback) == 0) {
    loopback.ifr_flags |= IFF_UP;
    ::ioctl(fd, SIOCSIFFLAGS, &loopback);
  }
  ::close(fd);
  return true;
}

}  // namespace tonnage::cli
