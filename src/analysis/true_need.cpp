#include "analysis/true_need.h"

#include <algorithm>
#include <map>

#include "analysis/diagnosis/oom_facts.h"
#include "analysis/timeline/breakdown.h"
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
// Free memory in pieces does not shrink as the tensors do: a remedy is enough only if this part of
// what varies may come on top.
constexpr double kRoomForPieces = 1.0 / 8;
constexpr double kLeastSaving = 0.02;  // of the need: less is no remedy

const DeviceTimeline* timeline_of(const Timeline& timeline, int device) {
  const auto found = timeline.devices().find(device);
  return found == timeline.devices().end() || found->second.samples.empty() ? nullptr
                                                                            : &found->second;
}

// What the peak of one device is made of, as far as remedies go.
struct PeakParts {
  uint64_t need = 0;
  uint64_t grows_with_batch = 0;
  uint64_t checkpointing_frees = 0;
  uint32_t blocks = 0;
  uint64_t logits = 0;
};

PeakParts parts_of(const Timeline& timeline, int device) {
  PeakParts parts;
  const DeviceTimeline& samples = *timeline_of(timeline, device);
  const Sample& peak = samples.samples[samples.device_peak];
  parts.need = peak.device_bytes;
  for (const BreakdownRow& row : breakdown_at(timeline, device, peak.event).rows) {
    switch (row.category) {
      case Category::kActivation:
      case Category::kInput:
      case Category::kTemporary:
      case Category::kUnknown:
      case Category::kCached:
      case Category::kRounding: parts.grows_with_batch += row.bytes; break;
      default: break;
    }
  }
  const Sample& allocated = samples.samples[samples.allocated_peak];
  const OomFacts facts = collect_oom_facts(timeline, allocated.event, {});
  if (facts.blocks >= 3) {
    const uint64_t all = facts.blocks * facts.block_bytes;
    const uint64_t stays = facts.block_bytes + facts.blocks * facts.block_boundary_bytes;
    parts.checkpointing_frees = std::min(all > stays ? all - stays : 0, parts.grows_with_batch);
    parts.blocks = static_cast<uint32_t>(facts.blocks);
  }
  parts.logits = std::min(facts.logits_bytes, parts.grows_with_batch);
  return parts;
}

// What is left of the batch when the rest of the peak stays; 0: nothing.
double batch_that_fits(const PeakParts& parts, uint64_t freed, uint64_t card) {
  const uint64_t fixed = parts.need - parts.grows_with_batch;
  const double grows = static_cast<double>(parts.grows_with_batch - freed) * (1 + kRoomForPieces);
  if (card <= fixed || grows == 0) return 0;
  return std::min(1.0, static_cast<double>(card - fixed) / grows);
}

void add_alone(const PeakParts& parts, Remedy::Kind kind, uint64_t freed, uint64_t card,
               TrueNeed& out) {
  if (static_cast<double>(freed) < kLeastSaving * static_cast<double>(parts.need)) return;
  Remedy remedy;
  remedy.kinds = {kind};
  remedy.needs_bytes = parts.need - freed;
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
  remedy.needs_bytes =
      parts.need - parts.grows_with_batch +
      static_cast<uint64_t>(share * static_cast<double>(parts.grows_with_batch - freed));
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
