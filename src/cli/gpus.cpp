#include "cli/gpus.h"

#include <fmt/core.h>

#include <memory>

#include "cards/card_json.h"
#include "cards/measure.h"
#include "cli/exit_codes.h"
#include "cli/install_paths.h"
#include "cli/output.h"
#include "cli/session_setup.h"

namespace tonnage::cli {
namespace {

using cards::Card;

struct Options {
  std::vector<std::string> words;
  bool json = false, list = false, attributes = false, measure = false, force = false;
  int device = 0;
  std::string card_file, output;
};

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + word;
  return out;
}

// Cards of which each word is a part of the key, the name, an alias or the chip; a word may be a
// family or an architecture.
std::vector<Card> containing(const std::vector<Card>& cards,
                             const std::vector<std::string>& words) {
  const auto lower = [](std::string text) {
    for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    return text;
  };
  std::vector<Card> out;
  for (const Card& card : cards) {
    std::string text = card.key + "\n" + card.name + "\n" + card.chip + "\n" + card.family + "\n" +
                       card.architecture.name;
    for (const std::string& alias : card.aliases) text += "\n" + alias;
    text = lower(text);
    bool all = true;
    for (const std::string& word : words) all = all && text.find(lower(word)) != std::string::npos;
    if (all) out.push_back(card);
  }
  return out;
}

int fail(const Error& error) {
  say(error);
  return exit_code_of(error);
}

int show_card(const Options& options, const Card& card, const std::vector<Card>& others) {
  if (options.json) {
    fmt::print("{}", gpus_detail_json(card));
    return kExitSuccess;
  }
  fmt::print("{}", options.attributes ? gpus_attributes(card) : gpus_detail(card));
  std::string near;
  for (const Card& other : others) {
    if (other.key != card.key) near += (near.empty() ? "" : ", ") + other.key;
  }
  if (!near.empty() && !options.attributes) fmt::print("\nSee also: {}\n", near);
  return kExitSuccess;
}

int show_list(const Options& options, const std::vector<Card>& cards) {
  fmt::print("{}", options.json ? gpus_list_json(cards) : gpus_table(cards));
  return kExitSuccess;
}

int measure(const Options& options, const cards::Catalogue& catalogue) {
  std::string driver = "libcuda.so.1";
  if (const auto paths = find_install_paths()) {
    const auto found = find_real_driver(*paths);
    if (!found) {
      Error error = found.error();
      error.where = "--measure";
      error.hint =
          "measuring needs a real card with its driver; `tonnage gpus` lists the cards that need "
          "none";
      return fail(error);
    }
    driver = found->string();
  }
  const auto measured = cards::measure_card(driver, options.device, catalogue);
  if (!measured) return fail(measured.error());
  const std::string text = cards::card_to_json(measured->card);
  if (options.output.empty()) {
    fmt::print("{}", text);
  } else {
    const auto written = write_file(options.output, text, options.force);
    if (!written) return fail(written.error());
    say(fmt::format("wrote {}: tonnage run --gpu {} -- …", options.output, options.output));
  }
  if (!measured->missing.empty())
    say(fmt::format("not measured, but the catalogue's or estimated: {}",
                    joined(measured->missing)));
  return kExitSuccess;
}

int run_gpus(const Options& options) {
  const auto& catalogue = cards::Catalogue::standard();
  if (!catalogue) return fail(catalogue.error());
  if (options.measure) return measure(options, *catalogue);
  if (!options.card_file.empty()) {
    const auto card = catalogue->load_file(options.card_file);
    if (!card) return fail(card.error());
    return show_card(options, *card, {});
  }
  if (options.words.empty()) return show_list(options, catalogue->cards());
  const auto some = containing(catalogue->cards(), options.words);
  if (!options.list) {
    const auto card = catalogue->find(joined(options.words));
    if (card) return show_card(options, *card, some);
    if (some.empty()) return fail(card.error());
  }
  if (some.empty())
    return fail(Error{ErrorCode::kNotFound,
                      fmt::format("no card has all of \"{}\" in its name", joined(options.words)),
                      "gpus", "`tonnage gpus` lists all."});
  return show_list(options, some);
}

}  // namespace

void add_gpus_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "gpus", "Cards that can be run on: the catalogue, one card, or a measured one");
  command->footer(R"(
Examples:
  tonnage gpus
  tonnage gpus "RTX 4090"
  tonnage gpus laptop ampere
  tonnage gpus --measure --output my-card.json)");
  command
      ->add_option("CARD", options->words,
                   "A card (\"RTX 3090\", h100, \"a100 1g.10gb\"), or words to list by (ampere, "
                   "laptop, 4090)")
      ->type_name("CARD");
  command->add_flag("--list", options->list, "List, even if the words name one card");
  command->add_flag("--attributes", options->attributes,
                    "Every device attribute that the virtual driver answers for the card");
  command->add_flag("--json", options->json, "As JSON; bytes and rates as numbers");
  command->add_option("--card", options->card_file, "Check and show a card file of your own")
      ->type_name("FILE");
  command->add_flag("--measure", options->measure,
                    "Ask the real card of this machine and print its card file");
  command->add_option("--device", options->device, "Which real card to measure (default: 0)")
      ->check(CLI::Range(0, 255));
  command->add_option("-o,--output", options->output, "Write the measured card file here")
      ->type_name("FILE");
  command->add_flag("--force", options->force, "Replace an existing file");
  command->callback([options, &exit_code] { exit_code = run_gpus(*options); });
}

}  // namespace tonnage::cli
