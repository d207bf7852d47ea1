#include "cards/card_json.h"

#include <algorithm>
#include <array>

#include "cards/attributes.h"
#include "cards/json_check.h"

namespace tonnage::cards {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{1} << 46;
constexpr std::array<const char*, 6> kPeakTypes = {"fp32", "tf32", "fp16", "bf16", "fp8", "int8"};
constexpr std::array<const char*, 5> kFamilies = {"geforce", "titan", "laptop", "workstation",
                                                  "data-centre"};
constexpr std::array<const char*, 8> kSourceKinds = {"data sheet", "whitepaper", "guide",
                                                     "measured",   "reported",   "derived",
                                                     "estimated",  "modelled"};

Result<Json> parse_text(std::string_view text, const std::string& where) {
  if (text.size() > kMaxCardFileBytes) {
    return Error{ErrorCode::kLimit, "the file is larger than 1 MiB", where,
                 "A card file has a few kilobytes."};
  }
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::parse_error& error) {
    std::string what = error.what();
    if (const size_t end = what.find("] "); end != std::string::npos) what = what.substr(end + 2);
    return Error{ErrorCode::kCorrupt, "not JSON: " + what.substr(0, 200), where,
                 "docs/cards.md shows a card file."};
  }
}

std::map<int, int32_t> read_attributes(const Json& object, const std::string& path,
                                       JsonProblem* problem) {
  std::map<int, int32_t> out;
  if (!object.is_object()) {
    problem->report(path, "expected an object of attribute names and integers");
    return out;
  }
  for (const auto& [name, value] : object.items()) {
    const int number = attribute_number(name);
    const auto integer = ObjectReader::integer_of(value);
    if (number == 0) {
      problem->report(path + "." + name.substr(0, 80), "no such device attribute",
                      "Names are cuda.h's CU_DEVICE_ATTRIBUTE_… without that prefix.");
    } else if (!integer || *integer < INT32_MIN || *integer > INT32_MAX) {
      problem->report(path + "." + name, "expected a 32-bit integer");
    } else {
      out[number] = static_cast<int32_t>(*integer);
    }
  }
  return out;
}

bool parse_capability(const std::string& text, int* major, int* minor) {
  const size_t dot = text.find('.');
  const auto digits = [](const std::string& s) {
    return !s.empty() && s.size() <= 2 &&
           std::all_of(s.begin(), s.end(), [](char c) { return c >= '0' && c <= '9'; });
  };
  if (dot == std::string::npos || !digits(text.substr(0, dot)) || !digits(text.substr(dot + 1)))
    return false;
  *major = std::stoi(text.substr(0, dot));
  *minor = std::stoi(text.substr(dot + 1));
  return true;
}

std::string capability_text(const Architecture& a) {
  return std::to_string(a.cc_major) + "." + std::to_string(a.cc_minor);
}

std::vector<std::string> read_texts(ObjectReader& reader, const std::string& key, size_t most) {
  std::vector<std::string> out;
  const Json* list = reader.get(key, false);
  if (!list) return out;
  if (!list->is_array() || list->size() > most) {
    reader.fail(key, "expected a list of at most " + std::to_string(most) + " texts");
    return out;
  }
  for (const Json& item : *list) {
    if (!item.is_string() || item.get_ref<const std::string&>().size() > 96) {
      reader.fail(key, "expected a list of texts of at most 96 bytes");
      return out;
    }
    out.push_back(item.get<std::string>());
  }
  return out;
}

void read_groups(ObjectReader& reader, Card* card) {
  const Json* list = reader.get("sms_per_group", true);
  if (!list) return;
  if (!list->is_array() || list->empty() || list->size() > 32) {
    reader.fail("sms_per_group", "expected a list of 1 to 32 integers");
    return;
  }
  int64_t sum = 0;
  for (const Json& item : *list) {
    const auto sms = ObjectReader::integer_of(item);
    if (!sms || *sms < 1 || *sms > 64) {
      reader.fail("sms_per_group", "expected integers from 1 to 64");
      return;
    }
    sum += *sms;
    card->sms_per_group.push_back(static_cast<int>(*sms));
  }
  if (sum != card->sms) {
    reader.fail("sms_per_group", "the groups have " + std::to_string(sum) + " SMs but \"sms\" is " +
                                     std::to_string(card->sms));
  }
}

void read_memory(const Json& object, Card* card, JsonProblem* problem) {
  ObjectReader memory(object, "memory", problem);
  card->nominal_bytes = memory.integer("nominal_bytes", 1 << 20, kMaxBytes);
  card->total_bytes = memory.integer("total_bytes", 1 << 20, kMaxBytes);
  card->nvml_total_bytes = memory.integer("nvml_total_bytes", 1 << 20, kMaxBytes);
  card->memory_type = memory.text("type", 32);
  card->memory_bus_bits = static_cast<int>(memory.integer("bus_bits", 32, 1 << 16));
  card->memory_clock_khz = static_cast<int>(memory.integer("clock_khz", 1000, 100'000'000));
  card->memory_bytes_per_s = memory.number("bytes_per_s", 1e15);
  card->l2_bytes = memory.integer("l2_bytes", 1024, INT32_MAX);
  memory.no_other_keys();
  if (card->nvml_total_bytes < card->total_bytes) {
    memory.fail("nvml_total_bytes",
                "expected at least memory.total_bytes: NVML counts what the driver reserves too");
  }
}

void read_mig(const Json& list, Card* card, JsonProblem* problem) {
  if (!list.is_array() || list.size() > 32) {
    problem->report("mig", "expected a list of at most 32 profiles");
    return;
  }
  for (size_t i = 0; i < list.size(); ++i) {
    ObjectReader reader(list[i], "mig[" + std::to_string(i) + "]", problem);
    MigProfile profile;
    profile.name = reader.text("name", 24);
    profile.compute_slices = static_cast<int>(reader.integer("compute_slices", 1, 8));
    profile.memory_slices = static_cast<int>(reader.integer("memory_slices", 1, 8));
    profile.sms = static_cast<int>(reader.integer("sms", 1, std::max(1, card->sms)));
    profile.max_instances = static_cast<int>(reader.integer("max_instances", 1, 8));
    profile.copy_engines = static_cast<int>(reader.integer("copy_engines", 1, 16));
    profile.total_bytes =
        reader.integer("total_bytes", 1 << 20, std::max<int64_t>(card->nvml_total_bytes, 1 << 20));
    reader.no_other_keys();
    card->mig.push_back(std::move(profile));
  }
}

void read_sources(const Json& object, Card* card, JsonProblem* problem) {
  if (!object.is_object() || object.size() > 128) {
    problem->report("sources", "expected an object of at most 128 figures and their sources");
    return;
  }
  for (const auto& [path, value] : object.items()) {
    const std::string text = value.is_string() ? value.get<std::string>() : std::string();
    const bool known = text.size() <= 500 &&
                       std::any_of(kSourceKinds.begin(), kSourceKinds.end(), [&](const char* kind) {
                         return text.rfind(std::string(kind) + ": ", 0) == 0;
                       });
    if (!known) {
      std::string kinds;
      for (const char* kind : kSourceKinds)
        kinds += (kinds.empty() ? "" : ", ") + std::string(kind);
      problem->report("sources." + path.substr(0, 80),
                      "expected \"KIND: where the figure is from\", at most 500 bytes",
                      "KIND is one of: " + kinds);
      return;
    }
    card->sources[path] = text;
  }
  if (!card->sources.count("")) {
    problem->report("sources", "expected a source under \"\" for the figures that are not named");
  }
}

bool good_key(const std::string& key) {
  return !key.empty() && std::all_of(key.begin(), key.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
  });
}

}  // namespace

Result<std::vector<Architecture>> parse_architectures(std::string_view text,
                                                      const std::string& where) {
  auto json = parse_text(text, where);
  if (!json) return json.error();
  JsonProblem problem{where, {}};
  ObjectReader top(*json, "", &problem);
  std::vector<Architecture> out;
  top.integer("schema", kCardSchema, kCardSchema);
  const Json* sources = top.get("sources", true);
  if (sources && !sources->is_object()) top.fail("sources", "expected an object");
  std::map<int, int32_t> common;
  if (const Json* value = top.get("common", true))
    common = read_attributes(*value, "common", &problem);
  const Json* list = top.get("architectures", true);
  top.no_other_keys();
  if (list && !list->is_object())
    top.fail("architectures", "expected an object by compute capability");
  if (list && list->is_object()) {
    for (const auto& [capability, value] : list->items()) {
      const std::string path = "architectures." + capability.substr(0, 16);
      ObjectReader reader(value, path, &problem);
      Architecture a;
      if (!parse_capability(capability, &a.cc_major, &a.cc_minor))
        problem.report(path, "expected a compute capability, like 9.0");
      a.name = reader.text("name", 32);
      a.register_allocation_unit =
          static_cast<int>(reader.integer("register_allocation_unit", 1, 65536));
      a.warp_allocation_granularity =
          static_cast<int>(reader.integer("warp_allocation_granularity", 1, 64));
      a.shared_allocation_unit =
          static_cast<int>(reader.integer("shared_allocation_unit", 1, 65536));
      a.largest_cluster =
          static_cast<int>(reader.integer("largest_cluster", 0, abi::kMaxClusterSize));
      a.persisting_l2_sixteenths =
          static_cast<int>(reader.integer("persisting_l2_sixteenths", 0, 16));
      a.context_bytes = reader.integer("context_bytes", 1 << 20, int64_t{1} << 34);
      a.nvlink_link_bytes_per_s = reader.number("nvlink_link_bytes_per_s", 1e13);
      a.attributes = common;
      if (const Json* own = reader.get("attributes", true)) {
        for (const auto& [number, v] : read_attributes(*own, path + ".attributes", &problem))
          a.attributes[number] = v;
      }
      a.attributes[kComputeMajor] = a.cc_major;
      a.attributes[kComputeMinor] = a.cc_minor;
      reader.no_other_keys();
      out.push_back(std::move(a));
    }
  }
  if (problem.first) return *problem.first;
  return out;
}

Result<Card> parse_card(std::string_view text, const std::string& where,
                        const std::vector<Architecture>& architectures) {
  auto json = parse_text(text, where);
  if (!json) return json.error();
  JsonProblem problem{where, {}};
  ObjectReader top(*json, "", &problem);
  Card card;
  card.origin = where;
  if (const Json* schema = top.get("schema", true)) {
    const auto number = ObjectReader::integer_of(*schema);
    if (number && *number > kCardSchema) {
      return Error{ErrorCode::kTooNew,
                   "the file has schema " + std::to_string(*number) + ", this Tonnage reads " +
                       std::to_string(kCardSchema),
                   where, "Use a newer Tonnage."};
    }
    if (!number || *number < 1) top.fail("schema", "expected 1");
  }
  card.key = top.text("key", 60);
  if (!card.key.empty() && !good_key(card.key))
    top.fail("key", "expected lower-case letters, digits, '-' and '.'");
  card.name = top.text("name", 90);
  card.aliases = read_texts(top, "aliases", 32);
  card.family = top.text("family", 32);
  if (std::none_of(kFamilies.begin(), kFamilies.end(),
                   [&](const char* f) { return card.family == f; })) {
    top.fail("family", "expected geforce, titan, laptop, workstation or data-centre");
  }
  card.chip = top.text("chip", 32);
  const std::string capability = top.text("compute_capability", 8);
  const auto architecture =
      std::find_if(architectures.begin(), architectures.end(),
                   [&](const Architecture& a) { return capability_text(a) == capability; });
  if (architecture != architectures.end()) {
    card.architecture = *architecture;
  } else {
    std::string all;
    for (const Architecture& a : architectures)
      all += (all.empty() ? "" : ", ") + capability_text(a);
    top.fail("compute_capability", "no such architecture", "Known: " + all);
  }
  card.sms = static_cast<int>(top.integer("sms", 1, 1024));
  read_groups(top, &card);
  if (const Json* memory = top.get("memory", true)) read_memory(*memory, &card, &problem);
  card.sm_clock_khz = static_cast<int>(top.integer("sm_clock_khz", 1000, 10'000'000));
  if (const Json* peak = top.get("peak", true)) {
    ObjectReader reader(*peak, "peak", &problem);
    for (const char* type : kPeakTypes) {
      const double rate = reader.number(type, 1e18, false);
      if (rate > 0) card.peak[type] = rate;
    }
    reader.no_other_keys();
    if (!card.peak.count("fp32")) reader.fail("fp32", "missing");
  }
  if (const Json* link = top.get("host_link", true)) {
    ObjectReader reader(*link, "host_link", &problem);
    card.host_link = reader.text("name", 48);
    card.pcie_generation = static_cast<int>(reader.integer("pcie_generation", 1, 8));
    card.pcie_lanes = static_cast<int>(reader.integer("pcie_lanes", 1, 32));
    card.host_link_bytes_per_s = reader.number("bytes_per_s", 1e13);
    reader.no_other_keys();
  }
  card.nvlink_bytes_per_s = top.number("nvlink_bytes_per_s", 1e14, false);
  card.power_limit_watts = static_cast<int>(top.integer("power_limit_watts", 1, 10000));
  if (top.get("context_bytes", false))
    card.context_bytes = top.integer("context_bytes", 1 << 20, int64_t{1} << 34);
  if (const Json* attributes = top.get("attributes", false))
    card.attributes = read_attributes(*attributes, "attributes", &problem);
  if (const Json* mig = top.get("mig", false)) read_mig(*mig, &card, &problem);
  if (const Json* sources = top.get("sources", true)) read_sources(*sources, &card, &problem);
  top.no_other_keys();
  if (problem.first) return *problem.first;
  return card;
}

std::string card_to_json(const Card& card) {
  Json json;
  json["schema"] = kCardSchema;
  json["key"] = card.key;
  json["name"] = card.name;
  if (!card.aliases.empty()) json["aliases"] = card.aliases;
  json["family"] = card.family;
  json["chip"] = card.chip;
  json["compute_capability"] = capability_text(card.architecture);
  json["sms"] = card.sms;
  json["sms_per_group"] = card.sms_per_group;
  json["memory"] = {
      {"nominal_bytes", card.nominal_bytes},       {"total_bytes", card.total_bytes},
      {"nvml_total_bytes", card.nvml_total_bytes}, {"type", card.memory_type},
      {"bus_bits", card.memory_bus_bits},          {"clock_khz", card.memory_clock_khz},
      {"bytes_per_s", card.memory_bytes_per_s},    {"l2_bytes", card.l2_bytes}};
  json["sm_clock_khz"] = card.sm_clock_khz;
  Json peak = Json::object();
  for (const char* type : kPeakTypes) {
    const auto found = card.peak.find(type);
    peak[type] = found == card.peak.end() ? Json() : Json(found->second);
  }
  json["peak"] = peak;
  json["host_link"] = {{"name", card.host_link},
                       {"pcie_generation", card.pcie_generation},
                       {"pcie_lanes", card.pcie_lanes},
                       {"bytes_per_s", card.host_link_bytes_per_s}};
  if (card.nvlink_bytes_per_s > 0) json["nvlink_bytes_per_s"] = card.nvlink_bytes_per_s;
  json["power_limit_watts"] = card.power_limit_watts;
  if (card.context_bytes) json["context_bytes"] = *card.context_bytes;
  if (!card.attributes.empty()) {
    Json attributes = Json::object();
    for (const auto& [number, value] : card.attributes)
      attributes[std::string(attribute_name(number))] = value;
    json["attributes"] = attributes;
  }
  if (!card.mig.empty()) {
    Json mig = Json::array();
    for (const MigProfile& p : card.mig) {
      mig.push_back({{"name", p.name},
                     {"compute_slices", p.compute_slices},
                     {"memory_slices", p.memory_slices},
                     {"sms", p.sms},
                     {"max_instances", p.max_instances},
                     {"copy_engines", p.copy_engines},
                     {"total_bytes", p.total_bytes}});
    }
    json["mig"] = mig;
  }
  json["sources"] = Json::object();
  for (const auto& [path, text] : card.sources) json["sources"][path] = text;
  return json.dump(2) + "\n";
}

}  // namespace tonnage::cards
