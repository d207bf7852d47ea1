#include "cli/run.h"

#include <string.h>
#include <unistd.h>

#include <fmt/core.h>

#include <algorithm>
#include <system_error>

#include "analysis/diagnosis/findings.h"
#include "cli/cards.h"
#include "cli/child.h"
#include "cli/command_end.h"
#include "cli/exit_codes.h"
#include "cli/host_memory.h"
#include "cli/kept_runs.h"
#include "cli/near_names.h"
#include "cli/need_run.h"
#include "cli/output.h"
#include "cli/record_watch.h"
#include "cli/report_output.h"
#include "cli/session_setup.h"
#include "record/record_reader.h"

namespace tonnage::cli {

namespace {

struct RunOptions {
  std::string gpu, memory, record;
  ReportOutput output;
  bool real = false, no_stacks = false, no_known_values = false, true_need = false,
       no_true_need = false, no_keep = false;
  double assume_selected = -1;
  std::vector<std::string> command;
};

void say_how_it_ended(const RunOptions& options, const ChildExit& exit) {
  if (!exit.started) {
    say(fmt::format("{}: cannot be run: {}{}", options.command.front(), exit.error,
                    exit.code == 127 ? "\n  is it installed, and on PATH?" : ""));
  } else if (exit.signal != 0) {
    say(fmt::format("the command was killed by signal {} ({}){}", exit.signal,
                    ::strsignal(exit.signal), exit.core_dumped ? ", core dumped" : ""));
  }
}

// The kernel killed a process for a control group's limit while the command ran, and it failed.
record::HostLimit limit_that_killed(const ChildExit& exit, const HostMemory& before) {
  const HostMemory now = read_host_memory();
  if (exit.code == 0 || now.kills <= before.kills) return {};
  return {"cgroup_memory", now.limit_bytes};
}

// What the run would have needed, where it ran out of memory: the sentence to print where the
// command was not run again.
std::string find_need(const RunOptions& options, NeedRunOptions need_run,
                      const StandardInput& input, const InstallPaths& paths,
                      const SessionFiles& files, analysis::Explanation& explanation) {
  if (options.no_true_need || options.real ||
      explanation.report->verdict != analysis::Verdict::kDoesNotFit)
    return "";
  if (const std::string reason = reason_not_to_run(need_run, input); !reason.empty())
    return "How much it needs: tonnage run --true-need runs it once more on a card without limit "
           "(not done by itself: " +
           reason + ").";
  for (const analysis::DeviceReport& device : explanation.report->devices) {
    if (device.device)
      need_run.first_peak_bytes = std::max(need_run.first_peak_bytes, device.device->bytes);
  }
  if (!options.output.quiet)
    say(fmt::format(
        "it ran out of memory after {:.0f} s: it runs once more on a card without limit, to see "
        "what it needs,\n  and then with a smaller batch, if the command names it; {}; "
        "--no-true-need leaves this out",
        static_cast<double>(need_run.first_wall_ns) / 1e9,
        need_run.asked_for ? "its output goes nowhere"
                           : "its output goes nowhere, and it cannot write files"));
  const auto need = run_for_need(need_run, paths);
  if (!need) {
    say(need.error());
    return "";
  }
  if (!*need)
    return "What it would need could not be seen: the second run, on a card without limit, did "
           "not come as far.";
  if (auto written = files.write_end(need_json(**need)); !written) say(written.error());
  auto report = std::make_shared<analysis::Report>(*explanation.report);
  report->need = **need;
  explanation.report = std::move(report);
  return "";
}

// Keeps the record for `tonnage explain` without a file. The command that explains this run; "" if
// there is none.
std::string keep_record(const RunOptions& options, const SessionFiles& files) {
  const std::string by_file = options.record.empty() ? "" : explain_command(options.record);
  const auto folder = options.no_keep ? std::nullopt : kept_runs_folder();
  if (!folder) return by_file;
  const auto kept = keep_run(files.record_path(), *folder, keep_limits());
  if (!kept && !options.output.quiet) say(kept.error());
  return by_file.empty() && kept && *kept ? "tonnage explain" : by_file;
}

Result<void> print_report(const RunOptions& options, const NeedRunOptions& need_run,
                          const StandardInput& input, const InstallPaths& paths,
                          const SessionFiles& files) {
  const ReportOutput& output = options.output;
  const bool wanted = !output.quiet || output.json || !output.file.empty() || output.exports.any();
  if (!wanted && !options.true_need) {
    keep_record(options, files);
    return {};
  }
  auto record = record::read_record(files.record_path().string());
  if (!record) return record.error();
  record->source = options.record;
  auto explanation = analysis::explain(std::make_shared<const record::Record>(std::move(*record)));
  std::vector<std::string> notes;
  if (std::string note = find_need(options, need_run, input, paths, files, explanation);
      !note.empty())
    notes.push_back(std::move(note));
  return deliver_report(explanation, output, keep_record(options, files), notes);
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
  if (!options.output.file.empty() && !options.output.force &&
      std::filesystem::is_regular_file(options.output.file, ignored)) {
    return Error{ErrorCode::kUsage, "the file exists", options.output.file,
                 "choose another name, or replace it with --force"};
  }
  if (auto fine = check_exports(options.output.exports, options.output.force); !fine)
    return fine.error();

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
  session.force = options.output.force;
  session.assume_selected = options.assume_selected;
  session.known_values = !options.no_known_values;
  session.stacks = !options.no_stacks;
  session.pass_through = options.real;
  auto files = SessionFiles::create(session, *paths);
  if (!files) return files.error();

  ChildOptions child;
  child.command = options.command;
  child.environment = child_environment(environ, *paths, (*files)->session_path(), real_driver);
  child.stdout_to_stderr = options.output.json && options.output.file.empty();
  RecordWatch watch(**files);
  child.watch = [&watch] { watch.look(); };
  std::fflush(stdout);
  const StandardInput input;
  const HostMemory host_before = read_host_memory();
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
  if (written)
    written = (*files)->write_end(command_end_json(*exit, (*files)->session_path().parent_path(),
                                                   limit_that_killed(*exit, host_before)));
  if (!written && !watch.has_failed()) say(written.error());
  NeedRunOptions need_run;
  need_run.cards = *cards;
  need_run.command = options.command;
  need_run.first_run_ns = exit->own_ns;
  need_run.first_wall_ns = exit->wall_ns;
  need_run.assume_selected = options.assume_selected;
  need_run.known_values = !options.no_known_values;
  need_run.asked_for = options.true_need;
  try {
    if (auto printed = print_report(options, need_run, input, *paths, **files); !printed)
      say(printed.error());
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
The command runs unmodified, on this machine's CPU; a real GPU is not touched. The report goes to
standard error, or with --json to standard output, and then the command's own output goes to
standard error.
Exit code: the command's own (128 + signal if it was killed), also when it ran out of virtual
memory; 127 and 126 if it could not be started; 2 for wrong usage of Tonnage, 1 if Tonnage itself
failed before the start.
A command that runs out of memory within a minute runs once more by itself, on a card without
limit: the report then says what it needs. That run reads no input, its output goes nowhere, and it
can write no files but caches and temporary ones.
The last 10 runs are kept, in $XDG_STATE_HOME/tonnage/runs or ~/.local/state/tonnage/runs, private,
at most 512 MiB together: `tonnage explain` without a file explains the last one.
Environment: TONNAGE_GPU is used where --gpu is missing; without both the card is an {}.
TONNAGE_KEEP_RUNS is the number of runs to keep; 0 and --no-keep keep none. The card honours
CUDA_VISIBLE_DEVICES. TMPDIR is where the session lives.
Examples:
  tonnage run --gpu "RTX 3060" -- python train.py --batch-size 64
  tonnage run --gpu h100x2 --memory 40GiB -- torchrun --nproc-per-node 2 train.py
  tonnage run --brief -- python train.py
  tonnage run --record run.tonnage --html run.html -- python train.py)",
                              kDefaultGpu));
  command
      ->add_option("--gpu", options->gpu,
                   "Card and number: \"RTX 3060\", a100-80gbx4, or a card file (see: tonnage gpus)")
      ->type_name("NAME[xN]");
  command->add_option("--memory", options->memory, "Device memory instead of the card's own")
      ->type_name("SIZE");
  command->add_option("--record", options->record, "Keep the record in this file")
      ->type_name("FILE");
  options->output.text_to_stderr = true;
  add_report_options(command, options->output);
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
  command->add_flag("--true-need", options->true_need,
                    "If it runs out of memory: run it once more on a card without limit, however "
                    "long it took and whatever files it writes");
  command
      ->add_flag("--no-true-need", options->no_true_need,
                 "If it runs out of memory: leave it at that")
      ->excludes("--true-need");
  command->add_flag("--no-keep", options->no_keep,
                    "Do not keep this run for `tonnage explain` without a file");
  command->add_flag("--quiet,-q", options->output.quiet, "No report on the terminal");
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
