// Assumed values for unknown numbers. All answers about one number are consistent.
//
// An assumed number is stored like a known one, but it is marked: a read of it, or of a result of
// it, still counts as a read of unknown data. For statistics (minimum, quantile, mean) the recorder
// keeps which tensor they describe. Their value is assumed when the program reads it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace tonnage::recorder {

// Programs read losses, norms and scores, and compare them with limits, with the best value so far,
// or with the last value. So an assumed number is near 1, and each is smaller than the one before.
// A zero would end many loops, because they would count as converged.
double next_number();

// A real number that no one has asked for yet.
class LazyNumber {
 public:
  double value();

 private:
  std::optional<double> value_;
};

// Numbers that follow from one unknown tensor. It counts as spread evenly from half its mean to one
// and a half times its mean.
struct Statistic {
  enum class Kind : uint8_t { kPosition, kDeviation, kVariance };
  std::shared_ptr<LazyNumber> mean;
  Kind kind = Kind::kPosition;
  uint64_t base = 0;  // address of the first number
  size_t item = 0;    // bytes of one
  // The number at index i has position positions[i / stride % positions.size()] among the tensor's
  // own, from 0 (its minimum) to 1; or, if `steps` is not 0, the positions rise or fall evenly.
  std::vector<float> positions;
  int64_t stride = 1, steps = 0;
  float first = 0, last = 1;

  double at(uint64_t address) const;
};

// --- Marks on memory ---

bool is_assumed(uint64_t address);
void mark_assumed(uint64_t address, size_t n);
void keep_statistic(uint64_t address, size_t n, Statistic statistic);
// What any() of the booleans that begin at this address would be.
void keep_any(uint64_t address, bool any);
std::optional<bool> any_of(uint64_t address);

// The bytes were written: what was assumed of them is void.
void forget_assumed(uint64_t address, size_t n);
// dst becomes what src is.
void copy_assumed(uint64_t dst, uint64_t src, size_t n);
// Under the allocator's lock: the block is gone.
void forget_assumed_block(uint64_t address, size_t n);
// The mean of the tensor whose memory begins here, as long as that is not freed and `version` stays.
std::shared_ptr<LazyNumber> mean_of(uint64_t storage_address, uint64_t version);

// --- Numbers ---

// Gives assumed values to the unknown elements of a tensor of real numbers. `negative`: a number
// without statistics is below zero.
void assume_elements(const at::Tensor& device, bool negative = false);
// Makes a value known, as assumed.
void assume(const at::Tensor& device, const at::Tensor& value);
void assume_bool(const at::Tensor& device, bool value);

// A host read of unknown data, for the report.
void note_unknown_read(uint64_t address, size_t n);

}  // namespace tonnage::recorder
