// Known values across ranks. NCCL runs for real and moves nothing, but what ranks tell each other
// in small tensors decides what they do next: numbers of parameters, lengths, how many tokens go to
// which expert, pickled objects. So what a rank contributes to a collective is posted to the
// others, through files beside the session, and its result is a promise (gpu/shadow_memory.h) that
// is fetched when somebody reads it: ranks wait for each other only where a real read would wait
// too.
//
// Follows c10d's operators (torch.distributed, DistributedDataParallel, FSDP, DTensor), which all
// go through the dispatcher.
#pragma once

#include <cstdint>
#include <string_view>

#include "recorder/state.h"

namespace tonnage::recorder {

struct OpInfo;

// What a c10d operator does with its tensors; kNone for others.
enum class Collective : uint8_t {
  kNone,
  kAllReduce,
  kBroadcast,
  kReduce,
  kAllGather,      // into a list of tensors
  kAllGatherInto,  // into one tensor
  kGather,
  kScatter,
  kReduceScatter,      // from lists of tensors
  kReduceScatterFrom,  // from one tensor
  kAllToAll,           // lists of tensors
  kAllToAllInto,       // one tensor, split by rows
  kSend,
  kReceive,
  kReceiveFromAny,
};
Collective collective_of(std::string_view operator_name);

// before_collective posts this rank's contribution; after_collective makes the results promises, or
// unknown.
void before_collective(ThreadState& thread, OpFrame& frame);
void after_collective(ThreadState& thread, OpFrame& frame);

}  // namespace tonnage::recorder
