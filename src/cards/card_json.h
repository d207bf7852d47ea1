// Card files and the table of architectures: JSON to values and back, with every key checked.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cards/card.h"

namespace tonnage::cards {

inline constexpr int kCardSchema = 1;
inline constexpr size_t kMaxCardFileBytes = 1 << 20;

// `where` (a file name) stands in errors, which also name the key and what is expected there.
Result<std::vector<Architecture>> parse_architectures(std::string_view text,
                                                      const std::string& where);
Result<Card> parse_card(std::string_view text, const std::string& where,
                        const std::vector<Architecture>& architectures);

// The card as a file of data/cards has it: reading it back gives the same card.
std::string card_to_json(const Card& card);

}  // namespace tonnage::cards
