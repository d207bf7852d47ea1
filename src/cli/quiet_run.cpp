#include "cli/quiet_run.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>

#include "analysis/true_need.h"
#include "cli/command_end.h"
#include "cli/sandbox.h"
#include "cli/session_setup.h"
#include "cli/wait_clock.h"
#include "record/record_reader.h"

namespace tonnage::cli {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kPollNs = kSecond / 10;
constexpr uint64_t kLookEveryNs = kSecond / 2;
// On a loaded machine a run may take so many times the time that it is given.
constexpr uint64_t kMostSlowdown = 5;
constexpr uint64_t kGraceNs = 8 * kSecond;               // to end in order after SIGINT
constexpr uint64_t kMostRecordBytesToLookAt = 64 << 20;  // looking takes time of its own

std::atomic<bool> interrupted{false};
void note_interrupt(int) { interrupted.store(true); }

// While the second run is on, Ctrl-C ends that run and not the report.
class InterruptGuard {
 public:
  InterruptGuard() {
    interrupted.store(false);
    struct sigaction action {};
    action.sa_handler = note_interrupt;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < kSignals.size(); ++i) {
      ::sigaction(kSignals[i], nullptr, &before_[i]);
      if (before_[i].sa_handler != SIG_IGN) ::sigaction(kSignals[i], &action, nullptr);
    }
  }
  ~InterruptGuard() {
    for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
  }

 private:
  static constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
  std::array<struct sigaction, kSignals.size()> before_{};
};

uint64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * kSecond + static_cast<uint64_t>(t.tv_nsec);
}

void sleep_ns(uint64_t ns) {
  const timespec t{static_cast<time_t>(ns / kSecond), static_cast<long>(ns % kSecond)};
  ::nanosleep(&t, nullptr);
}

std::string home_folder(const char* variable, const char* below_home) {
  if (const char* set = ::getenv(variable); set != nullptr && *set != '\0') return set;
  const char* home = ::getenv("HOME");
  return home == nullptr ? "" : std::string(home) + below_home;
}

// Where a run may write that must leave nothing behind: its own folder, devices, and caches, whose
// content is the same every time.
std::vector<std::string> writable_folders(const fs::path& folder) {
  std::vector<std::string> out = {folder.string(),
                                  "/dev",
                                  "/proc/self",
                                  home_folder("XDG_CACHE_HOME", "/.cache"),
                                  home_folder("TRITON_CACHE_DIR", "/.triton"),
                                  home_folder("CUPY_CACHE_DIR", "/.cupy"),
                                  home_folder("CUDA_CACHE_PATH", "/.nv")};
  std::erase(out, "");
  return out;
}

// Services that keep a log of every run elsewhere are told that this one does not count.
std::vector<std::string> quiet_environment(std::vector<std::string> environment,
                                           const fs::path& temporary) {
  const std::array<std::string, 7> own = {
      "TMPDIR=" + temporary.string(), "WANDB_MODE=disabled",
      "COMET_MODE=disabled",          "NEPTUNE_MODE=debug",
      "CLEARML_OFFLINE_MODE=1",       "MLFLOW_TRACKING_URI=" + (temporary / "mlflow").string(),
      "HF_HUB_DISABLE_TELEMETRY=1"};
  for (const std::string& setting : own) {
    const std::string name = setting.substr(0, setting.find('=') + 1);
    std::erase_if(environment, [&](const std::string& old) { return old.starts_with(name); });
    environment.push_back(setting);
  }
  return environment;
}

// Between fork and exec. Its output goes nowhere, and nothing comes in.
[[noreturn]] void become_command(const std::vector<char*>& arguments,
                                 const std::vector<char*>& environment,
                                 const std::vector<std::string>& writable, bool asked_for) {
  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int null = ::open("/dev/null", O_RDWR);
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(null, fd);
  if (::nice(5) == -1) errno = 0;  // less urgent than what else the user runs
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) ::signal(signal, SIG_DFL);
  if (!asked_for) {
    leave_network();
    if (!protect_files(writable)) ::_exit(126);
  }
  ::execvpe(arguments[0], arguments.data(), environment.data());
  ::_exit(127);
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (const auto& s : strings) out.push_back(const_cast<char*>(s.c_str()));
  out.push_back(nullptr);
  return out;
}

// How far the run has come, read from its record while it is written.
struct Progress {
  uint64_t peak_bytes = 0;
  bool repeats = false;
};

Progress look_at(const fs::path& record_path) {
  Progress out;
  const auto record = record::read_record(record_path.string());
  if (!record) return out;
  const analysis::Timeline timeline(*record);
  for (const auto& [device, samples] : timeline.devices()) {
    if (!samples.samples.empty())
      out.peak_bytes += samples.samples[samples.device_peak].device_bytes;
  }
  out.repeats = analysis::peak_repeats(timeline);
  return out;
}

class Waiting {
 public:
  Waiting(pid_t pid, const QuietRunOptions& options, fs::path record)
      : pid_(pid), options_(options), record_(std::move(record)), start_(now_ns()), waits_(pid) {}

  // Until the command has ended or has told enough; then it is ended.
  ChildExit run() {
    ChildExit exit;
    while (!ended(exit) && !enough()) sleep_ns(kPollNs);
    was_stopped_ = !done_;
    if (was_stopped_) stop(exit);
    ::kill(-pid_, SIGKILL);  // what it started and left behind
    exit.wall_ns = now_ns() - start_;
    exit.own_ns = own_time();
    return exit;
  }

  bool was_stopped() const { return was_stopped_; }

 private:
  // Since the start, without what others took of the processors.
  uint64_t own_time() const {
    const uint64_t wall = now_ns() - start_;
    return wall - std::min(wall, waits_.waited_ns());
  }

  bool ended(ChildExit& exit) {
    int status = 0;
    waits_.look(now_ns());
    const pid_t got = ::waitpid(pid_, &status, WNOHANG);
    if (got == 0 || (got < 0 && errno == EINTR)) return false;
    done_ = true;
    if (got > 0) {
      exit.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
      exit.code = exit.signal != 0 ? 128 + exit.signal : WEXITSTATUS(status);
    }
    return true;
  }

  bool enough() {
    const uint64_t now = now_ns(), own = own_time();
    if (interrupted.load() || own > longest_ns() || now - start_ > kMostSlowdown * longest_ns())
      return true;
    if (now < next_look_) return false;
    std::error_code error;
    const auto size = fs::file_size(record_, error);
    if (error || size == last_size_ || size > kMostRecordBytesToLookAt) return quiet_for_long(own);
    last_size_ = size;
    const Progress progress = look_at(record_);
    const uint64_t took = now_ns() - now;
    next_look_ = now + std::max(kLookEveryNs, 10 * took);
    if (progress.peak_bytes > peak_) {
      peak_ = progress.peak_bytes;
      peak_since_ = own;
    }
    return came_as_far() && own >= options_.first_run_ns &&
           (progress.repeats || quiet_for_long(own));
  }

  // Programs without steps: their peak has not moved for as long as it took to come to it.
  bool quiet_for_long(uint64_t own) const {
    return peak_ > 0 && came_as_far() && own >= options_.first_run_ns * 3 / 2 + 2 * kSecond &&
           own - peak_since_ >= std::max(5 * kSecond, peak_since_);
  }

  bool came_as_far() const { return peak_ + peak_ / 20 >= options_.first_peak_bytes; }

  uint64_t longest_ns() const {
    return std::max(3 * options_.first_run_ns, 60 * kSecond) + 30 * kSecond;
  }

  void stop(ChildExit& exit) {
    const uint64_t asked = now_ns();
    ::kill(-pid_, SIGINT);
    while (!ended(exit) && now_ns() - asked < kGraceNs) sleep_ns(kPollNs);
    if (done_) return;
    ::kill(-pid_, SIGKILL);
    while (!ended(exit)) sleep_ns(kPollNs);
  }

  pid_t pid_;
  const QuietRunOptions& options_;
  fs::path record_;
  uint64_t start_, next_look_ = 0, peak_ = 0;
  uint64_t peak_since_ = 0;  // own time
  WaitClock waits_;
  uintmax_t last_size_ = 0;
  bool done_ = false, was_stopped_ = false;
};

}  // namespace

Result<std::optional<QuietRun>> run_quietly(const QuietRunOptions& options,
                                            const InstallPaths& paths) {
  SessionOptions session;
  session.cards = options.cards;
  session.command = options.command;
  session.assume_selected = options.assume_selected;
  session.known_values = options.known_values;
  auto files = SessionFiles::create(session, paths);
  if (!files) return files.error();
  const fs::path folder = (*files)->session_path().parent_path(), temporary = folder / "tmp";
  std::error_code error;
  fs::create_directory(temporary, error);
  const auto environment_text =
      quiet_environment(child_environment(environ, paths, (*files)->session_path(), {}), temporary);
  const auto writable = writable_folders(folder);
  const auto arguments = pointers(options.command), environment = pointers(environment_text);

  const InterruptGuard guard;
  const pid_t pid = ::fork();
  if (pid < 0)
    return Error{ErrorCode::kSystem, std::string("cannot start a process: ") + ::strerror(errno),
                 "fork", ""};
  if (pid == 0) become_command(arguments, environment, writable, options.asked_for);
  Waiting waiting(pid, options, (*files)->record_path());
  QuietRun out;
  out.exit = waiting.run();
  if (interrupted.load()) return std::optional<QuietRun>();
  out.was_stopped = waiting.was_stopped();
  if (auto written = (*files)->write_account(); !written) return written.error();
  if (!out.was_stopped) {
    auto written = (*files)->write_end(command_end_json(out.exit, folder));
    if (!written) return written.error();
  }
  auto record = record::read_record((*files)->record_path().string());
  if (!record) return std::optional<QuietRun>();
  out.record = std::move(*record);
  return std::optional<QuietRun>(std::move(out));
}

}  // namespace tonnage::cli
