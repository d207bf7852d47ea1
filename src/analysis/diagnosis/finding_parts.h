// Pieces that findings are made of.
#pragma once

#include <algorithm>
#include <utility>

#include "analysis/diagnosis/findings.h"

namespace tonnage::analysis {

inline Figure bytes(uint64_t number) {
  Figure figure;
  figure.kind = Figure::Kind::kBytes;
  figure.number = number;
  return figure;
}

inline Figure count(uint64_t number) {
  Figure figure;
  figure.number = number;
  return figure;
}

inline Figure tensors(uint64_t number) {
  Figure figure;
  figure.kind = Figure::Kind::kTensors;
  figure.number = number;
  return figure;
}

inline Figure percent(double ratio, uint32_t decimals = 0) {
  Figure figure;
  figure.kind = Figure::Kind::kPercent;
  figure.ratio = ratio;
  figure.decimals = decimals;
  return figure;
}

inline Figure times(double ratio, uint32_t decimals = 1) {
  Figure figure;
  figure.kind = Figure::Kind::kTimes;
  figure.ratio = ratio;
  figure.decimals = decimals;
  return figure;
}

inline Figure at(const Site& site) {
  Figure figure;
  figure.kind = Figure::Kind::kSite;
  figure.site = site;
  return figure;
}

inline Figure name(std::string text) {
  Figure figure;
  figure.kind = Figure::Kind::kName;
  figure.name = std::move(text);
  return figure;
}

// As the log printed it; "?" where it did not. Many bytes are easier to read in larger units.
inline Figure printed(const std::optional<sources::LogSize>& size) {
  constexpr uint64_t kManyBytes = 1ull << 20;
  Figure figure = name(size ? size->text : "?");
  if (!size || size->bytes < kManyBytes) return figure;
  // "14.31G" is short, "64000000kB" is not.
  const bool long_number = size->text.find_first_not_of("0123456789") >= 6;
  if (size->plus_minus_bytes > 0 && !long_number) return figure;
  figure.kind = Figure::Kind::kPrinted;
  figure.number = size->bytes;
  return figure;
}

inline Figure unit(bool are_steps) {
  Figure figure;
  figure.kind = Figure::Kind::kUnit;
  figure.are_steps = are_steps;
  return figure;
}

inline Fact fact(Statement statement, std::vector<Figure> figures = {}) {
  return {statement, std::move(figures)};
}

inline Advice advice(Remedy remedy, std::vector<Figure> figures = {},
                     std::optional<uint64_t> saves = std::nullopt) {
  return {remedy, std::move(figures), saves};
}

inline Evidence evidence(Fact fact, std::optional<uint64_t> bytes = std::nullopt,
                         const Site& site = {}) {
  Evidence out;
  out.fact = std::move(fact);
  out.bytes = bytes;
  out.site = site;
  return out;
}

inline double share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

inline uint64_t above(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

}  // namespace tonnage::analysis
