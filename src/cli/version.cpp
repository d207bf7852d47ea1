#include <fmt/core.h>

#include "abi/session.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "record/format.h"

namespace tonnage::cli {

void add_version_command(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("version", "Print the versions of Tonnage and of its file formats");
  command->footer("\nExamples:\n  tonnage version\n  tonnage --version");
  command->callback([&exit_code] {
    fmt::print("tonnage {}\nrecord format {} (reads {} to {})\nsession format {}\n",
               TONNAGE_VERSION, record::kFormatVersion, record::kOldestReadableVersion,
               record::kNewestReadableVersion, abi::kSessionVersion);
    exit_code = kExitSuccess;
  });
}

}  // namespace tonnage::cli
