#include "cli/batch_trials.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "analysis/batch_option.h"
#include "analysis/timeline/failures.h"
#include "analysis/timeline/timeline.h"
#include "analysis/true_need.h"
#include "analysis/verdict.h"

namespace tonnage::cli {
namespace {

using record::Remedy;

constexpr double kMargin = 0.01;  // of the card: two measured points are a line only nearly

struct Trial {
  bool enough = false;
  uint64_t peak_bytes = 0;  // of the device that lacked most
  uint64_t own_ns = 0;
};

bool ran_out(const analysis::Timeline& timeline) {
  const auto refusals =
      analysis::find_refusals(timeline.record(), timeline.stacks(), timeline.steps());
  return std::any_of(refusals.begin(), refusals.end(), [](const analysis::Refusal& refusal) {
    return refusal.fate == analysis::Fate::kEnded && !refusal.by_host;
  });
}

// Nullopt: it says nothing about the batch.
std::optional<Trial> run_with(uint64_t batch, int device, const QuietRunOptions& options,
                              const InstallPaths& paths) {
  QuietRunOptions smaller = options;
  smaller.command = analysis::with_batch(options.command, batch);
  const auto run = run_quietly(smaller, paths);
  if (!run || !*run) return std::nullopt;
  const QuietRun& done = **run;
  const analysis::Timeline timeline(done.record);
  Trial trial;
  trial.own_ns = done.exit.own_ns;
  if (const auto found = timeline.devices().find(device);
      found != timeline.devices().end() && !found->second.samples.empty())
    trial.peak_bytes = found->second.samples[found->second.device_peak].device_bytes;
  if (ran_out(timeline)) return trial;
  trial.enough =
      done.was_stopped ? analysis::peak_repeats(timeline) : analysis::succeeded(done.record.end);
  return trial.enough && trial.peak_bytes > 0 ? std::optional(trial) : std::nullopt;
}

const record::DeviceNeed* lacking_most(const record::TrueNeed& need,
                                       const std::vector<abi::CardDesc>& cards) {
  const record::DeviceNeed* worst = nullptr;
  uint64_t lacks = 0;
  for (const record::DeviceNeed& one : need.devices) {
    const auto index = static_cast<size_t>(one.device);
    if (one.device < 0 || index >= cards.size()) continue;
    if (one.device_bytes <= cards[index].total_bytes + lacks) continue;
    lacks = one.device_bytes - cards[index].total_bytes;
    worst = &one;
  }
  return worst;
}

// The search between a batch that fits (0: none is known) and one that does not.
struct Search {
  uint64_t fits = 0, fits_bytes = 0, too_large = 0;
  bool ran_too_large = false;

  // What the line through the two measured points says; without the first, half of what is left.
  uint64_t next(uint64_t batch, uint64_t need_bytes, uint64_t card_bytes) const {
    if (fits == 0) return too_large / 2;
    if (need_bytes <= fits_bytes) return fits;
    const double slope =
        static_cast<double>(need_bytes - fits_bytes) / static_cast<double>(batch - fits);
    const double room =
        static_cast<double>(card_bytes) * (1 - kMargin) - static_cast<double>(fits_bytes);
    const double more = std::floor(std::max(0.0, room) / slope);
    return std::min(fits + static_cast<uint64_t>(std::min(more, 1e9)), too_large - 1);
  }
};

void write_result(const Search& search, uint64_t batch, Remedy& counted,
                  std::vector<Remedy>& remedies) {
  counted.was_run = true;
  counted.too_large = search.ran_too_large ? search.too_large : 0;
  counted.enough = search.fits > 0;
  counted.batch = counted.enough ? search.fits : search.too_large;
  counted.batch_share = static_cast<double>(counted.batch) / static_cast<double>(batch);
  if (counted.enough) {
    counted.needs_bytes = search.fits_bytes;
    return;
  }
  // What was counted was too little, and so it is for what was counted in the same way.
  for (Remedy& other : remedies) other.enough = other.enough && other.was_run;
}

}  // namespace

void try_smaller_batches(const QuietRunOptions& options, const InstallPaths& paths,
                         record::TrueNeed& need) {
  const auto batch = analysis::find_batch(options.command);
  const record::DeviceNeed* worst = lacking_most(need, options.cards);
  if (!batch || *batch < 2 || worst == nullptr || need.takes_share) return;
  const auto counted =
      std::find_if(need.remedies.begin(), need.remedies.end(), [](const Remedy& r) {
        return r.kinds.size() == 1 && r.kinds.front() == Remedy::Kind::kSmallerBatch;
      });
  // No estimate: what grows with the batch cannot be told from what stays. Half of it is tried.
  Remedy remedy;
  remedy.kinds = {Remedy::Kind::kSmallerBatch};
  remedy.batch_share = 0.5;
  if (counted != need.remedies.end()) remedy = *counted;
  const uint64_t card = options.cards[static_cast<size_t>(worst->device)].total_bytes;
  Search search;
  search.too_large = *batch;
  uint64_t candidate = std::clamp<uint64_t>(
      static_cast<uint64_t>(static_cast<double>(*batch) * remedy.batch_share), 1, *batch - 1);
  uint64_t spent = 0, last = options.first_run_ns;
  while (candidate > search.fits && candidate < search.too_large &&
         spent + last <= kLongestTrialsNs) {
    const auto trial = run_with(candidate, worst->device, options, paths);
    if (!trial) break;
    spent += last = trial->own_ns;
    if (trial->enough) {
      search.fits = candidate;
      search.fits_bytes = trial->peak_bytes;
    } else {
      search.too_large = candidate;
      search.ran_too_large = true;
    }
    candidate = search.next(*batch, worst->device_bytes, card);
  }
  if (search.fits > 0 || search.ran_too_large) {
    write_result(search, *batch, remedy, need.remedies);
    if (counted != need.remedies.end())
      *counted = remedy;
    else
      need.remedies.push_back(remedy);
  }
  std::stable_sort(need.remedies.begin(), need.remedies.end(),
                   [](const Remedy& a, const Remedy& b) { return a.enough > b.enough; });
}

}  // namespace tonnage::cli
