#include "cli/near_names.h"

#include <algorithm>

namespace tonnage::cli {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) cost[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) cost[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      cost[i][j] = std::min(
          {cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

std::vector<std::string> near_names(std::string_view word, const std::vector<std::string>& names) {
  if (word.empty() || word.size() > 64) return {};
  const size_t most = std::max<size_t>(2, word.size() / 3);
  std::vector<std::pair<size_t, std::string>> found;
  for (const auto& name : names) {
    const bool begins = word.size() >= 2 && name.substr(0, word.size()) == word;
    const size_t distance = begins ? 0 : edit_distance(word, name);
    if (distance <= most && distance < name.size()) found.emplace_back(distance, name);
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> out;
  for (auto& [distance, name] : found) out.push_back(std::move(name));
  return out;
}

}  // namespace tonnage::cli
