#include "cli/command_table.h"

#include <algorithm>
#include <sstream>

#include "cards/catalogue.h"

namespace tonnage::cli {
namespace {

constexpr const char* kGpuValue = "NAME[xN]";
constexpr const char* kCardValue = "CARD";

// "{device,reserved,allocated}", as CLI11 puts it behind the type of an option with a fixed choice.
std::vector<std::string> choices_in(const std::string& type) {
  const size_t from = type.find('{'), to = type.find('}');
  std::vector<std::string> out;
  if (from == std::string::npos || to == std::string::npos || to < from) return out;
  std::istringstream list(type.substr(from + 1, to - from - 1));
  for (std::string word; std::getline(list, word, ',');) out.push_back(word);
  return out;
}

OptionRow read_option(const CLI::Option& option) {
  OptionRow row;
  for (const std::string& name : option.get_lnames()) row.names.push_back("--" + name);
  for (const std::string& name : option.get_snames()) row.names.push_back("-" + name);
  row.about = option.get_description();
  row.required = option.get_required();
  row.many = option.get_items_expected_max() > 1;
  const bool positional = row.names.empty();
  if (positional) row.names.push_back(option.get_name(true));
  if (option.get_items_expected_max() == 0) return row;
  const std::string type = option.get_type_name();
  row.value = type.substr(0, type.find(':'));
  row.words = choices_in(type);
  row.takes = !row.words.empty()                                  ? Takes::kWords
              : row.value == "FILE" || row.value == "FOLDER"      ? Takes::kFile
              : row.value == kGpuValue || row.value == kCardValue ? Takes::kGpu
                                                                  : Takes::kText;
  if (!positional && row.takes == Takes::kWords && row.value == "TEXT") row.value = "WORD";
  return row;
}

void read_footer(const std::string& footer, CommandRow& row) {
  std::istringstream lines(footer);
  bool examples = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    if (line == "Examples:" || line == "Example:") {
      examples = true;
    } else if (examples && line.starts_with("  ")) {
      row.examples.push_back(line.substr(2));
    } else {
      row.notes.push_back(line);
    }
  }
}

CommandRow read_command(const CLI::App& command) {
  CommandRow row;
  row.name = command.get_name();
  row.about = command.get_description();
  row.runs_command = command.get_prefix_command();
  read_footer(command.get_footer(), row);
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group().empty()) continue;
    (option->get_lnames().empty() && option->get_snames().empty() ? row.arguments : row.options)
        .push_back(read_option(*option));
  }
  return row;
}

}  // namespace

std::vector<CommandRow> read_commands(const CLI::App& app) {
  std::vector<CommandRow> out;
  for (const CLI::App* command : app.get_subcommands({})) {
    if (!command->get_group().empty()) out.push_back(read_command(*command));
  }
  return out;
}

std::vector<std::string> gpu_names() {
  std::vector<std::string> out;
  const auto& catalogue = cards::Catalogue::standard();
  if (!catalogue) return out;
  for (const cards::Card& card : catalogue->cards()) {
    std::string name = card.name;
    for (const std::string_view brand : {"NVIDIA ", "GeForce "}) {
      if (name.starts_with(brand)) name.erase(0, brand.size());
    }
    const auto found = cards::find_card(name);  // some names are those of several cards
    if (found && found->key == card.key) out.push_back(name);
    out.push_back(card.key);
  }
  std::ranges::sort(out);
  out.erase(std::ranges::unique(out).begin(), out.end());
  return out;
}

}  // namespace tonnage::cli
