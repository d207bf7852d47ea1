// Writes small pickles for tests, as PyTorch's C++ writer does: no memo, every container in one
// piece.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tonnage::test {

inline std::string pickle_text(const std::string& text) {
  const auto size = static_cast<uint32_t>(text.size());
  return "X" + std::string(reinterpret_cast<const char*>(&size), 4) + text;
}
inline std::string pickle_number(uint64_t number) {
  return std::string("\x8a\x09") + std::string(reinterpret_cast<const char*>(&number), 8) +
         std::string(1, '\0');
}
// Items are pickled values themselves.
inline std::string pickle_list(const std::vector<std::string>& items) {
  std::string out = "](";
  for (const auto& item : items) out += item;
  return out + "e";
}
inline std::string pickle_dict(const std::vector<std::pair<std::string, std::string>>& items) {
  std::string out = "}(";
  for (const auto& [key, value] : items) out += pickle_text(key) + value;
  return out + "u";
}
inline std::string pickle_program(const std::string& value) { return "\x80\x02" + value + "."; }

}  // namespace tonnage::test
