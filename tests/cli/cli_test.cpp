#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "cli/cards.h"
#include "cli/child.h"
#include "cli/near_names.h"
#include "cli/output.h"
#include "cli/process_output.h"
#include "cli/run.h"
#include "cli/session_setup.h"
#include "record/record_reader.h"

namespace tonnage::cli {
namespace {

namespace fs = std::filesystem;

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = ::testing::TempDir() + "tonnage-cli-XXXXXX";
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
  }
  ~TempFolder() { fs::remove_all(path_); }
  fs::path operator/(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

std::string read_file(const fs::path& path) {
  std::ifstream in(path);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

std::vector<std::string> plain_environment() {
  std::vector<std::string> out;
  for (char** at = environ; *at != nullptr; ++at) out.emplace_back(*at);
  return out;
}

ChildExit run_shell(const std::string& script) {
  ChildOptions options;
  options.command = {"sh", "-c", script};
  options.environment = plain_environment();
  auto exit = run_child(options);
  EXPECT_TRUE(exit);
  return exit ? *exit : ChildExit{};
}

InstallPaths paths_for_tests() {
  InstallPaths paths;
  paths.executable = "/opt/x/bin/tonnage";
  paths.vgpu_dir = "/opt/x/lib/vgpu";
  paths.passthrough_dir = "/opt/x/lib/passthrough";
  paths.recorder_dir = "/opt/x/lib/recorder";
  paths.python_dir = "/opt/x/python";
  return paths;
}

std::map<std::string, std::string> environment_for(std::vector<std::string> ours,
                                                   const std::string& real = "") {
  std::vector<char*> pointers;
  for (auto& entry : ours) pointers.push_back(entry.data());
  pointers.push_back(nullptr);
  std::map<std::string, std::string> out;
  for (const auto& entry :
       child_environment(pointers.data(), paths_for_tests(), "/tmp/s/session", real)) {
    out[entry.substr(0, entry.find('='))] = entry.substr(entry.find('=') + 1);
  }
  return out;
}

TEST(CliNearNames, TyposFindTheirName) {
  const std::vector<std::string> names = {"run", "report", "explain", "doctor", "gpus", "version"};
  EXPECT_EQ(near_names("rnu", names).at(0), "run");
  EXPECT_EQ(near_names("reprot", names).at(0), "report");
  EXPECT_EQ(near_names("exp", names).at(0), "explain");
  EXPECT_EQ(near_names("gpu", names).at(0), "gpus");
  EXPECT_TRUE(near_names("zzzzzz", names).empty());
  EXPECT_TRUE(near_names("", names).empty());
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("ab", "ba"), 1u);
}

TEST(CliRun, TheSeparatorIsTakenOutOnlyBeforeTheCommand) {
  CLI::App app;
  int exit_code = 0;
  add_run_command(app, exit_code);
  const auto dropped = [&](std::vector<std::string> arguments) {
    drop_command_separator(app, arguments);
    return arguments;
  };
  using Words = std::vector<std::string>;
  EXPECT_EQ(dropped({"run", "--", "python", "--", "x"}), (Words{"run", "python", "--", "x"}));
  EXPECT_EQ(dropped({"run", "--gpu", "3090", "--json", "--", "a"}),
            (Words{"run", "--gpu", "3090", "--json", "a"}));
  EXPECT_EQ(dropped({"run", "--gpu=3090", "--", "a"}), (Words{"run", "--gpu=3090", "a"}));
  EXPECT_EQ(dropped({"run", "python", "--", "a"}), (Words{"run", "python", "--", "a"}));
  EXPECT_EQ(dropped({"run", "--gpu", "--", "--", "a"}), (Words{"run", "--gpu", "--", "a"}));
  EXPECT_EQ(dropped({"gpus", "--", "a"}), (Words{"gpus", "--", "a"}));
}

TEST(CliChild, TheExitCodePassesThrough) {
  EXPECT_EQ(run_shell("exit 0").code, 0);
  EXPECT_EQ(run_shell("exit 7").code, 7);
  EXPECT_EQ(run_shell("exit 255").code, 255);
  const ChildExit killed = run_shell("kill -9 $$");
  EXPECT_EQ(killed.code, 137);
  EXPECT_EQ(killed.signal, SIGKILL);
  EXPECT_TRUE(killed.started);
}

TEST(CliChild, WhatCannotBeStartedIsSaid) {
  ChildOptions options;
  options.command = {"/nonexistent/program"};
  auto exit = run_child(options);
  ASSERT_TRUE(exit);
  EXPECT_FALSE(exit->started);
  EXPECT_EQ(exit->code, 127);
  options.command = {"/etc/passwd"};
  exit = run_child(options);
  ASSERT_TRUE(exit);
  EXPECT_FALSE(exit->started);
  EXPECT_EQ(exit->code, 126);
  EXPECT_FALSE(exit->error.empty());
}

TEST(CliChild, SignalsToUsAreHandedOn) {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    // A process of its own plays `tonnage`; we signal it alone.
    const pid_t pid = ::fork();
    if (pid == 0) {
      const ChildExit exit = run_shell("trap 'exit 41' TERM INT USR1; sleep 20 & wait");
      ::_exit(exit.code);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
    ::kill(pid, signal);
    int status = 0;
    ::waitpid(pid, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 41) << signal << " " << status;
  }
}

TEST(CliChild, StandardOutputMayGoToStandardError) {
  TempFolder folder;
  const int saved = ::dup(STDERR_FILENO);
  const int file = ::open((folder / "err").c_str(), O_WRONLY | O_CREAT, 0600);
  ::dup2(file, STDERR_FILENO);
  ChildOptions options;
  options.command = {"echo", "hello"};
  options.environment = plain_environment();
  options.stdout_to_stderr = true;
  const auto exit = run_child(options);
  ::dup2(saved, STDERR_FILENO);
  ::close(saved);
  ::close(file);
  ASSERT_TRUE(exit);
  EXPECT_EQ(read_file(folder / "err"), "hello\n");
}

TEST(CliEnvironment, OurFoldersGoFirstAndTheUsersStay) {
  const auto set = environment_for(
      {"LD_LIBRARY_PATH=/a:/b", "PYTHONPATH=/p", "HOME=/h", "X=1=2", "CUDA_VISIBLE_DEVICES=1"});
  EXPECT_EQ(set.at("LD_LIBRARY_PATH"), "/opt/x/lib/vgpu:/a:/b");
  EXPECT_EQ(set.at("PYTHONPATH"), "/opt/x/python:/p");
  EXPECT_EQ(set.at("TONNAGE_SESSION"), "/tmp/s/session");
  EXPECT_EQ(set.at("TRITON_LIBCUDA_PATH"), "/opt/x/lib/vgpu");
  EXPECT_EQ(set.at("HOME"), "/h");
  EXPECT_EQ(set.at("X"), "1=2");
  EXPECT_EQ(set.at("CUDA_VISIBLE_DEVICES"), "1");
  EXPECT_EQ(set.count("TONNAGE_REAL_CUDA"), 0u);
  EXPECT_EQ(set.count("LD_PRELOAD"), 0u);
  const auto unset = environment_for({});
  EXPECT_EQ(unset.at("LD_LIBRARY_PATH"),
            "/opt/x/lib/vgpu");  // no empty element: that would be the current folder
  EXPECT_EQ(unset.at("PYTHONPATH"), "/opt/x/python");
  const auto real = environment_for({"LD_LIBRARY_PATH=/a"}, "/lib/libcuda.so.1");
  EXPECT_EQ(real.at("TONNAGE_REAL_CUDA"), "/lib/libcuda.so.1");
  EXPECT_EQ(real.at("LD_LIBRARY_PATH"), "/opt/x/lib/passthrough:/a");
}

TEST(CliRealDriver, IsTheNamedOneAndNeverOurOwn) {
  TempFolder folder;
  InstallPaths paths = paths_for_tests();
  paths.vgpu_dir = folder / "vgpu";
  paths.passthrough_dir = folder / "pass";
  for (const char* name : {"vgpu", "pass", "real"}) {
    fs::create_directory(folder / name);
    std::ofstream(folder / name / "libcuda.so.1") << "x";
  }
  ::setenv("LD_LIBRARY_PATH",
           ((folder / "vgpu").string() + "::" + (folder / "pass").string() + ":" +
            (folder / "real").string())
               .c_str(),
           1);
  auto found = find_real_driver(paths);
  ASSERT_TRUE(found) << found.error().text();
  EXPECT_EQ(*found, fs::canonical(folder / "real" / "libcuda.so.1"));
  ::unsetenv("LD_LIBRARY_PATH");
  ::setenv("TONNAGE_REAL_CUDA", (folder / "vgpu" / "libcuda.so.1").c_str(), 1);
  EXPECT_FALSE(find_real_driver(paths));
  ::setenv("TONNAGE_REAL_CUDA", "/nonexistent", 1);
  EXPECT_FALSE(find_real_driver(paths));
  ::unsetenv("TONNAGE_REAL_CUDA");
}

TEST(CliOutput, FilesAreReplacedOnlyWhenAsked) {
  TempFolder folder;
  ASSERT_TRUE(write_file(folder / "a", "one", false));
  const auto refused = write_file(folder / "a", "two", false);
  ASSERT_FALSE(refused);
  EXPECT_EQ(exit_code_of(refused.error()), 2);
  EXPECT_EQ(read_file(folder / "a"), "one");
  ASSERT_TRUE(write_file(folder / "a", "two", true));
  EXPECT_EQ(read_file(folder / "a"), "two");
  EXPECT_FALSE(fs::exists(folder / "a.tonnage-new"));
  EXPECT_FALSE(write_file(folder / "no/such", "x", true));
  EXPECT_TRUE(write_file("/dev/null", "x", false));
  EXPECT_FALSE(write_file("/dev/full", "x", false));
  EXPECT_TRUE(fs::exists("/dev/full"));
}

TEST(CliSession, FilesDescribeTheCardsAndGoAway) {
  TempFolder folder;
  auto cards = choose_cards("a100-80gb x2", "10GiB");
  ASSERT_TRUE(cards) << cards.error().text();
  ASSERT_EQ(cards->size(), 2u);
  EXPECT_EQ(cards->at(0).total_bytes, uint64_t{10} << 30);
  SessionOptions options;
  options.cards = *cards;
  options.command = {"python", "train.py"};
  options.record = folder / "kept.tonnage";
  options.stacks = false;
  options.assume_selected = 0.25;
  fs::path session_path;
  {
    auto files = SessionFiles::create(options, paths_for_tests());
    ASSERT_TRUE(files) << files.error().text();
    session_path = (*files)->session_path();
    const abi::Session& session = (*files)->session();
    EXPECT_EQ(session.magic, abi::kSessionMagic);
    EXPECT_EQ(session.struct_bytes, sizeof(abi::Session));
    EXPECT_EQ(session.device_count, 2);
    EXPECT_EQ(session.record_path, (folder / "kept.tonnage").string());
    EXPECT_STREQ(session.recorder_dir, "/opt/x/lib/recorder");
    EXPECT_EQ(session.flags, abi::kFlagNoStacks);
    EXPECT_EQ(session.assume_selected, 0.25);
    // Cards sit in slots of one bus (an H200's first is 00:06), so the place as a whole tells them
    // apart.
    EXPECT_NE(std::pair(session.devices[0].pci_bus, session.devices[0].pci_device),
              std::pair(session.devices[1].pci_bus, session.devices[1].pci_device));
    struct stat is {};
    ASSERT_EQ(::stat(session_path.parent_path().c_str(), &is), 0);
    EXPECT_EQ(is.st_mode & 0777, 0700u);
    ASSERT_TRUE((*files)->write_end(R"({"exit_code":3})"));
    EXPECT_FALSE(SessionFiles::create(options, paths_for_tests()));  // the record exists now
  }
  EXPECT_FALSE(fs::exists(session_path.parent_path()));
  const auto record = record::read_record((folder / "kept.tonnage").string());
  ASSERT_TRUE(record) << record.error().text();
  ASSERT_EQ(record->devices.size(), 2u);
  EXPECT_EQ(record->devices[1].total_bytes, uint64_t{10} << 30);
  EXPECT_EQ(record->info.at("command"), "python train.py");
  EXPECT_EQ(record->info.at("exit_code"), "3");
}

TEST(CliSession, TooLongPathsAreRefused) {
  SessionOptions options;
  options.record = "/" + std::string(600, 'x');
  EXPECT_FALSE(SessionFiles::create(options, paths_for_tests()));
}

TEST(CliCards, WrongWishesAreUsageErrors) {
  for (const auto& [gpu, memory] :
       {std::pair("no-such-card", ""), {"h100", "ten"}, {"h100", "1KiB"}, {"h100x99", ""}}) {
    const auto cards = choose_cards(gpu, memory);
    ASSERT_FALSE(cards) << gpu;
    EXPECT_EQ(exit_code_of(cards.error()), 2) << gpu;
    EXPECT_FALSE(cards.error().where.empty());
  }
  ::setenv("TONNAGE_GPU", "h100", 1);
  EXPECT_NE(std::string(choose_cards("", "")->at(0).name).find("H100"), std::string::npos);
  EXPECT_NE(std::string(choose_cards("3090", "")->at(0).name).find("3090"), std::string::npos);
  ::unsetenv("TONNAGE_GPU");
  EXPECT_NE(std::string(choose_cards("", "")->at(0).name).find("3060"), std::string::npos);
}

TEST(CliCards, AFileThatIsNoDriverIsAnError) { EXPECT_FALSE(real_cards("/etc/passwd")); }

TEST(CliProcessOutput, KeepsWhatIsPrinted) {
  const auto environment = plain_environment();
  auto output = output_of({"sh", "-c", "echo out; echo err >&2; exit 3"}, environment);
  ASSERT_TRUE(output);
  EXPECT_EQ(output->text, "out\n");
  EXPECT_EQ(output->code, 3);
  output = output_of({"/nonexistent"}, environment);
  ASSERT_TRUE(output);
  EXPECT_EQ(output->code, 127);
}

}  // namespace
}  // namespace tonnage::cli
