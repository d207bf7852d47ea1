// `tonnage gpus`: the catalogue of cards.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cards/catalogue.h"

namespace tonnage::cli {

void add_gpus_command(CLI::App& app, int& exit_code);

// The texts that the command prints; lines of at most 80 columns where no name is longer.
std::string gpus_table(const std::vector<cards::Card>& cards);
std::string gpus_detail(const cards::Card& card);
std::string gpus_attributes(const cards::Card& card);
std::string gpus_list_json(const std::vector<cards::Card>& cards);
std::string gpus_detail_json(const cards::Card& card);

}  // namespace tonnage::cli
