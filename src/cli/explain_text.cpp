#include "cli/explain_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "report/headline.h"
#include "report/need_text.h"
#include "report/style.h"
#include "report/words/words.h"

namespace tonnage::cli {
namespace {

using namespace analysis;
using report::Color;
using report::Style;

constexpr int kMaxProse = 110;  // longer lines are hard to read

int prose_width(const Style& style) { return std::min(style.width(), kMaxProse); }

std::string change_text(uint64_t before, uint64_t after) {
  if (before == after) return "=";
  const bool more = after > before;
  const uint64_t by = more ? after - before : before - after;
  std::string text = fmt::format("{}{}", more ? "+" : "-", size_text(by));
  if (before == 0) return text + " (new)";
  if (after == 0) return text + " (gone)";
  // A percentage above a few hundred says nothing to anybody.
  constexpr double kMostPercent = 300;
  const double percent = 100.0 * static_cast<double>(by) / static_cast<double>(before);
  if (more && percent > kMostPercent)
    return text + fmt::format(" ({:.0f} times as much)",
                              static_cast<double>(after) / static_cast<double>(before));
  return text + fmt::format(" ({}{:.1f} %)", more ? "+" : "-", percent);
}

std::string optional_size(const std::optional<uint64_t>& bytes) {
  return bytes ? size_text(*bytes) : "not known";
}

// The user's own line; a library's only beside it.
std::string line_text(const Site& site, const Style& style, int width) {
  const Place& place = site.user_line.known() ? site.user_line : site.line;
  if (!place.known()) return "";
  std::string text = fmt::format("line: {}:{}", place.file, place.line);
  if (site.line.known() && (site.line.file != place.file || site.line.line != place.line))
    text += fmt::format(" (in {})", place_text(site.line));
  return wrap_text(style.safe(text), width, "   ", "         ");
}

void render_finding(const Finding& finding, const Explanation& explanation, size_t number,
                    const Style& style, std::string& out) {
  const int width = prose_width(style);
  const Color color = finding.primary                      ? Color::kRed
                      : finding.kind == FindingKind::kLeak ? Color::kYellow
                                                           : Color::kCyan;
  const report::FindingWords words = report::words_of(finding, explanation);
  std::string title = fmt::format("{}. {}", number, words.title);
  if (finding.primary) title += " (the main reason)";
  out += style.paint(style.safe(title), color) + "\n";
  out += wrap_text(style.safe(words.text), width, "   ", "   ");
  if (finding.site) out += line_text(*finding.site, style, width);
  for (const std::string& evidence : words.evidence)
    out += wrap_text(style.safe(evidence), width, "   - ", "     ");
  for (const report::AdviceWords& advice : words.advice) {
    std::string text = advice.text;
    if (!advice.setting.empty()) text += ": " + advice.setting;
    out += wrap_text(style.safe(text), width, "   > ", "     ");
  }
  out += fmt::format("   confidence {:.0f} %\n", 100 * finding.confidence);
}

}  // namespace

std::string wrap_text(const std::string& text, int width, const std::string& first,
                      const std::string& indent) {
  std::string out, line = first;
  bool empty = true;
  size_t at = 0;
  while (at < text.size()) {
    while (at < text.size() && (text[at] == ' ' || text[at] == '\n')) ++at;
    size_t end = at;
    while (end < text.size() && text[end] != ' ' && text[end] != '\n') ++end;
    if (end == at) break;
    const std::string word = text.substr(at, end - at);
    if (!empty && report::columns(line) + 1 + report::columns(word) > width) {
      out += line + "\n";
      line = indent;
      empty = true;
    }
    if (!empty) line += ' ';
    line += word;
    empty = false;
    at = end;
  }
  return out + line + "\n";
}

std::string render_explanation(const Explanation& explanation, const report::TextOptions& options,
                               bool with_report) {
  const Style style(options);
  std::string title = wrap_text(style.safe(explanation.source), style.width(), "", "  ");
  title.pop_back();
  std::string out = style.paint(title, Color::kBold) + "\n\n";
  // What `run` and `report` say of it, in the same words.
  if (explanation.kind == Explanation::Kind::kRecord && explanation.report)
    out +=
        wrap_text(report::headline(*explanation.report, style), prose_width(style), "", "") + "\n";
  out += wrap_text(style.safe(report::summary_of(explanation)), prose_width(style), "", "");
  if (explanation.report && !with_report) {
    for (const std::string& sentence : report::need_lines(*explanation.report))
      out += wrap_text(style.safe(sentence), prose_width(style), "  ", "    ");
  }
  for (size_t i = 0; i < explanation.findings.size(); ++i) {
    out += "\n";
    const Finding& finding = explanation.findings[i];
    // Findings of different failures: say whose they are.
    if (explanation.failures.size() > 1 && finding.failure >= 0 && finding.primary) {
      const Failure& failure = explanation.failures[static_cast<size_t>(finding.failure)];
      std::string head = fmt::format(
          "Failure {} of {}: {} asked for", finding.failure + 1, explanation.failures.size(),
          failure.request_bytes ? size_text(failure.request_bytes) : "memory");
      if (failure.rank) head += fmt::format(", rank {}", *failure.rank);
      if (failure.message && failure.message->count > 1)
        head += fmt::format(", printed {} times", failure.message->count);
      if (failure.recovered) head += ", the program went on";
      out += style.paint(style.safe(head), Color::kBold) + "\n";
    }
    render_finding(finding, explanation, i + 1, style, out);
  }
  if (const auto limits = report::limits_of(explanation); !limits.empty()) {
    out += "\nWhat cannot be known\n";
    for (const std::string& limit : limits)
      out += wrap_text(style.safe(limit), prose_width(style), "  - ", "    ");
  }
  if (const auto notes = report::notes_of(explanation); !notes.empty()) {
    out += "\nAbout the file\n";
    for (const std::string& note : notes)
      out += wrap_text(style.safe(note), prose_width(style), "  - ", "    ");
  }
  if (with_report && explanation.report)
    out.append("\n")
        .append(style.rule(style.width()))
        .append("\n\n")
        .append(report::render_text(*explanation.report, options));
  return out;
}

std::string render_diff(const Diff& diff, const std::vector<report::DiffNote>& notes,
                        const report::TextOptions& options) {
  const Style style(options);
  std::string out = style.safe(diff.before) + "  ->  " + style.safe(diff.after) + "\n";
  if (report::columns(out) > style.width())
    out = wrap_text(style.safe(diff.before), style.width(), "before: ", "        ") +
          wrap_text(style.safe(diff.after), style.width(), "after:  ", "        ");
  for (const report::DiffNote& note : notes)
    out += wrap_text(style.safe(note.source + ": " + note.text), prose_width(style), "! ", "  ");
  for (const DeviceDiff& device : diff.devices) {
    out += "\n" + style.paint(fmt::format("GPU {}", device.device), Color::kBold) + "\n";
    for (const DiffMetric& metric : device.metrics) {
      std::string name = metric.name;
      std::replace(name.begin(), name.end(), '_', ' ');
      out += "  " + style.left(name, 18) + style.right(optional_size(metric.before), 12) +
             style.right(optional_size(metric.after), 12) + "  ";
      out += metric.before && metric.after ? change_text(*metric.before, *metric.after) : "";
      out += "\n";
    }
    if (!device.categories.empty()) out += "  at the allocated peak, by category\n";
    for (const DiffCategory& row : device.categories)
      out += "    " + style.left(report::category_title(row.category), 16) +
             style.right(size_text(row.before), 12) + style.right(size_text(row.after), 12) + "  " +
             change_text(row.before, row.after) + "\n";
    if (!device.lines.empty()) out += "  by line, what changed most\n";
    for (const DiffLine& line : device.lines) {
      std::string place = site_text(line.site);
      if (place.empty()) place = "(no line recorded)";
      out += "    " + style.right(change_text(line.before, line.after), 24) + "  " +
             style.fit(fmt::format("{}  {}, {} -> {} tensors", place,
                                   report::category_title(line.category), line.count_before,
                                   line.count_after),
                       style.width() - 30) +
             "\n";
    }
    if (device.lines.empty()) out += "  no line changed\n";
  }
  return out;
}

}  // namespace tonnage::cli
