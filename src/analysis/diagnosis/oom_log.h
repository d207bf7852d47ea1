// What an out-of-memory message alone tells.
//
// The arithmetic (reserved = allocated + unallocated; outside = capacity - free - reserved) follows
// from how PyTorch makes the message (c10/cuda/CUDACachingAllocator.cpp). A message has sums only:
// whether free pieces could have served the request is in a snapshot.
#pragma once

#include <optional>
#include <vector>

#include "analysis/diagnosis/findings.h"
#include "sources/messages/log_oom.h"

namespace tonnage::analysis {

// What follows from the printed figures; null where the message does not say enough. Negative
// differences are 0.
struct LogFigures {
  std::optional<uint64_t> reserved;     // by PyTorch
  std::optional<uint64_t> slack;        // reserved - allocated
  std::optional<uint64_t> outside;      // contexts, libraries, other processes
  std::optional<uint64_t> others;       // named foreign processes
  std::optional<uint64_t> own_outside;  // this process, but not its allocator: context, NCCL, …
  bool oversubscribed = false;          // more allocated than the card has
  bool cap_binds = false;               // a memory fraction below the card's end refused
};
LogFigures log_figures(const sources::LogOom& oom);

// The first one is primary.
std::vector<Finding> diagnose(const sources::LogOom& oom);

}  // namespace tonnage::analysis
