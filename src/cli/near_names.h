// "Did you mean": names near to one that does not exist.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tonnage::cli {

// Insertions, removals, replacements and swaps of neighbours that turn one into the other.
size_t edit_distance(std::string_view a, std::string_view b);

// The names at most a third of the word's length (at least 2) away, nearest first; also those that
// begin with it.
std::vector<std::string> near_names(std::string_view word, const std::vector<std::string>& names);

}  // namespace tonnage::cli
