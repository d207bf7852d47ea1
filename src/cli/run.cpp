#include "cli/run.h"

#include <string.h>
#include <unistd.h>

#include <fmt/core.h>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>

#include "analysis/report.h"
#include "cli/cards.h"
#include "cli/child.h"
#include "cli/exit_codes.h"
#include "cli/exports.h"
#include "cli/near_names.h"
#include "cli/output.h"
#include "cli/record_watch.h"
#include "cli/session_setup.h"
#include "record/record_reader.h"
#include "report/json.h"
#include "report/text.h"

namespace tonnage::cli {

namespace {

struct RunOptions {
  std::string gpu, memory, record, output;
  ExportFiles exports;
  bool json = false, real = false, no_stacks = false, no_known_values = false, quiet = false,
       force = false;
  double assume_selected = -1;
  std::vector<std::string> command;
};

bool used_a_gpu(const record::Record& record) {
  using abi::EventKind;
  return std::ranges::any_of(record.events, [](const auto& event) {
    return event.kind == EventKind::kContext || event.kind == EventKind::kDeviceAlloc ||
           event.kind == EventKind::kAlloc || event.kind == EventKind::kDeviceOom;
  });
}

std::string end_json(const ChildExit& exit) {
  nlohmann::json end = {{"exit_code", exit.code}, {"wall_ns", exit.wall_ns}};
  if (exit.signal != 0) end["signal"] = exit.signal;
  return end.dump();
}

void say_how_it_ended(const RunOptions& options, const ChildExit& exit) {
  if (!exit.started) {
    say(fmt::format("{}: cannot be run: {}{}", options.command.front(), exit.error,
                    exit.code == 127 ? "\n  is it installed, and on PATH?" : ""));
  } else if (exit.signal != 0) {
    say(fmt::format("the command was killed by signal {} ({}){}", exit.signal,
                    ::strsignal(exit.signal), exit.core_dumped ? ", core dumped" : ""));
  }
}

Result<void> print_report(const RunOptions& options, const SessionFiles& files) {
  auto record = record::read_record(files.record_path().string());
  if (!record) return record.error();
  if (!used_a_gpu(*record)) {
    say(record->processes.empty()
            ? "the command never used a GPU: no program in it loaded the CUDA driver"
            : "the command never used a GPU: the CUDA driver was loaded, but nothing was put on a "
              "device");
  }
  record->source = options.record.empty() ? "" : options.record;
  if (options.exports.any()) {
    const auto explanation = analysis::explain(std::make_shared<const record::Record>(*record));
    if (auto written = write_exports({explanation}, options.exports, options.force); !written)
      say(written.error());
  }
  if (options.quiet && options.output.empty() && !options.json) return {};
  const analysis::Report report = analysis::make_report(*record);
  if (!options.output.empty()) {
    const std::string text = options.json ? report::to_json(report) + "\n"
                                          : report::render_text(report, report::TextOptions{});
    if (auto written = write_file(options.output, text, options.force); !written)
      return written.error();
    if (!options.quiet) say(report::headline(report) + "\n  report: " + options.output);
  } else if (options.json) {
    fmt::print("{}\n", report::to_json(report));
  } else {
    std::fflush(stdout);
    fmt::print(stderr, "{}", report::render_text(report, report::text_options_for(STDERR_FILENO)));
  }
  std::fflush(stdout);
  return {};
}

Result<int> run(const RunOptions& options) {
  const auto paths = find_install_paths();
  if (!paths) return paths.error();
  std::error_code ignored;
  const auto driver = (options.real ? paths->passthrough_dir : paths->vgpu_dir) / "libcuda.so.1";
  if (!std::filesystem::exists(driver, ignored)) {
    return Error{ErrorCode::kNotFound, "Tonnage's driver is not there", driver.string(),
                 paths->installed ? "install Tonnage again" : "build it: make"};
  }
  // What would fail after hours of training must fail now.
  if (!options.output.empty() && !options.force &&
      std::filesystem::is_regular_file(options.output, ignored)) {
    return Error{ErrorCode::kUsage, "the file exists", options.output,
                 "choose another name, or replace it with --force"};
  }
  if (auto fine = check_exports(options.exports, options.force); !fine) return fine.error();

  std::filesystem::path real_driver;
  if (options.real) {
    auto found = find_real_driver(*paths);
    if (!found) return found.error();
    real_driver = *found;
  }
  auto cards = options.real ? real_cards(real_driver) : choose_cards(options.gpu, options.memory);
  if (!cards) return cards.error();

  SessionOptions session;
  session.cards = *cards;
  session.command = options.command;
  session.record = options.record;
  session.force = options.force;
  session.assume_selected = options.assume_selected;
  session.known_values = !options.no_known_values;
  session.stacks = !options.no_stacks;
  session.pass_through = options.real;
  auto files = SessionFiles::create(session, *paths);
  if (!files) return files.error();

  ChildOptions child;
  child.command = options.command;
  child.environment = child_environment(environ, *paths, (*files)->session_path(), real_driver);
  child.stdout_to_stderr = options.json && options.output.empty();
  RecordWatch watch(**files);
  child.watch = [&watch] { watch.look(); };
  std::fflush(stdout);
  const auto exit = run_child(child);
  if (!exit) return exit.error();
  watch.look();
  say_how_it_ended(options, *exit);
  if (!exit->started) {
    if (!options.record.empty()) std::filesystem::remove((*files)->record_path(), ignored);
    return exit->code;
  }
  // Nothing below changes the command's own exit code.
  auto written = (*files)->write_account();
  if (written) written = (*files)->write_end(end_json(*exit));
  if (!written && !watch.has_failed()) say(written.error());
  try {
    if (auto printed = print_report(options, **files); !printed) say(printed.error());
  } catch (const std::system_error& error) {
    say(error.what());  // standard error or output is full, or its reader is gone
  }
  return exit->code;
}

}  // namespace

void add_run_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command =
      app.add_subcommand("run", "Run a command on virtual GPUs and report its memory");
  command->prefix_command();
  command->footer(fmt::format(R"(
The command runs unmodified, on this machine's CPU; a real GPU is not touched. The report goes to standard error, or with
--json to standard output, and then the command's own output goes to standard error.
Exit code: the command's own (128 + signal if it was killed), also when it ran out of virtual memory; 127 and 126 if it
could not be started; 2 for wrong usage of Tonnage, 1 if Tonnage itself failed before the start.
Environment: TONNAGE_GPU is used where --gpu is missing; without both the card is an {}. The card honours
CUDA_VISIBLE_DEVICES. TMPDIR is where the session lives.
  tonnage run --gpu h100x2 --memory 40GiB -- torchrun --nproc-per-node 2 train.py)",
                              kDefaultGpu));
  command
      ->add_option("--gpu", options->gpu,
                   "Card and number: \"RTX 3060\", a100-80gbx4, or a card file (see: tonnage gpus)")
      ->type_name("NAME[xN]");
  command->add_option("--memory", options->memory, "Device memory instead of the card's own")
      ->type_name("SIZE");
  command->add_option("--record", options->record, "Keep the record in this file")
      ->type_name("FILE");
  command->add_flag("--json", options->json, "Report as JSON, on standard output");
  command
      ->add_option("--output", options->output,
                   "Write the report (text, or JSON with --json) into this file")
      ->type_name("FILE");
  add_export_options(command, options->exports);
  command->add_flag("--force", options->force, "Replace existing files");
  command
      ->add_option("--assume-selected", options->assume_selected,
                   "Share of elements (0 to 1) that data-dependent selections of unknown data "
                   "take; default: all of them")
      ->check(CLI::Range(0.0, 1.0))
      ->type_name("SHARE");
  command
      ->add_flag("--real", options->real,
                 "On this machine's real GPUs: watch the real driver instead of replacing it")
      ->excludes("--gpu")
      ->excludes("--memory");
  command->add_flag("--no-stacks", options->no_stacks,
                    "Do not record stacks: faster, no source lines");
  command->add_flag("--no-known-values", options->no_known_values,
                    "Do not compute small and integer tensors: reads give zeros");
  command->add_flag("--quiet,-q", options->quiet, "No report on the terminal");
  command->callback([command, options, &exit_code] {
    options->command = command->remaining();
    if (options->command.empty()) {
      say("there is no command to run\n  for example: tonnage run --gpu \"RTX 3060\" -- python "
          "train.py");
      exit_code = kExitUsage;
      return;
    }
    if (options->command.front()[0] == '-') {
      std::vector<std::string> names;
      for (const CLI::Option* option : command->get_options()) names.push_back(option->get_name());
      std::string text = "there is no option " + options->command.front();
      if (const auto near = near_names(options->command.front(), names); !near.empty())
        text += ": did you mean " + near.front() + "?";
      say(text + "\n  see: tonnage run --help");
      exit_code = kExitUsage;
      return;
    }
    auto code = run(*options);
    if (!code) say(code.error());
    exit_code = code ? *code : exit_code_of(code.error());
  });
}

void drop_command_separator(const CLI::App& app, std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0] != "run") return;
  const CLI::App* run = app.get_subcommand("run");
  for (size_t i = 1; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(i));
      return;
    }
    if (argument.size() < 2 || argument[0] != '-') return;  // the command has begun
    const CLI::Option* option =
        run->get_option_no_throw(argument);  // none for --name=value, which is whole
    if (option != nullptr && option->get_items_expected_min() > 0) ++i;
  }
}

}  // namespace tonnage::cli
