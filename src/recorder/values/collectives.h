// Known values across ranks. NCCL runs for real, but moves no data. Ranks send each other small
// tensors and act on them: numbers of parameters, lengths, how many tokens go to which expert,
// pickled objects. So a rank's contribution to a collective is passed to the others, in files
// beside the session. The result is a promise (gpu/shadow_memory.h), which is fetched when somebody
// reads it. So ranks wait for each other only where a real read would wait, too.
#pragma once

#include <memory>
#include <vector>

#include "recorder/values/collective_plan.h"

namespace tonnage::recorder {

struct CollectiveResult;
struct Frame;
struct ThreadState;

// What a c10d operator will have written.
struct PendingCollective {
  PendingCollective();
  ~PendingCollective();
#ifdef TONNAGE_HAS_C10D
  std::vector<std::unique_ptr<CollectiveResult>> results;
  std::vector<Extent> unknown;  // written, with what is not known
#endif
};

// before_collective posts this rank's contribution; after_collective makes the results promises, or
// unknown.
void before_collective(ThreadState& thread, Frame& frame);
void after_collective(Frame& frame);

}  // namespace tonnage::recorder
