// Which mechanism made memory, found by its frames: parts of PyTorch and of libraries whose memory
// has a name and a remedy of its own.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/diagnosis/facts.h"
#include "analysis/timeline/timeline.h"

namespace tonnage::analysis {

enum class Mechanism : uint8_t {
  kDataParallelReplica,  // the model's copies of nn.DataParallel
  kDataParallelGather,   // outputs that nn.DataParallel brings to the first GPU
  kDdpBuckets,           // DistributedDataParallel's buckets
  kFsdpGathered,         // whole parameters of FSDP
  kZero,                 // DeepSpeed's partitions and buffers
  kKeyValueCache,        // use_cache
  kGenerationCache,      // the same where no gradients are wanted
  kLanguageModelHead,
  kEvaluationCollect,  // outputs that a trainer puts together
  kMovingAverage,      // a second set of weights
  kUnfusedActivation,  // an activation function written as a formula
};
inline constexpr size_t kMechanismCount = 11;

struct MechanismBytes {
  Mechanism mechanism = Mechanism::kDataParallelReplica;
  uint64_t bytes = 0, count = 0;
  uint64_t groups = 0;  // of kUnfusedActivation: calls of such a function
  Site site;            // of the largest part
};

// Of the live allocations of one process, largest first.
std::vector<MechanismBytes> find_mechanisms(const Timeline& timeline,
                                            const std::vector<const Allocation*>& live);

Statement statement_of(Mechanism mechanism);
Remedy remedy_of(Mechanism mechanism);

}  // namespace tonnage::analysis
