// The files of data/cards, as the build put them into the binary (cmake/cards.cmake).
#pragma once

#include <span>
#include <string_view>

namespace tonnage::cards {

struct EmbeddedFile {
  std::string_view name;  // "h200.json"
  std::string_view text;
};

std::span<const EmbeddedFile> embedded_files();  // by name; alive for the whole program

}  // namespace tonnage::cards
