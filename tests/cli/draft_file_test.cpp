#include "cli/draft_file.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

namespace tonnage::cli {
namespace {

namespace fs = std::filesystem;

class DraftFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "draft_file_test.XXXXXX").string();
    ASSERT_NE(nullptr, ::mkdtemp(pattern.data()));
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  static void write(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }
  static std::string content(const fs::path& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  ptrdiff_t files() const { return std::distance(fs::directory_iterator(folder_), {}); }

  fs::path folder_;
};

TEST_F(DraftFileTest, GetsItsNameWhenItIsWhole) {
  DraftFile draft(folder_ / "a");
  ASSERT_EQ(0, draft.error());
  ASSERT_EQ(3, ::write(draft.fd(), "new", 3));
  EXPECT_FALSE(fs::exists(folder_ / "a"));
  EXPECT_EQ(0, draft.close());
  EXPECT_EQ(0, draft.put_in_place(false));
  EXPECT_EQ("new", content(folder_ / "a"));
  EXPECT_EQ(1, files());
}

TEST_F(DraftFileTest, IsRemovedIfItNeverGotItsName) {
  { const DraftFile draft(folder_ / "a"); }
  EXPECT_EQ(0, files());
}

TEST_F(DraftFileTest, ReplacesOnlyWhenAsked) {
  write(folder_ / "a", "old");
  {
    DraftFile draft(folder_ / "a");
    EXPECT_EQ(EEXIST, draft.put_in_place(false));
  }
  EXPECT_EQ("old", content(folder_ / "a"));
  EXPECT_EQ(1, files());
  DraftFile draft(folder_ / "a");
  EXPECT_EQ(0, draft.put_in_place(true));
  EXPECT_EQ("", content(folder_ / "a"));
}

TEST_F(DraftFileTest, ALinkIsReplacedAndItsTargetStays) {
  write(folder_ / "target", "old");
  fs::create_symlink(folder_ / "target", folder_ / "a");
  DraftFile draft(folder_ / "a", O_APPEND);
  EXPECT_EQ(0, draft.put_in_place(true));
  EXPECT_FALSE(fs::is_symlink(folder_ / "a"));
  EXPECT_EQ("old", content(folder_ / "target"));
  const int fd = draft.release();
  EXPECT_NE(0, ::fcntl(fd, F_GETFL) & O_APPEND);
  ::close(fd);
}

TEST_F(DraftFileTest, SaysWhyItCannotBeMade) {
  DraftFile draft(folder_ / "none" / "a");
  EXPECT_EQ(ENOENT, draft.error());
  EXPECT_EQ(ENOENT, draft.put_in_place(true));
}

}  // namespace
}  // namespace tonnage::cli
