// `tonnage run`: a command on virtual GPUs, then the report of its memory.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace tonnage::cli {

void add_run_command(CLI::App& app, int& exit_code);

// Takes out the "--" between the options of `run` and its command, which CLI11 does not understand
// there; a "--" that belongs to the command stays. `arguments` without the program's name.
void drop_command_separator(const CLI::App& app, std::vector<std::string>& arguments);

}  // namespace tonnage::cli
