#include "cli/process_output.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

namespace tonnage::cli {

namespace {

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (const auto& s : strings) out.push_back(const_cast<char*>(s.c_str()));
  out.push_back(nullptr);
  return out;
}

}  // namespace

Result<ProcessOutput> output_of(const std::vector<std::string>& command,
                                const std::vector<std::string>& environment) {
  auto arguments = pointers(command);
  auto variables = pointers(environment);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return Error{ErrorCode::kSystem, ::strerror(errno), "pipe", ""};
  const pid_t pid = ::fork();
  if (pid < 0) {
    const int error = errno;
    ::close(ends[0]);
    ::close(ends[1]);
    return Error{ErrorCode::kSystem, ::strerror(error), "fork", ""};
  }
  if (pid == 0) {
    const int null = ::open("/dev/null", O_RDWR);
    ::dup2(null, STDIN_FILENO);
    ::dup2(null, STDERR_FILENO);
    ::dup2(ends[1], STDOUT_FILENO);
    ::execvpe(arguments[0], arguments.data(), variables.data());
    ::_exit(errno == ENOENT ? 127 : 126);
  }
  ::close(ends[1]);
  ProcessOutput output;
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(kOutputTimeoutSeconds);
  bool late = false;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd wait{ends[0], POLLIN, 0};
    const int ready = left.count() <= 0 ? 0 : ::poll(&wait, 1, static_cast<int>(left.count()));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      late = true;
      ::kill(pid, SIGKILL);
      break;
    }
    char buffer[4096];
    const ssize_t n = ::read(ends[0], buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    if (output.text.size() < kMaxOutputBytes) output.text.append(buffer, static_cast<size_t>(n));
  }
  ::close(ends[0]);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (late) return Error{ErrorCode::kSystem, "it does not answer", command.front(), ""};
  output.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return output;
}

}  // namespace tonnage::cli
