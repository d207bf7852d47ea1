#include "cli/exports.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>

#include "cli/output.h"
#include "report/csv_export.h"
#include "report/html.h"
#include "report/perfetto_export.h"

namespace tonnage::cli {

void add_export_options(CLI::App* command, ExportFiles& files) {
  command
      ->add_option("--html", files.html,
                   "Also write the report with its charts as one HTML file, for a browser, offline")
      ->type_name("FILE");
  command
      ->add_option(
          "--perfetto", files.perfetto,
          "Also write the course of memory as a trace for ui.perfetto.dev; a name that ends "
          "with .json gives Chrome's format, with limits")
      ->type_name("FILE");
  command->add_option("--trace", files.perfetto, "The older name of --perfetto")->group("");
  command
      ->add_option("--csv", files.csv,
                   "Also write a table of all allocations: life, size, category, line, whether "
                   "live at the peak")
      ->type_name("FILE");
  command
      ->add_option("--csv-events", files.csv_events,
                   "Also write a table of all events, with the memory after each")
      ->type_name("FILE");
}

Result<void> check_exports(const ExportFiles& files, bool force) {
  std::set<std::string> seen;
  for (const std::string& file : {files.html, files.perfetto, files.csv, files.csv_events}) {
    if (file.empty()) continue;
    std::error_code ignored;
    const bool regular =
        !std::filesystem::exists(file, ignored) || std::filesystem::is_regular_file(file, ignored);
    if (regular && !seen.insert(file).second)
      return Error{ErrorCode::kUsage, "two outputs have the same name", file, ""};
    if (!force && std::filesystem::is_regular_file(file, ignored))
      return Error{ErrorCode::kUsage, "the file exists", file,
                   "choose another name, or replace it with --force"};
  }
  return {};
}

Result<void> write_exports(const std::vector<analysis::Explanation>& explanations,
                           const ExportFiles& files, bool force) {
  if (!files.html.empty()) {
    if (auto written = write_file(files.html, report::render_html(explanations), force); !written)
      return written;
  }
  const bool has_events =
      std::any_of(explanations.begin(), explanations.end(),
                  [](const auto& explanation) { return explanation.timeline != nullptr; });
  struct Table {
    const std::string& file;
    std::function<bool(const report::Sink&)> write;
  };
  const std::array<Table, 3> tables = {
      {{files.perfetto,
        [&](const report::Sink& sink) {
          return files.perfetto.ends_with(".json") ? report::write_chrome_trace(explanations, sink)
                                                   : report::write_perfetto(explanations, sink);
        }},
       {files.csv,
        [&](const report::Sink& sink) { return report::write_allocations_csv(explanations, sink); }},
       {files.csv_events,
        [&](const report::Sink& sink) { return report::write_events_csv(explanations, sink); }}}};
  for (const Table& table : tables) {
    if (table.file.empty()) continue;
    if (!has_events)
      return Error{ErrorCode::kUnsupported, "a log has no events to write", table.file,
                   "give a PyTorch snapshot or a Tonnage record"};
    if (auto written = write_file(table.file, table.write, force); !written) return written;
  }
  return {};
}

}  // namespace tonnage::cli
