#include "cli/kept_runs.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

namespace tonnage::cli {
namespace {

namespace fs = std::filesystem;

class KeptRuns : public testing::Test {
 protected:
  KeptRuns() {
    std::string pattern = (fs::temp_directory_path() / "kept-runs-XXXXXX").string();
    base_ = ::mkdtemp(pattern.data());
    folder_ = base_ / "state" / "tonnage" / "runs";
  }
  ~KeptRuns() override { fs::remove_all(base_); }
  fs::path record(const std::string& text) {
    const fs::path path = base_ / "record";
    std::ofstream(path) << text;
    return path;
  }
  fs::path keep(const std::string& text, const KeepLimits& limits = {}) {
    auto kept = keep_run(record(text), folder_, limits);
    EXPECT_TRUE(kept.has_value() && kept->has_value());
    return **kept;
  }
  static std::string read(const fs::path& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  size_t count() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(folder_), fs::directory_iterator{}));
  }
  fs::path base_, folder_;
};

TEST_F(KeptRuns, TheNewestIsFound) {
  EXPECT_FALSE(kept_run(folder_));
  keep("first");
  const fs::path second = keep("second");
  ASSERT_TRUE(kept_run(folder_));
  EXPECT_EQ(second, *kept_run(folder_));
  EXPECT_EQ("second", read(second));
}

TEST_F(KeptRuns, EarlierOnesAreCountedBack) {
  for (const char* text : {"first", "second", "third"}) keep(text);
  EXPECT_EQ("third", read(*kept_run(folder_, 0)));
  EXPECT_EQ("first", read(*kept_run(folder_, 2)));
  EXPECT_FALSE(kept_run(folder_, 3));
  EXPECT_EQ(0u, runs_back("last").value());
  EXPECT_EQ(12u, runs_back("last~12").value());
  for (const char* word : {"last~", "last~x", "last~-1", "last2", "lastx", ""})
    EXPECT_FALSE(runs_back(word)) << word;
}

TEST_F(KeptRuns, ManyAtOnce) {
  fs::create_directories(base_ / "records");
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([this, i] {
      const fs::path path = base_ / "records" / std::to_string(i);
      std::ofstream(path) << std::string(1 << 20, static_cast<char>('a' + i));
      for (int run = 0; run < 8; ++run) EXPECT_TRUE(keep_run(path, folder_, {.runs = 3}));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(3u, count());
  for (size_t back = 0; back < 3; ++back) {
    const std::string text = read(*kept_run(folder_, back));
    EXPECT_EQ(size_t{1} << 20, text.size());
    EXPECT_EQ(std::string::npos, text.find_first_not_of(text.front()));  // of one run alone
  }
}

TEST_F(KeptRuns, AreFewInNumber) {
  for (int i = 0; i < 7; i++) keep("run " + std::to_string(i), {.runs = 3});
  EXPECT_EQ(3u, count());
  EXPECT_EQ("run 6", read(*kept_run(folder_)));
}

TEST_F(KeptRuns, AreFewInBytes) {
  for (int i = 0; i < 5; i++) keep(std::string(100, 'x'), {.runs = 10, .bytes = 250});
  EXPECT_EQ(2u, count());
  auto too_large = keep_run(record(std::string(300, 'x')), folder_, {.runs = 10, .bytes = 250});
  ASSERT_FALSE(too_large.has_value());
  EXPECT_NE(std::string::npos, too_large.error().message.find("--record FILE"));
  EXPECT_EQ(2u, count());
}

TEST_F(KeptRuns, ArePrivate) {
  const fs::path run = keep("x");
  struct stat is {};
  ASSERT_EQ(0, ::stat(folder_.c_str(), &is));
  EXPECT_EQ(0700u, is.st_mode & 0777);
  ASSERT_EQ(0, ::stat(run.c_str(), &is));
  EXPECT_EQ(0600u, is.st_mode & 0777);
  ::chmod(folder_.c_str(), 0755);
  keep("y");
  ASSERT_EQ(0, ::stat(folder_.c_str(), &is));
  EXPECT_EQ(0700u, is.st_mode & 0777);
}

TEST_F(KeptRuns, AreNotKeptBehindALink) {
  fs::create_directories(base_ / "elsewhere");
  fs::create_directories(folder_.parent_path());
  fs::create_directory_symlink(base_ / "elsewhere", folder_);
  auto kept = keep_run(record("x"), folder_, {});
  ASSERT_FALSE(kept.has_value());
  EXPECT_NE(std::string::npos, kept.error().message.find("not this user's own"));
  EXPECT_TRUE(fs::is_empty(base_ / "elsewhere"));
  EXPECT_FALSE(kept_run(folder_));
}

TEST_F(KeptRuns, OtherFilesStay) {
  keep("x");
  std::ofstream(folder_ / "notes.txt") << "mine";
  fs::create_symlink("/etc/passwd", folder_ / "run-99999999T000000.tonnage");
  for (int i = 0; i < 3; i++) keep("y", {.runs = 1});
  EXPECT_TRUE(fs::exists(folder_ / "notes.txt"));
  EXPECT_TRUE(fs::is_symlink(folder_ / "run-99999999T000000.tonnage"));
  EXPECT_EQ("y", read(*kept_run(folder_)));
}

TEST_F(KeptRuns, TheEnvironmentSaysWhereAndHowMany) {
  const char* home = ::getenv("HOME");
  const std::string before = home == nullptr ? "" : home;
  ::setenv("XDG_STATE_HOME", "/somewhere", 1);
  EXPECT_EQ("/somewhere/tonnage/runs", kept_runs_folder()->string());
  ::setenv("XDG_STATE_HOME", "relative", 1);
  ::setenv("HOME", "/home/me", 1);
  EXPECT_EQ("/home/me/.local/state/tonnage/runs", kept_runs_folder()->string());
  ::unsetenv("HOME");
  EXPECT_FALSE(kept_runs_folder());
  ::setenv("TONNAGE_KEEP_RUNS", "0", 1);
  EXPECT_EQ(0, keep_limits().runs);
  auto none = keep_run(record("x"), folder_, keep_limits());
  ASSERT_TRUE(none.has_value());
  EXPECT_FALSE(*none);
  EXPECT_FALSE(fs::exists(folder_));
  ::setenv("TONNAGE_KEEP_RUNS", "3", 1);
  EXPECT_EQ(3, keep_limits().runs);
  ::unsetenv("TONNAGE_KEEP_RUNS");
  ::unsetenv("XDG_STATE_HOME");
  if (home != nullptr) ::setenv("HOME", before.c_str(), 1);
}

}  // namespace
}  // namespace tonnage::cli
