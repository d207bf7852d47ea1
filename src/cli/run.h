// `tonnage run`: a command on virtual GPUs, then the report of its memory.
#pragma once

#include <CLI/CLI.hpp>

namespace tonnage::cli {

void add_run_command(CLI::App& app, int& exit_code);

}  // namespace tonnage::cli
