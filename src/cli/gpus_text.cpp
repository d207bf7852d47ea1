// What `tonnage gpus` prints.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "cards/attributes.h"
#include "cards/card_json.h"
#include "cards/cluster.h"
#include "cli/gpus.h"

namespace tonnage::cli {
namespace {

using cards::Card;
using Json = nlohmann::ordered_json;

constexpr size_t kColumns = 80;
constexpr std::array<std::pair<const char*, const char*>, 6> kRates = {{{"fp32", "FP32"},
                                                                        {"tf32", "TF32"},
                                                                        {"fp16", "FP16"},
                                                                        {"bf16", "BF16"},
                                                                        {"fp8", "FP8"},
                                                                        {"int8", "INT8"}}};

double gib(uint64_t bytes) { return static_cast<double>(bytes) / 1073741824.0; }

std::string tera(const Card& card, const char* type) {
  const auto found = card.peak.find(type);
  if (found == card.peak.end()) return "-";
  const double rate = found->second / 1e12;
  return rate < 99.95 ? fmt::format("{:.1f}", rate) : fmt::format("{:.0f}", rate);
}

std::string capability(const Card& card) {
  return fmt::format("{}.{}", card.architecture.cc_major, card.architecture.cc_minor);
}

std::string grouped(uint64_t number) {
  std::string digits = std::to_string(number), out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

// `first`, then the words of `text`, broken at spaces; continuation lines are indented.
std::string wrapped(const std::string& first, const std::string& text, size_t indent) {
  std::string out, line = first;
  bool empty = true;  // no word on this line yet
  for (size_t at = 0; at < text.size();) {
    const size_t space = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, space - at);
    at = space + 1;
    if (!empty && line.size() + 1 + word.size() > kColumns) {
      out += line + "\n";
      line = std::string(indent, ' ');
      empty = true;
    }
    line += (empty ? "" : " ") + word;
    empty = false;
  }
  return out + line + "\n";
}

std::string kind_of(const Card& card, const std::string& path) {
  const std::string source = cards::source_of(card, path);
  return source.substr(0, source.find(':'));
}

void line(std::string& out, const char* label, const std::string& value,
          const std::string& kind = {}) {
  out += kind.empty() ? fmt::format("  {:<17}{}\n", label, value)
                      : fmt::format("  {:<17}{:<44} {}\n", label, value, kind);
}

void detail_memory(std::string& out, const Card& card) {
  line(out, "memory, CUDA",
       fmt::format("{:.2f} GiB ({} bytes)", gib(card.total_bytes), grouped(card.total_bytes)),
       kind_of(card, "memory.total_bytes"));
  line(out, "memory, NVML",
       fmt::format("{:.2f} GiB ({} bytes)", gib(card.nvml_total_bytes),
                   grouped(card.nvml_total_bytes)),
       kind_of(card, "memory.nvml_total_bytes"));
  const uint64_t context = card.context_bytes.value_or(card.architecture.context_bytes);
  line(out, "one context", fmt::format("{:.0f} MiB", gib(context) * 1024),
       card.context_bytes ? kind_of(card, "context_bytes") : "modelled");
  line(out, "kind",
       fmt::format("{}, {} bits, {} MHz", card.memory_type, card.memory_bus_bits,
                   card.memory_clock_khz / 1000));
  line(out, "bandwidth", fmt::format("{:.0f} GB/s", card.memory_bytes_per_s / 1e9),
       kind_of(card, "memory.bytes_per_s"));
  line(out, "L2 cache", fmt::format("{:g} MiB", static_cast<double>(card.l2_bytes) / 1048576.0),
       kind_of(card, "memory.l2_bytes"));
}

void detail_clusters(std::string& out, const Card& card) {
  std::string groups;
  for (const int sms : card.sms_per_group)
    groups += (groups.empty() ? "" : " ") + std::to_string(sms);
  line(out, "SMs by GPC", groups, groups.size() <= 44 ? kind_of(card, "sms_per_group") : "");
  if (card.architecture.largest_cluster == 0) return;
  abi::CardDesc desc{};
  cards::fill_max_clusters(&desc, card.sms_per_group.data(), card.sms_per_group.size(),
                           card.architecture.largest_cluster);
  std::string row;
  for (int size = 1; size <= card.architecture.largest_cluster; ++size)
    row += (row.empty() ? "" : " ") + std::to_string(desc.max_clusters[size]);
  out += wrapped("  active clusters  ",
                 row + fmt::format(" (of 1 to {} blocks)", card.architecture.largest_cluster), 19);
}

void detail_mig(std::string& out, const Card& card) {
  if (card.mig.empty()) return;
  out += fmt::format("\nMIG slices ({}); --gpu \"{} {}\"\n", kind_of(card, "mig"), card.key,
                     card.mig.front().name);
  for (const cards::MigProfile& p : card.mig) {
    out += fmt::format("  {:<10} {:>7.2f} GiB  {:>3} SMs  up to {}\n", p.name, gib(p.total_bytes),
                       p.sms, p.max_instances);
  }
}

Json architecture_json(const Card& card) {
  abi::CardDesc desc{};
  cards::fill_max_clusters(&desc, card.sms_per_group.data(), card.sms_per_group.size(),
                           card.architecture.largest_cluster);
  Json clusters = Json::array();
  for (int size = 1; size <= card.architecture.largest_cluster; ++size)
    clusters.push_back(desc.max_clusters[size]);
  Json attributes = Json::object();
  for (int i = 1; i <= cards::kLastAttribute; ++i)
    attributes[std::string(cards::attribute_name(i))] = cards::attribute_of(card, i);
  return {{"name", card.architecture.name},
          {"context_bytes", card.context_bytes.value_or(card.architecture.context_bytes)},
          {"context_is_modelled", !card.context_bytes.has_value()},
          {"max_active_clusters", clusters},
          {"attributes", attributes}};
}

}  // namespace

std::string gpus_table(const std::vector<Card>& cards) {
  std::string out = fmt::format("{:<27}{:>11}{:>8}{:>8}{:>8}{:>6}{:>6}{}\n", "card (--gpu)",
                                "memory", "GB/s", "FP32", "FP16", "SMs", "cc", "  MIG");
  std::string family;
  for (const Card& card : cards) {
    if (card.family != family) {
      out += fmt::format("{}{}\n", family.empty() ? "" : "\n", card.family);
      family = card.family;
    }
    out += fmt::format("{:<27}{:>7.2f} GiB{:>8.0f}{:>8}{:>8}{:>6}{:>6}{}\n", "  " + card.key,
                       gib(card.total_bytes), card.memory_bytes_per_s / 1e9, tera(card, "fp32"),
                       tera(card, "fp16"), card.sms, capability(card),
                       card.mig.empty() ? "" : "  yes");
  }
  out += fmt::format(
      "\n{} cards. memory: what CUDA reports; FP32, FP16: dense peak, 10^12/s.\n`tonnage gpus "
      "CARD` says all, with the source of each figure.\n",
      cards.size());
  return out;
}

std::string gpus_detail(const Card& card) {
  std::string out = fmt::format("{} ({})\n", card.name, card.key);
  if (!card.aliases.empty()) {
    std::string aliases;
    for (const std::string& alias : card.aliases) aliases += (aliases.empty() ? "" : ", ") + alias;
    out += wrapped("  also called: ", aliases, 15);
  }
  if (card.origin != "built in") out += fmt::format("  from {}\n", card.origin);
  line(out, "chip",
       fmt::format("{}, {}, compute capability {}", card.chip, card.architecture.name,
                   capability(card)));
  line(out, "SMs", fmt::format("{}, up to {} MHz", card.sms, card.sm_clock_khz / 1000),
       kind_of(card, "sm_clock_khz"));
  detail_memory(out, card);
  std::string rates;
  for (const auto& [type, label] : kRates) {
    if (card.peak.count(type))
      rates += fmt::format("{}{} {}", rates.empty() ? "" : ", ", label, tera(card, type));
  }
  out += wrapped(fmt::format("  {:<17}", "peak, 10^12/s"),
                 rates + " (" + kind_of(card, "peak") + ")", 19);
  line(out, "host link",
       fmt::format("{}, {:.1f} GB/s each way", card.host_link, card.host_link_bytes_per_s / 1e9),
       kind_of(card, "host_link.bytes_per_s"));
  if (card.nvlink_bytes_per_s > 0)
    line(out, "NVLink", fmt::format("{:.0f} GB/s both ways", card.nvlink_bytes_per_s / 1e9));
  line(out, "power limit", fmt::format("{} W", card.power_limit_watts),
       kind_of(card, "power_limit_watts"));
  detail_clusters(out, card);
  detail_mig(out, card);
  out += "\nWhere the figures are from\n";
  for (const auto& [path, source] : card.sources)
    out += wrapped(fmt::format("  {}: ", path.empty() ? "all others" : path), source, 4);
  return out;
}

std::string gpus_attributes(const Card& card) {
  std::string out;
  for (int i = 1; i <= cards::kLastAttribute; ++i) {
    out += fmt::format("{:>4}  {:<52} {:>12}\n", i, cards::attribute_name(i),
                       cards::attribute_of(card, i));
  }
  return out;
}

std::string gpus_list_json(const std::vector<Card>& cards) {
  Json list = Json::array();
  for (const Card& card : cards) list.push_back(Json::parse(cards::card_to_json(card)));
  return Json{{"schema", cards::kCardSchema}, {"cards", list}}.dump(2) + "\n";
}

std::string gpus_detail_json(const Card& card) {
  return Json{{"schema", cards::kCardSchema},
              {"card", Json::parse(cards::card_to_json(card))},
              {"answers", architecture_json(card)}}
             .dump(2) +
         "\n";
}

}  // namespace tonnage::cli
