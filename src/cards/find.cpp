#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "cards/catalogue.h"

namespace tonnage::cards {
namespace {

constexpr size_t kMaxNameBytes = 200;
constexpr const char* kBrands[] = {"nvidia", "geforce", "tesla", "quadro"};

bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

std::vector<std::string> tokens_of(std::string_view text) {
  std::vector<std::string> out;
  std::string token;
  for (const char c : lower(text) + " ") {
    if (is_word(c)) {
      token += c;
    } else if (!token.empty()) {
      out.push_back(std::move(token));
      token.clear();
    }
  }
  return out;
}

std::string compact(std::string_view text) {
  std::string out;
  for (const std::string& token : tokens_of(text)) out += token;
  return out;
}

// Without the maker's and the brand's name.
std::string bare(std::string_view text) {
  std::string out = compact(text);
  for (const char* brand : kBrands) {
    const size_t at = out.find(brand);
    if (at != std::string::npos && out.size() > std::char_traits<char>::length(brand))
      out.erase(at, std::char_traits<char>::length(brand));
  }
  return out;
}

std::string without_series(const std::string& name) {
  if ((name.rfind("rtx", 0) == 0 || name.rfind("gtx", 0) == 0) && name.size() > 3)
    return name.substr(3);
  return name;
}

// Three strictnesses of writing a name: as it is, without the brand, without the series.
constexpr int kLevels = 3;

std::string written_at(std::string_view name, int level) {
  if (level == 0) return compact(name);
  return level == 1 ? bare(name) : without_series(bare(name));
}

// Keys and aliases before the driver's name: cards with different memory can have the same name,
// and then an alias says which of them is meant.
bool answers_to(const Card& card, const std::string& query, int level, bool by_name) {
  if (by_name) return written_at(card.name, level) == query;
  if (written_at(card.key, level) == query) return true;
  return std::any_of(card.aliases.begin(), card.aliases.end(),
                     [&](const std::string& alias) { return written_at(alias, level) == query; });
}

bool all_tokens_of(const std::vector<std::string>& query, const std::set<std::string>& card) {
  return std::all_of(query.begin(), query.end(),
                     [&](const std::string& token) { return card.count(token) != 0; });
}

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

std::set<std::string> token_set(const Card& card) {
  std::set<std::string> out;
  for (const std::string& alias : card.aliases) {
    for (std::string& token : tokens_of(alias)) out.insert(std::move(token));
  }
  for (const std::string& text : {card.key, card.name}) {
    for (std::string& token : tokens_of(text)) out.insert(std::move(token));
  }
  return out;
}

// 0: the same; higher: further.
double distance(const std::string& query, const Card& card) {
  const auto tokens = tokens_of(query);
  const auto words = token_set(card);
  double shared = 0;
  for (const std::string& token : tokens) shared += words.count(token) ? 1.0 : 0.0;
  double best = 1e9;
  const std::string bare_query = written_at(query, 2);
  std::vector<std::string> spellings = card.aliases;
  spellings.push_back(card.key);
  spellings.push_back(card.name);
  for (const std::string& text : spellings) {
    const std::string spelling = written_at(text, 2);
    const double length = static_cast<double>(std::max(spelling.size(), bare_query.size()));
    if (length > 0)
      best = std::min(best, static_cast<double>(edit_distance(bare_query, spelling)) / length);
  }
  return best - (tokens.empty() ? 0 : 0.5 * shared / static_cast<double>(tokens.size()));
}

// What is further off is no help: half the letters of a number are wrong by chance already.
constexpr double kNearEnough = 0.3;

std::string near_names(const std::string& query, const std::vector<Card>& cards) {
  std::vector<std::pair<double, const Card*>> ranked;
  for (const Card& card : cards) ranked.emplace_back(distance(query, card), &card);
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::string out;
  for (size_t i = 0; i < ranked.size() && i < 5; ++i) {
    if (ranked[i].first > kNearEnough) break;
    out += (i ? ", " : "") + ranked[i].second->key;
  }
  return out;
}

std::string keys_of(const std::vector<const Card*>& cards) {
  std::string out;
  for (size_t i = 0; i < cards.size(); ++i) {
    if (i == 8) return out + ", …";
    out += (i ? ", " : "") + cards[i]->key;
  }
  return out;
}

Error ambiguous(std::string_view name, const std::vector<const Card*>& cards) {
  return Error{ErrorCode::kUsage, fmt::format("more than one card answers to \"{}\"", name),
               "--gpu", fmt::format("Say which one: {}", keys_of(cards))};
}

// The whole cards that a name means; several if it is ambiguous.
std::vector<const Card*> matches(const std::vector<Card>& cards, const std::string& name) {
  const std::string query = compact(name);
  std::vector<const Card*> out;
  if (query.empty()) return out;
  for (const Card& card : cards) {
    if (compact(card.key) == query) return {&card};
  }
  const auto answering = [&](int level, bool by_name) {
    std::vector<const Card*> found;
    const std::string asked = written_at(name, level);
    for (const Card& card : cards) {
      if (answers_to(card, asked, level, by_name)) found.push_back(&card);
    }
    return found;
  };
  if (out = answering(0, false); !out.empty()) return out;
  if (out = answering(0, true); out.size() == 1) return out;
  for (const bool by_name : {false, true}) {
    for (int level = 0; level < kLevels; ++level) {
      if (out = answering(level, by_name); !out.empty()) return out;
    }
  }
  std::vector<std::string> tokens = tokens_of(name);
  std::erase_if(tokens, [](const std::string& t) {
    return std::find(std::begin(kBrands), std::end(kBrands), t) != std::end(kBrands);
  });
  if (tokens.empty()) return out;
  for (const Card& card : cards) {
    if (all_tokens_of(tokens, token_set(card))) out.push_back(&card);
  }
  return out;
}

// "h100 mig 1g.10gb", "h100-1g.10gb" -> "h100" and "1g.10gb"; no profile: the second is empty.
std::pair<std::string, std::string> split_profile(const std::string& name) {
  for (size_t i = 0; i + 1 < name.size(); ++i) {
    const bool starts = i == 0 || !is_word(name[i - 1]);
    if (starts && name[i] >= '1' && name[i] <= '8' && name[i + 1] == 'g' &&
        (i + 2 == name.size() || name[i + 2] != 'b')) {
      std::string head = name.substr(0, i);
      while (!head.empty() && !is_word(head.back())) head.pop_back();
      if (head.size() >= 4 && head.compare(head.size() - 3, 3, "mig") == 0 &&
          !is_word(head[head.size() - 4]))
        head.resize(head.size() - 3);
      return {head, name.substr(i)};
    }
  }
  return {name, ""};
}

}  // namespace

Result<Card> Catalogue::find(std::string_view name) const {
  if (name.size() > kMaxNameBytes * 20)
    return Error{ErrorCode::kUsage, "the card's name is too long", "--gpu", ""};
  if (name.find('/') != std::string_view::npos || name.ends_with(".json"))
    return load_file(std::string(name));
  if (name.size() > kMaxNameBytes)
    return Error{ErrorCode::kUsage, "the card's name is too long", "--gpu", ""};
  const std::string query = lower(name);
  const auto [card_name, profile_name] = split_profile(query);
  auto found = matches(cards_, card_name);
  if (!profile_name.empty()) {
    std::vector<Card> slices;
    std::string profiles;
    for (const Card* card : found) {
      for (const MigProfile& profile : card->mig) {
        if (compact(profile.name) == compact(profile_name))
          slices.push_back(slice_of(*card, profile));
        profiles += (profiles.empty() ? "" : ", ") + profile.name;
      }
    }
    if (slices.size() == 1) return slices.front();
    if (slices.size() > 1) {
      std::vector<const Card*> all;
      for (const Card& slice : slices) all.push_back(&slice);
      return ambiguous(name, all);
    }
    if (!found.empty()) {
      return Error{ErrorCode::kNotFound,
                   "no MIG profile \"" + profile_name + "\" on " + found.front()->key, "--gpu",
                   profiles.empty() ? "This card cannot be sliced." : "It has: " + profiles};
    }
  }
  if (found.size() == 1) return *found.front();
  if (found.size() > 1) return ambiguous(name, found);
  const std::string near = near_names(card_name, cards_);
  return Error{ErrorCode::kNotFound, fmt::format("no card \"{}\" in the catalogue", name), "--gpu",
               fmt::format("{}`tonnage gpus` lists all; a file NAME.json describes your own.",
                           near.empty() ? "" : "Near: " + near + ". ")};
}

Result<Card> find_card(std::string_view name) {
  const auto& catalogue = Catalogue::standard();
  if (!catalogue) return catalogue.error();
  return catalogue.value().find(name);
}

}  // namespace tonnage::cards
