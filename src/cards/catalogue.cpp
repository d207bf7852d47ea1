#include "cards/catalogue.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "cards/card_json.h"
#include "cards/embedded.h"

namespace tonnage::cards {
namespace {

constexpr char kArchitecturesFile[] = "architectures.json";

Result<std::string> read_small_file(const std::string& path) {
  std::error_code code;
  if (!std::filesystem::is_regular_file(path, code)) {
    return Error{ErrorCode::kNotFound, "no such card file", path,
                 "Name a card (`tonnage gpus` lists them) or a file that exists."};
  }
  std::ifstream file(path, std::ios::binary);
  if (!file)
    return Error{ErrorCode::kIo, "the card file cannot be opened", path, "Check its permissions."};
  std::string text(kMaxCardFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return Error{ErrorCode::kIo, "the card file cannot be read", path, ""};
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

int family_rank(const Card& card) {
  static constexpr const char* kOrder[] = {"data-centre", "workstation", "titan", "geforce",
                                           "laptop"};
  for (int i = 0; i < 5; ++i) {
    if (card.family == kOrder[i]) return i;
  }
  return 5;
}

bool lists_before(const Card& a, const Card& b) {
  const auto rank = [](const Card& c) {
    return std::tuple(family_rank(c), -c.architecture.cc_major * 100 - c.architecture.cc_minor,
                      -static_cast<int64_t>(c.total_bytes));
  };
  return rank(a) != rank(b) ? rank(a) < rank(b) : a.key < b.key;
}

}  // namespace

void Catalogue::add(Card card) {
  std::erase_if(cards_, [&](const Card& other) { return other.key == card.key; });
  cards_.insert(std::upper_bound(cards_.begin(), cards_.end(), card, lists_before),
                std::move(card));
}

Result<Catalogue> Catalogue::builtin() {
  Catalogue out;
  for (const EmbeddedFile& file : embedded_files()) {
    if (file.name != kArchitecturesFile) continue;
    auto architectures = parse_architectures(file.text, std::string(file.name));
    if (!architectures) return architectures.error();
    out.architectures_ = std::move(*architectures);
  }
  for (const EmbeddedFile& file : embedded_files()) {
    if (file.name == kArchitecturesFile) continue;
    auto card = parse_card(file.text, std::string(file.name), out.architectures_);
    if (!card) return card.error();
    card->origin = "built in";
    out.add(std::move(*card));
  }
  return out;
}

Result<void> Catalogue::add_directory(const std::string& directory) {
  std::error_code code;
  std::vector<std::string> files;
  for (std::filesystem::directory_iterator it(directory, code), end; !code && it != end;
       it.increment(code)) {
    if (it->path().extension() == ".json") files.push_back(it->path().string());
  }
  if (code)
    return Error{ErrorCode::kIo, "the directory of cards cannot be read: " + code.message(),
                 directory, "Check TONNAGE_CARDS."};
  std::sort(files.begin(), files.end());
  std::stable_partition(files.begin(), files.end(), [](const std::string& f) {
    return std::filesystem::path(f).filename() == kArchitecturesFile;
  });
  for (const std::string& path : files) {
    if (std::filesystem::path(path).filename() == kArchitecturesFile) {
      auto text = read_small_file(path);
      if (!text) return text.error();
      auto architectures = parse_architectures(*text, path);
      if (!architectures) return architectures.error();
      architectures_ = std::move(*architectures);
      continue;
    }
    auto card = load_file(path);
    if (!card) return card.error();
    add(std::move(*card));
  }
  return {};
}

Result<Card> Catalogue::load_file(const std::string& path) const {
  auto text = read_small_file(path);
  if (!text) return text.error();
  return parse_card(*text, path, architectures_);
}

const Result<Catalogue>& Catalogue::standard() {
  static const Result<Catalogue>* const catalogue = [] {
    auto out = builtin();
    const char* directory = std::getenv("TONNAGE_CARDS");
    if (out && directory && *directory) {
      if (auto added = out->add_directory(directory); !added)
        return new Result<Catalogue>(added.error());
    }
    return new Result<Catalogue>(std::move(out));
  }();
  return *catalogue;
}

}  // namespace tonnage::cards
