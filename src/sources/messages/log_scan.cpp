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
// All are powers of 1024: PyTorch's older MPS messages print "GB" and XLA "G" for 2^30. Longer
// names first.
constexpr Unit kUnits[] = {
    {"bytes", 1},        {"byte", 1},         {"KiB", 1ull << 10}, {"MiB", 1ull << 20},
    {"GiB", 1ull << 30}, {"TiB", 1ull << 40}, {"PiB", 1ull << 50}, {"KB", 1ull << 10},
    {"MB", 1ull << 20},  {"GB", 1ull << 30},  {"TB", 1ull << 40},  {"K", 1ull << 10},
    {"M", 1ull << 20},   {"G", 1ull << 30},   {"T", 1ull << 40},   {"B", 1}};

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
  const size_t start = at_;
  size_t at = at_;
  long double number = 0, place = 1;
  int decimals = -1;  // digits after the point; -1: no point
  bool any = false;
  for (; at < text_.size(); ++at) {
    const char c = text_[at];
    if (is_digit(c)) {
      any = true;
      if (decimals < 0) {
        number = number * 10 + (c - '0');
      } else {
        place /= 10;
        number += place * (c - '0');
        ++decimals;
      }
    } else if (c == '.' && decimals < 0 && at + 1 < text_.size() && is_digit(text_[at + 1])) {
      decimals = 0;
    } else {
      break;
    }
    if (at - start > 40) return std::nullopt;
  }
  if (!any) return std::nullopt;
  size_t unit_at = at;
  while (unit_at < text_.size() && is_space(text_[unit_at])) ++unit_at;
  for (const Unit& unit : kUnits) {
    if (text_.substr(unit_at, unit.name.size()) != unit.name) continue;
    const size_t end = unit_at + unit.name.size();
    if (end < text_.size() &&
        ((text_[end] >= 'a' && text_[end] <= 'z') || (text_[end] >= 'A' && text_[end] <= 'Z')))
      continue;
    const long double bytes = number * static_cast<long double>(unit.bytes);
    if (bytes >= 18446744073709551615.0L) {
      LogSize size{UINT64_MAX, 0, std::string(text_.substr(start, end - start))};
      at_ = end;
      return size;
    }
    LogSize size;
    size.bytes = static_cast<uint64_t>(std::llroundl(bytes));
    if (unit.bytes > 1)
      size.plus_minus_bytes = static_cast<uint64_t>(
          static_cast<long double>(unit.bytes) * (decimals > 0 ? place : 1.0L) / 2 + 0.5L);
    size.text = std::string(text_.substr(start, end - start));
    std::replace_if(size.text.begin(), size.text.end(), is_space, ' ');
    at_ = end;
    return size;
  }
  return std::nullopt;
}

std::string_view LogScan::until(std::string_view stops, size_t limit) {
  const size_t start = at_;
  while (at_ < text_.size() && at_ - start < limit &&
         stops.find(text_[at_]) == std::string_view::npos)
    ++at_;
  return text_.substr(start, at_ - start);
}

}  // namespace tonnage::sources
