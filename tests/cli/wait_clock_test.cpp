#include "cli/wait_clock.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

namespace tonnage::cli {
namespace {

uint64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}

// A process that computes (or only sleeps) on the first processor that we may use.
pid_t start(bool computes) {
  cpu_set_t mine{}, one;
  sched_getaffinity(0, sizeof mine, &mine);
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &mine)) continue;
    CPU_SET(cpu, &one);
    break;
  }
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  sched_setaffinity(0, sizeof one, &one);
  for (std::atomic<uint64_t> n = 0;; n.fetch_add(1, std::memory_order_relaxed)) {
    if (!computes) ::pause();
  }
}

void stop(pid_t pid) {
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

TEST(WaitClock, CountsWhatOthersTook) {
  if (::access("/proc/self/schedstat", R_OK) != 0) GTEST_SKIP() << "this kernel does not count it";
  const pid_t other = start(true), pid = start(true), sleeper = start(false);
  WaitClock clock(pid), of_sleeper(sleeper), of_nobody(0x7ffffff0);
  const uint64_t begin = now_ns();
  while (now_ns() - begin < 1'000'000'000) {
    for (WaitClock* each : {&clock, &of_sleeper, &of_nobody}) each->look(now_ns());
    ::usleep(20'000);
  }
  const uint64_t wall = now_ns() - begin;
  EXPECT_GT(clock.waited_ns(), wall / 4);  // two share one processor
  EXPECT_LE(clock.waited_ns(), wall);
  EXPECT_LT(of_sleeper.waited_ns(), wall / 4);
  EXPECT_EQ(of_nobody.waited_ns(), 0u);
  for (const pid_t each : {other, pid, sleeper}) stop(each);
}

TEST(WaitClock, LooksAtWhatTheProcessStarted) {
  if (::access("/proc/self/schedstat", R_OK) != 0) GTEST_SKIP() << "this kernel does not count it";
  const pid_t parent = ::fork();
  if (parent == 0) {
    const pid_t one = start(true), two = start(true);
    ::usleep(1'500'000);
    for (const pid_t each : {one, two}) stop(each);
    ::_exit(0);
  }
  ::usleep(100'000);  // it has started them
  WaitClock clock(parent);
  const uint64_t begin = now_ns();
  while (::waitpid(parent, nullptr, WNOHANG) == 0) {
    clock.look(now_ns());
    ::usleep(20'000);
  }
  EXPECT_GT(clock.waited_ns(), (now_ns() - begin) / 5);
}

}  // namespace
}  // namespace tonnage::cli
