#include "cli/explain.h"

#include <fmt/core.h>
#include <unistd.h>

#include <charconv>

#include "analysis/diagnosis/findings.h"
#include "analysis/diagnosis/findings_diff.h"
#include "cards/catalogue.h"
#include "cli/exit_codes.h"
#include "cli/explain_input.h"
#include "cli/explain_text.h"
#include "cli/exports.h"
#include "cli/output.h"
#include "report/explain_json.h"
#include "report/html.h"
#include "report/text.h"
#include "report/words/words.h"

namespace tonnage::cli {
namespace {

using analysis::Explanation;
using analysis::PeakMetric;
using report::CheckRow;

struct Output {
  bool json = false, force = false;
  std::string file;
};

void add_output_options(CLI::App* command, Output& output) {
  command->add_flag("--json", output.json, "As JSON");
  command->add_option("--output", output.file, "Write it into this file")->type_name("FILE");
  command->add_flag("--force", output.force, "Replace an existing file");
}

report::TextOptions text_options(const Output& output) {
  return output.file.empty() ? report::text_options_for(STDOUT_FILENO) : report::TextOptions{};
}

Result<void> deliver(const std::string& text, const Output& output) {
  if (!output.file.empty()) return write_file(output.file, text, output.force);
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (std::fflush(stdout) != 0)
    return Error{ErrorCode::kIo, "writing the answer failed", "standard output",
                 "The disk is full, or the reader is gone. --output FILE writes to a file."};
  return {};
}

struct ExplainOptions {
  std::vector<std::string> files;
  std::string memory;
  ExportFiles exports;
  bool brief = false;
  Output output;
};

// A log beside a snapshot belongs to it if there is one of each with a matching request.
std::optional<sources::LogOom> message_for(const record::Record& record,
                                           const std::vector<ExplainInput>& inputs) {
  for (const ExplainInput& input : inputs) {
    const auto* log = std::get_if<sources::Log>(&input);
    if (!log) continue;
    for (const sources::LogOom& oom : log->ooms) {
      if (!oom.requested) continue;
      for (const abi::MemoryEvent& event : record.events) {
        if (event.kind != abi::EventKind::kOom || (oom.device && *oom.device != event.device))
          continue;
        const uint64_t wanted = analysis::segment_request(
            analysis::round_request(event.size_bytes, record.settings.roundup_power2_divisions));
        const uint64_t off = wanted > oom.requested->bytes ? wanted - oom.requested->bytes
                                                           : oom.requested->bytes - wanted;
        if (off <= oom.requested->plus_minus_bytes + 1) return oom;
      }
    }
  }
  return std::nullopt;
}

Result<void> run_explain(const ExplainOptions& options) {
  analysis::ExplainOptions how;
  if (!options.memory.empty()) {
    auto bytes = cards::parse_bytes(options.memory);
    if (!bytes) return bytes.error();
    how.memory_bytes = *bytes;
  }
  if (auto fine = check_exports(options.exports, options.output.force); !fine) return fine.error();
  std::vector<ExplainInput> inputs;
  std::vector<std::string> files = options.files;
  if (files.empty()) files.emplace_back(kLastRun);
  for (const std::string& file : files) {
    auto input = open_explain_input(file);
    if (!input) return input.error();
    inputs.push_back(std::move(*input));
  }
  std::vector<Explanation> explanations;
  for (const ExplainInput& input : inputs) {
    if (const auto* record = std::get_if<std::shared_ptr<const record::Record>>(&input)) {
      analysis::ExplainOptions own = how;
      own.message = message_for(**record, inputs);
      explanations.push_back(analysis::explain(*record, own));
    } else {
      explanations.push_back(analysis::explain(std::get<sources::Log>(input), how));
    }
  }
  if (auto written = write_exports(explanations, options.exports, options.output.force); !written)
    return written.error();
  std::string text;
  if (options.output.json) {
    text = report::explanations_to_json(explanations);
  } else {
    for (const Explanation& explanation : explanations) {
      if (!text.empty()) text += "\n";
      text += render_explanation(explanation, text_options(options.output), !options.brief);
    }
  }
  return deliver(text, options.output);
}

// What the verdict of one side says against its figures; "" if nothing.
std::string reservation(const Explanation& side) {
  switch (side.report->verdict) {
    case analysis::Verdict::kDoesNotFit:
    case analysis::Verdict::kFailed:
    case analysis::Verdict::kCut:
    case analysis::Verdict::kNothingUsed: return report::headline(*side.report);
    default: break;
  }
  return side.report->stopped ? report::headline(*side.report) : "";
}

struct DiffOptions {
  std::string before = "last~1", after = kLastRun, html;
  Output output;
};

Result<void> run_diff(const DiffOptions& options) {
  ExportFiles page;
  page.html = options.html;
  if (auto fine = check_exports(page, options.output.force); !fine) return fine.error();
  std::vector<Explanation> sides(2);
  for (int i = 0; i < 2; ++i) {
    auto record = open_record_input(i == 0 ? options.before : options.after);
    if (!record) return record.error();
    sides[i] = analysis::explain(*record);
  }
  const analysis::Diff diff = analysis::diff(sides[0], sides[1]);
  std::vector<report::DiffNote> notes;
  for (const Explanation& side : sides) {
    if (std::string text = reservation(side); !text.empty())
      notes.push_back({side.source, std::move(text)});
  }
  if (!options.html.empty()) {
    if (auto written =
            write_file(options.html, report::render_html(sides, {}, &diff), options.output.force);
        !written)
      return written.error();
  }
  return deliver(options.output.json ? report::diff_to_json(diff, notes)
                                     : render_diff(diff, notes, text_options(options.output)),
                 options.output);
}

struct CheckOptions {
  std::string file, max_peak, baseline, tolerance = "0%", metric;
  bool no_leak = false;
  Output output;
};

// "2%" of a size, or a size.
Result<uint64_t> tolerance_bytes(const std::string& text, uint64_t of) {
  if (!text.empty() && text.back() == '%') {
    double percent = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size() - 1, percent);
    if (error != std::errc() || end != text.data() + text.size() - 1 || percent < 0 ||
        percent > 1000)
      return Error{ErrorCode::kUsage, "the tolerance \"" + text + "\" is not a percentage",
                   "--tolerance", "for example 2% or 200MiB"};
    return static_cast<uint64_t>(percent / 100 * static_cast<double>(of));
  }
  return cards::parse_bytes(text);
}

Result<PeakMetric> metric_of(const std::string& name, const analysis::Report& report) {
  if (name == "allocated") return PeakMetric::kAllocated;
  if (name == "reserved") return PeakMetric::kReserved;
  if (name == "device") return PeakMetric::kDevice;
  // What counts is what the card has to have; a snapshot knows PyTorch's part only.
  return peak_of(report, PeakMetric::kDevice) ? PeakMetric::kDevice : PeakMetric::kReserved;
}

// Whether the run is one that can be judged: a gate never passes one that failed, ran out of
// memory, or lost a part of its record.
CheckRow verdict_row(const Explanation& explanation) {
  const analysis::Report& report = *explanation.report;
  CheckRow row{"verdict", std::nullopt, std::nullopt, true, report::headline(report)};
  if (report.from_snapshot) {
    if (!explanation.failures.empty() && !explanation.failures.back().recovered)
      row = {"out_of_memory", std::nullopt, std::nullopt, false, report::summary_of(explanation)};
    else if (report.info.count("partial") != 0)
      row = {"verdict", std::nullopt, std::nullopt, false,
             "the snapshot is cut off: what came after is not known"};
    return row;
  }
  if (report.verdict == analysis::Verdict::kDoesNotFit) row.name = "out_of_memory";
  row.passed = report.verdict == analysis::Verdict::kUnknown || analysis::fits(report.verdict);
  return row;
}

Result<bool> run_check(const CheckOptions& options) {
  if (options.max_peak.empty() && options.baseline.empty() && !options.no_leak)
    return Error{ErrorCode::kUsage, "nothing to check", "tonnage check",
                 "give --max-peak, --baseline or --no-leak"};
  auto record = open_record_input(options.file);
  if (!record) return record.error();
  const Explanation now = analysis::explain(*record);
  auto metric = metric_of(options.metric, *now.report);
  if (!metric) return metric.error();

  std::vector<CheckRow> rows;
  const auto peak = peak_of(*now.report, *metric);
  const std::string metric_name = analysis::peak_metric_name(*metric);
  if (CheckRow row = verdict_row(now); !row.passed) rows.push_back(std::move(row));
  if (!peak && rows.empty() && (!options.max_peak.empty() || !options.baseline.empty()))
    return Error{ErrorCode::kUnsupported, "the record has no " + metric_name + " peak",
                 options.file, "try --metric reserved"};
  if (!options.max_peak.empty() && peak) {
    auto limit = cards::parse_bytes(options.max_peak);
    if (!limit) return limit.error();
    CheckRow row{"max_peak", peak, *limit, *peak <= *limit, ""};
    row.text = fmt::format("{} peak {} of at most {}", metric_name, analysis::size_text(*peak),
                           analysis::size_text(*limit));
    rows.push_back(std::move(row));
  }
  if (!options.baseline.empty() && peak) {
    auto old = open_record_input(options.baseline);
    if (!old) return old.error();
    const Explanation before = analysis::explain(*old);
    if (const CheckRow row = verdict_row(before); !row.passed)
      rows.push_back({"baseline_complete", std::nullopt, std::nullopt, false,
                      "the baseline is no measure: " + row.text});
    const auto base = peak_of(*before.report, *metric);
    if (!base)
      return Error{ErrorCode::kUnsupported, "the baseline has no " + metric_name + " peak",
                   options.baseline, "try --metric reserved"};
    auto tolerance = tolerance_bytes(options.tolerance, *base);
    if (!tolerance) return tolerance.error();
    CheckRow row{"baseline", peak, *base + *tolerance, *peak <= *base + *tolerance, ""};
    row.text = fmt::format("{} peak {}, baseline {} + tolerance {}", metric_name,
                           analysis::size_text(*peak), analysis::size_text(*base),
                           analysis::size_text(*tolerance));
    rows.push_back(std::move(row));
  }
  if (options.no_leak) {
    CheckRow row{"no_leak", std::nullopt, std::nullopt, true,
                 "no memory is left behind step by step"};
    for (const analysis::Finding& finding : now.findings) {
      if (!finding.bytes_per_step) continue;
      row.passed = false;
      row.value = finding.bytes_per_step;
      row.text = report::words_of(finding.text);
      break;
    }
    rows.push_back(std::move(row));
  }
  bool passed = true;
  for (const CheckRow& row : rows) passed = passed && row.passed;

  std::string text;
  if (options.output.json) {
    text = report::check_to_json(options.file, metric_name, rows, passed);
  } else {
    for (const CheckRow& row : rows)
      text += wrap_text(row.text, 100, row.passed ? "ok      " : "FAILED  ", "        ");
  }
  auto delivered = deliver(text, options.output);
  if (!delivered) return delivered.error();
  return passed;
}

}  // namespace

void add_explain_commands(CLI::App& app, int& exit_code) {
  auto explain_options = std::make_shared<ExplainOptions>();
  CLI::App* explain = app.add_subcommand("explain",
                                         "What filled the memory, why it ran out, and what to do: "
                                         "of the last run, a PyTorch snapshot, a record or a log");
  explain->footer(R"(
Without a file: the last run that `tonnage run` kept; last~1 is the one before it.
Examples:
  tonnage explain
  tonnage explain snapshot.pickle --memory 24GiB
  tonnage explain run.tonnage --brief
  tonnage explain train.log snapshot.pickle
  python train.py 2>&1 | tonnage explain -)");
  explain
      ->add_option("file", explain_options->files,
                   "Snapshots (.pickle, also .gz, .xz, .zst), records, logs; - is standard input; "
                   "without one the last run")
      ->type_name("FILE");
  explain
      ->add_option("--memory", explain_options->memory,
                   "The card's memory, e.g. 24GiB: snapshots do not say it")
      ->type_name("SIZE");
  explain->add_flag("--brief", explain_options->brief, "Without the tables of the report");
  add_export_options(explain, explain_options->exports);
  add_output_options(explain, explain_options->output);
  explain->callback([explain_options, &exit_code] {
    const auto done = run_explain(*explain_options);
    if (!done) say(done.error());
    exit_code = done ? kExitSuccess : exit_code_of(done.error());
  });

  auto diff_options = std::make_shared<DiffOptions>();
  CLI::App* diff = app.add_subcommand(
      "diff", "What grew between two runs, snapshots or records, by category and line");
  diff->footer(R"(
Without files: the last two runs that were kept. With one: that one, and the last run.
Examples:
  tonnage diff
  tonnage diff before.tonnage after.tonnage
  tonnage diff monday.pickle friday.pickle --json
A side that ran out of memory, failed or was cut is said to be so: its figures end there.)");
  diff->add_option("before", diff_options->before, "The old one")->type_name("FILE");
  diff->add_option("after", diff_options->after, "The new one")->type_name("FILE");
  diff->add_option("--html", diff_options->html,
                   "Also write both side by side as one HTML file, for a browser, offline")
      ->type_name("FILE");
  add_output_options(diff, diff_options->output);
  diff->callback([diff_options, &exit_code] {
    const auto done = run_diff(*diff_options);
    if (!done) say(done.error());
    exit_code = done ? kExitSuccess : exit_code_of(done.error());
  });

  auto check_options = std::make_shared<CheckOptions>();
  CLI::App* check = app.add_subcommand(
      "check", "A gate for CI: exit code 3 if a run, snapshot or record crosses a threshold");
  check->footer(R"(
A run that failed, ran out of memory, was killed or lost a part of its record never passes.
Examples:
  tonnage check run.tonnage --max-peak 10GiB
  tonnage check run.tonnage --baseline main.tonnage --tolerance 2%
  tonnage check run.tonnage --no-leak --metric allocated --max-peak 8GiB)");
  check
      ->add_option("file", check_options->file,
                   "The snapshot or record; last: the last run that was kept")
      ->required()
      ->type_name("FILE");
  check->add_option("--max-peak", check_options->max_peak, "Largest peak, e.g. 10GiB")
      ->type_name("SIZE");
  check
      ->add_option("--baseline", check_options->baseline,
                   "An earlier snapshot or record that the peak is compared with")
      ->type_name("FILE");
  check
      ->add_option("--tolerance", check_options->tolerance,
                   "How far above the baseline is fine: a percentage or a size")
      ->capture_default_str()
      ->type_name("2%|SIZE");
  check
      ->add_option("--metric", check_options->metric,
                   "Which peak: device (default where it is known), reserved (default for "
                   "snapshots) or allocated")
      ->check(CLI::IsMember({"device", "reserved", "allocated"}));
  check->add_flag("--no-leak", check_options->no_leak, "Also fail if memory grows step by step");
  add_output_options(check, check_options->output);
  check->callback([check_options, &exit_code] {
    const auto passed = run_check(*check_options);
    if (!passed) say(passed.error());
    exit_code = !passed ? exit_code_of(passed.error()) : *passed ? kExitSuccess : kExitDoesNotFit;
  });
}

}  // namespace tonnage::cli
