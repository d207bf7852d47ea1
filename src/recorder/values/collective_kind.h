// The c10d operators whose values are followed between ranks.
#pragma once

#include <cstdint>
#include <string_view>

namespace tonnage::recorder {

// What a c10d operator does with its tensors; kNone for other operators.
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

}  // namespace tonnage::recorder
