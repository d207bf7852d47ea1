#include "cli/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>

#include "cli/wait_clock.h"

namespace tonnage::cli {

namespace {

constexpr std::array kPassedOn = {SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGINT, SIGQUIT};
constexpr int kWatchMilliseconds = 200;
// How long a signal waits until it is clear that the command has not had it already.
constexpr uint64_t kDecisionNs = 100'000'000, kSameSignalNs = 500'000'000;

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (const auto& s : strings) out.push_back(const_cast<char*>(s.c_str()));
  out.push_back(nullptr);
  return out;
}

uint64_t monotonic_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

Error start_error(const char* what) {
  return Error{ErrorCode::kSystem, std::string("cannot start a process: ") + ::strerror(errno),
               what, ""};
}

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() { reset(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

struct Pipe {
  Descriptor read, write;
  bool open() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return false;
    read.reset(ends[0]);
    write.reset(ends[1]);
    return true;
  }
};

// Holds back what is passed on, and SIGCHLD; gives everything back as it was. What was ignored when
// we came (nohup, a background job of a script) is ignored by the command too, and by us.
class HeldSignals {
 public:
  HeldSignals() {
    sigemptyset(&held_);
    for (const int signal : kPassedOn) {
      struct sigaction now {};
      ::sigaction(signal, nullptr, &now);
      if (now.sa_handler != SIG_IGN) sigaddset(&held_, signal);
    }
    // Somebody who ignores SIGCHLD leaves us no exit code to wait for.
    struct sigaction by_default {};
    by_default.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &by_default, &child_action_);
    // Who reads our report may leave early: that is no reason to leave files behind.
    struct sigaction ignored {};
    ignored.sa_handler = SIG_IGN;
    static const struct sigaction before = [] {  // of the first command: it stays ignored
      struct sigaction action {};
      ::sigaction(SIGPIPE, nullptr, &action);
      return action;
    }();
    pipe_action_ = before;
    ::sigaction(SIGPIPE, &ignored, nullptr);
    passed_on_ = held_;
    sigaddset(&held_, SIGCHLD);
    ::sigprocmask(SIG_BLOCK, &held_, &before_);
  }
  ~HeldSignals() {
    ::sigaction(SIGCHLD, &child_action_, nullptr);
    ::sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;
  void restore_in_command() const {
    ::sigaction(SIGCHLD, &child_action_, nullptr);
    ::sigaction(SIGPIPE, &pipe_action_, nullptr);
    ::sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  const sigset_t& held() const { return held_; }
  const sigset_t& passed_on() const { return passed_on_; }

 private:
  sigset_t held_{}, passed_on_{}, before_{};
  struct sigaction child_action_ {
  }, pipe_action_{};
};

// A signal may be sent to us alone, or to our whole process group, in which the command is too: the
// signal does not say. So a process of ours waits in the group, does nothing, and tells what it
// gets.
class GroupWitness {
 public:
  bool start(const sigset_t& signals) {
    if (!reports_.open() || !life_.open()) return false;
    pid_ = ::fork();
    if (pid_ < 0) return false;
    if (pid_ == 0) watch(signals);
    reports_.write.reset();
    life_.read.reset();
    return true;
  }
  ~GroupWitness() {
    if (pid_ <= 0) return;
    life_.write.reset();  // it leaves by itself
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  // Whether it has a signal that it did not come to read yet.
  bool has_pending(int signal) const {
    std::ifstream status("/proc/" + std::to_string(pid_) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (!line.starts_with("ShdPnd:")) continue;
      return ::strtoull(line.c_str() + 7, nullptr, 16) >> (signal - 1) & 1;
    }
    return false;
  }
  int descriptor() const { return reports_.read.get(); }
  int read_signal() const {  // 0: it is gone
    int signal = 0;
    return ::read(descriptor(), &signal, sizeof signal) == sizeof signal ? signal : 0;
  }

 private:
  [[noreturn]] void watch(const sigset_t& signals) {
    ::prctl(PR_SET_NAME, "tonnage-signals");
    const int from = ::signalfd(-1, &signals, SFD_CLOEXEC);
    // Nothing else stays open: others wait for the end of our files, pipes and locks.
    const long most = ::sysconf(_SC_OPEN_MAX);
    for (int fd = 0; fd < std::clamp<long>(most, 256, 4096); ++fd)
      if (fd != from && fd != reports_.write.get() && fd != life_.read.get()) ::close(fd);
    for (;;) {
      pollfd wait[2] = {{from, POLLIN, 0}, {life_.read.get(), POLLIN, 0}};
      if (::poll(wait, 2, -1) < 0 && errno != EINTR) break;
      if (wait[1].revents != 0) break;
      signalfd_siginfo info{};
      if ((wait[0].revents & POLLIN) == 0 || ::read(from, &info, sizeof info) != sizeof info)
        continue;
      const int signal = static_cast<int>(info.ssi_signo);
      if (::write(reports_.write.get(), &signal, sizeof signal) < 0) break;
    }
    ::_exit(0);
  }
  Pipe reports_, life_;
  pid_t pid_ = -1;
};

// Which of the signals that came are still owed to the command.
class Passing {
 public:
  void came(int signal) {
    if (monotonic_ns() - seen_in_group_[signal] > kSameSignalNs || seen_in_group_[signal] == 0)
      owed_.emplace(signal, monotonic_ns() + kDecisionNs);
  }
  void came_to_group(int signal) {
    seen_in_group_[signal] = monotonic_ns();
    owed_.erase(signal);
  }
  void pass_on(pid_t to, const GroupWitness& witness) {
    const uint64_t now = monotonic_ns();
    std::erase_if(owed_, [&](const auto& each) {
      if (each.second > now || witness.has_pending(each.first)) return false;
      ::kill(to, each.first);
      return true;
    });
  }
  bool owes() const { return !owed_.empty(); }

 private:
  std::map<int, uint64_t> owed_, seen_in_group_;  // by signal: when to pass it on; when it was seen
};

// Waits for the command; its status.
int wait_for(pid_t pid, const HeldSignals& held, const GroupWitness& witness,
             const std::function<void()>& watch, WaitClock& waits) {
  const Descriptor signals(::signalfd(-1, &held.held(), SFD_CLOEXEC | SFD_NONBLOCK));
  Passing passing;
  bool witness_lives = true;
  uint64_t watched = monotonic_ns();
  for (;;) {
    int status = 0;
    waits.look(monotonic_ns());
    const pid_t ended = ::waitpid(pid, &status, WNOHANG);
    if (ended == pid) return status;
    if (ended < 0 && errno != EINTR) return 0;
    pollfd wait[2] = {{signals.get(), POLLIN, 0},
                      {witness_lives ? witness.descriptor() : -1, POLLIN, 0}};
    ::poll(wait, 2, passing.owes() ? 5 : kWatchMilliseconds);
    if (wait[1].revents != 0) {
      const int signal = witness.read_signal();
      if (signal == 0)
        witness_lives = false;
      else
        passing.came_to_group(signal);
    }
    signalfd_siginfo info{};
    while (::read(signals.get(), &info, sizeof info) == sizeof info) {
      const int signal = static_cast<int>(info.ssi_signo);
      // A terminal's signal goes to the whole foreground group.
      if (signal != SIGCHLD && info.ssi_code <= 0 && static_cast<pid_t>(info.ssi_pid) != pid)
        passing.came(signal);
    }
    passing.pass_on(pid, witness);
    if (watch && monotonic_ns() - watched >= kWatchMilliseconds * 1'000'000ull) {
      watch();
      watched = monotonic_ns();
    }
  }
}

}  // namespace

Result<ChildExit> run_child(const ChildOptions& options) {
  auto arguments = pointers(options.command);
  auto environment = pointers(options.environment);
  Pipe failure;  // the child's errno if exec fails; closed by a successful exec
  if (!failure.open()) return start_error("pipe");
  const HeldSignals held;
  GroupWitness witness;
  if (!witness.start(held.passed_on())) return start_error("fork");

  const uint64_t start = monotonic_ns();
  const pid_t pid = ::fork();
  if (pid < 0) return start_error("fork");
  if (pid == 0) {
    held.restore_in_command();
    if (options.stdout_to_stderr) ::dup2(STDERR_FILENO, STDOUT_FILENO);
    ::execvpe(arguments[0], arguments.data(), environment.data());
    const int error = errno;
    [[maybe_unused]] const ssize_t n = ::write(failure.write.get(), &error, sizeof error);
    ::_exit(error == ENOENT ? 127 : 126);
  }
  failure.write.reset();
  ChildExit exit;
  int exec_error = 0;
  ssize_t n;
  do {
    n = ::read(failure.read.get(), &exec_error, sizeof exec_error);
  } while (n < 0 && errno == EINTR);
  WaitClock waits(pid);
  const int status = wait_for(pid, held, witness, options.watch, waits);
  exit.wall_ns = monotonic_ns() - start;
  exit.own_ns = exit.wall_ns - std::min(exit.wall_ns, waits.waited_ns());
  if (n == static_cast<ssize_t>(sizeof exec_error)) {
    exit.started = false;
    exit.code = exec_error == ENOENT ? 127 : 126;
    exit.error = ::strerror(exec_error);
  } else if (WIFSIGNALED(status)) {
    exit.signal = WTERMSIG(status);
    exit.code = 128 + exit.signal;
    exit.core_dumped = WCOREDUMP(status);
  } else {
    exit.code = WEXITSTATUS(status);
  }
  return exit;
}

}  // namespace tonnage::cli
