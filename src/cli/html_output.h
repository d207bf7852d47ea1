// The option --html FILE of `run`, `report` and `explain`.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "analysis/findings.h"
#include "base/result.h"

namespace tonnage::cli {

void add_html_option(CLI::App* command, std::string& file);

// Nothing if `file` is empty. Errors: those of write_file.
Result<void> write_html(const std::vector<analysis::Explanation>& explanations, const std::string& file, bool force);

}  // namespace tonnage::cli
