// What the binary says of itself: schemas of its JSON, completions for shells, man pages.
#include <fmt/core.h>
#include <stdlib.h>
#include <time.h>

#include <filesystem>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/completion.h"
#include "cli/exit_codes.h"
#include "cli/man_page.h"
#include "cli/output.h"
#include "report/schema.h"

namespace tonnage::cli {
namespace {

int print_schema(const std::string& name) {
  if (name.empty()) {
    for (const report::SchemaEntry& entry : report::schemas())
      fmt::print("{:<8}  {}\n", entry.name, entry.about);
    return kExitSuccess;
  }
  fmt::print("{}", report::schema_json(name));
  return kExitSuccess;
}

int print_completion(const CLI::App& app, const std::string& shell) {
  const auto commands = read_commands(app);
  const auto gpus = gpu_names();
  fmt::print("{}", shell == "bash"  ? bash_completion(commands, gpus)
                   : shell == "zsh" ? zsh_completion(commands, gpus)
                                    : fish_completion(commands, gpus));
  return kExitSuccess;
}

// Of the build where SOURCE_DATE_EPOCH says so (reproducible-builds.org), else today.
std::string date_of_pages() {
  time_t seconds = ::time(nullptr);
  if (const char* epoch = ::getenv("SOURCE_DATE_EPOCH"); epoch != nullptr && *epoch != '\0')
    seconds = static_cast<time_t>(::strtoll(epoch, nullptr, 10));
  tm parts{};
  ::gmtime_r(&seconds, &parts);
  char date[16];
  ::strftime(date, sizeof date, "%Y-%m-%d", &parts);
  return date;
}

struct ManOptions {
  std::string command, folder;
};

int write_pages(const CLI::App& app, const ManOptions& options) {
  const auto commands = read_commands(app);
  const std::string date = date_of_pages();
  const std::string main_page = man_page(commands, app.get_description(), app.get_footer(), date);
  if (options.folder.empty()) {
    if (options.command.empty()) return fmt::print("{}", main_page), kExitSuccess;
    for (const CommandRow& command : commands) {
      if (command.name == options.command)
        return fmt::print("{}", man_page_of(command, date)), kExitSuccess;
    }
    say(fmt::format("there is no command \"{}\"", options.command));
    return kExitUsage;
  }
  const std::filesystem::path folder = options.folder;
  auto written = write_file(folder / "tonnage.1", main_page, true);
  for (const CommandRow& command : commands) {
    if (written)
      written =
          write_file(folder / ("tonnage-" + command.name + ".1"), man_page_of(command, date), true);
  }
  if (!written) say(written.error());
  return written ? kExitSuccess : kExitFailure;
}

}  // namespace

void add_reference_commands(CLI::App& app, int& exit_code) {
  auto name = std::make_shared<std::string>();
  CLI::App* schema =
      app.add_subcommand("schema", "Print the JSON Schema of what a command writes with --json");
  schema->footer(R"(
Without a name: which there are. docs/json.md says what stays the same.
Examples:
  tonnage schema
  tonnage schema report > report.schema.json
  tonnage schema explain)");
  std::vector<std::string> names = {"run"};
  for (const report::SchemaEntry& entry : report::schemas()) names.emplace_back(entry.name);
  schema->add_option("name", *name, "A command that has --json")->check(CLI::IsMember(names));
  schema->callback([name, &exit_code] { exit_code = print_schema(*name); });

  auto shell = std::make_shared<std::string>();
  CLI::App* completion = app.add_subcommand("completion", "Print the completions for a shell");
  completion->footer(R"(
Packages put them in place. Else:
Examples:
  tonnage completion bash > ~/.local/share/bash-completion/completions/tonnage
  tonnage completion zsh > ~/.zfunc/_tonnage
  tonnage completion fish > ~/.config/fish/completions/tonnage.fish)");
  completion->add_option("shell", *shell, "The shell")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  completion->callback([&app, shell, &exit_code] { exit_code = print_completion(app, *shell); });

  auto pages = std::make_shared<ManOptions>();
  CLI::App* man = app.add_subcommand("man", "Print a man page, or write all of them into a folder");
  man->group("");
  man->add_option("command", pages->command, "The page of this command");
  man->add_option("--folder", pages->folder, "Write all pages there")->type_name("FOLDER");
  man->callback([&app, pages, &exit_code] { exit_code = write_pages(app, *pages); });
}

}  // namespace tonnage::cli
