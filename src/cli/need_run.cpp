#include "cli/need_run.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "analysis/timeline/categories.h"
#include "analysis/true_need.h"
#include "cli/batch_trials.h"
#include "cli/quiet_run.h"
#include "cli/sandbox.h"

namespace tonnage::cli {

namespace {

constexpr uint64_t kLeastLimitlessBytes = 1ull << 40;
constexpr uint64_t kLimitlessFactor = 8;  // of the largest card

uint64_t limitless_bytes(const std::vector<abi::CardDesc>& cards) {
  uint64_t bytes = kLeastLimitlessBytes;
  for (const auto& card : cards) bytes = std::max(bytes, kLimitlessFactor * card.total_bytes);
  return bytes;
}

QuietRunOptions quiet(const NeedRunOptions& options) {
  QuietRunOptions out;
  out.cards = options.cards;
  out.command = options.command;
  out.first_run_ns = options.first_run_ns;
  out.assume_selected = options.assume_selected;
  out.known_values = options.known_values;
  out.asked_for = options.asked_for;
  return out;
}

std::optional<record::TrueNeed> need_of(QuietRun& run, const NeedRunOptions& options) {
  record::Record& record = run.record;
  record.end.known = true;
  record.end.exit_code = run.exit.code;
  record.end.signal = run.exit.signal;
  record.end.wall_ns = run.exit.wall_ns;
  analysis::Timeline timeline(record);
  analysis::infer_categories(timeline);
  std::vector<uint64_t> card_bytes;
  for (const auto& card : options.cards) card_bytes.push_back(card.total_bytes);
  record::TrueNeed need =
      analysis::measure_need(timeline, card_bytes, limitless_bytes(options.cards));
  uint64_t peak = 0;
  for (const auto& device : need.devices) peak = std::max(peak, device.device_bytes);
  // It failed before it came as far as the first run did.
  if (peak == 0 || peak + peak / 20 < options.first_peak_bytes) return std::nullopt;
  return need;
}

}  // namespace

StandardInput::StandardInput() {
  struct stat is {};
  if (::fstat(STDIN_FILENO, &is) != 0) return;
  if (S_ISREG(is.st_mode)) had_data_ = is.st_size > ::lseek(STDIN_FILENO, 0, SEEK_CUR);
}

bool StandardInput::may_be_read() const {
  if (had_data_) return true;
  struct stat is {};
  if (::fstat(STDIN_FILENO, &is) != 0) return false;
  if (!S_ISFIFO(is.st_mode) && !S_ISSOCK(is.st_mode)) return false;
  // Somebody has written into the pipe, or has closed it when all was read.
  pollfd input{STDIN_FILENO, POLLIN, 0};
  return ::poll(&input, 1, 0) > 0;
}

std::string reason_not_to_run(const NeedRunOptions& options, const StandardInput& input) {
  if (options.asked_for) return "";
  if (options.first_run_ns > kLongestFirstRunNs) return "it took longer than a minute";
  if (options.first_wall_ns > kLongestFirstWallNs) return "this machine is too busy";
  if (input.may_be_read()) return "the command may have read its standard input";
  if (!can_protect_files()) return "this kernel cannot keep the second run from writing files";
  return "";
}

Result<std::optional<record::TrueNeed>> run_for_need(const NeedRunOptions& options,
                                                     const InstallPaths& paths) {
  QuietRunOptions limitless = quiet(options);
  limitless.first_peak_bytes = options.first_peak_bytes;
  for (auto& card : limitless.cards)
    card.total_bytes = card.nvml_total_bytes = limitless_bytes(options.cards);
  auto run = run_quietly(limitless, paths);
  if (!run) return run.error();
  if (!*run) return std::optional<record::TrueNeed>();
  auto need = need_of(**run, options);
  if (need) try_smaller_batches(quiet(options), paths, *need);
  return need;
}

std::string need_json(const record::TrueNeed& need) {
  using nlohmann::json;
  const auto kind_name = [](record::Remedy::Kind kind) {
    switch (kind) {
      case record::Remedy::Kind::kSmallerBatch: return "smaller_batch";
      case record::Remedy::Kind::kCheckpointing: return "checkpointing";
      case record::Remedy::Kind::kLogitsInPieces: break;
    }
    return "logits_in_pieces";
  };
  json devices = json::array(), remedies = json::array();
  for (const auto& device : need.devices)
    devices.push_back({{"device", device.device},
                       {"device_bytes", device.device_bytes},
                       {"allocated_bytes", device.allocated_bytes},
                       {"reserved_bytes", device.reserved_bytes}});
  for (const auto& remedy : need.remedies) {
    json kinds = json::array();
    for (const auto kind : remedy.kinds) kinds.push_back(kind_name(kind));
    remedies.push_back({{"kinds", kinds},
                        {"enough", remedy.enough},
                        {"needs_bytes", remedy.needs_bytes},
                        {"batch_share", remedy.batch_share},
                        {"was_run", remedy.was_run},
                        {"batch", remedy.batch},
                        {"too_large", remedy.too_large},
                        {"blocks", remedy.blocks}});
  }
  const json need_value = {{"repeats", need.repeats}, {"takes_share", need.takes_share},
                           {"steps", need.steps},     {"wall_ns", need.wall_ns},
                           {"devices", devices},      {"remedies", remedies}};
  return json{{"need", need_value}}.dump();
}

}  // namespace tonnage::cli
