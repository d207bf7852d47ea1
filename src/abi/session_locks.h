// Locks on bytes of the session file. With them the processes of one session exclude each other,
// and find out which processes still live.
//
// The kernel releases such a lock when its process ends, in whatever way, and before its parent has
// waited for it. This works across PID namespaces, where process numbers differ. Each process holds
// the byte of its slot (Session::processes) while it lives. The ledger's byte is held while the
// ledger changes. The bytes lie far behind the file's content.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "abi/session.h"

namespace tonnage::abi {

class SessionLocks {
 public:
  // Places on the file. A slot's place is its number.
  static constexpr int kLedger = kMaxProcesses;
  static constexpr int kOwner = kMaxProcesses + 1;  // `tonnage run`, while the session is its own

  // False: the file cannot be opened. It stays open until close().
  bool open(const char* session_path) {
    snprintf(path_, sizeof path_, "%s", session_path);
    return reopen();
  }
  void close() {
    if (is_ours()) ::close(fd_);
    fd_ = -1;
    slot_ = -1;
  }

  // Takes a slot's or the owner's place for as long as this process lives. False: another has it.
  bool hold(int place) {
    if (!ready() || !change(F_WRLCK, place, false)) return false;
    if (place < kMaxProcesses) slot_ = place;
    return true;
  }
  void release(int place) {
    if (place == slot_) slot_ = -1;
    if (is_ours()) change(F_UNLCK, place, false);
  }
  // Whether another process, or another library in this one, holds the place.
  bool is_held(int place) {
    if (!ready()) return true;  // nothing is known: better to wait than to take what is in use
    struct flock lock = place_of(F_WRLCK, place);
    const int query = uses_process_locks_ ? F_GETLK : kOfdQuery;
    return fcntl(fd_, query, &lock) != 0 || lock.l_type != F_UNLCK;
  }
  // Whether the process of a slot lives. `pid` is asked only where the lock is gone: a program may
  // have closed every descriptor it found, and lives all the same while it maps the session.
  bool slot_lives(int slot, int32_t pid) {
    return slot == slot_ || is_held(slot) || (pid > 0 && maps_session(pid));
  }

  // Waits. Threads of one process do not exclude each other: they need a mutex of their own.
  void lock_ledger() {
    if (ready()) change(F_WRLCK, kLedger, true);
  }
  void unlock_ledger() {
    if (is_ours()) change(F_UNLCK, kLedger, false);
  }

 private:
  static constexpr int kLeastDescriptor = 200;  // away from those that programs count on
  static constexpr off_t kFirstPlace = off_t{1} << 40;
  // F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW: locks of the open file, which a forked child does not
  // outlive once it has closed its copy.
  static constexpr int kOfdQuery = 36, kOfdSet = 37, kOfdWait = 38;

  static struct flock place_of(short type, int place) {
    struct flock lock {};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = kFirstPlace + place;
    lock.l_len = 1;
    return lock;
  }
  bool change(short type, int place, bool wait) {
    for (;;) {
      struct flock lock = place_of(type, place);
      const int command =
          uses_process_locks_ ? (wait ? F_SETLKW : F_SETLK) : (wait ? kOfdWait : kOfdSet);
      if (fcntl(fd_, command, &lock) == 0) return true;
      if (errno == EINTR) continue;
      // Some sandboxes know only the older kind, which belongs to the process.
      if (errno != EINVAL || uses_process_locks_) return false;
      uses_process_locks_ = true;
    }
  }
  // The descriptor is still the session's: programs close and reuse numbers that they never opened.
  bool is_ours() const {
    struct stat is {};
    return fd_ >= 0 && fstat(fd_, &is) == 0 && is.st_dev == device_ && is.st_ino == inode_;
  }
  bool ready() { return is_ours() || reopen(); }
  bool reopen() {
    const int first = ::open(path_, O_RDWR | O_CLOEXEC);
    if (first < 0) return false;
    const int high = fcntl(first, F_DUPFD_CLOEXEC, kLeastDescriptor);
    if (high >= 0) ::close(first);
    fd_ = high >= 0 ? high : first;
    struct stat is {};
    fstat(fd_, &is);
    device_ = is.st_dev;
    inode_ = is.st_ino;
    if (slot_ >= 0) change(F_WRLCK, slot_, false);
    return true;
  }
  bool maps_session(int32_t pid) const {
    char line[512];
    snprintf(line, sizeof line, "/proc/%d/maps", static_cast<int>(pid));
    FILE* maps = fopen(line, "re");
    if (!maps) return false;
    bool found = false;
    bool begins = true;  // a line longer than the buffer comes in pieces
    while (!found && fgets(line, sizeof line, maps)) {
      unsigned long long inode = 0;
      if (begins && sscanf(line, "%*s %*s %*s %*s %llu", &inode) == 1)
        found = inode != 0 && inode == static_cast<unsigned long long>(inode_);
      begins = strchr(line, '\n') != nullptr;
    }
    fclose(maps);
    return found;
  }

  char path_[4096] = {};
  int fd_ = -1;
  int slot_ = -1;  // the one that this process holds
  dev_t device_ = 0;
  ino_t inode_ = 0;
  bool uses_process_locks_ = false;
};

}  // namespace tonnage::abi
