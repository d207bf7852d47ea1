// Growth: memory that each iteration leaves behind, by the line that allocates it.
//
// Growth is not the same as warm-up, caches or changing shapes. A line grows if all of this holds:
//   - Its allocations are still alive at the end, although their iteration is not among the last.
//   - It leaves something behind in nearly every iteration but the first, or at equal distances.
//   - The memory that is allocated after each iteration really grows.
//   - What the line made before was not freed.
//   - There are at least four iterations.
// Optimizer state, modules and workspaces stay by design, and do not count. Nor does a line that
// behaves like a cache (leak_caches.cpp). A line that may be a cache below its limit is marked.
//
// Lines that belong together are one growth. A line whose one tensor is replaced by a larger one
// each time grows, too, unless the samples grow, or it is the cache of one generation.
//
// The variable that holds the memory cannot be seen (it is a Python reference). What is held, and
// which line made it, can be seen.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "analysis/diagnosis/leak_loops.h"
#include "analysis/timeline/timeline.h"

namespace tonnage::analysis {

// One of several lines that grow together.
struct GrowthPart {
  enum class Role : uint8_t {
    kForward,
    kBackward,
    kInput,
    kBeside,
    kReplaced
  } role = Role::kBeside;
  Site site;
  uint64_t bytes_per_iteration = 0, tensors = 0;
};

struct Growth {
  Site site;  // the line that made it; of a whole graph: the line that called the forward pass
  Category category = Category::kUnknown;
  bool whole_graph = false;  // what autograd saves of a forward pass, not single tensors
  bool trains_elsewhere =
      false;  // of a whole graph: in other passes from this line a backward pass freed it
  bool backward = false;  // made by backward passes
  bool replaced = false;  // not one more tensor each time, but a larger one in place of the last
  bool with_gradient = false;  // a tensor and its gradient, in the same iterations
  uint32_t every = 1;          // 2: every second iteration leaves something behind
  uint64_t kept_bytes =
      0;  // alive at the end, of all complete iterations (without a failure: but the last)
  uint64_t older_bytes = 0,
           older_count = 0;  // of the same sizes, and older than a history whose beginning is lost
  uint64_t bytes_each = 0;   // median of the iterations that leave something behind
  uint64_t bytes_per_iteration = 0;  // bytes_each / every
  uint64_t allocations_per_iteration = 0;
  std::optional<uint64_t> size_each;  // requested, if all are of one size
  uint32_t iterations = 0;            // that left something behind
  std::vector<uint64_t> events;       // a few of the allocations
  std::vector<GrowthPart> parts;  // several lines that belong together: all of them, largest first
  uint64_t backward_bytes = 0;    // of a whole graph, of bytes_each: what backward passes made
  bool may_be_filling = false;    // single tensors without a graph: a cache or a buffer that is not
                                  // full yet looks the same
  uint32_t idle_iterations = 0;   // in which the line made nothing
  bool in_checkpoint = false;     // of a whole graph: made again by a checkpoint's backward pass
  bool in_evaluation_collect = false;  // outputs of evaluation that a trainer puts together
};

struct GrowthReport {
  bool are_steps = false;            // training steps; false: iterations of a loop
  bool failed = false;               // the moment that was looked at is an out-of-memory
  Place anchor;                      // of a loop: the line that recurs
  uint32_t iterations = 0;           // complete ones
  uint32_t last_number = 0;          // number of the last one
  uint64_t end_event = 0;            // the moment that was looked at
  bool saw_backward = false;         // within the iterations
  uint64_t bytes_per_iteration = 0;  // of all lines together
  uint64_t kept_bytes = 0;
  uint64_t older_bytes = 0;      // see Growth
  uint64_t last_peak_bytes = 0;  // allocated, peak of the last complete iteration
  std::vector<Growth> growth;    // largest first; empty: nothing grows
};

// failure: the out-of-memory event, if the question is what had grown until then.
GrowthReport find_growth(const Timeline& timeline, int device, uint32_t process,
                         std::optional<uint64_t> failure = std::nullopt);

}  // namespace tonnage::analysis
