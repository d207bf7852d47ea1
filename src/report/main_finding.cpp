#include "report/main_finding.h"

#include <fmt/format.h>

#include <algorithm>

#include "report/need_text.h"
#include "report/style.h"
#include "report/words/words.h"

namespace tonnage::report {
namespace {

using analysis::Explanation;
using analysis::Finding;
using analysis::FindingKind;
using analysis::Report;
using analysis::Verdict;

// Of a run that ended out of memory: the reason of its last failure. Else what it should know all
// the same: memory that stays behind, memory that is reserved for nothing.
const Finding* main_of(const Explanation& explanation) {
  const bool ran_out = explanation.report && explanation.report->verdict == Verdict::kDoesNotFit;
  const int last = static_cast<int>(explanation.failures.size()) - 1;
  for (const Finding& finding : explanation.findings) {
    if (ran_out ? finding.primary && finding.failure == last
                : finding.failure < 0 && (finding.kind == FindingKind::kLeak ||
                                          finding.kind == FindingKind::kFragmentation))
      return &finding;
  }
  return nullptr;
}

std::string with_stop(std::string text) {
  if (!text.empty() && text.back() != '.' && text.back() != '!') text += '.';
  return text;
}

// On what it really needed, if that is known; else the finding's own first advice.
std::string advice_of(const Finding& finding, const Report* report) {
  if (report != nullptr && report->verdict == Verdict::kDoesNotFit) {
    for (const record::Remedy& remedy : report->need.remedies) {
      if (remedy.enough)
        return (remedy.was_run ? "Enough, it ran: " : "Enough, by estimate: ") +
               remedy_text(remedy, report->command);
    }
  }
  return finding.advice.empty() ? "" : words_of(finding.advice.front()).text;
}

}  // namespace

std::vector<std::string> main_finding(const Explanation& explanation) {
  const Finding* finding = main_of(explanation);
  if (finding == nullptr) return {};
  const char* what = finding->kind == FindingKind::kLeak ? "Leak"
                     : finding->primary                  ? "Reason"
                                                         : "Note";
  std::string text = fmt::format("{}: {}", what, words_of(finding->title));
  if (finding->site) {
    analysis::Site lines;
    lines.line = finding->site->line;
    lines.user_line = finding->site->user_line;
    const std::string place = Style(TextOptions{80, false, true}).site(lines);
    if (!place.empty()) text += ", at " + place;
  }
  if (finding->bytes_per_step)
    text += fmt::format(" ({} a step)", analysis::size_text(*finding->bytes_per_step));
  text = with_stop(text);
  const std::string advice = with_stop(advice_of(*finding, explanation.report.get()));
  if (!advice.empty()) text += " " + advice;
  return {std::move(text)};
}

}  // namespace tonnage::report
