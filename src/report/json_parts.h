// Parts that every JSON output has: what is not known is null.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "analysis/place.h"

namespace tonnage::report::parts {

using Json = nlohmann::ordered_json;

template <class T>
Json optional(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

inline Json text(const std::string& value) { return value.empty() ? Json(nullptr) : Json(value); }

inline Json to_value(const analysis::Place& place) {
  if (!place.known()) return nullptr;
  return {{"file", place.file},
          {"line", place.line > 0 ? Json(place.line) : Json(nullptr)},
          {"function", text(place.function)}};
}

inline Json to_value(const analysis::Site& site) {
  return {{"line", to_value(site.line)},
          {"user_line", to_value(site.user_line)},
          {"op", text(site.op)},
          {"module", text(site.module)}};
}

}  // namespace tonnage::report::parts
