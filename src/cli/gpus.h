// `tonnage gpus`: the catalogue of cards.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "device/catalogue.h"

namespace tonnage::cli {

void add_gpus_command(CLI::App& app, int& exit_code);

// The texts that the command prints; lines of at most 80 columns where no name is longer.
std::string gpus_table(const std::vector<device::Card>& cards);
std::string gpus_detail(const device::Card& card);
std::string gpus_attributes(const device::Card& card);
std::string gpus_list_json(const std::vector<device::Card>& cards);
std::string gpus_detail_json(const device::Card& card);

}  // namespace tonnage::cli
