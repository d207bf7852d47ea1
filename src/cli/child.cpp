#include "cli/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>

namespace tonnage::cli {

namespace {

constexpr std::array kPassedOn = {SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGINT, SIGQUIT};

std::atomic<pid_t> child_pid{0};

// A signal from the terminal goes to the whole foreground group, so the child has it already; one
// that a process sent may have been sent to us alone.
void pass_on(int signal, siginfo_t* info, void*) {
  const int saved = errno;
  const pid_t pid = child_pid.load();
  if (pid > 0 && info->si_code <= 0 && info->si_pid != pid) ::kill(pid, signal);
  errno = saved;
}

class SignalHandlers {
 public:
  SignalHandlers() {
    struct sigaction action {};
    action.sa_sigaction = pass_on;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < kPassedOn.size(); ++i) {
      ::sigaction(kPassedOn[i], nullptr, &before_[i]);
      // Ignored for us (nohup, a background job of a script) means ignored for the command too.
      if (before_[i].sa_handler != SIG_IGN) ::sigaction(kPassedOn[i], &action, nullptr);
    }
  }
  ~SignalHandlers() { restore(); }
  void restore() const {
    for (size_t i = 0; i < kPassedOn.size(); ++i) ::sigaction(kPassedOn[i], &before_[i], nullptr);
  }

 private:
  std::array<struct sigaction, kPassedOn.size()> before_{};
};

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

}  // namespace

Result<ChildExit> run_child(const ChildOptions& options) {
  auto arguments = pointers(options.command);
  auto environment = pointers(options.environment);
  int failure[2];  // the child's errno if exec fails; closed by a successful exec
  if (::pipe2(failure, O_CLOEXEC) != 0)
    return Error{ErrorCode::kSystem, ::strerror(errno), "pipe", ""};

  const SignalHandlers handlers;
  const uint64_t start = monotonic_ns();
  const pid_t pid = ::fork();
  if (pid < 0) {
    const int error = errno;
    ::close(failure[0]);
    ::close(failure[1]);
    return Error{ErrorCode::kSystem, std::string("cannot start a process: ") + ::strerror(error),
                 "fork", ""};
  }
  if (pid == 0) {
    handlers.restore();
    if (options.stdout_to_stderr) ::dup2(STDERR_FILENO, STDOUT_FILENO);
    ::execvpe(arguments[0], arguments.data(), environment.data());
    const int error = errno;
    [[maybe_unused]] const ssize_t n = ::write(failure[1], &error, sizeof error);
    ::_exit(error == ENOENT ? 127 : 126);
  }
  child_pid.store(pid);
  ::close(failure[1]);
  ChildExit exit;
  int exec_error = 0;
  ssize_t n;
  do {
    n = ::read(failure[0], &exec_error, sizeof exec_error);
  } while (n < 0 && errno == EINTR);
  ::close(failure[0]);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  child_pid.store(0);
  exit.wall_ns = monotonic_ns() - start;
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
