#include "report/need_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/batch_option.h"
#include "cards/catalogue.h"
#include "report/text.h"

namespace tonnage::report {
namespace {

using analysis::Report;
using record::DeviceNeed;
using record::Remedy;

const analysis::DeviceReport* device_of(const Report& report, int index) {
  for (const auto& device : report.devices) {
    if (device.index == index) return &device;
  }
  return nullptr;
}

std::string kind_text(const Remedy& remedy, Remedy::Kind kind, const std::string& command) {
  switch (kind) {
    case Remedy::Kind::kCheckpointing:
      return fmt::format("activation checkpointing of the {} equal layers", remedy.blocks);
    case Remedy::Kind::kLogitsInPieces:
      return "the logits of the loss in pieces, never all at once";
    case Remedy::Kind::kSmallerBatch: break;
  }
  const auto batch = analysis::find_batch(analysis::words_of_command(command));
  if (batch && remedy.was_run && remedy.batch > 0)
    return fmt::format("a batch of {} instead of {}", remedy.batch, *batch);
  const auto smaller = static_cast<uint64_t>(
      std::floor(static_cast<double>(batch.value_or(0)) * remedy.batch_share));
  if (batch && smaller > 0) return fmt::format("a batch of {} instead of {}", smaller, *batch);
  return fmt::format("at most {:.0f} % of the batch", std::floor(100 * remedy.batch_share));
}

}  // namespace

std::vector<CardChoice> cards_with(uint64_t bytes, size_t most) {
  std::vector<CardChoice> out;
  const auto& catalogue = cards::Catalogue::standard();
  if (!catalogue) return out;
  for (const cards::Card& card : catalogue->cards()) {
    if (card.total_bytes >= bytes) out.push_back({card.name, card.total_bytes});
  }
  std::ranges::stable_sort(out, {}, &CardChoice::total_bytes);
  if (out.size() > most) out.resize(most);
  return out;
}

const DeviceNeed* deciding_need(const Report& report) {
  const DeviceNeed* worst = nullptr;
  uint64_t lacks = 0;
  for (const DeviceNeed& need : report.need.devices) {
    const analysis::DeviceReport* device = device_of(report, need.device);
    if (device == nullptr || !device->total_bytes) continue;
    if (need.device_bytes > *device->total_bytes + lacks) {
      lacks = need.device_bytes - *device->total_bytes;
      worst = &need;
    }
  }
  return worst;
}

std::string need_text(const Report& report) {
  const DeviceNeed* need = deciding_need(report);
  if (need == nullptr || report.need.takes_share) return "";
  return (report.need.repeats ? "" : "at least ") + format_bytes(need->device_bytes);
}

std::string how_enough(const Remedy& remedy, uint64_t card_bytes) {
  const std::string bytes = format_bytes(remedy.needs_bytes);
  if (remedy.was_run && remedy.enough) {
    std::string out = fmt::format("enough: it ran, and took {}", bytes);
    if (remedy.too_large > 0) out += fmt::format("; {} ran out of memory", remedy.too_large);
    return out;
  }
  if (remedy.was_run) return "not enough: it ran, and ran out of memory";
  if (remedy.enough) return fmt::format("enough: about {}, estimated", bytes);
  return fmt::format("{}: about {}, estimated",
                     remedy.needs_bytes <= card_bytes ? "perhaps not enough" : "not enough alone",
                     bytes);
}

std::string remedy_text(const Remedy& remedy, const std::string& command) {
  std::string out;
  for (const Remedy::Kind kind : remedy.kinds)
    out += (out.empty() ? "" : " and ") + kind_text(remedy, kind, command);
  return out;
}

namespace {

// What was measured or counted of this advice; "" where nothing was.
std::string enough_of(analysis::Remedy advice, const Report& report) {
  const bool of_batch = advice == analysis::Remedy::kHalfBatch;
  const auto kind = of_batch ? Remedy::Kind::kSmallerBatch : Remedy::Kind::kCheckpointing;
  if (!of_batch && advice != analysis::Remedy::kCheckpointBlocks) return "";
  const DeviceNeed* need = deciding_need(report);
  if (need == nullptr) return "";
  for (const Remedy& remedy : report.need.remedies) {
    if (remedy.kinds != std::vector{kind}) continue;
    const std::string how = how_enough(remedy, *device_of(report, need->device)->total_bytes);
    return of_batch ? fmt::format(" ({} is {})", remedy_text(remedy, report.command), how)
                    : fmt::format(" ({})", how);
  }
  return "";
}

}  // namespace

FindingWords words_of(const analysis::Finding& finding, const analysis::Explanation& explanation) {
  FindingWords words = words_of(finding);
  const Report* report = explanation.report.get();
  if (report == nullptr || report->verdict != analysis::Verdict::kDoesNotFit || !finding.primary ||
      finding.failure + 1 != static_cast<int>(explanation.failures.size()))
    return words;
  for (size_t i = 0; i < finding.advice.size(); ++i)
    words.advice[i].text += enough_of(finding.advice[i].remedy, *report);
  return words;
}

std::vector<std::string> need_lines(const Report& report) {
  std::vector<std::string> out;
  if (!report.need.known) return out;
  if (report.need.takes_share)
    return {
        "On a card without limit the command takes a share of the card, so its need cannot be "
        "measured. Set its share, or its cache, to a size."};
  const DeviceNeed* need = deciding_need(report);
  if (need == nullptr) {
    if (report.need.devices.empty()) return out;
    return {fmt::format(
        "On a card without limit it took {}, and this card has as much. The memory was there, but "
        "not for this request (a limit of the program, or free memory in pieces).",
        format_bytes(report.need.devices.front().device_bytes))};
  }
  const uint64_t card = *device_of(report, need->device)->total_bytes;
  out.push_back(fmt::format(
      "The same command ran once more on a card without limit and took {}{}{}: {} more than the {} "
      "that GPU {} has.",
      report.need.repeats ? "" : "at least ", format_bytes(need->device_bytes),
      report.need.steps > 0 ? fmt::format(" in {} steps", report.need.steps) : "",
      format_bytes(need->device_bytes - card), format_bytes(card), need->device));
  std::string cards;
  for (const CardChoice& choice : cards_with(need->device_bytes))
    cards += fmt::format("{}{} ({})", cards.empty() ? "" : ", ", choice.name,
                         format_bytes(choice.total_bytes));
  out.push_back(cards.empty() ? "No card of the catalogue has that much."
                              : "Cards that are large enough, smallest first: " + cards + ".");
  for (const Remedy& remedy : report.need.remedies) {
    const std::string text =
        remedy_text(remedy, report.command) + " (" + how_enough(remedy, card) + ")";
    out.push_back((remedy.enough ? "+ " : "- ") + text);
  }
  return out;
}

}  // namespace tonnage::report
