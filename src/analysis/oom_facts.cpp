#include "analysis/oom_facts.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>

#include "analysis/categories.h"
#include "analysis/device_report.h"
#include "analysis/failures.h"

namespace tonnage::analysis {
namespace {

using record::Event;
using record::EventKind;
using trace::Record;

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// Functions that compute a loss over classes: their inputs are logits.
bool is_loss_function(std::string_view function) {
  return contains(function, "cross_entropy") || contains(function, "nll_loss") || contains(function, "log_softmax") ||
         contains(function, "CrossEntropy");
}

bool stack_has_loss(const Record& record, uint32_t stack) {
  if (stack >= record.stacks.size()) return false;
  const auto& frames = record.stacks[stack];
  for (const auto& frame : frames) {
    if (is_loss_function(record.string(frame.function))) return true;
  }
  return false;
}

void read_limit(const Timeline& timeline, const ExplainOptions& options, OomFacts& facts) {
  Failure& failure = facts.failure;
  const Record& record = timeline.record();
  for (const trace::Device& device : record.devices) {
    if (device.index == failure.device && device.total_bytes > 0) failure.capacity_bytes = device.total_bytes;
  }
  if (options.memory_bytes) failure.capacity_bytes = options.memory_bytes;
  if (options.message && options.message->capacity) failure.capacity_bytes = options.message->capacity->bytes;

  const uint64_t reserved = failure.reserved_bytes.value_or(0);
  // What PyTorch ever reserved is within its cap.
  uint64_t reserved_peak = reserved;
  if (const auto found = timeline.processes().find({facts.process, failure.device}); found != timeline.processes().end())
    reserved_peak = std::max(reserved_peak, found->second.reserved);
  if (options.message && options.message->allowed && (!failure.capacity_bytes || options.message->allowed->bytes < *failure.capacity_bytes / 50 * 49)) {
    failure.limit_bytes = options.message->allowed->bytes;
    failure.limit_is_cap = true;
  } else if (failure.free_bytes && *failure.free_bytes >= facts.wanted_bytes + kFreeMarginBytes) {
    // The driver had enough: PyTorch's own cap refused. It lies between what was reserved and what was asked for on top.
    failure.limit_bytes = std::max(reserved_peak, reserved + facts.wanted_bytes - 1);
    failure.limit_at_least_bytes = reserved_peak;
    failure.limit_is_cap = true;
    failure.limit_is_estimate = true;
  } else if (failure.free_bytes) {
    failure.limit_bytes = reserved + *failure.free_bytes;
  }
  facts.limit_bytes = failure.limit_bytes.value_or(0);
}

void read_live(const Timeline& timeline, OomFacts& facts) {
  const Record& record = timeline.record();
  const uint64_t request = facts.failure.request_bytes;
  using Key = std::tuple<std::string, uint32_t, std::string>;
  std::map<Key, LineBytes> lines, activations;
  std::map<uint64_t, uint64_t> loss_sizes;  // sizes made inside the loss -> bytes
  std::map<std::pair<uint32_t, uint64_t>, uint64_t> activation_groups;  // (stack, size) -> count
  std::vector<const Allocation*> live;
  timeline.for_each_live(facts.failure.device, facts.event, [&](const Allocation& a) {
    if (a.process != facts.process) return;
    live.push_back(&a);
  });
  std::unordered_map<uint32_t, int> loss_stacks, checkpoint_stacks, foreach_stacks;
  const auto cached = [](std::unordered_map<uint32_t, int>& known, uint32_t stack, auto&& compute) {
    auto [it, made] = known.try_emplace(stack, 0);
    if (made) it->second = compute();
    return it->second != 0;
  };
  for (const Allocation* a : live) {
    const Event* event = a->before_history || a->alloc_event >= record.events.size() ? nullptr : &record.events[a->alloc_event];
    facts.by_category[static_cast<size_t>(a->category)] += a->requested_bytes;
    facts.held_bytes += a->block_bytes;
    const Site site = event ? timeline.stacks().site(*event) : timeline.stacks().site(a->stack, record::kNoId, record::kNoId);
    const Key key{site.line.file, site.line.line, site.line.function};
    const auto add = [&](std::map<Key, LineBytes>& to) {
      LineBytes& entry = to[key];
      if (entry.count++ == 0) entry.site = site;
      entry.bytes += a->requested_bytes;
    };
    add(lines);
    const bool made_for_a_pass = a->category == Category::kActivation || a->category == Category::kTemporary || a->category == Category::kInput;
    if (facts.earlier_failure && event && a->alloc_event < *facts.earlier_failure && made_for_a_pass) {
      facts.kept_by_failure_bytes += a->requested_bytes;
      ++facts.kept_by_failure_count;
    }
    if (a->category == Category::kActivation) {
      add(activations);
      ++activation_groups[{a->stack, a->requested_bytes}];
      if (cached(checkpoint_stacks, a->stack, [&] { return stack_in(record, a->stack, "torch/utils/checkpoint.py"); })) {
        facts.checkpointed_bytes += a->requested_bytes;
        facts.checkpoint_seen = true;
      }
    }
    if (cached(loss_stacks, a->stack, [&] { return stack_has_loss(record, a->stack); })) loss_sizes[a->requested_bytes] += a->requested_bytes;
    if (event && timeline.stacks()[a->stack].in_optimizer && a->category != Category::kOptimizerState) {
      facts.optimizer_temporary_bytes += a->requested_bytes;
      facts.foreach_copies |= cached(foreach_stacks, a->stack, [&] {
        const auto& frames = record.stacks[a->stack];
        return std::any_of(frames.begin(), frames.end(), [&](const auto& f) { return contains(record.string(f.function), "_multi_tensor_"); });
      });
    }
    const bool moved = timeline.stacks()[a->stack].converts_module || a->category == Category::kParameter || a->category == Category::kBuffer || a->category == Category::kInput;
    if (event && event->op != record::kNoId && facts.phase != Phase::kOptimizer && !moved) {  // to the device is no copy in another type
      const std::string& op = record.string(event->op);
      if (op == "aten::_to_copy" || op == "aten::to") facts.copies_bytes += a->requested_bytes;
    }
  }
  facts.static_bytes = facts.of(Category::kParameter) + facts.of(Category::kBuffer) + facts.of(Category::kGradient) + facts.of(Category::kOptimizerState);

  // Logits: what the loss makes is of the logits' size; everything live of that size (or half: another type) belongs to them.
  const bool request_in_loss = stack_has_loss(record, record.events[facts.event].stack);
  uint64_t each = request_in_loss ? request : 0;
  for (const auto& [size, bytes] : loss_sizes) each = std::max(each, size);
  if (each >= (16u << 20)) {
    for (const Allocation* a : live) {
      const bool same = a->requested_bytes == each || a->requested_bytes * 2 == each || a->requested_bytes == each * 2;
      if (same && (a->category == Category::kActivation || a->category == Category::kTemporary || a->category == Category::kUnknown))
        facts.logits_bytes += a->requested_bytes;
    }
    if (request == each || request * 2 == each || request == each * 2) facts.logits_bytes += request;
    facts.logits_each = each;
  }

  // Repeated layers: the number of repetitions that carries the most bytes.
  std::map<uint64_t, std::pair<uint64_t, std::map<uint64_t, uint64_t>>> by_count;  // count -> bytes per repetition, sizes
  for (const auto& [key, count] : activation_groups) {
    if (count < 3) continue;
    auto& [bytes, sizes] = by_count[count];
    bytes += key.second;
    sizes[key.second] += 1;
  }
  uint64_t most = 0;
  for (const auto& [count, entry] : by_count) {
    // Neighbouring counts are the same layers, some of them not finished; twice as many are two a layer.
    uint64_t block = 0;
    std::map<uint64_t, uint64_t> sizes;
    for (const auto& [other, other_entry] : by_count) {
      for (uint64_t times = 1; times <= 4; ++times) {
        if (other + 1 < count * times || other > count * times) continue;
        block += other_entry.first * times;
        for (const auto& [size, number] : other_entry.second) sizes[size] += number * times;
        break;
      }
    }
    if (block * count <= most) continue;
    most = block * count;
    facts.blocks = count;
    facts.block_bytes = block;
    // What passes from layer to layer is the size that most tensors have.
    facts.block_boundary_bytes = std::max_element(sizes.begin(), sizes.end(), [](const auto& a, const auto& b) { return a.second < b.second; })->first;
  }
  const auto sorted = [](const std::map<Key, LineBytes>& from) {
    std::vector<LineBytes> out;
    for (const auto& [key, entry] : from) out.push_back(entry);
    std::stable_sort(out.begin(), out.end(), [](const LineBytes& a, const LineBytes& b) { return a.bytes > b.bytes; });
    if (out.size() > 10) out.resize(10);
    return out;
  };
  facts.top_activations = sorted(activations);
  facts.top_lines = sorted(lines);
}

// In its first step an optimizer makes its state parameter by parameter; each line that does so will end with as much as there are
// gradients (parameters that have none get no state).
void predict_state(const Timeline& timeline, OomFacts& facts) {
  const Record& record = timeline.record();
  const uint32_t failed_stack = record.events[facts.event].stack;
  if (!timeline.stacks()[failed_stack].makes_state) return;
  facts.first_state = true;
  const uint64_t basis = std::max(facts.of(Category::kGradient), uint64_t{1});
  std::map<std::pair<std::string, uint32_t>, uint64_t> lines;
  const auto innermost = [&](uint32_t stack) {
    const auto& frame = record.stacks[stack].front();
    return std::pair(record.string(frame.file), frame.line);
  };
  timeline.for_each_live(facts.failure.device, facts.event, [&](const Allocation& a) {
    if (a.process == facts.process && a.stack < record.stacks.size() && timeline.stacks()[a.stack].makes_state) lines[innermost(a.stack)] += a.requested_bytes;
  });
  lines[innermost(failed_stack)] += facts.failure.request_bytes;
  for (const auto& [line, bytes] : lines) {
    if (bytes * 50 >= basis) ++facts.state_tensors_per_parameter;  // not the counters of a few bytes
  }
  facts.predicted_state_bytes = std::max(facts.of(Category::kOptimizerState) + facts.failure.request_bytes, basis * facts.state_tensors_per_parameter);
}

// Are this step's tensors larger than the earlier steps' from the same lines?
void compare_with_earlier_steps(const Timeline& timeline, OomFacts& facts) {
  const IterationRange steps = step_iterations(timeline, facts.process);
  std::vector<Iteration> before;
  for (const Iteration& step : steps.iterations) {
    if (step.end_event <= facts.event) before.push_back(step);
  }
  facts.steps_before = static_cast<uint32_t>(before.size());
  facts.failure.moment.step = timeline.steps().empty() ? 0 : before.empty() ? 1 : before.back().number + 1;
  if (before.size() < 2) return;
  std::vector<uint64_t> peaks;
  for (const Iteration& step : before) peaks.push_back(timeline.peak_between(facts.failure.device, step.first_event, step.end_event).allocated);
  std::nth_element(peaks.begin(), peaks.begin() + static_cast<ptrdiff_t>(peaks.size() / 2), peaks.end());
  facts.median_step_peak = peaks[peaks.size() / 2];

  // The largest tensor of each step from the same place. The place ends at the outermost module's call, so that a validation pass is
  // compared with the training passes that run the same model.
  struct Sizes {
    std::vector<uint64_t> earlier;
    size_t step = SIZE_MAX;
    uint64_t now = 0;
    uint32_t stack = record::kNoId;
  };
  std::map<uint64_t, Sizes> by_place;
  const auto place_of = [&](uint32_t stack) {
    uint64_t hash = 0;
    const auto& frames = timeline.record().stacks[stack];
    size_t depth = frames.size();
    while (depth > 0 && !std::string_view(timeline.record().string(frames[depth - 1].file)).ends_with("torch/nn/modules/module.py")) --depth;
    if (depth == 0) depth = frames.size();
    for (size_t i = 0; i < depth; ++i) {
      for (const uint64_t part : {uint64_t{frames[i].file}, uint64_t{frames[i].line}, uint64_t{frames[i].function}}) hash = (hash ^ part) * 0x9e3779b97f4a7c15ull, hash ^= hash >> 32;
    }
    return hash;
  };
  size_t step = 0;
  for (const Allocation& a : timeline.allocations()) {
    if (a.process != facts.process || a.device != facts.failure.device || a.before_history || a.alloc_event > facts.event) continue;
    if (a.stack == record::kNoId || a.stack >= timeline.record().stacks.size() || a.requested_bytes < (1u << 20)) continue;
    while (step < before.size() && a.alloc_event >= before[step].end_event) ++step;
    if (step == 0) continue;  // the first step warms up
    Sizes& sizes = by_place[place_of(a.stack)];
    sizes.stack = a.stack;
    if (step == before.size()) {
      sizes.now = std::max(sizes.now, a.requested_bytes);
      continue;
    }
    if (sizes.step != step) sizes.earlier.push_back(0);
    sizes.step = step;
    sizes.earlier.back() = std::max(sizes.earlier.back(), a.requested_bytes);
  }
  // The request itself counts, and the largest tensors weigh the most.
  const Event& event = timeline.record().events[facts.event];
  if (event.stack != record::kNoId && event.stack < timeline.record().stacks.size()) {
    Sizes& sizes = by_place[place_of(event.stack)];
    sizes.now = std::max(sizes.now, event.size_bytes);
    sizes.stack = event.stack;
  }
  double weighted = 0, weight = 0, best = 0;
  for (auto& [place, sizes] : by_place) {
    if (sizes.now == 0 || sizes.earlier.empty()) continue;
    std::nth_element(sizes.earlier.begin(), sizes.earlier.begin() + static_cast<ptrdiff_t>(sizes.earlier.size() / 2), sizes.earlier.end());
    const double usual = static_cast<double>(sizes.earlier[sizes.earlier.size() / 2]);
    const double now = static_cast<double>(sizes.now);
    weighted += now / usual * now;
    weight += now;
    if (now > best) {
      best = now;
      facts.largest_ratio_site = timeline.stacks().site(sizes.stack, record::kNoId, record::kNoId);
    }
  }
  if (weight > 0) facts.largest_ratio = weighted / weight;
}

}  // namespace

bool stack_in(const Record& record, uint32_t stack, std::string_view file_end, std::string_view function) {
  if (stack >= record.stacks.size()) return false;
  for (const auto& frame : record.stacks[stack]) {
    if (std::string_view(record.string(frame.file)).ends_with(file_end) && (function.empty() || bare_name(record.string(frame.function)) == function)) return true;
  }
  return false;
}

OomFacts collect_oom_facts(const Timeline& timeline, uint32_t index, const ExplainOptions& options) {
  const Record& record = timeline.record();
  const Event& event = record.events[index];
  OomFacts facts;
  facts.event = index;
  facts.process = event.process;
  facts.stream = event.stream;
  facts.from_pytorch = event.kind == EventKind::kOom;
  for (const OomAttempts& attempts : find_oom_attempts(record, timeline.stacks())) {
    const Event& earlier = record.events[attempts.last];
    if (attempts.last >= index || attempts.overcome) continue;
    if (earlier.kind == EventKind::kOom && earlier.process == event.process && earlier.device == event.device) facts.earlier_failure = attempts.last;
  }
  Failure& failure = facts.failure;
  failure.device = event.device;
  failure.request_bytes = event.size_bytes;
  failure.free_bytes = event.value;
  failure.moment = moment_of(timeline, index);
  facts.wanted_bytes = event.size_bytes;
  if (facts.from_pytorch) {
    failure.segment_bytes = segment_request(round_request(event.size_bytes, record.settings.roundup_power2_divisions));
    facts.wanted_bytes = *failure.segment_bytes;
    failure.segments.push_back(segment_map_at(timeline, event.device, event.process, index));
    facts.fragmentation = measure_fragmentation(failure.segments.back());
    const uint64_t rounded = round_request(event.size_bytes, record.settings.roundup_power2_divisions);
    facts.pieces = free_pieces(failure.segments.back(), rounded, event.stream);
    failure.reserved_bytes = facts.fragmentation.reserved;
    failure.allocated_bytes = facts.fragmentation.requested + facts.fragmentation.rounding;
  } else if (const auto found = timeline.devices().find(event.device); found != timeline.devices().end()) {
    if (const Sample* sample = found->second.at(index)) {
      failure.allocated_bytes = sample->allocated_bytes;
      failure.reserved_bytes = sample->reserved_bytes;
    }
  }
  if (const auto found = timeline.devices().find(event.device); found != timeline.devices().end() && found->second.has_device) {
    const Breakdown breakdown = breakdown_at(timeline, event.device, index);
    for (const BreakdownRow& row : breakdown.rows) {
      if (row.category == Category::kOther) facts.device_other_bytes = row.bytes;
      if (row.category == Category::kContext) facts.context_bytes = row.bytes;
    }
  }
  facts.phase = failure.moment.phase;
  facts.site = failure.moment.site;
  read_limit(timeline, options, facts);
  read_live(timeline, facts);
  if (facts.from_pytorch) {
    const uint64_t reserved = failure.reserved_bytes.value_or(0);
    const uint64_t headroom = facts.limit_bytes > reserved && !failure.limit_is_estimate ? facts.limit_bytes - reserved : 0;
    const uint64_t rounded = round_request(event.size_bytes, record.settings.roundup_power2_divisions);
    facts.move = smallest_move(failure.segments.back(), rounded, event.stream, headroom);
    predict_state(timeline, facts);
  }
  compare_with_earlier_steps(timeline, facts);
  facts.growth = find_growth(timeline, event.device, event.process, index);
  return facts;
}

}  // namespace tonnage::analysis
