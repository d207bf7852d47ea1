#include "cli/html_output.h"

#include "cli/output.h"
#include "report/html.h"

namespace tonnage::cli {

void add_html_option(CLI::App* command, std::string& file) {
  command->add_option("--html", file, "Also write the report with its charts as one HTML file, for a browser, offline")->type_name("FILE");
}

Result<void> write_html(const std::vector<analysis::Explanation>& explanations, const std::string& file, bool force) {
  if (file.empty()) return {};
  return write_file(file, report::render_html(explanations), force);
}

}  // namespace tonnage::cli
