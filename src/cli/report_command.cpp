#include <fmt/core.h>
#include <unistd.h>

#include "analysis/report.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/exports.h"
#include "cli/output.h"
#include "record/record_reader.h"
#include "report/json.h"
#include "report/text.h"

namespace tonnage::cli {

namespace {

struct ReportOptions {
  std::string file, output;
  ExportFiles exports;
  bool json = false, force = false;
};

Result<void> print_report(const ReportOptions& options) {
  if (auto fine = check_exports(options.exports, options.force); !fine) return fine.error();
  auto record = record::read_record(options.file);
  if (!record) return record.error();
  if (options.exports.any()) {
    const auto explanation = analysis::explain(std::make_shared<const record::Record>(*record));
    if (auto written = write_exports({explanation}, options.exports, options.force); !written)
      return written.error();
  }
  const analysis::Report report = analysis::make_report(*record);
  if (!options.output.empty()) {
    const std::string text = options.json ? report::to_json(report) + "\n"
                                          : report::render_text(report, report::TextOptions{});
    return write_file(options.output, text, options.force);
  }
  fmt::print("{}", options.json
                       ? report::to_json(report) + "\n"
                       : report::render_text(report, report::text_options_for(STDOUT_FILENO)));
  return {};
}

}  // namespace

void add_report_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App* command =
      app.add_subcommand("report", "Print the report of a record that `tonnage run --record` kept");
  command->add_option("file", options->file, "The record")->required()->type_name("FILE");
  command->add_flag("--json", options->json, "As JSON");
  command->add_option("--output", options->output, "Write it into this file")->type_name("FILE");
  add_export_options(command, options->exports);
  command->add_flag("--force", options->force, "Replace an existing file");
  command->callback([options, &exit_code] {
    const auto printed = print_report(*options);
    if (!printed) say(printed.error());
    exit_code = printed ? kExitSuccess : exit_code_of(printed.error());
  });
}

}  // namespace tonnage::cli
