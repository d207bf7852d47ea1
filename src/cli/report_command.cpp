#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/explain_input.h"
#include "cli/output.h"
#include "cli/report_output.h"

namespace tonnage::cli {

namespace {

struct ReportOptions {
  std::string file = kLastRun;
  ReportOutput output;
};

Result<void> print_report(const ReportOptions& options) {
  if (auto fine = check_exports(options.output.exports, options.output.force); !fine)
    return fine.error();
  auto record = open_run(options.file);
  if (!record) return record.error();
  const auto explanation = analysis::explain(std::make_shared<const record::Record>(*record));
  return deliver_report(explanation, options.output, explain_command(options.file));
}

}  // namespace

void add_report_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App* command =
      app.add_subcommand("report", "Print the report of the last run, or of a record");
  command->footer(R"(
Without a file: of the last run that was kept; last~1 is the one before it.
Examples:
  tonnage report
  tonnage report run.tonnage
  tonnage report run.tonnage --brief
  tonnage report run.tonnage --html run.html
  tonnage report run.tonnage --json | jq .verdict)");
  command
      ->add_option("file", options->file,
                   "The record that `tonnage run --record` wrote; without one the last run")
      ->type_name("FILE");
  add_report_options(command, options->output);
  command->callback([options, &exit_code] {
    const auto printed = print_report(*options);
    if (!printed) say(printed.error());
    exit_code = printed ? kExitSuccess : exit_code_of(printed.error());
  });
}

}  // namespace tonnage::cli
