#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "cards/catalogue.h"

namespace tonnage::cards {
namespace {

std::string_view trim(std::string_view text) {
  const auto space = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && space(text.front())) text.remove_prefix(1);
  while (!text.empty() && space(text.back())) text.remove_suffix(1);
  return text;
}

bool all_digits(std::string_view text) {
  return !text.empty() && text.size() <= 6 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

int number_of(std::string_view digits) {
  int out = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), out);
  return out;
}

struct Counted {
  std::string_view name;
  int count;
};

// "NAMExN", "NAME:N", "NAME*N", "NxNAME"; count 0: no count is written.
Counted split_count(std::string_view item) {
  for (const char mark : {'x', 'X', ':', '*'}) {
    const size_t at = item.rfind(mark);
    if (at == std::string_view::npos || at == 0) continue;
    const std::string_view head = trim(item.substr(0, at)), tail = trim(item.substr(at + 1));
    if (all_digits(tail) && !head.empty()) return {head, number_of(tail)};
  }
  const size_t at = item.find_first_not_of("0123456789");
  if (at != std::string_view::npos && at > 0 && at <= 3 &&
      (item[at] == 'x' || item[at] == 'X' || item[at] == '*')) {
    const std::string_view tail = trim(item.substr(at + 1));
    if (!tail.empty()) return {tail, number_of(item.substr(0, at))};
  }
  return {item, 0};
}

}  // namespace

Result<std::vector<Card>> parse_gpu_spec(std::string_view spec) {
  const std::string limit = std::to_string(abi::kMaxDevices);
  const Error wrong_count{ErrorCode::kUsage, "a session has 1 to " + limit + " devices", "--gpu",
                          fmt::format("Asked for: {}", spec.substr(0, 200))};
  std::vector<Card> out;
  for (std::string_view rest = spec;;) {
    const size_t comma = rest.find(',');
    const std::string_view item = trim(rest.substr(0, comma));
    if (item.empty()) {
      return Error{ErrorCode::kUsage, "a card's name is missing", "--gpu",
                   "For example: --gpu \"RTX 3060\", --gpu a100-80gbx4, --gpu h100:2"};
    }
    // The whole text first: a name may itself end in x and a number.
    auto card = find_card(item);
    int count = 1;
    if (!card) {
      const Counted counted = split_count(item);
      // "rtx4095" is a wrong name, not 4095 cards.
      if (counted.name.size() < item.size() && counted.count <= 64) {
        card = find_card(counted.name);
        count = counted.count;
      }
      if (!card) return card.error();
    }
    if (count < 1 || count > abi::kMaxDevices - static_cast<int>(out.size())) return wrong_count;
    out.insert(out.end(), static_cast<size_t>(count), *card);
    if (comma == std::string_view::npos) break;
    rest = rest.substr(comma + 1);
  }
  return out;
}

Result<uint64_t> parse_bytes(std::string_view text) {
  const std::string_view trimmed = trim(text);
  const Error wrong{ErrorCode::kUsage, fmt::format("not a size: \"{}\"", text.substr(0, 80)),
                    "--memory", "For example: 10GiB, 512MiB, 80GB (10^9), 1073741824."};
  double number = 0;
  const auto [end, code] = std::from_chars(trimmed.data(), trimmed.data() + trimmed.size(), number,
                                           std::chars_format::fixed);
  if (code != std::errc() || !(number > 0)) return wrong;
  std::string unit;
  for (const char c : trim(trimmed.substr(static_cast<size_t>(end - trimmed.data())))) {
    unit += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  static constexpr struct {
    const char* name;
    double factor;
  } kUnits[] = {{"", 1},
                {"b", 1},
                {"k", 1024.0},
                {"kib", 1024.0},
                {"kb", 1e3},
                {"m", 1048576.0},
                {"mib", 1048576.0},
                {"mb", 1e6},
                {"g", 1073741824.0},
                {"gib", 1073741824.0},
                {"gb", 1e9},
                {"t", 1099511627776.0},
                {"tib", 1099511627776.0},
                {"tb", 1e12}};
  for (const auto& candidate : kUnits) {
    if (unit != candidate.name) continue;
    const double bytes = number * candidate.factor;
    if (bytes < 1 || bytes > 9e15) return wrong;
    return static_cast<uint64_t>(bytes);
  }
  return wrong;
}

}  // namespace tonnage::cards
