// What a collective sends and receives, as this rank sees it. Follows c10d's operators
// (torch.distributed, DistributedDataParallel, FSDP, DTensor), which all go through the dispatcher.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "recorder/observe/operator_info.h"

#if __has_include(<torch/csrc/distributed/c10d/ProcessGroup.hpp>)
#define TONNAGE_HAS_C10D 1
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#endif

namespace tonnage::recorder {

#ifdef TONNAGE_HAS_C10D

// Dense device memory that is sent or received.
struct Extent {
  uint64_t address = 0;
  int64_t elements = 0;
  at::ScalarType type = at::kByte;
  size_t bytes() const { return static_cast<size_t>(elements) * c10::elementSize(type); }
  bool operator==(const Extent&) const = default;
  Extent part(int64_t first, int64_t count) const {
    return {address + static_cast<uint64_t>(first) * c10::elementSize(type), count, type};
  }
};

// Sender and receiver both know size and type of a message. So both know whether its value is sent.
bool is_told(const Extent& extent);

struct Source {
  int rank;
  size_t index;  // among what that rank sends to this one
};

struct Receipt {
  Extent to;
  std::vector<Source> sources;  // one: a copy; else reduced in this order
};

// A collective as this rank sees it.
struct Plan {
  bool valid = false;  // false: tensors of the host, or of a kind that is not followed
  std::vector<std::vector<Extent>> sends;  // by receiver, this rank included
  std::vector<Receipt> receipts;
  std::vector<Extent> outputs;  // all that is written
  std::optional<c10d::ReduceOp::RedOpType> reduction;
};

// The arguments of a call that are no tensors.
struct Route {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  c10::intrusive_ptr<c10d::ReduceOp> reduction;
  int peer = -1;  // the root, or the other rank of a message
  std::vector<int64_t> output_splits, input_splits;
};
Route route_of(const OpInfo& info, c10::ArrayRef<const c10::IValue> inputs);

Plan plan_of(const OpInfo& info, const Route& route, c10::ArrayRef<const c10::IValue> inputs);

#endif

}  // namespace tonnage::recorder
