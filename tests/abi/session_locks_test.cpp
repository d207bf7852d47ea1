#include "abi/session_locks.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <functional>
#include <string>

namespace tonnage::abi {
namespace {

class SessionLocksTest : public testing::Test {
 protected:
  SessionLocksTest() {
    char pattern[] = "/tmp/session-locks-XXXXXX";
    const int fd = ::mkstemp(pattern);
    EXPECT_EQ(0, ::ftruncate(fd, 4096));
    ::close(fd);
    path_ = pattern;
    EXPECT_TRUE(ours_.open(path_.c_str()));
    EXPECT_EQ(0, ::pipe(ready_));
  }
  ~SessionLocksTest() override {
    ours_.close();
    ::unlink(path_.c_str());
  }
  // A process that holds a slot and does `then`; returns when it has begun.
  pid_t holder(
      int slot, const std::function<void()>& then = [] {}) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      SessionLocks locks;
      if (!locks.open(path_.c_str()) || !locks.hold(slot)) ::_exit(1);
      then();
      [[maybe_unused]] const auto n = ::write(ready_[1], "x", 1);
      ::pause();
      ::_exit(0);
    }
    char byte;
    EXPECT_EQ(1, ::read(ready_[0], &byte, 1));
    return pid;
  }
  void* map() const {
    const int fd = ::open(path_.c_str(), O_RDWR);
    void* memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ::close(fd);
    return memory;
  }
  std::string path_;
  SessionLocks ours_;
  int ready_[2];
};

TEST_F(SessionLocksTest, OneProcessHoldsAPlace) {
  const pid_t pid = holder(3);
  EXPECT_FALSE(ours_.hold(3));
  EXPECT_TRUE(ours_.is_held(3));
  EXPECT_TRUE(ours_.hold(4));
  EXPECT_TRUE(ours_.slot_lives(4, ::getpid()));
  ::kill(pid, SIGKILL);
  siginfo_t info;
  ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT);
  EXPECT_FALSE(ours_.slot_lives(3, pid)) << "a zombie is dead";
  EXPECT_TRUE(ours_.hold(3));
  ::waitpid(pid, nullptr, 0);
}

TEST_F(SessionLocksTest, AProgramThatClosesEverythingLivesWhileItMapsTheSession) {
  const pid_t pid = holder(3, [this] {
    map();
    for (int fd = 3; fd < 1024; ++fd)
      if (fd != ready_[1]) ::close(fd);
  });
  EXPECT_FALSE(ours_.is_held(3));
  EXPECT_TRUE(ours_.slot_lives(3, pid));
  ::kill(pid, SIGKILL);
  siginfo_t info;
  ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT);
  EXPECT_FALSE(ours_.slot_lives(3, pid));
  ::waitpid(pid, nullptr, 0);
}

TEST_F(SessionLocksTest, ADescriptorThatIsNotOursAnyMoreIsLeftAlone) {
  ASSERT_TRUE(ours_.hold(5));
  // Close every descriptor of the session and give one of its numbers to another file.
  char other[] = "/tmp/session-locks-other-XXXXXX";
  const int file = ::mkstemp(other);
  for (int fd = 200; fd < 260; ++fd)
    if (::fcntl(fd, F_GETFD) >= 0) ::dup2(file, fd);
  ours_.lock_ledger();  // opens the session again, and holds the slot again
  ours_.unlock_ledger();
  SessionLocks another;
  ASSERT_TRUE(another.open(path_.c_str()));
  EXPECT_TRUE(another.is_held(5));
  another.close();
  ::close(file);
  ::unlink(other);
}

}  // namespace
}  // namespace tonnage::abi
