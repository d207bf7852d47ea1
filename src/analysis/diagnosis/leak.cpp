#include "analysis/diagnosis/leak.h"

#include <algorithm>
#include <map>

#include "analysis/diagnosis/leak_lines.h"
#include "analysis/timeline/categories.h"

namespace tonnage::analysis {
namespace {

using abi::EventKind;
using abi::MemoryEvent;

constexpr size_t kMinIterations = 4;
constexpr size_t kManyIterations = 32;  // over so many, less proves as much
constexpr uint64_t kMinBytesOverMany = 1 << 20;
constexpr size_t kMinOccurrences = 4;  // of what is left behind now and then

uint64_t allocated_at(const Timeline& timeline, int device, uint64_t event) {
  const auto found = timeline.devices().find(device);
  if (found == timeline.devices().end()) return 0;
  const Sample* sample = found->second.at(event);
  return sample ? sample->allocated_bytes : 0;
}

bool has_phase(const Timeline& timeline, uint32_t process, const std::vector<Iteration>& iterations,
               Phase wanted) {
  const auto& record = timeline.record();
  for (const Iteration& iteration : iterations)
    for (uint32_t i = iteration.first_event; i < iteration.end_event && i < record.events.size();
         ++i) {
      const MemoryEvent& event = record.events[i];
      if (event.process != process ||
          (event.kind != EventKind::kAlloc && event.kind != EventKind::kFreeRequested))
        continue;
      if (phase_of(record, timeline.stacks(), event, true) == wanted) return true;
    }
  return false;
}

// A leak leaves something behind during the whole run: in nearly each iteration, or at equal
// distances (each epoch, each validation). A cache fills early. A queue of fixed length, and a
// reference cycle that waits for the garbage collector, hold only recent tensors. So these are not
// evenly spread.
Pattern pattern_of(const std::vector<uint64_t>& bytes, size_t first, size_t end) {
  Pattern pattern;
  for (size_t k = first; k < end; ++k) {
    if (bytes[k] > 0) pattern.at.push_back(k);
  }
  const size_t present = pattern.at.size();
  if (present >= 2 && present * 5 >= (end - first) * 4) {
    pattern.every = 1;
    return pattern;
  }
  if (present < kMinOccurrences) return pattern;
  std::vector<uint64_t> gaps;
  for (size_t i = 1; i < present; ++i) gaps.push_back(pattern.at[i] - pattern.at[i - 1]);
  const uint64_t usual = median(gaps);
  const bool even = std::all_of(gaps.begin(), gaps.end(),
                                [&](uint64_t gap) { return gap + 1 >= usual && gap <= usual + 1; });
  if (even && usual >= 2 && pattern.at.front() <= first + usual &&
      pattern.at.back() + usual + 1 >= end)
    pattern.every = usual;
  return pattern;
}

// Whether what is allocated rises from one of these iterations to the next, nearly always.
bool rises_between(const std::vector<uint64_t>& allocated, const std::vector<size_t>& at) {
  size_t rises = 0;
  for (size_t i = 1; i < at.size(); ++i) rises += allocated[at[i]] > allocated[at[i - 1]];
  return at.size() >= 2 && rises * 10 >= (at.size() - 1) * 7;
}

// What grows over one range of iterations.
class GrowthSearch {
 public:
  GrowthSearch(const Timeline& timeline, int device, uint32_t process, const IterationRange& range,
               uint64_t end_event, bool failed)
      : timeline_(timeline),
        range_(range),
        iterations_(range.iterations),
        question_{device, process, range.iterations, {}, 0, end_event, failed} {}

  GrowthReport run() {
    describe_range();
    if (iterations_.size() < kMinIterations) return std::move(report_);
    // The first iteration warms up (optimizer state, workspaces, caches); what the last one made
    // may still be in use.
    question_.range.first_old = 1;
    question_.range.end_old = iterations_.size() - 1;
    // At a failure, the last iteration counts as kept memory, but does not prove growth.
    question_.end_kept = question_.failed ? iterations_.size() : question_.range.end_old;
    survivors_ = survivors_of(timeline_, question_);
    question_.range.forward_bytes = survivors_.forward_bytes;
    for (const auto& [key, sum] : survivors_.lines) left_behind_[key.first] += sum.total_bytes;
    for (const Iteration& iteration : iterations_)
      after_.push_back(allocated_at(timeline_, question_.device, iteration.end_event - 1));

    report_.growth = join_lines(timeline_, question_.process, growing_lines(), question_.range,
                                question_.failed);
    std::erase_if(report_.growth, [&](const Growth& growth) { return is_little(growth); });
    complete_growth();
    add_up();
    report_.saw_backward = has_phase(timeline_, question_.process, iterations_, Phase::kBackward);
    return std::move(report_);
  }

 private:
  void describe_range() {
    report_.are_steps = range_.are_steps;
    report_.failed = question_.failed;
    report_.anchor = range_.anchor;
    report_.iterations = static_cast<uint32_t>(iterations_.size());
    report_.end_event = question_.end_event;
    if (iterations_.empty()) return;
    const Iteration& last = iterations_.back();
    report_.last_number = last.number;
    report_.last_peak_bytes =
        timeline_.peak_between(question_.device, last.first_event, last.end_event).allocated;
  }

  std::vector<GrowingLine> growing_lines() const {
    std::map<LineKey, uint64_t> released;
    if (!question_.failed) released = released_before(timeline_, question_, left_behind_);
    std::vector<GrowingLine> lines;
    for (const auto& [key, sum] : survivors_.lines) {
      Pattern pattern = pattern_of(sum.bytes, question_.range.first_old, question_.range.end_old);
      if (pattern.every == 0 || !rises_between(after_, pattern.at)) continue;
      const auto found = released.find(key.first);
      if (found != released.end() && found->second * 2 >= sum.total_bytes) continue;
      Growth growth = growth_of(sum, pattern);
      lines.push_back({&sum, std::move(pattern), std::move(growth)});
    }
    return lines;
  }

  Growth growth_of(const LineSum& sum, const Pattern& pattern) const {
    std::vector<uint64_t> in_old, counts;
    for (size_t k = question_.range.first_old; k < question_.range.end_old; ++k) {
      if (pattern.every > 1 && sum.bytes[k] == 0) continue;
      in_old.push_back(sum.bytes[k]);
      counts.push_back(sum.counts[k]);
    }
    Growth growth;
    growth.site = sum.site;
    growth.kept_bytes = sum.total_bytes;
    growth.every = static_cast<uint32_t>(pattern.every);
    growth.bytes_each = median(in_old);
    growth.bytes_per_iteration = growth.bytes_each / pattern.every;
    growth.allocations_per_iteration = median(counts);
    growth.iterations = static_cast<uint32_t>(std::count_if(
        sum.bytes.begin(), sum.bytes.end(), [](uint64_t bytes) { return bytes > 0; }));
    growth.events = sum.events;
    if (sum.sizes.size() == 1) growth.size_each = sum.sizes.begin()->first;
    growth.category =
        std::max_element(sum.categories.begin(), sum.categories.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; })
            ->first;
    growth.backward = sum.backward;
    growth.idle_iterations = idle_iterations(sum, question_.range);
    return growth;
  }

  bool is_little(const Growth& growth) const {
    const bool long_and_sure =
        iterations_.size() >= kManyIterations && growth.kept_bytes >= kMinBytesOverMany;
    // Lines that are little each do not become much by belonging together.
    const uint64_t largest = growth.parts.empty() || growth.whole_graph
                                 ? growth.bytes_per_iteration
                                 : growth.parts.front().bytes_per_iteration;
    return largest < kMinBytesPerIteration && !long_and_sure;
  }

  void complete_growth() {
    for (Growth& growth : find_replaced(timeline_, question_.device, question_.process, iterations_,
                                        question_.end_event, question_.failed, left_behind_))
      add_replaced(std::move(growth), report_);
    if (timeline_.record().history_truncated) find_older(timeline_, question_, report_);
    std::stable_sort(report_.growth.begin(), report_.growth.end(),
                     [](const Growth& a, const Growth& b) { return a.kept_bytes > b.kept_bytes; });
    if (timeline_.record().kind == record::Record::Kind::kSnapshot && !question_.failed)
      std::erase_if(report_.growth,
                    [&](const Growth& growth) { return gone_at_the_end(timeline_, growth); });
    for (Growth& growth : report_.growth) mark_mechanism(timeline_, growth);
  }

  void add_up() {
    for (const Growth& growth : report_.growth) {
      report_.bytes_per_iteration += growth.bytes_per_iteration;
      report_.kept_bytes += growth.kept_bytes;
      report_.older_bytes += growth.older_bytes;
    }
    // If other tensors were freed for the survivors, they replace those; this is not growth.
    const uint64_t net = after_.back() > after_.front() ? after_.back() - after_.front() : 0;
    const size_t old = question_.range.end_old - question_.range.first_old;
    if (net * 2 >= report_.bytes_per_iteration * old) return;
    report_.growth.clear();
    report_.bytes_per_iteration = report_.kept_bytes = report_.older_bytes = 0;
  }

  const Timeline& timeline_;
  const IterationRange& range_;
  const std::vector<Iteration>& iterations_;
  GrowthQuestion question_;
  Survivors survivors_;
  std::map<LineKey, uint64_t> left_behind_;
  std::vector<uint64_t> after_;  // allocated at the end of each iteration
  GrowthReport report_;
};

GrowthReport growth_over(const Timeline& timeline, int device, uint32_t process,
                         const IterationRange& range, uint64_t end_event, bool failed) {
  return GrowthSearch(timeline, device, process, range, end_event, failed).run();
}

}  // namespace

GrowthReport find_growth(const Timeline& timeline, int device, uint32_t process,
                         std::optional<uint64_t> failure) {
  const uint64_t events = timeline.record().events.size();
  if (events == 0) return {};
  IterationRange steps = step_iterations(timeline, process);
  if (failure)
    std::erase_if(steps.iterations,
                  [&](const Iteration& iteration) { return iteration.end_event > *failure; });
  GrowthReport best;
  best.are_steps = true;
  if (!steps.iterations.empty()) {
    const uint64_t end = failure ? *failure : steps.iterations.back().end_event - 1;
    best = growth_over(timeline, device, process, steps, end, failure.has_value());
  }
  const auto to = static_cast<uint32_t>(failure ? *failure : events);
  const auto try_loop = [&](uint32_t from) {
    const IterationRange loop = loop_iterations(timeline, process, from, to);
    if (loop.iterations.empty()) return;
    const uint64_t end = failure ? *failure : loop.iterations.back().end_event - 1;
    GrowthReport looped = growth_over(timeline, device, process, loop, end, failure.has_value());
    if (looped.kept_bytes > best.kept_bytes || steps.iterations.empty()) best = std::move(looped);
  };
  // A loop after the last step, or instead of steps. Guessed steps may be wrong.
  const bool guessed =
      std::any_of(timeline.steps().begin(), timeline.steps().end(), [&](const Step& step) {
        return step.process == process && step.source == StepSource::kPeriod;
      });
  try_loop(steps.iterations.empty() ? 0 : steps.iterations.back().end_event);
  if (guessed && best.growth.empty()) try_loop(0);
  return best;
}

}  // namespace tonnage::analysis
