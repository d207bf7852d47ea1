// The small commands. Each sets exit_code when it has run.
#pragma once

#include <CLI/CLI.hpp>

namespace tonnage::cli {

void add_report_command(CLI::App& app, int& exit_code);   // report_command.cpp
void add_doctor_command(CLI::App& app, int& exit_code);   // doctor.cpp
void add_version_command(CLI::App& app, int& exit_code);  // version.cpp
// schema, completion, man: reference_commands.cpp
void add_reference_commands(CLI::App& app, int& exit_code);

// All of them: the whole command line.
void add_commands(CLI::App& app, int& exit_code);

}  // namespace tonnage::cli
