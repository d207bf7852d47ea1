// The files that `run`, `report` and `explain` can write beside their answer: --html, --perfetto,
// --csv, --csv-events.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "analysis/diagnosis/findings.h"
#include "base/result.h"

namespace tonnage::cli {

struct ExportFiles {
  std::string html, perfetto, csv, csv_events;
  bool any() const {
    return !html.empty() || !perfetto.empty() || !csv.empty() || !csv_events.empty();
  }
};

void add_export_options(CLI::App* command, ExportFiles& files);

// What would fail only after the work is done: a file that exists, one name for two files.
Result<void> check_exports(const ExportFiles& files, bool force);

// Errors: those of write_file; kUnsupported if only logs are there to be exported as events.
Result<void> write_exports(const std::vector<analysis::Explanation>& explanations,
                           const ExportFiles& files, bool force);

}  // namespace tonnage::cli
