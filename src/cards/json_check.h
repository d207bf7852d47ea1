// Reads one JSON object and remembers the first thing that is wrong with it: file, key, what is
// expected.
#pragma once

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"

namespace tonnage::cards {

using Json = nlohmann::ordered_json;

// Shared by the readers of nested objects of one file.
struct JsonProblem {
  std::string file;
  std::optional<Error> first;

  void report(const std::string& key, const std::string& message, const std::string& hint = {}) {
    if (first) return;
    first =
        Error{ErrorCode::kCorrupt, (key.empty() ? "" : "\"" + key + "\": ") + message, file, hint};
  }
};

class ObjectReader {
 public:
  ObjectReader(const Json& object, std::string path, JsonProblem* problem)
      : object_(object), path_(std::move(path)), problem_(problem) {
    if (!object.is_object()) problem->report(path_, "expected an object { … }");
  }

  std::string path_of(const std::string& key) const {
    return path_.empty() ? key : path_ + "." + key;
  }
  void fail(const std::string& key, const std::string& message, const std::string& hint = {}) {
    problem_->report(path_of(key), message, hint);
  }

  const Json* get(const std::string& key, bool required) {
    known_.insert(key);
    if (!object_.is_object()) return nullptr;
    const auto found = object_.find(key);
    if (found != object_.end() && !found->is_null()) return &*found;
    if (required) fail(key, "missing");
    return nullptr;
  }

  std::string text(const std::string& key, size_t max_length, bool required = true) {
    const Json* value = get(key, required);
    if (!value) return {};
    if (!value->is_string() || value->get_ref<const std::string&>().empty() ||
        value->get_ref<const std::string&>().size() > max_length) {
      fail(key, "expected a text of 1 to " + std::to_string(max_length) + " bytes");
      return {};
    }
    return value->get<std::string>();
  }

  int64_t integer(const std::string& key, int64_t lowest, int64_t highest, bool required = true) {
    const Json* value = get(key, required);
    if (!value) return 0;
    const auto number = integer_of(*value);
    if (!number || *number < lowest || *number > highest) {
      fail(key,
           "expected an integer from " + std::to_string(lowest) + " to " + std::to_string(highest));
      return lowest;
    }
    return *number;
  }

  double number(const std::string& key, double highest, bool required = true) {
    const Json* value = get(key, required);
    if (!value) return 0;
    const double out = value->is_number() ? value->get<double>() : -1;
    if (!(out > 0 && out <= highest)) {
      fail(key, "expected a number above 0");
      return 0;
    }
    return out;
  }

  // Integers may be written 1.0e9 too.
  static std::optional<int64_t> integer_of(const Json& value) {
    if (value.is_number_unsigned()) {
      const auto n = value.get<uint64_t>();
      if (n > INT64_MAX) return std::nullopt;
      return static_cast<int64_t>(n);
    }
    if (value.is_number_integer()) return value.get<int64_t>();
    if (value.is_number_float()) {
      const double n = value.get<double>();
      if (std::abs(n) < 9e15 && n == std::floor(n)) return static_cast<int64_t>(n);
    }
    return std::nullopt;
  }

  // Names what the object has beyond the keys that were asked for.
  void no_other_keys() {
    if (!object_.is_object()) return;
    for (const auto& [key, value] : object_.items()) {
      if (known_.count(key)) continue;
      std::string all;
      for (const std::string& name : known_) all += (all.empty() ? "" : ", ") + name;
      fail(key.substr(0, 80), "unknown key", "Keys here: " + all);
      return;
    }
  }

 private:
  const Json& object_;
  std::string path_;
  JsonProblem* problem_;
  std::set<std::string> known_;
};

}  // namespace tonnage::cards
