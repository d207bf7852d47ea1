// What schemas are made of.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace tonnage::report::schema {

using Json = nlohmann::ordered_json;

inline Json integer() { return {{"type", "integer"}}; }
inline Json count() { return {{"type", "integer"}, {"minimum", 0}}; }
inline Json bytes(const char* about = nullptr) {
  Json out = count();
  if (about != nullptr) out["description"] = about;
  return out;
}
inline Json number() { return {{"type", "number"}}; }
inline Json flag() { return {{"type", "boolean"}}; }
inline Json text() { return {{"type", "string"}}; }
inline Json prose() { return {{"type", "string"}, {"x-prose", true}}; }
inline Json share() { return {{"type", "number"}, {"minimum", 0}, {"maximum", 1}}; }
inline Json words(const std::vector<std::string>& list) {
  return {{"type", "string"}, {"x-words", list}};
}
inline Json part(const char* name) { return {{"$ref", std::string("#/$defs/") + name}}; }
inline Json list(Json of) { return {{"type", "array"}, {"items", std::move(of)}}; }
// An object of names that are data themselves: devices, attributes.
inline Json map_of(Json of) {
  return {{"type", "object"}, {"additionalProperties", std::move(of)}};
}
inline Json maybe(Json of) {
  if (of.contains("$ref")) return {{"anyOf", Json::array({std::move(of), {{"type", "null"}}})}};
  of["type"] = Json::array({of["type"], "null"});
  return of;
}
inline Json about(Json of, const char* text) {
  of["description"] = text;
  return of;
}

// All fields are always there.
inline Json object(std::initializer_list<std::pair<const char*, Json>> fields) {
  Json properties = Json::object(), required = Json::array();
  for (const auto& [name, value] : fields) {
    properties[name] = value;
    required.push_back(name);
  }
  return {{"type", "object"}, {"properties", std::move(properties)}, {"required", required}};
}
// The same for a field that may be missing.
inline Json with_optional(Json of, const char* name, Json value) {
  of["properties"][name] = std::move(value);
  return of;
}

// The words of an enumeration, by the function that names them; the word for values without a name
// (or of kUnknown) is the last.
template <class Enum>
std::vector<std::string> words_of_enum(const char* (*name)(Enum)) {
  std::vector<std::string> out;
  const std::string none = name(static_cast<Enum>(255));
  for (int i = 0; i < 255; ++i) {
    const std::string word = name(static_cast<Enum>(i));
    if (!word.empty() && word != none) out.push_back(word);
  }
  if (!none.empty()) out.push_back(none);
  return out;
}

}  // namespace tonnage::report::schema
