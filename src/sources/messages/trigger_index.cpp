#include "sources/messages/trigger_index.h"

#include <algorithm>

#include "sources/messages/log_scan.h"

namespace tonnage::sources {
namespace {

constexpr size_t kKeyLength = 3;

uint32_t plain(char c) {
  return c == '\t' || c == '\n' || c == '\r' ? ' ' : static_cast<unsigned char>(c);
}

uint32_t key_at(std::string_view text, size_t at) {
  const uint32_t key = plain(text[at]) | plain(text[at + 1]) << 8 | plain(text[at + 2]) << 16;
  return (key * 2654435761u) >> 16;
}

}  // namespace

TriggerIndex::TriggerIndex(const std::vector<std::string_view>& literals) {
  for (const std::string_view literal : literals) {
    if (literal.size() < kKeyLength) continue;
    const uint32_t key = key_at(literal, 0);
    seen_[key / 64] |= 1ull << (key % 64);
    entries_.push_back({key, literal});
  }
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) { return a.key < b.key; });
}

bool TriggerIndex::occurs_in(std::string_view line) const {
  for (size_t at = 0; at + kKeyLength <= line.size(); ++at) {
    const uint32_t key = key_at(line, at);
    if ((seen_[key / 64] >> (key % 64) & 1) == 0) continue;
    auto entry = std::lower_bound(entries_.begin(), entries_.end(), key,
                                  [](const Entry& e, uint32_t wanted) { return e.key < wanted; });
    for (; entry != entries_.end() && entry->key == key; ++entry) {
      if (LogScan(line, at).literal(entry->literal)) return true;
    }
  }
  return false;
}

}  // namespace tonnage::sources
