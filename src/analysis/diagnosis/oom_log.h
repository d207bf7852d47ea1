// What an out-of-memory message alone tells.
//
// The arithmetic (reserved = allocated + unallocated; outside = capacity - free - reserved) follows
// from how PyTorch makes the message (c10/cuda/CUDACachingAllocator.cpp). A message has sums only:
// whether free pieces could have served the request is in a snapshot.
#pragma once

#include <optional>
#include <vector>

#include "analysis/diagnosis/findings.h"
#include "analysis/diagnosis/log_traceback.h"
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
  const sources::LogProcess* own = nullptr;  // this process under its number outside the container
};
LogFigures log_figures(const sources::LogOom& oom);

// The first one is primary.
std::vector<Finding> diagnose(const sources::LogOom& oom);

// The parts of it, by kind of message. Each adds what it finds; the first of all is the reason.
void diagnose_pytorch_figures(const sources::LogOom& oom, const LogFigures& figures,
                              const TraceFacts& trace, std::vector<Finding>& out);
// False: not a message of its kind.
bool diagnose_disguised(const sources::LogOom& oom, const TraceFacts& trace,
                        std::vector<Finding>& out);
bool diagnose_host(const sources::LogOom& oom, const TraceFacts& trace, std::vector<Finding>& out);
bool diagnose_compiled(const sources::LogOom& oom, std::vector<Finding>& out);
bool diagnose_server(const sources::LogOom& oom, std::vector<Finding>& out);
bool diagnose_library(const sources::LogOom& oom, std::vector<Finding>& out);

// What the user of the library that asked can change, best first.
std::vector<Advice> remedies_of_library(const sources::LogOom& oom);
// {0} of a statement: the library that asked.
Figure asking_library(const sources::LogOom& oom);

// What an nvidia-smi table in the log says of the failing GPU.
void read_cards(const sources::Log& log, const sources::LogOom& oom, std::vector<Finding>& out);
Finding finding_of_card(const sources::LogCard& card);

}  // namespace tonnage::analysis
