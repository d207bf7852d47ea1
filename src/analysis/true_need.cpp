#include "analysis/true_need.h"

#include <algorithm>
#include <map>
#include <set>

#include "analysis/diagnosis/oom_facts.h"
#include "analysis/timeline/categories.h"
#include "analysis/verdict.h"

namespace tonnage::analysis {
namespace {

using record::DeviceNeed;
using record::Remedy;
using record::TrueNeed;

// Peaks of one step after the other differ by less where nothing grows any more.
constexpr double kSamePeak = 0.001;
// A command that fills this part of a card without limit takes a share of what there is.
constexpr double kShareOfCard = 0.3;
// Free memory in pieces does not shrink as the tensors do. An estimate keeps its share of what is
// allocated. And a remedy is enough only if so much may come on top: this part of what varies,
constexpr double kRoomForPieces = 1.0 / 8;
// and two of the segments that PyTorch takes from the driver for tensors of 1 to 10 MiB: with a
// smaller batch, tensors that had memory of their own lie in such segments, and leave them half
// empty.
constexpr uint64_t kRoomForSegmentBytes = 2 * (20 << 20);
constexpr double kLeastSaving = 0.02;  // of the need: less is no remedy
constexpr size_t kMostLoads = 1 << 16;

const DeviceTimeline* timeline_of(const Timeline& timeline, int device) {
  const auto found = timeline.devices().find(device);
  return found == timeline.devices().end() || found->second.samples.empty() ? nullptr
                                                                            : &found->second;
}

// Memory of PyTorch's at one moment: what stays with any batch, and what grows with it.
struct Load {
  uint64_t fixed = 0, grows = 0;
  bool in_pass = false;  // forward, backward, or between; not the optimizer's step or the start
};

// What the peak of one device is made of, as far as remedies go.
struct PeakParts {
  uint64_t need = 0;
  uint64_t always = 0;      // not PyTorch's: context, code, other libraries
  double pieces = 0;        // bytes in free pieces for each byte that is allocated
  std::vector<Load> loads;  // moments that no other one exceeds in both parts
  uint64_t checkpointing_frees = 0;
  uint32_t blocks = 0;
  uint64_t logits = 0;
};

bool is_pass(const Timeline& timeline, const Allocation& a) {
  if (a.before_history) return false;
  const abi::MemoryEvent& made = timeline.record().events[a.alloc_event];
  const Phase phase = phase_of(timeline.record(), timeline.stacks(), made, true);
  return phase != Phase::kOptimizer && phase != Phase::kInit;
}

// What is alive through a whole step was not made for a batch: buffers, caches, a data set that
// lies on the card.
bool outlives_a_step(const Timeline& timeline, const Allocation& a) {
  return std::any_of(timeline.steps().begin(), timeline.steps().end(), [&](const Step& step) {
    return step.complete && step.process == a.process && a.free_event >= step.end_event &&
           (a.before_history || a.alloc_event < step.first_event);
  });
}

// Temporaries as large as a parameter are gradients on their way, or copies of weights; those of
// the optimizer's step are as large as the model, whatever the batch.
bool grows_with_batch(const Allocation& a, bool in_pass,
                      const std::set<uint64_t>& parameter_sizes) {
  switch (a.category) {
    case Category::kActivation:
    case Category::kKeyValueCache:
    case Category::kInput: return true;
    case Category::kTemporary:
    case Category::kUnknown: return in_pass && !parameter_sizes.contains(a.requested_bytes);
    default: return false;
  }
}

// Drops what another load exceeds in both parts: what is left has falling `grows`, rising `fixed`.
void keep_largest(std::vector<Load>& loads) {
  std::sort(loads.begin(), loads.end(), [](const Load& a, const Load& b) {
    return a.grows != b.grows ? a.grows > b.grows : a.fixed > b.fixed;
  });
  std::vector<Load> out;
  for (const Load& load : loads) {
    if (out.empty() || load.fixed > out.back().fixed) out.push_back(load);
  }
  loads = std::move(out);
}

std::vector<Load> loads_of(const Timeline& timeline, int device) {
  struct Change {
    uint32_t event;
    int64_t fixed, grows;
    bool in_pass;
  };
  std::set<uint64_t> parameter_sizes;
  for (const Allocation& a : timeline.allocations()) {
    if (a.device == device && a.category == Category::kParameter)
      parameter_sizes.insert(a.requested_bytes);
  }
  std::vector<Change> changes;
  for (const Allocation& a : timeline.allocations()) {
    if (a.device != device) continue;
    const bool in_pass = is_pass(timeline, a);
    const auto bytes = static_cast<int64_t>(a.block_bytes);
    const bool grows =
        grows_with_batch(a, in_pass, parameter_sizes) && !outlives_a_step(timeline, a);
    const int64_t fixed_bytes = grows ? 0 : bytes, grown_bytes = grows ? bytes : 0;
    changes.push_back({a.before_history ? 0 : a.alloc_event, fixed_bytes, grown_bytes, in_pass});
    if (a.free_event != kNever)
      changes.push_back({a.free_event, -fixed_bytes, -grown_bytes, in_pass});
  }
  std::stable_sort(changes.begin(), changes.end(),
                   [](const Change& a, const Change& b) { return a.event < b.event; });
  std::vector<Load> in_pass, apart;
  int64_t fixed = 0, grows = 0;
  for (const Change& change : changes) {
    fixed += change.fixed;
    grows += change.grows;
    if (change.fixed + change.grows <= 0) continue;
    auto& loads = change.in_pass ? in_pass : apart;
    loads.push_back({static_cast<uint64_t>(std::max<int64_t>(fixed, 0)),
                     static_cast<uint64_t>(std::max<int64_t>(grows, 0)), change.in_pass});
    if (loads.size() > kMostLoads) keep_largest(loads);
  }
  keep_largest(in_pass);
  keep_largest(apart);
  in_pass.insert(in_pass.end(), apart.begin(), apart.end());
  return in_pass;
}

PeakParts parts_of(const Timeline& timeline, int device) {
  PeakParts parts;
  const DeviceTimeline& samples = *timeline_of(timeline, device);
  const Sample& peak = samples.samples[samples.device_peak];
  const Sample& allocated = samples.samples[samples.allocated_peak];
  parts.need = peak.device_bytes;
  parts.always = peak.device_bytes - std::min(peak.device_bytes, peak.reserved_bytes);
  const uint64_t of_pytorch = parts.need - parts.always;
  parts.loads = loads_of(timeline, device);
  uint64_t most_grown = 0, most = 0;
  for (const Load& load : parts.loads) {
    most_grown = std::max(most_grown, load.grows);
    most = std::max(most, load.fixed + load.grows);
  }
  if (most > 0 && of_pytorch > most)
    parts.pieces = static_cast<double>(of_pytorch - most) / static_cast<double>(most);
  const OomFacts facts = collect_oom_facts(timeline, allocated.event, {});
  if (facts.blocks >= 3) {
    const uint64_t all = facts.blocks * facts.block_bytes;
    const uint64_t stays = facts.block_bytes + facts.blocks * facts.block_boundary_bytes;
    parts.checkpointing_frees = std::min(all > stays ? all - stays : 0, most_grown);
    parts.blocks = static_cast<uint32_t>(facts.blocks);
  }
  parts.logits = std::min(facts.logits_bytes, most_grown);
  return parts;
}

// What the device must have with this share of the batch, where the passes have `freed` less of the
// whole batch's memory. `more`: so much more of what varies.
double need_with(const PeakParts& parts, double share, uint64_t freed, double more = 0) {
  double most = 0;
  for (const Load& load : parts.loads) {
    const uint64_t grows = load.grows - (load.in_pass ? std::min(freed, load.grows) : 0);
    const double varies = share * static_cast<double>(grows);
    const double allocated = static_cast<double>(load.fixed) + varies;
    most = std::max(most, allocated * (1 + parts.pieces) + varies * more);
  }
  return static_cast<double>(parts.always) + most;
}

// What is left of the batch when the rest of the peak stays; 0: nothing.
double batch_that_fits(const PeakParts& parts, uint64_t freed, uint64_t card) {
  const auto fits = [&](double share) {
    return need_with(parts, share, freed, kRoomForPieces) +
               static_cast<double>(kRoomForSegmentBytes) <=
           static_cast<double>(card);
  };
  if (parts.loads.empty() || !fits(0)) return 0;
  if (fits(1)) return 1;
  double low = 0, high = 1;
  for (int i = 0; i < 40; ++i) {
    const double middle = (low + high) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

void add_alone(const PeakParts& parts, Remedy::Kind kind, uint64_t freed, uint64_t card,
               TrueNeed& out) {
  const auto needs = static_cast<uint64_t>(need_with(parts, 1, freed));
  if (static_cast<double>(parts.need - std::min(needs, parts.need)) <
      kLeastSaving * static_cast<double>(parts.need))
    return;
  Remedy remedy;
  remedy.kinds = {kind};
  remedy.needs_bytes = needs;
  remedy.enough = batch_that_fits(parts, freed, card) >= 1;
  if (kind == Remedy::Kind::kCheckpointing) remedy.blocks = parts.blocks;
  out.remedies.push_back(std::move(remedy));
}

void add_with_batch(const PeakParts& parts, std::vector<Remedy::Kind> kinds, uint64_t freed,
                    uint64_t card, TrueNeed& out) {
  const double share = batch_that_fits(parts, freed, card);
  if (share <= 0 || share >= 1) return;
  Remedy remedy;
  remedy.kinds = std::move(kinds);
  remedy.kinds.push_back(Remedy::Kind::kSmallerBatch);
  remedy.batch_share = share;
  remedy.needs_bytes = static_cast<uint64_t>(need_with(parts, share, freed));
  remedy.enough = true;
  if (remedy.kinds.front() == Remedy::Kind::kCheckpointing) remedy.blocks = parts.blocks;
  out.remedies.push_back(std::move(remedy));
}

void count_remedies(const PeakParts& parts, uint64_t card, TrueNeed& out) {
  add_alone(parts, Remedy::Kind::kCheckpointing, parts.checkpointing_frees, card, out);
  add_alone(parts, Remedy::Kind::kLogitsInPieces, parts.logits, card, out);
  add_with_batch(parts, {}, 0, card, out);
  if (parts.checkpointing_frees > 0)
    add_with_batch(parts, {Remedy::Kind::kCheckpointing}, parts.checkpointing_frees, card, out);
  std::stable_sort(out.remedies.begin(), out.remedies.end(),
                   [](const Remedy& a, const Remedy& b) { return a.enough > b.enough; });
}

}  // namespace

bool peak_repeats(const Timeline& timeline) {
  std::map<std::pair<uint32_t, int>, std::vector<uint64_t>> peaks;  // process, device
  for (const Step& step : timeline.steps()) {
    if (!step.complete) continue;
    for (const auto& [device, samples] : timeline.devices())
      peaks[{step.process, device}].push_back(
          timeline.peak_between(device, step.first_event, step.end_event).device);
  }
  const auto repeats = [](const std::vector<uint64_t>& of_steps) {
    if (of_steps.size() < 2) return false;
    const uint64_t most = *std::max_element(of_steps.begin(), of_steps.end());
    const auto same = [&](uint64_t bytes) {
      return static_cast<double>(most - bytes) <= kSamePeak * static_cast<double>(most);
    };
    return same(of_steps.back()) && same(of_steps[of_steps.size() - 2]);
  };
  return !peaks.empty() && std::all_of(peaks.begin(), peaks.end(),
                                       [&](const auto& entry) { return repeats(entry.second); });
}

TrueNeed measure_need(const Timeline& timeline, const std::vector<uint64_t>& card_bytes,
                      uint64_t limitless_bytes) {
  TrueNeed out;
  out.known = true;
  out.wall_ns = timeline.record().end.wall_ns;
  out.repeats = peak_repeats(timeline) || succeeded(timeline.record().end);
  std::map<uint32_t, uint32_t> steps;
  for (const Step& step : timeline.steps()) {
    if (step.complete) out.steps = std::max(out.steps, ++steps[step.process]);
  }
  int worst = -1;
  uint64_t lacks = 0;
  for (const auto& [device, samples] : timeline.devices()) {
    if (!samples.has_device || timeline_of(timeline, device) == nullptr) continue;
    DeviceNeed need;
    need.device = device;
    need.device_bytes = samples.samples[samples.device_peak].device_bytes;
    need.allocated_bytes = samples.samples[samples.allocated_peak].allocated_bytes;
    need.reserved_bytes = samples.samples[samples.reserved_peak].reserved_bytes;
    if (static_cast<double>(need.device_bytes) >
        kShareOfCard * static_cast<double>(limitless_bytes))
      out.takes_share = true;
    const auto index = static_cast<size_t>(device);
    if (device >= 0 && index < card_bytes.size() && need.device_bytes > card_bytes[index] + lacks) {
      lacks = need.device_bytes - card_bytes[index];
      worst = device;
    }
    out.devices.push_back(need);
  }
  if (worst >= 0 && !out.takes_share && timeline_of(timeline, worst)->has_allocator)
    count_remedies(parts_of(timeline, worst), card_bytes[static_cast<size_t>(worst)], out);
  return out;
}

}  // namespace tonnage::analysis
