#include "tonnage/torch/recorder.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace {

TEST(Recorder, NothingHappensWithoutOne) {
  torch::nn::Linear model(4, 4);
  torch::optim::Adam optimizer(model->parameters());
  EXPECT_FALSE(tonnage::recorder_present());
  tonnage::label_module(*model);
  tonnage::label_optimizer(optimizer, *model);
  tonnage::mark_step();
}

TEST(GpuRecorder, IsFoundUnderTonnageRun) {
  torch::nn::Linear model(4, 4);
  model->to(torch::kCUDA);
  EXPECT_TRUE(tonnage::recorder_present());
  tonnage::label_module(*model);
}

}  // namespace
