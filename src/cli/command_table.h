// The commands and their options as data, read from what the command line itself is parsed by: what
// man pages and completions are made of.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace tonnage::cli {

enum class Takes { kNothing, kText, kFile, kGpu, kWords };

struct OptionRow {
  std::vector<std::string> names;  // "--quiet", "-q"; of an argument without dashes: "file"
  std::string value;               // "SIZE"; "" for a flag
  Takes takes = Takes::kNothing;
  std::vector<std::string> words;  // kWords
  std::string about;
  bool required = false, many = false;
};

struct CommandRow {
  std::string name, about;
  std::vector<std::string> notes, examples;  // lines of the help's end
  std::vector<OptionRow> options, arguments;
  bool runs_command = false;  // what follows is another program's command line
};

// Hidden commands and options are left out.
std::vector<CommandRow> read_commands(const CLI::App& app);

// What --gpu takes, as far as the catalogue names it: "RTX 3060", "h100-sxm".
std::vector<std::string> gpu_names();

}  // namespace tonnage::cli
