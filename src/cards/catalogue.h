// The catalogue of cards: the files of data/cards, built into the binary, and the user's own.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cards/card.h"

namespace tonnage::cards {

class Catalogue {
 public:
  // The cards that were built in and, over them, those of the directory in the environment variable
  // TONNAGE_CARDS.
  static const Result<Catalogue>& standard();
  static Result<Catalogue> builtin();
  // Adds every *.json of a directory (architectures.json replaces the table of architectures); same
  // keys replace.
  Result<void> add_directory(const std::string& directory);
  Result<Card> load_file(const std::string& path) const;  // a card file; not added

  // Loose: "3090", "rtx3090", "geforce-rtx-3090", "a100-80gb", "h100 mig 1g.10gb", or the path of a
  // card file. Not found, or more than one card meant: an Error whose hint names the nearest.
  Result<Card> find(std::string_view name) const;

  const std::vector<Card>& cards() const {
    return cards_;
  }  // whole cards, in the order of the listing
  const std::vector<Architecture>& architectures() const { return architectures_; }

 private:
  void add(Card card);
  std::vector<Architecture> architectures_;
  std::vector<Card> cards_;
};

Result<Card> find_card(std::string_view name);

// "RTX 3060", "a100-80gbx4", "h100:2", "4x a100", "h100,rtx 3090 x2": one Card per device, at most
// abi::kMaxDevices.
Result<std::vector<Card>> parse_gpu_spec(std::string_view spec);

// "10GiB", "10 GB", "512MiB", "1.5g" (g, m, k alone are binary), "1073741824" -> bytes.
Result<uint64_t> parse_bytes(std::string_view text);

}  // namespace tonnage::cards
