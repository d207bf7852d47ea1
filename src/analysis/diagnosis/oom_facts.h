// The facts about one out-of-memory failure of a record: the figures that decide its cause.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "analysis/diagnosis/findings.h"
#include "analysis/diagnosis/fragmentation.h"
#include "analysis/diagnosis/leak.h"
#include "analysis/diagnosis/mechanisms.h"
#include "analysis/timeline/breakdown.h"
#include "analysis/timeline/timeline.h"

namespace tonnage::analysis {

inline constexpr uint64_t kFreeMarginBytes =
    64ull << 20;  // less free memory above the request than this proves nothing

struct LineBytes {
  Site site;
  uint64_t bytes = 0, count = 0;
};

struct OomFacts {
  Failure failure;  // with its segment map
  uint32_t event = 0;
  std::optional<uint32_t> earlier_failure;  // of the same process on the same device
  uint64_t kept_by_failure_bytes = 0,
           kept_by_failure_count = 0;  // made for a pass before it, and still alive
  uint32_t process = 0;
  uint64_t stream = 0;
  bool from_pytorch = true;
  uint64_t wanted_bytes = 0;  // the request as the limit sees it (segment_bytes), or the request
  Fragmentation fragmentation;
  FreePieces pieces;
  std::optional<MovePlan> move;

  std::array<uint64_t, kCategoryCount>
      by_category{};  // live requested bytes of the process, by Category
  uint64_t of(Category category) const { return by_category[static_cast<size_t>(category)]; }
  uint64_t static_bytes = 0;  // parameters, buffers, gradients, optimizer state
  uint64_t held_bytes = 0;    // allocated by the process
  uint64_t limit_bytes = 0;   // 0: not known
  std::optional<uint64_t>
      device_other_bytes;  // device memory that is neither PyTorch's nor the context's
  std::optional<uint64_t> context_bytes;
  uint64_t other_process_bytes =
      0;  // what other processes hold on the device, as far as that is told
  uint64_t unaccounted_bytes =
      0;  // of the card: neither free nor PyTorch's; where its size is known and no more
  std::string other_processes;  // "process 4711 (4.45 GiB)"

  Phase phase = Phase::kOther;
  Site site;
  uint32_t steps_before = 0;           // complete steps of the process before it
  bool first_state = false;            // inside an optimizer that makes its state
  uint64_t predicted_state_bytes = 0;  // all of the optimizer's state, if first_state
  uint32_t state_tensors_per_parameter = 0;
  uint64_t optimizer_temporary_bytes = 0;  // live, made in step() and not state
  bool foreach_copies = false;             // by a _multi_tensor_ function
  uint64_t logits_bytes = 0;  // live tensors of the loss's input, and the request if it is one
  uint64_t logits_each = 0;
  bool logits_by_size =
      false;  // no loss was seen: known by being the last and by far the largest of the pass
  uint64_t weight_copies_bytes =
      0;  // live tensors of the parameters' sizes, made outside of modules and passes
  Site weight_copies_site;
  uint64_t checkpointed_bytes = 0;  // live activations made inside a checkpointed function
  bool checkpoint_seen = false;
  uint64_t copies_bytes = 0;               // casts of autocast
  bool copies_by_size = false;             // without operator names: known by their sizes
  bool autocast_seen = false;              // casts to a smaller type inside modules
  std::vector<MechanismBytes> mechanisms;  // who made what is alive, largest first
  GrowthReport growth;
  // Earlier steps' peaks, to see whether this one is larger.
  uint64_t median_step_peak = 0;
  double largest_ratio =
      0;  // how much larger this step's tensors are than the median step's, at the same lines
  Site largest_ratio_site;
  // Repeated layers among the live activations: `blocks` alike groups of about block_bytes each.
  uint64_t blocks = 0, block_bytes = 0, block_boundary_bytes = 0;
  std::vector<LineBytes> top_activations;  // by line, largest first
  std::vector<LineBytes> top_lines;        // of everything live
};

// event: a kOom, or a kDeviceOom of a process that does not use PyTorch's allocator.
OomFacts collect_oom_facts(const Timeline& timeline, uint32_t event, const ExplainOptions& options);

// Whether any frame of the stack is in that file of PyTorch ("torch/utils/checkpoint.py"), and, if
// given, in that function.
bool stack_in(const record::Record& record, uint32_t stack, std::string_view file_end,
              std::string_view function = {});

}  // namespace tonnage::analysis
