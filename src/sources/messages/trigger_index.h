// Which of many literals occur in a line, fast: a line without any is most of a log.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace tonnage::sources {

class TriggerIndex {
 public:
  explicit TriggerIndex(const std::vector<std::string_view>& literals);
  // Whether one of them occurs; any run of white space matches any other.
  bool occurs_in(std::string_view line) const;

 private:
  struct Entry {
    uint32_t key;
    std::string_view literal;
  };
  std::array<uint64_t, 1024> seen_{};  // a bit for each hash of three characters
  std::vector<Entry> entries_;         // by key
};

}  // namespace tonnage::sources
