#include "sources/messages/log_scan.h"

#include <algorithm>
#include <cmath>

namespace tonnage::sources {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

struct Unit {
  std::string_view name;
  uint64_t bytes;
};
// All are powers of 1024: PyTorch's older MPS messages print "GB" and XLA "G" for 2^30, and so do
// the others. In small letters; longer names first.
constexpr Unit kUnits[] = {
    {"bytes", 1},        {"byte", 1},         {"kib", 1ull << 10}, {"mib", 1ull << 20},
    {"gib", 1ull << 30}, {"tib", 1ull << 40}, {"pib", 1ull << 50}, {"kb", 1ull << 10},
    {"mb", 1ull << 20},  {"gb", 1ull << 30},  {"tb", 1ull << 40},  {"pb", 1ull << 50},
    {"ki", 1ull << 10},  {"mi", 1ull << 20},  {"gi", 1ull << 30},  {"k", 1ull << 10},
    {"m", 1ull << 20},   {"g", 1ull << 30},   {"t", 1ull << 40},   {"b", 1}};

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
bool is_letter(char c) { return lower(c) >= 'a' && lower(c) <= 'z'; }

bool same_letters(std::string_view text, std::string_view small) {
  if (text.size() < small.size()) return false;
  for (size_t i = 0; i < small.size(); ++i) {
    if (lower(text[i]) != small[i]) return false;
  }
  return true;
}

// The unit that the text begins with, as a word of its own.
const Unit* unit_of(std::string_view text) {
  for (const Unit& unit : kUnits) {
    if (!same_letters(text, unit.name)) continue;
    if (text.size() > unit.name.size() && is_letter(text[unit.name.size()])) continue;
    return &unit;
  }
  return nullptr;
}

// "12.5", "1,024", "7,270,534,144".
struct Number {
  long double value = 0, place = 1;
  int decimals = -1;  // digits after the point; -1: no point
  size_t end = 0;
};
constexpr size_t kMaxDigits = 40;

bool comma_groups(std::string_view text, size_t at) {  // a comma, three digits, and no fourth
  if (at + 3 >= text.size() || text[at] != ',') return false;
  for (size_t i = 1; i <= 3; ++i) {
    if (!is_digit(text[at + i])) return false;
  }
  return at + 4 >= text.size() || !is_digit(text[at + 4]);
}

std::optional<Number> read_number(std::string_view text, size_t start) {
  Number number;
  bool any = false, grouped = false;
  size_t at = start;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (is_digit(c)) {
      any = true;
      if (number.decimals < 0) {
        number.value = number.value * 10 + (c - '0');
      } else {
        number.place /= 10;
        number.value += number.place * (c - '0');
        ++number.decimals;
      }
    } else if (c == '.' && number.decimals < 0 && at + 1 < text.size() && is_digit(text[at + 1])) {
      number.decimals = 0;
    } else if (any && number.decimals < 0 && (grouped || at - start <= 3) &&
               comma_groups(text, at)) {
      grouped = true;
    } else {
      break;
    }
    if (at - start > kMaxDigits) return std::nullopt;
  }
  if (!any) return std::nullopt;
  number.end = at;
  return number;
}

LogSize size_of(const Number& number, uint64_t unit_bytes, std::string_view text) {
  LogSize size;
  size.text = std::string(text);
  std::replace_if(size.text.begin(), size.text.end(), is_space, ' ');
  const long double bytes = number.value * static_cast<long double>(unit_bytes);
  if (bytes >= 18446744073709551615.0L) {
    size.bytes = UINT64_MAX;
    return size;
  }
  size.bytes = static_cast<uint64_t>(std::llroundl(bytes));
  if (unit_bytes > 1)
    size.plus_minus_bytes = static_cast<uint64_t>(
        static_cast<long double>(unit_bytes) * (number.decimals > 0 ? number.place : 1.0L) / 2 +
        0.5L);
  return size;
}

}  // namespace

void LogScan::spaces() {
  while (at_ < text_.size() && is_space(text_[at_])) ++at_;
}

bool LogScan::literal(std::string_view pattern) {
  size_t at = at_;
  for (size_t i = 0; i < pattern.size();) {
    if (is_space(pattern[i])) {
      if (at >= text_.size() || !is_space(text_[at])) return false;
      while (at < text_.size() && is_space(text_[at])) ++at;
      while (i < pattern.size() && is_space(pattern[i])) ++i;
    } else {
      if (at >= text_.size() || text_[at] != pattern[i]) return false;
      ++at;
      ++i;
    }
  }
  at_ = at;
  return true;
}

bool LogScan::find(std::string_view pattern) {
  const size_t start = at_;
  for (size_t at = start; at < text_.size(); ++at) {
    if (!is_space(pattern[0])) {
      at = text_.find(pattern[0], at);
      if (at == std::string_view::npos) break;
    }
    at_ = at;
    if (literal(pattern)) return true;
  }
  at_ = start;
  return false;
}

bool LogScan::find_start(std::string_view pattern) {
  const size_t start = at_;
  for (size_t at = start; at < text_.size(); ++at) {
    if (!is_space(pattern[0])) {
      at = text_.find(pattern[0], at);
      if (at == std::string_view::npos) break;
    }
    at_ = at;
    if (literal(pattern)) {
      at_ = at;
      return true;
    }
  }
  at_ = start;
  return false;
}

std::optional<uint64_t> LogScan::grouped_number() {
  const auto number = read_number(text_, at_);
  if (!number || number->decimals >= 0 || number->value >= 18446744073709551615.0L)
    return std::nullopt;
  at_ = number->end;
  return static_cast<uint64_t>(number->value);
}

std::optional<uint64_t> LogScan::number() {
  size_t at = at_;
  uint64_t number = 0;
  for (; at < text_.size() && is_digit(text_[at]); ++at) {
    const auto digit = static_cast<uint64_t>(text_[at] - '0');
    if (number > (UINT64_MAX - digit) / 10) return std::nullopt;
    number = number * 10 + digit;
  }
  if (at == at_) return std::nullopt;
  at_ = at;
  return number;
}

std::optional<LogSize> LogScan::size() {
  const auto number = read_number(text_, at_);
  if (!number) return std::nullopt;
  size_t unit_at = number->end;
  while (unit_at < text_.size() && is_space(text_[unit_at])) ++unit_at;
  const Unit* unit = unit_of(text_.substr(unit_at));
  if (!unit) return std::nullopt;
  const size_t end = unit_at + unit->name.size();
  LogSize size = size_of(*number, unit->bytes, text_.substr(at_, end - at_));
  at_ = end;
  return size;
}

std::optional<LogSize> LogScan::size_or_number(std::string_view unit, bool keep_word) {
  const size_t start = at_;
  if (auto with_unit = size()) {
    if (keep_word) at_ = read_number(text_, start)->end;
    return with_unit;
  }
  const auto number = read_number(text_, start);
  if (!number) return std::nullopt;
  std::string small(unit);
  std::transform(small.begin(), small.end(), small.begin(), lower);
  const Unit* known = unit_of(small);
  std::string text(text_.substr(start, number->end - start));
  text.append(" ").append(known ? unit : "bytes");
  at_ = number->end;
  return size_of(*number, known ? known->bytes : 1, text);
}

std::string_view LogScan::until(std::string_view stops, size_t limit) {
  const size_t start = at_;
  while (at_ < text_.size() && at_ - start < limit &&
         stops.find(text_[at_]) == std::string_view::npos)
    ++at_;
  return text_.substr(start, at_ - start);
}

}  // namespace tonnage::sources
