// Pieces that findings are written with.
#pragma once

#include <fmt/format.h>

#include "analysis/diagnosis/findings.h"

namespace tonnage::analysis {

inline Advice advice(std::string text, std::optional<uint64_t> saves = std::nullopt,
                     std::string setting = "") {
  return {std::move(text), saves, std::move(setting)};
}

inline Evidence evidence(std::string text, std::optional<uint64_t> bytes = std::nullopt,
                         const Site& site = {}) {
  Evidence out;
  out.text = std::move(text);
  out.bytes = bytes;
  out.site = site;
  return out;
}

inline std::string at(const Site& site) {
  const std::string text = site_text(site);
  return text.empty()              ? "at a line that the history does not name"
         : text.starts_with("in ") ? text
                                   : "at " + text;
}

inline std::string nth(uint32_t number) {
  const uint32_t tens = number % 100;
  const char* ending = tens >= 11 && tens <= 13 ? "th"
                       : number % 10 == 1       ? "st"
                       : number % 10 == 2       ? "nd"
                       : number % 10 == 3       ? "rd"
                                                : "th";
  return fmt::format("{}{}", number, ending);
}

inline std::string tensors(uint64_t count) {
  return count == 1 ? "1 tensor" : fmt::format("{} tensors", count);
}

}  // namespace tonnage::analysis
