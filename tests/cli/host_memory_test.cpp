#include "cli/host_memory.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>

namespace tonnage::cli {
namespace {

namespace fs = std::filesystem;

class Groups : public ::testing::Test {
 protected:
  Groups() {
    char name[] = "/tmp/tonnage-groups-XXXXXX";
    root_ = ::mkdtemp(name);
  }
  ~Groups() override { fs::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  HostMemory read() { return read_host_memory(root_ / "groups", root_ / "own"); }
  fs::path root_;
};

TEST_F(Groups, Version2IsReadFromOurGroupUpwards) {
  write("own", "0::/jobs/train\n");
  write("groups/jobs/memory.max", "8000\n");
  write("groups/jobs/memory.events", "low 0\nhigh 0\nmax 3\noom 2\noom_kill 1\n");
  write("groups/jobs/train/memory.max", "max\n");
  write("groups/jobs/train/memory.events", "oom 1\noom_kill 0\n");
  EXPECT_EQ(read().limit_bytes, 8000u);
  EXPECT_EQ(read().kills, 1u);
}

TEST_F(Groups, InAContainerOurFilesAreAtTheRoot) {
  write("own", "0::/../../docker/17\n");
  write("groups/memory.max", "4096\n");
  write("groups/memory.events", "oom_kill 7\n");
  EXPECT_EQ(read().limit_bytes, 4096u);
  EXPECT_EQ(read().kills, 7u);
}

TEST_F(Groups, Version1) {
  write("own", "9:cpu,cpuacct:/x\n7:memory:/job\n");
  write("groups/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("groups/memory/job/memory.limit_in_bytes", "5000\n");
  write("groups/memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
  EXPECT_EQ(read().limit_bytes, 5000u);
  EXPECT_EQ(read().kills, 2u);
}

TEST_F(Groups, WithoutThemThereIsNoLimit) {
  EXPECT_EQ(read().limit_bytes, 0u);
  EXPECT_EQ(read().kills, 0u);
}

}  // namespace
}  // namespace tonnage::cli
