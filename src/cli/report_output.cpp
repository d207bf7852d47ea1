#include "cli/report_output.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>

#include "cli/output.h"
#include "report/json.h"
#include "report/main_finding.h"
#include "report/text.h"

namespace tonnage::cli {

namespace {

std::string text_of(const analysis::Report& report, const ReportOutput& output,
                    const std::vector<std::string>& lines, const std::string& more, int fd) {
  const auto options = output.file.empty() ? report::text_options_for(fd) : report::TextOptions{};
  std::string text = output.brief ? report::render_brief(report, options, lines)
                                  : report::render_text(report, options, lines);
  // Of a command that used no GPU there is no more to say.
  if (!more.empty() && report.verdict != analysis::Verdict::kNothingUsed)
    text += fmt::format("{}More: {}\n", output.brief ? "" : "\n", more);
  return text;
}

}  // namespace

void add_report_options(CLI::App* command, ReportOutput& output) {
  command->add_flag("--json", output.json, "Report as JSON, on standard output");
  command->add_flag("--brief", output.brief, "Only the verdict and the main finding");
  command
      ->add_option("--output", output.file,
                   "Write the report (text, or JSON with --json) into this file")
      ->type_name("FILE");
  add_export_options(command, output.exports);
  command->add_flag("--force", output.force, "Replace existing files");
}

Result<void> deliver_report(const analysis::Explanation& explanation, const ReportOutput& output,
                            const std::string& more, const std::vector<std::string>& notes) {
  if (output.exports.any()) {
    if (auto written = write_exports({explanation}, output.exports, output.force); !written) {
      if (!output.text_to_stderr) return written.error();
      say(written.error());  // the report of a run is not lost for it
    }
  }
  if (output.quiet && output.file.empty() && !output.json) return {};
  const analysis::Report& report = *explanation.report;
  std::vector<std::string> lines = report::main_finding(explanation);
  const std::string finding = lines.empty() ? "" : lines.front();
  lines.insert(lines.end(), notes.begin(), notes.end());
  const int fd = output.text_to_stderr ? STDERR_FILENO : STDOUT_FILENO;
  const std::string text = output.json ? report::to_json(report, 2, finding) + "\n"
                                       : text_of(report, output, lines, more, fd);
  if (!output.file.empty()) {
    if (auto written = write_file(output.file, text, output.force); !written)
      return written.error();
    if (output.text_to_stderr && !output.quiet)
      say(report::headline(report) + "\n  report: " + output.file);
    return {};
  }
  std::fflush(stdout);
  FILE* const to = output.json || fd == STDOUT_FILENO ? stdout : stderr;
  if (std::fwrite(text.data(), 1, text.size(), to) != text.size() || std::fflush(to) != 0)
    return Error{ErrorCode::kIo, "writing the report failed", "standard output",
                 "The disk is full, or the reader is gone. --output FILE writes to a file."};
  return {};
}

}  // namespace tonnage::cli
