// tonnage: the one binary. Each command is in a file of its own; this one only puts them together.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <system_error>

#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/near_names.h"
#include "cli/output.h"
#include "cli/run.h"

namespace {

using namespace tonnage;
using namespace tonnage::cli;

// A word in a command's place that is none: near names, exit 2.
bool is_unknown_command(CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-' || argv[1][0] == '\0') return false;
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) {
    if (command->get_name() == argv[1]) return false;
    if (!command->get_group().empty()) names.push_back(command->get_name());
  }
  std::string text = fmt::format("there is no command \"{}\"", argv[1]);
  const auto near = near_names(argv[1], names);
  text += near.empty() ? "\n  commands: " : "\n  did you mean: ";
  const auto& shown = near.empty() ? names : near;
  for (size_t i = 0; i < shown.size(); ++i) text += (i == 0 ? "" : ", ") + shown[i];
  say(text);
  return true;
}

int run_main(int argc, char** argv) {
  CLI::App app;
  int exit_code = kExitSuccess;
  add_commands(app, exit_code);

  if (argc < 2) {
    std::fputs(app.help().c_str(), stderr);
    return kExitUsage;
  }
  if (is_unknown_command(app, argc, argv)) return kExitUsage;
  std::vector<std::string> arguments(argv + 1, argv + argc);
  drop_command_separator(app, arguments);
  std::ranges::reverse(arguments);  // CLI11 takes them from the back
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success))
      return app.exit(error);  // --help, --version
    const CLI::App* asked = app.get_subcommands().empty() ? &app : app.get_subcommands().front();
    say(fmt::format("{}\n  see: {} --help", error.what(),
                    asked == &app ? "tonnage" : "tonnage " + asked->get_name()));
    return kExitUsage;
  }
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run_main(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fputs("tonnage: out of memory\n", stderr);
  } catch (const std::system_error& error) {
    std::fprintf(stderr, "tonnage: %s\n", error.what());  // the output cannot be written
  } catch (const std::exception& error) {
    // Not fmt::print, which throws where nothing can be written.
    std::fprintf(stderr, "tonnage: internal error: %s\n", error.what());
  }
  return kExitFailure;
}
