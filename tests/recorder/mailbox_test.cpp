// Messages between ranks: files in the session's folder.
#include "recorder/values/mailbox.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

namespace tonnage::recorder {
namespace {

namespace fs = std::filesystem;

class MailboxTest : public testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/tonnage-mailbox-XXXXXX";
    ASSERT_NE(nullptr, mkdtemp(pattern));
    folder_ = pattern;
    setenv("TONNAGE_SESSION", (folder_ / "session").c_str(), 1);
    set_patience(10, 10);
  }
  void TearDown() override { fs::remove_all(folder_); }
  size_t files() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  static MessageName name(uint64_t sequence, int from, int to) {
    return {7, sequence, false, from, to};
  }

  fs::path folder_;
};

TEST_F(MailboxTest, AMessageReachesEachReceiverOnce) {
  post({name(0, 0, 1), name(0, 0, 2)},
       {{true, "abc"}, {false, ""}, {true, std::string(1 << 20, 'x')}});
  EXPECT_EQ(2u, files()) << "no draft is left";
  Arrival first(name(0, 0, 1)), second(name(0, 0, 2));
  for (Arrival* arrival : {&first, &second}) {
    ASSERT_NE(nullptr, arrival->get(0));
    EXPECT_EQ("abc", arrival->get(0)->bytes);
    EXPECT_FALSE(arrival->get(1)->known);
    EXPECT_EQ(1u << 20, arrival->get(2)->bytes.size());
    EXPECT_EQ(nullptr, arrival->get(3));
  }
  EXPECT_EQ(0u, files());
}

TEST_F(MailboxTest, IsWaitedForAcrossProcesses) {
  const pid_t child = fork();
  if (child == 0) {
    usleep(100'000);
    post({name(1, 3, 0)}, {{true, "late"}});
    _exit(0);
  }
  Arrival arrival(name(1, 3, 0));
  ASSERT_NE(nullptr, arrival.get(0));
  EXPECT_EQ("late", arrival.get(0)->bytes);
  waitpid(child, nullptr, 0);
}

TEST_F(MailboxTest, WhatNobodyFetchesIsThrownAwayEvenIfItComesLater) {
  post({name(0, 0, 1)}, {{true, "unread"}});
  { Arrival unread(name(0, 0, 1)); }
  EXPECT_EQ(0u, files());
  { Arrival early(name(1, 0, 1)); }
  post({name(1, 0, 1)}, {{true, "too late"}});
  post({name(2, 0, 1)}, {{true, "next"}});
  EXPECT_EQ(1u, files());
}

TEST_F(MailboxTest, ARankThatDoesNotAnswerIsWaitedForOnce) {
  set_patience(0.05, 0.05);
  EXPECT_EQ(nullptr, Arrival({9, 0, false, 5, 0}).get(0));
  set_patience(60, 60);
  EXPECT_EQ(nullptr, Arrival({9, 1, false, 5, 0}).get(0)) << "not a minute";
  post({{9, 2, false, 5, 0}}, {{true, "there"}});
  EXPECT_NE(nullptr, Arrival({9, 2, false, 5, 0}).get(0)) << "what is there is read all the same";
}

TEST_F(MailboxTest, WhereARankIsMissingNobodyWaitsLong) {
  setenv("WORLD_SIZE", "2", 1);
  setenv("RANK", "0", 1);
  announce_rank();
  set_patience(60, 0.05);
  EXPECT_EQ(nullptr, Arrival({11, 0, false, 1, 0}).get(0)) << "rank 1 is under another run";
  setenv("RANK", "1", 1);
  announce_rank();
  std::thread late([] {
    usleep(300'000);
    post({{12, 0, false, 1, 0}}, {{true, "late"}});
  });
  EXPECT_NE(nullptr, Arrival({12, 0, false, 1, 0}).get(0)) << "all are here";
  late.join();
}

TEST_F(MailboxTest, RanksThatAreMissingAreWaitedForOnceInAll) {
  setenv("WORLD_SIZE", "4", 1);
  setenv("RANK", "0", 1);
  announce_rank();
  set_patience(60, 0.5);
  const auto start = std::chrono::steady_clock::now();
  for (uint64_t group : {21, 22, 23})
    for (int rank : {1, 2, 3}) EXPECT_EQ(nullptr, Arrival({group, 0, false, rank, 0}).get(0));
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
  EXPECT_LT(waited.count(), 4 * 0.5) << "not for each rank of each group";
  // Rank 1 is here after all, in a group of its own time: it is not given up.
  setenv("RANK", "1", 1);
  announce_rank();
  std::thread late([] {
    usleep(100'000);
    post({{24, 0, false, 1, 0}}, {{true, "late"}});
  });
  EXPECT_EQ(nullptr, Arrival({24, 0, false, 2, 0}).get(0));
  EXPECT_EQ(nullptr, Arrival({24, 0, false, 3, 0}).get(0));
  EXPECT_NE(nullptr, Arrival({24, 0, false, 1, 0}).get(0)) << "as many are silent as are missing";
  late.join();
}

TEST_F(MailboxTest, AnEarlierStartsMessagesAreNotTakenForThisOnes) {
  post({name(0, 0, 1), name(0, 0, 2)}, {{true, "old"}});
  post({name(0, 2, 1)}, {{true, "of another rank"}});
  clear_posted(7, 0);
  EXPECT_EQ(1u, files());
}

TEST_F(MailboxTest, DamagedMessagesAreUnknown) {
  post({name(0, 0, 1)}, {{true, "abcdefgh"}});
  const fs::path file = fs::directory_iterator(folder_)->path();
  const auto size = fs::file_size(file);
  for (uintmax_t keep = 0; keep < size; keep++) {
    post({name(0, 0, 1)}, {{true, "abcdefgh"}});
    fs::resize_file(file, keep);
    EXPECT_EQ(nullptr, Arrival(name(0, 0, 1)).get(0)) << keep << " bytes";
  }
  std::ofstream(file, std::ios::binary) << "TMGS" << std::string(8, '\xff');
  EXPECT_EQ(nullptr, Arrival(name(0, 0, 1)).get(0)) << "a count beyond all bounds";
}

TEST_F(MailboxTest, MessagesOfAPairAreNotCollectives) {
  post({{7, 0, true, 0, 1}}, {{true, "pair"}});
  set_patience(0.02, 0.02);
  EXPECT_EQ(nullptr, Arrival({7, 0, false, 0, 1}).get(0));
  EXPECT_NE(nullptr, Arrival({7, 0, true, 0, 1}).get(0));
}

}  // namespace
}  // namespace tonnage::recorder
