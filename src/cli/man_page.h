// Man pages, made from the command table: tonnage(1) and one for each command.
#pragma once

#include <string>
#include <vector>

#include "cli/command_table.h"

namespace tonnage::cli {

// date: YYYY-MM-DD.
std::string man_page(const std::vector<CommandRow>& commands, const std::string& about,
                     const std::string& notes, const std::string& date);
std::string man_page_of(const CommandRow& command, const std::string& date);

}  // namespace tonnage::cli
