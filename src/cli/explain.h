// tonnage explain, diff and check: what a snapshot, a record or a log says about memory.
#pragma once

#include <CLI/CLI.hpp>

namespace tonnage::cli {

void add_explain_commands(CLI::App& app, int& exit_code);

}  // namespace tonnage::cli
