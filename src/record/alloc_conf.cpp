#include "record/alloc_conf.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>

namespace tonnage::record {

namespace {

constexpr size_t kBuckets = 16;  // powers of two, 1 MiB .. 64 GiB with what lies above
constexpr size_t kMaxTextBytes = 4096;

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t'\"";
  const size_t first = text.find_first_not_of(kSpace);
  return first == std::string_view::npos
             ? std::string_view()
             : text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

std::optional<uint64_t> number(std::string_view text) {
  text = trimmed(text);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty()
             ? std::optional(value)
             : std::nullopt;
}

// Splits at `separator`, but not inside [ ].
std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> out;
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] == '[') ++depth;
    if (i < text.size() && text[i] == ']') --depth;
    if (i == text.size() || (text[i] == separator && depth <= 0)) {
      out.push_back(text.substr(begin, i - begin));
      begin = i + 1;
    }
  }
  return out;
}

std::vector<uint32_t> parse_divisions(std::string_view text) {
  text = trimmed(text);
  const auto in_range = [](std::optional<uint64_t> parts) { return parts && *parts <= (1u << 20); };
  if (!text.starts_with('[')) {
    const auto all = number(text);
    return in_range(all) ? std::vector<uint32_t>(kBuckets, static_cast<uint32_t>(*all))
                         : std::vector<uint32_t>();
  }
  text.remove_prefix(1);
  if (text.ends_with(']')) text.remove_suffix(1);
  std::vector<uint32_t> out(kBuckets, 0);
  size_t next = 0;  // bucket after the previous key's
  bool first = true;
  for (const std::string_view entry : split(text, ',')) {
    const size_t colon = entry.find(':');
    if (colon == std::string_view::npos) return {};
    const auto parts = number(entry.substr(colon + 1));
    if (!in_range(parts)) return {};
    const auto value = static_cast<uint32_t>(*parts);
    if (trimmed(entry.substr(0, colon)) == ">") {
      std::fill(out.begin() + static_cast<std::ptrdiff_t>(next), out.end(), value);
      continue;
    }
    const auto mib = number(entry.substr(0, colon));
    if (!mib || *mib == 0) return {};
    const size_t bucket =
        std::min<size_t>(static_cast<size_t>(std::bit_width(*mib)) - 1, kBuckets - 1);
    if (first) std::fill(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(bucket), value);
    first = false;
    out[bucket] = value;
    next = bucket + 1;
  }
  return out;
}

}  // namespace

AllocatorSettings parse_alloc_conf(std::string_view text) {
  AllocatorSettings settings;
  settings.text = text.substr(0, kMaxTextBytes);
  for (const std::string_view entry : split(settings.text, ',')) {
    const size_t colon = entry.find(':');
    if (colon == std::string_view::npos) continue;
    const std::string_view key = trimmed(entry.substr(0, colon)),
                           value = trimmed(entry.substr(colon + 1));
    if (key == "max_split_size_mb") {
      if (const auto mib = number(value); mib && *mib <= (UINT64_MAX >> 20))
        settings.max_split_size_bytes = *mib << 20;
    } else if (key == "garbage_collection_threshold") {
      double share = 0;
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), share);
      if (error == std::errc() && end == value.data() + value.size() && share > 0 && share < 1)
        settings.garbage_collection_threshold = share;
    } else if (key == "expandable_segments") {
      settings.expandable_segments = value == "True";
    } else if (key == "roundup_power2_divisions") {
      settings.roundup_power2_divisions = parse_divisions(value);
    }
  }
  return settings;
}

}  // namespace tonnage::record
