#include "sources/messages/message_pattern.h"

#include <charconv>

#include "sources/messages/log_scan.h"

namespace tonnage::sources {
namespace {

constexpr size_t kSkip = 400, kLongSkip = 8000, kDetail = 200;

struct Field {
  std::string_view name, unit;
};

Field field_at(std::string_view pattern) {  // pattern begins with '<'
  const std::string_view inside = pattern.substr(1, pattern.find('>') - 1);
  const size_t colon = inside.find(':');
  if (colon == std::string_view::npos) return {inside, ""};
  return {inside.substr(0, colon), inside.substr(colon + 1)};
}

// The end of the literal that the pattern begins with.
size_t literal_end(std::string_view pattern) {
  size_t at = 0;
  while (at < pattern.size() && pattern[at] != '<' && pattern.substr(at, 2) != "[[" &&
         pattern.substr(at, 2) != "]]")
    ++at;
  return at;
}

// "[[ a [[ b ]] c ]]": the position behind the inner part, where its "]]" begins.
size_t group_end(std::string_view pattern, size_t begin) {
  int depth = 1;
  for (size_t at = begin; at + 1 < pattern.size(); ++at) {
    if (pattern.substr(at, 2) == "[[")
      ++depth, ++at;
    else if (pattern.substr(at, 2) == "]]" && --depth == 0)
      return at;
  }
  return pattern.size();
}

std::optional<LogSize>* size_field(std::string_view name, LogOom& oom) {
  if (name == "req") return &oom.requested;
  if (name == "alloc") return &oom.allocated;
  if (name == "resv") return &oom.reserved;
  if (name == "unalloc") return &oom.unallocated;
  if (name == "free") return &oom.free;
  if (name == "cap") return &oom.capacity;
  if (name == "allowed") return &oom.allowed;
  if (name == "other") return &oom.other;
  if (name == "peak") return &oom.peak;
  if (name == "arg") return &oom.arguments;
  if (name == "out") return &oom.outputs;
  if (name == "temp") return &oom.temporaries;
  if (name == "prog") return &oom.program;
  if (name == "frag") return &oom.fragmentation;
  return nullptr;
}

std::optional<uint64_t>* number_field(std::string_view name, LogOom& oom) {
  if (name == "dev") return &oom.device;
  if (name == "rank") return &oom.rank;
  if (name == "tok") return &oom.tokens;
  if (name == "tokfit") return &oom.tokens_that_fit;
  if (name == "units") return &oom.units;
  if (name == "unitsthere") return &oom.units_there;
  if (name == "ooms") return &oom.ooms;
  if (name == "retries") return &oom.retries;
  return nullptr;
}

bool take_fraction(LogScan& scan, LogOom& oom) {
  const std::string_view rest = scan.rest();
  size_t end = 0;
  while (end < rest.size() && end < 12 &&
         ((rest[end] >= '0' && rest[end] <= '9') || (rest[end] == '.' && end + 1 < rest.size() &&
                                                     rest[end + 1] >= '0' && rest[end + 1] <= '9')))
    ++end;
  double value = 0;
  const auto [stop, error] = std::from_chars(rest.data(), rest.data() + end, value);
  if (error != std::errc() || stop != rest.data() + end || end == 0) return false;
  oom.fraction = value > 1 ? value / 100 : value;
  scan.seek(scan.at() + end);
  return true;
}

bool take_field(const Field& field, std::string_view rest, LogScan& scan, LogOom& oom) {
  if (auto* size = size_field(field.name, oom)) {
    *size = scan.size_or_number(field.unit, rest.substr(0, 6) == " bytes");
    return size->has_value();
  }
  if (auto* number = number_field(field.name, oom)) {
    *number = scan.grouped_number();
    return number->has_value();
  }
  if (field.name == "frac") return take_fraction(scan, oom);
  if (field.name == "word") {
    const std::string_view word = scan.until(" \t\r\n,;()[]'\"`", kDetail);
    oom.detail = std::string(word);
    return !word.empty();
  }
  return false;
}

bool match_here(std::string_view pattern, LogScan& scan, LogOom& oom);

// <*>, <**> and <detail>: up to the first place from which the rest matches.
bool skip_to_rest(const Field& field, std::string_view rest, LogScan& scan, LogOom& oom) {
  const size_t start = scan.at();
  const std::string_view literal = rest.substr(0, literal_end(rest));
  const size_t limit = field.name == "detail" ? kDetail : field.name == "**" ? kLongSkip : kSkip;
  if (literal.empty()) {
    if (rest.empty()) {
      if (field.name == "detail") oom.detail = std::string(scan.until("\n", limit));
      return true;
    }
    // A field comes next: the first place where one can be read.
    for (size_t at = start; at < start + limit && !scan.ended(); ++at) {
      LogOom copy = oom;
      LogScan here = scan;
      if (match_here(rest, here, copy)) {
        if (field.name == "detail") copy.detail = std::string(scan.text_from(start, at));
        oom = std::move(copy);
        scan = here;
        return true;
      }
      scan.seek(at + 1);
    }
    return false;
  }
  for (int tries = 0; tries < 16; ++tries) {
    LogScan found = scan;
    if (!found.find_start(literal) || found.at() - start > limit) return false;
    LogOom copy = oom;
    LogScan behind = found;
    if (match_here(rest, behind, copy)) {
      if (field.name == "detail") copy.detail = std::string(scan.text_from(start, found.at()));
      oom = std::move(copy);
      scan = behind;
      return true;
    }
    scan.seek(found.at() + 1);
  }
  return false;
}

bool match_here(std::string_view pattern, LogScan& scan, LogOom& oom) {
  while (!pattern.empty()) {
    if (pattern.substr(0, 2) == "[[") {
      const size_t end = group_end(pattern, 2);
      const std::string_view inner = pattern.substr(2, end - 2);
      const std::string_view rest = pattern.substr(std::min(end + 2, pattern.size()));
      const std::string joined = std::string(inner) + std::string(rest);
      LogScan with = scan;
      LogOom copy = oom;
      if (match_here(joined, with, copy)) {
        scan = with;
        oom = std::move(copy);
        return true;
      }
      pattern = rest;
      continue;
    }
    if (pattern.front() == '<') {
      const Field field = field_at(pattern);
      const std::string_view rest = pattern.substr(std::min(pattern.find('>') + 1, pattern.size()));
      if (field.name == "*" || field.name == "**" || field.name == "detail")
        return skip_to_rest(field, rest, scan, oom);
      if (!take_field(field, rest, scan, oom)) return false;
      pattern = rest;
      continue;
    }
    const size_t end = literal_end(pattern);
    if (!scan.literal(pattern.substr(0, end))) return false;
    pattern.remove_prefix(end);
  }
  return true;
}

}  // namespace

std::string_view first_literal(std::string_view pattern) {
  return pattern.substr(0, literal_end(pattern));
}

bool match_pattern(std::string_view text, std::string_view pattern, LogOom& oom) {
  const std::string_view first = first_literal(pattern);
  if (first.empty()) return false;
  LogScan scan(text);
  for (int tries = 0; tries < 64; ++tries) {
    if (!scan.find_start(first)) return false;
    LogScan here = scan;
    LogOom copy = oom;
    if (match_here(pattern, here, copy)) {
      oom = std::move(copy);
      return true;
    }
    scan.seek(scan.at() + 1);
  }
  return false;
}

}  // namespace tonnage::sources
