// What is still to be said once it is known which lines grow.
#include <algorithm>
#include <map>

#include "analysis/diagnosis/leak_lines.h"
#include "analysis/diagnosis/oom_facts.h"

namespace tonnage::analysis {

// If the beginning of the history was overwritten, it has only the last iterations. Older blocks
// with the sizes that a line still leaves behind most likely come from this line, too.
void find_older(const Timeline& timeline, const GrowthQuestion& question, GrowthReport& report) {
  std::map<uint64_t, size_t> lines;  // size -> index of the growth, largest first
  for (size_t i = report.growth.size(); i-- > 0;) {
    for (const uint64_t event : report.growth[i].events) {
      const uint64_t size = timeline.record().events[event].size_bytes;
      if (size >= kMinBytesPerIteration) lines[size] = i;
    }
  }
  for (const Allocation& a : timeline.allocations()) {
    if (!a.before_history) break;
    if (a.device != question.device || a.process != question.process ||
        a.category != Category::kUnknown || !a.live_at(question.end_event))
      continue;
    const auto found = lines.find(a.requested_bytes);
    if (found == lines.end()) continue;
    report.growth[found->second].older_bytes += a.block_bytes;
    ++report.growth[found->second].older_count;
  }
  // A few such blocks prove nothing: they may be parameters of that size, if recording began late.
  for (Growth& growth : report.growth) {
    if (growth.older_bytes < growth.kept_bytes) growth.older_bytes = growth.older_count = 0;
  }
}

// A tensor that is replaced by a larger one each time, while single tensors stay, is made from
// these: a queue that is joined, or scores against everything that a memory bank holds.
void add_replaced(Growth replaced, GrowthReport& report) {
  Growth* of = nullptr;
  for (Growth& growth : report.growth) {
    if (growth.may_be_filling && !growth.replaced && growth.every == 1 &&
        (!of || growth.kept_bytes > of->kept_bytes))
      of = &growth;
  }
  if (!of) {
    report.growth.push_back(std::move(replaced));
    return;
  }
  if (of->parts.empty())
    of->parts.push_back({GrowthPart::Role::kBeside, of->site, of->bytes_per_iteration,
                         of->allocations_per_iteration});
  of->parts.push_back(
      {GrowthPart::Role::kReplaced, replaced.site, replaced.bytes_per_iteration, 1});
  of->kept_bytes += replaced.kept_bytes;
  of->bytes_each += replaced.bytes_per_iteration;
  of->bytes_per_iteration += replaced.bytes_per_iteration;
}

// A snapshot is taken while the program runs: what was freed before it was no leak.
bool gone_at_the_end(const Timeline& timeline, const Growth& growth) {
  // What takes the place of the last one lets the earlier ones go.
  if (growth.events.empty() || growth.replaced) return false;
  size_t gone = 0;
  const auto& allocations = timeline.allocations();
  for (const uint64_t event : growth.events) {
    const auto found = std::find_if(allocations.begin(), allocations.end(), [&](const auto& a) {
      return !a.before_history && a.alloc_event == event;
    });
    gone += found != allocations.end() && found->free_event != kNever;
  }
  return gone == growth.events.size();
}

// What the frames of a few of the allocations say of who keeps them.
void mark_mechanism(const Timeline& timeline, Growth& growth) {
  const record::Record& record = timeline.record();
  size_t checkpointed = 0, collected = 0;
  for (const uint64_t event : growth.events) {
    const uint32_t stack = record.events[event].stack;
    checkpointed += timeline.stacks()[stack].in_backward &&
                    stack_in(record, stack, "torch/utils/checkpoint.py");
    for (const char* function : {"nested_concat", "torch_pad_and_concatenate", "evaluation_loop",
                                 "prediction_loop", "pad_across_processes"})
      if (stack_in(record, stack, "", function)) {
        ++collected;
        break;
      }
  }
  growth.in_checkpoint = checkpointed * 2 > growth.events.size();
  growth.in_evaluation_collect = collected * 2 > growth.events.size();
}

}  // namespace tonnage::analysis
