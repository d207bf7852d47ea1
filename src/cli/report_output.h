// The report of one record, as `run` and `report` give it: text, JSON, files.
#pragma once

#include <string>
#include <vector>

#include "analysis/diagnosis/findings.h"
#include "base/result.h"
#include "cli/exports.h"

namespace tonnage::cli {

struct ReportOutput {
  std::string file;
  ExportFiles exports;
  bool json = false, force = false;
  bool brief = false;           // text: the headline, the main finding and no more
  bool text_to_stderr = false;  // standard output is the command's own
  bool quiet = false;           // nothing on the terminal
};

void add_report_options(CLI::App* command, ReportOutput& output);

// more: the command that explains the record, as the text's last line; "": none. notes: sentences
// to stand below the main finding.
Result<void> deliver_report(const analysis::Explanation& explanation, const ReportOutput& output,
                            const std::string& more, const std::vector<std::string>& notes = {});

}  // namespace tonnage::cli
