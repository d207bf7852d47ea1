#include "analysis/batch_option.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

namespace tonnage::analysis {
namespace {

constexpr std::array kShortNames = {"batch", "bs", "bsz", "mbs", "batchsize", "batch_size_per_gpu"};
// Parts of names that mean something else.
constexpr std::array kOthers = {"accum", "eval", "valid", "val_",    "_val",  "test",     "infer",
                                "gen",   "pred", "num_",  "batches", "sampl", "max_batch"};

struct Place {
  size_t word = 0, at = 0;  // where the number is
  uint64_t number = 0;
  bool is_global = false;  // of all cards together
};

std::optional<uint64_t> number_in(std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number == 0) return std::nullopt;
  return number;
}

// "per_device_train_batch_size" of "--per-device-train-batch-size"; "batch_size" of
// "+train.batch_size".
std::string plain_name(std::string_view name) {
  while (!name.empty() && (name.front() == '-' || name.front() == '+')) name.remove_prefix(1);
  if (const size_t dot = name.rfind('.'); dot != name.npos) name.remove_prefix(dot + 1);
  std::string out(name);
  for (char& c : out)
    c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

bool names_batch(const std::string& name) {
  const bool is_other = std::any_of(kOthers.begin(), kOthers.end(), [&](const char* part) {
    return name.find(part) != std::string::npos;
  });
  if (is_other) return false;
  return std::find(kShortNames.begin(), kShortNames.end(), name) != kShortNames.end() ||
         name.find("batch_size") != std::string::npos ||
         name.find("batchsize") != std::string::npos;
}

void add_place(const std::vector<std::string>& words, size_t i, std::vector<Place>& out) {
  const std::string& word = words[i];
  const bool is_option = word.starts_with("-");
  const size_t equals = word.find('=');
  const std::string name = plain_name(std::string_view(word).substr(0, equals));
  const auto add = [&](size_t at_word, size_t at) {
    if (const auto number = number_in(std::string_view(words[at_word]).substr(at)))
      out.push_back({at_word, at, *number, name.find("global") != std::string::npos});
  };
  if (word.starts_with("-b") && word.size() > 2 && number_in(word.substr(2))) return add(i, 2);
  if (!names_batch(name) && !(word == "-b" || word.starts_with("-b="))) return;
  if (equals != word.npos) return add(i, equals + 1);
  if (is_option && i + 1 < words.size()) add(i + 1, 0);
}

// Empty: none, or they do not agree.
std::vector<Place> places_in(const std::vector<std::string>& words) {
  std::vector<Place> all;
  for (size_t i = 0; i < words.size(); ++i) add_place(words, i, all);
  const bool has_own =
      std::any_of(all.begin(), all.end(), [](const Place& p) { return !p.is_global; });
  if (has_own) std::erase_if(all, [](const Place& place) { return place.is_global; });
  const bool agree = std::all_of(all.begin(), all.end(), [&](const Place& place) {
    return place.number == all.front().number;
  });
  return agree ? all : std::vector<Place>();
}

}  // namespace

std::vector<std::string> words_of_command(std::string_view command) {
  std::vector<std::string> words;
  for (size_t at = 0; at < command.size();) {
    const size_t end = std::min(command.find(' ', at), command.size());
    if (end > at) words.emplace_back(command.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

std::optional<uint64_t> find_batch(const std::vector<std::string>& words) {
  const std::vector<Place> places = places_in(words);
  return places.empty() ? std::nullopt : std::optional(places.front().number);
}

std::vector<std::string> with_batch(std::vector<std::string> words, uint64_t batch) {
  for (const Place& place : places_in(words))
    words[place.word].replace(place.at, std::string::npos, std::to_string(batch));
  return words;
}

}  // namespace tonnage::analysis
