// AdamW whose moments live in pinned host memory and visit the device a bucket at a time, while
// other buckets are computed.
//
//   tonnage::OffloadedAdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-4));
//
// Memory: no state on the device between steps. During step(): 6 * bucket_bytes (three buckets of
// two moments; a parameter larger than a bucket is a bucket of its own). On the host: 2 * the bytes
// of the parameters, pinned. Time: the moments cross the bus twice per step, 4 * parameter bytes in
// all, in both directions at once, overlapped with the update.
//
// The numbers are bitwise those of FusedAdamW; options and the format of save() and load() are
// torch::optim::AdamW's. Parameters on the CPU are updated in place, with moments in ordinary
// memory.
//
// Errors: as in optim.h, and c10::Error where pinned memory cannot be had. step() returns while the
// last moments are still on their way to the host; the current stream waits for them, and save()
// does. Threads: one at a time. Owns: the state, two streams.
//
// Source of the method: Ren et al., "ZeRO-Offload: Democratizing Billion-Scale Model Training",
// USENIX ATC 2021 (which updates on the CPU; here the device does).
#pragma once

#include <torch/optim/adamw.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace tonnage {

class OffloadedAdamW : public ::torch::optim::AdamW {
 public:
  static constexpr int64_t kDefaultBucketBytes = int64_t{32} << 20;  // of parameters

  explicit OffloadedAdamW(const std::vector<::torch::optim::OptimizerParamGroup>& groups,
                          ::torch::optim::AdamWOptions defaults = {},
                          int64_t bucket_bytes = kDefaultBucketBytes);
  explicit OffloadedAdamW(std::vector<::torch::Tensor> parameters,
                          ::torch::optim::AdamWOptions defaults = {},
                          int64_t bucket_bytes = kDefaultBucketBytes);
  ~OffloadedAdamW() override;

  // amsgrad is not supported: c10::Error.
  ::torch::Tensor step(LossClosure closure = nullptr) override;
  void save(::torch::serialize::OutputArchive& archive) const override;

  // Waits until all moments are on the host.
  void synchronize() const;

  int64_t host_bytes() const;  // of pinned memory that the moments take

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tonnage
