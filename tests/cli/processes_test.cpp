// Signals, exit codes, links and folders of `tonnage run`, without a GPU.
#include <errno.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>

#include "abi/session_locks.h"
#include "cli/child.h"
#include "cli/output.h"
#include "cli/session_setup.h"
#include "record/record_reader.h"

extern char** environ;

namespace tonnage::cli {
namespace {

namespace fs = std::filesystem;

class ProcessesTest : public testing::Test {
 protected:
  ProcessesTest() {
    std::string pattern = (fs::temp_directory_path() / "processes-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~ProcessesTest() override { fs::remove_all(folder_); }
  static std::string read(const fs::path& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static ChildOptions shell(const std::string& script) {
    ChildOptions options;
    options.command = {"sh", "-c", script};
    for (char** at = environ; *at != nullptr; ++at) options.environment.emplace_back(*at);
    return options;
  }
  // A process of its own plays `tonnage`, first in a process group as a shell's jobs are.
  static pid_t start(const std::function<void()>& prepare, const std::string& script) {
    const pid_t pid = ::fork();
    if (pid != 0) return pid;
    ::setpgid(0, 0);
    prepare();
    const auto exit = run_child(shell(script));
    ::_exit(exit ? exit->code : 99);
  }
  static int end_of(pid_t pid) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  // Starts a program that counts signals for three seconds, and lets `send` send some.
  std::string signals_counted(const std::function<void(pid_t)>& send) {
    const fs::path out = folder_ / "count";
    const pid_t pid =
        start([] {}, "exec " TONNAGE_BINARY_DIR "/tests/processes/count_signals > " + out.string());
    for (int i = 0; i < 1000 && read(out).empty(); ++i) ::usleep(10'000);
    send(pid);
    EXPECT_EQ(0, end_of(pid));
    return read(out);
  }
  fs::path folder_;
};

TEST_F(ProcessesTest, ASignalToUsAloneArrivesOnce) {
  EXPECT_EQ("ready\nsignals: 1\n", signals_counted([](pid_t pid) { ::kill(pid, SIGTERM); }));
}

TEST_F(ProcessesTest, ASignalToTheGroupArrivesOnce) {
  EXPECT_EQ("ready\nsignals: 1\n", signals_counted([](pid_t pid) { ::kill(-pid, SIGINT); }));
}

TEST_F(ProcessesTest, ASignalToUsAndToTheGroupArrivesOnce) {  // as timeout(1) sends it
  EXPECT_EQ("ready\nsignals: 1\n", signals_counted([](pid_t pid) {
              ::kill(pid, SIGTERM);
              ::kill(-pid, SIGTERM);
            }));
}

TEST_F(ProcessesTest, DifferentSignalsAllArrive) {
  EXPECT_EQ("ready\nsignals: 3\n", signals_counted([](pid_t pid) {
              ::kill(pid, SIGTERM);
              ::kill(pid, SIGUSR1);
              ::usleep(800'000);
              ::kill(pid, SIGTERM);
            }));
}

TEST_F(ProcessesTest, TheExitCodeIsTheCommandsWhateverIsIgnored) {
  const auto ignore_children = [] { ::signal(SIGCHLD, SIG_IGN); };
  EXPECT_EQ(7, end_of(start(ignore_children, "exit 7")));
  EXPECT_EQ(1, end_of(start(ignore_children, "false")));
  const auto ignore_hangup = [] { ::signal(SIGHUP, SIG_IGN); };
  EXPECT_EQ(3, end_of(start(ignore_hangup, "kill -HUP $$; exit 3")));  // as under nohup
}

TEST_F(ProcessesTest, TheCommandHasTheSignalsThatWeHad) {
  const std::string show = "grep -E 'Sig(Blk|Ign)' /proc/self/status | cut -c 17-24 > ";  // 1 to 32
  ASSERT_EQ(0, ::system((show + (folder_ / "alone").string()).c_str()));
  ASSERT_TRUE(run_child(shell(show + (folder_ / "under").string())));
  const std::string alone = read(folder_ / "alone");
  EXPECT_EQ(alone.substr(0, 9), read(folder_ / "under").substr(0, 9));
  // Of those that are ignored: no SIGCHLD and no SIGPIPE that was not ignored before.
  const auto ignored = [](const std::string& text) {
    return std::stoul(text.substr(9), nullptr, 16);
  };
  constexpr unsigned long kOurs = 1ul << (SIGCHLD - 1) | 1ul << (SIGPIPE - 1);
  EXPECT_EQ(ignored(alone) & kOurs, ignored(read(folder_ / "under")) & kOurs);
}

TEST_F(ProcessesTest, NoProcessOfOursIsLeft) {
  const auto exit = run_child(shell("true"));
  ASSERT_TRUE(exit);
  EXPECT_EQ(-1, ::waitpid(-1, nullptr, WNOHANG));
  EXPECT_EQ(ECHILD, errno);
}

TEST_F(ProcessesTest, WhatRunsBesideIsCalledNowAndThen) {
  auto options = shell("sleep 1");
  int looks = 0;
  options.watch = [&] { ++looks; };
  ASSERT_TRUE(run_child(options));
  EXPECT_GE(looks, 2);
}

// --- Files ---

TEST_F(ProcessesTest, ResultsAreNotWrittenThroughLinks) {
  const fs::path theirs = folder_ / "theirs", ours = folder_ / "report";
  std::ofstream(theirs) << "precious";
  std::ofstream(ours) << "old";
  fs::create_symlink(theirs, folder_ / "report.tonnage-new");
  ASSERT_TRUE(write_file(ours, "new", true));
  EXPECT_EQ("new", read(ours));
  fs::remove(ours);
  fs::create_symlink(theirs, ours);
  ASSERT_TRUE(write_file(ours, "again", true));
  EXPECT_EQ("again", read(ours));
  EXPECT_FALSE(fs::is_symlink(ours));
  EXPECT_EQ("precious", read(theirs));
  fs::create_symlink(folder_ / "nothing", folder_ / "dangling");
  EXPECT_FALSE(write_file(folder_ / "dangling", "x", false));
  EXPECT_FALSE(fs::exists(folder_ / "nothing"));
  EXPECT_EQ(4, std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
}

TEST_F(ProcessesTest, ResultsArePrivateUnlessTheFileWasNot) {
  struct stat is {};
  ASSERT_TRUE(write_file(folder_ / "new", "x", false));
  ASSERT_EQ(0, ::stat((folder_ / "new").c_str(), &is));
  EXPECT_EQ(0600u, is.st_mode & 0777);
  ::chmod((folder_ / "new").c_str(), 0644);
  ASSERT_TRUE(write_file(folder_ / "new", "y", true));
  ASSERT_EQ(0, ::stat((folder_ / "new").c_str(), &is));
  EXPECT_EQ(0644u, is.st_mode & 0777);
}

class SessionTest : public ProcessesTest {
 protected:
  SessionTest() {
    ::setenv("TMPDIR", folder_.c_str(), 1);
    options_.cards.resize(1);
    options_.command = {"train.py", "--api-key=abcdef"};
  }
  ~SessionTest() override { ::unsetenv("TMPDIR"); }
  std::unique_ptr<SessionFiles> create() {
    auto files = SessionFiles::create(options_, InstallPaths{});
    EXPECT_TRUE(files) << (files ? "" : files.error().text());
    return files ? std::move(*files) : nullptr;
  }
  size_t folders() const {
    size_t count = 0;
    for (const auto& at : fs::directory_iterator(folder_)) count += at.is_directory();
    return count;
  }
  SessionOptions options_;
};

TEST_F(SessionTest, TheRecordIsPrivateAndHasNoSecrets) {
  options_.record = folder_ / "run.tonnage";
  const auto files = create();
  ASSERT_NE(nullptr, files);
  struct stat is {};
  ASSERT_EQ(0, ::stat(options_.record.c_str(), &is));
  EXPECT_EQ(0600u, is.st_mode & 0777);
  const auto record = record::read_record(options_.record.string());
  ASSERT_TRUE(record);
  EXPECT_EQ("train.py --api-key=***", record->info.at("command"));
  EXPECT_EQ(std::string::npos, read(options_.record).find("abcdef"));
}

TEST_F(SessionTest, TheRecordReplacesALinkAndNotItsTarget) {
  std::ofstream(folder_ / "theirs") << "precious";
  options_.record = folder_ / "run.tonnage";
  fs::create_symlink(folder_ / "theirs", options_.record);
  EXPECT_FALSE(SessionFiles::create(options_, InstallPaths{}));
  options_.force = true;
  const auto files = create();
  ASSERT_NE(nullptr, files);
  EXPECT_FALSE(fs::is_symlink(options_.record));
  EXPECT_TRUE(record::read_record(options_.record.string()));
  EXPECT_EQ("precious", read(folder_ / "theirs"));
  options_.record = folder_;
  EXPECT_FALSE(SessionFiles::create(options_, InstallPaths{})) << "not a folder";
}

TEST_F(SessionTest, AWriteThatFailedStandsAtTheBeginning) {
  const auto files = create();
  ASSERT_NE(nullptr, files);
  EXPECT_FALSE(files->note_failure());
  auto& failure = const_cast<abi::Session&>(files->session()).record_failure;
  failure.error_number = ENOSPC;
  failure.pid = INT32_MAX;
  ASSERT_TRUE(files->note_failure());
  EXPECT_EQ(ENOSPC, files->note_failure()->error_number);
  ASSERT_TRUE(files->write_account());
  const auto record = record::read_record(files->record_path().string());
  ASSERT_TRUE(record);
  EXPECT_EQ(ENOSPC, record->write_failure.error_number);
  EXPECT_EQ(INT32_MAX, record->write_failure.pid);
  EXPECT_EQ("train.py --api-key=***", record->info.at("command"));
}

TEST_F(SessionTest, TheAccountsPeakIsInTheRecord) {
  const auto files = create();
  ASSERT_NE(nullptr, files);
  auto& session = const_cast<abi::Session&>(files->session());
  session.peak_bytes[0] = 12345;
  session.drivers_loaded = 2;
  ASSERT_TRUE(files->write_account());
  const auto record = record::read_record(files->record_path().string());
  ASSERT_TRUE(record);
  EXPECT_EQ(12345u, record->end.device_peak_bytes.at(0));
  EXPECT_EQ(2u, record->end.drivers_loaded);
}

TEST_F(SessionTest, TheFolderOfAKilledRunIsRemovedByALaterOne) {
  const pid_t killed = ::fork();
  if (killed == 0) {
    auto files = create();
    ::kill(::getpid(), SIGKILL);
  }
  end_of(killed);
  EXPECT_EQ(1u, folders());
  fs::create_directory(folder_ / "tonnage-abcdef");  // not a session's
  const auto first = create();
  EXPECT_EQ(2u, folders());
  const auto second = create();  // the first one lives
  EXPECT_EQ(3u, folders());
  EXPECT_TRUE(fs::exists(first->session_path()));
}

TEST_F(SessionTest, AFolderThatAProcessStillUsesStays) {
  int ready[2];
  ASSERT_EQ(0, ::pipe(ready));
  const pid_t run = ::fork();
  if (run == 0) {
    auto files = create();
    const pid_t survivor = ::fork();
    if (survivor == 0) {
      abi::SessionLocks locks;
      locks.open(files->session_path().c_str());
      locks.hold(3);
      [[maybe_unused]] const auto n = ::write(ready[1], &survivor, 1);
      ::sleep(2);
      ::_exit(0);
    }
    ::usleep(300'000);
    ::kill(::getpid(), SIGKILL);
  }
  char byte;
  ASSERT_EQ(1, ::read(ready[0], &byte, 1));
  end_of(run);
  { const auto files = create(); }
  EXPECT_EQ(1u, folders());
  ::sleep(3);
  { const auto files = create(); }
  EXPECT_EQ(0u, folders());
}

}  // namespace
}  // namespace tonnage::cli
