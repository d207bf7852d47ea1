#include "analysis/batch_option.h"

#include <gtest/gtest.h>

namespace tonnage::analysis {
namespace {

std::optional<uint64_t> batch_in(const char* command) {
  return find_batch(words_of_command(command));
}

std::string smaller(const char* command, uint64_t batch) {
  std::string out;
  for (const std::string& word : with_batch(words_of_command(command), batch))
    out += (out.empty() ? "" : " ") + word;
  return out;
}

TEST(BatchOption, IsFoundInItsUsualSpellings) {
  for (const char* option : {"--batch-size 16",
                             "--batch_size=16",
                             "--batch_size 16",
                             "-b 16",
                             "-b=16",
                             "-b16",
                             "--bs 16",
                             "-bs 16",
                             "--bsz=16",
                             "--batch 16",
                             "batch=16",
                             "--per_device_train_batch_size 16",
                             "--per-device-train-batch-size=16",
                             "--train-batch-size 16",
                             "--train_batch_size=16",
                             "--micro-batch-size 16",
                             "--mbs 16",
                             "train.batch_size=16",
                             "+data.train_batch_size=16",
                             "--training.local_batch_size=16",
                             "--batchsize 16",
                             "--BATCH_SIZE 16",
                             "BATCH_SIZE=16",
                             "--train_micro_batch_size_per_gpu 16",
                             "--global-batch-size 16"}) {
    const std::string command = std::string("python train.py ") + option + " --lr 3";
    EXPECT_EQ(batch_in(command.c_str()), 16u) << option;
    EXPECT_EQ(batch_in(smaller(command.c_str(), 7).c_str()), 7u) << option;
  }
}

TEST(BatchOption, OthersAreNotMeant) {
  for (const char* command :
       {"python train.py", "python train.py --lr 16", "python train.py --batch-size",
        "python train.py --batch-size auto", "python train.py --eval-batch-size 16",
        "python train.py --val_batch_size=16", "python train.py --num-batches 16",
        "python train.py --gradient-accumulation-batches 16", "python train.py batch_size 16",
        "python train.py --batch-size 0", "python train.py --batch-size 1.5",
        "python train.py --batch-size 16 -b 8", "python batch.py 16"}) {
    EXPECT_FALSE(batch_in(command)) << command;
    EXPECT_EQ(smaller(command, 7), command);
  }
}

TEST(BatchOption, TheBatchOfOneCardComesFirst) {
  const char* command =
      "pretrain.py --micro-batch-size 4 --global-batch-size 256 --eval-batch-size 8";
  EXPECT_EQ(batch_in(command), 4u);
  EXPECT_EQ(smaller(command, 2),
            "pretrain.py --micro-batch-size 2 --global-batch-size 256 --eval-batch-size 8");
  EXPECT_EQ(smaller("env BATCH_SIZE=8 sh -c run -b 8", 3), "env BATCH_SIZE=3 sh -c run -b 3");
}

}  // namespace
}  // namespace tonnage::analysis
