// Data that does not fit into memory, made ready on the way to the device.
//
//   auto images = tonnage::map_npy("train_images.npy");  // (n, 3, 256, 256) uint8, not read yet
//   auto labels = tonnage::map_npy("train_labels.npy");
//   tonnage::MappedDataset data(images, labels);
//   auto order = tonnage::batches(data, {.batch_size = 256, .shuffle = true, .seed = epoch});
//   tonnage::PrefetchLoader loader(order, {.device = torch::kCUDA, .workers = 2});
//   while (auto batch = loader.next()) {
//     auto x = augment((*batch)[0]);                     // on the device: bytes become floats
//     ...
//
// Memory on the device: (depth + 1) batches, which are reused for all batches of that size. On the
// host as much again, pinned, and what the system keeps of the files (it can give that back at any
// time).
#pragma once

#include <c10/core/Device.h>
#include <torch/data/datasets/base.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tonnage {

// ---- files as tensors ----

// A .npy file (NumPy's format 1 to 3, C order, little-endian bool, integers, floats) as a CPU
// tensor on the file's pages: they are read when they are touched. The tensor may be written to:
// the changes stay in this process. The mapping lives as long as the tensor or a view of it. The
// file must not shrink meanwhile. Errors: c10::Error that says what is wrong with the file and
// where.
::torch::Tensor map_npy(const std::string& path);

// The same for a file of plain numbers, `offset_bytes` into it. A size of -1 in `shape` (one at
// most) takes what the file has.
::torch::Tensor map_raw(const std::string& path, at::ScalarType type, std::vector<int64_t> shape,
                        int64_t offset_bytes = 0);

// Writes a .npy file that map_npy reads, and NumPy. c10::Error if the file exists.
void write_npy(const std::string& path, const ::torch::Tensor& tensor);

// ---- datasets ----

// Rows of two tensors of equal length. get() copies nothing: it returns views.
class MappedDataset : public ::torch::data::datasets::Dataset<MappedDataset> {
 public:
  MappedDataset(::torch::Tensor data, ::torch::Tensor targets);
  ::torch::data::Example<> get(size_t index) override;
  ::torch::optional<size_t> size() const override { return static_cast<size_t>(data_.size(0)); }
  // The rows of a batch, gathered: {data (n, ...), targets (n, ...)}.
  std::vector<::torch::Tensor> gather(const ::torch::Tensor& indices) const;

 private:
  ::torch::Tensor data_, targets_;
};

// Windows of `length` tokens out of one long row, `stride` apart (default: length), and the same
// shifted by one as targets; int64.
class TokenDataset : public ::torch::data::datasets::Dataset<TokenDataset> {
 public:
  TokenDataset(::torch::Tensor tokens, int64_t length, int64_t stride = 0);
  ::torch::data::Example<> get(size_t index) override;
  ::torch::optional<size_t> size() const override;
  std::vector<::torch::Tensor> gather(const ::torch::Tensor& indices) const;

 private:
  ::torch::Tensor tokens_;
  int64_t length_, stride_;
};

// ---- loading ----

using Batch = std::vector<::torch::Tensor>;
// Batch number i (0, 1, ...), nothing where the data ends. It is called by several threads at once
// if there are several workers.
using BatchSource = std::function<std::optional<Batch>(int64_t i)>;

struct BatchOptions {
  int64_t batch_size = 1;
  bool shuffle = false;
  uint64_t seed = 0;      // of the order: the same seed, the same order
  bool drop_last = true;  // of a batch that is not full
};

BatchSource batches(MappedDataset data, BatchOptions options);
BatchSource batches(TokenDataset data, BatchOptions options);

struct PrefetchOptions {
  c10::Device device = c10::kCPU;
  int64_t depth = 2;    // batches that are made ready ahead
  int64_t workers = 1;  // threads; the order of batches stays
};

// Makes batches ready on threads of its own: the source is called, what it returns is copied to
// pinned memory and from there to the device on a stream of its own, while the device computes. On
// the CPU batches are passed on as they are.  What next() returns is valid for work that is queued
// on the current stream before the next call of next(). Release a batch before that call, as the
// loop above does: a tensor that is kept longer stays valid, but its memory is not reused. Errors:
// what the source threw comes out of next() in the place of that batch, and again in every later
// call; c10::Error for options out of range. Threads: next() by one thread at a time.
class PrefetchLoader {
 public:
  PrefetchLoader(BatchSource source, PrefetchOptions options);
  ~PrefetchLoader();  // waits for calls of the source that run
  PrefetchLoader(const PrefetchLoader&) = delete;
  PrefetchLoader& operator=(const PrefetchLoader&) = delete;

  std::optional<Batch> next();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// ---- augmentation ----

struct AugmentOptions {
  int64_t crop = 0;                    // height and width of the result, 0: those of the input
  int64_t padding = 0;                 // zeros around the input, from which crops may take
  bool random_crop = true;             // false: the middle
  double flip = 0.5;                   // probability of a horizontal flip
  int64_t cutout = 0;                  // side of a square of zeros (after normalisation), 0: none
  std::vector<double> mean = {};       // per channel, of values in [0, 1]; empty: not subtracted
  std::vector<double> deviation = {};  // per channel; empty: not divided by
  uint64_t seed = 0;
};

// Random crops, flips and cutouts, one choice per image, on the images' device; bytes become floats
// in [0, 1]. Input (n, c, h, w), uint8 or floating; output (n, c, crop, crop), float for bytes,
// else of the input's type. No gradient. Temporary memory: one more batch of the output's size in
// the input's type. Choices are made on the CPU, from `seed`. Source of cutout: DeVries and Taylor,
// 2017.
class Augment {
 public:
  explicit Augment(AugmentOptions options);
  ::torch::Tensor operator()(const ::torch::Tensor& images);

 private:
  AugmentOptions options_;
  at::Generator generator_;
};

}  // namespace tonnage
