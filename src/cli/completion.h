// Completions for shells, made from the command table.
#pragma once

#include <string>
#include <vector>

#include "cli/command_table.h"

namespace tonnage::cli {

std::string bash_completion(const std::vector<CommandRow>& commands,
                            const std::vector<std::string>& gpus);
std::string zsh_completion(const std::vector<CommandRow>& commands,
                           const std::vector<std::string>& gpus);
std::string fish_completion(const std::vector<CommandRow>& commands,
                            const std::vector<std::string>& gpus);

}  // namespace tonnage::cli
