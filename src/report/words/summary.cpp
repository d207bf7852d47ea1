// One paragraph about a record, a snapshot or a log.
#include <fmt/format.h>

#include <algorithm>

#include "report/words/words.h"

namespace tonnage::report {
namespace {

using namespace analysis;
using record::Record;

const char* phase_text(Phase phase) {
  switch (phase) {
    case Phase::kInit: return "while the model is made";
    case Phase::kForward: return "in the forward pass";
    case Phase::kBackward: return "in the backward pass";
    case Phase::kOptimizer: return "in the optimizer's step";
    case Phase::kData: return "while data is loaded";
    case Phase::kEval: return "in evaluation";
    case Phase::kOther: break;
  }
  return "";
}

std::string when_text(const Moment& moment) {
  std::string out;
  if (moment.step > 0) out += fmt::format(" in step {}", moment.step);
  if (moment.phase != Phase::kOther)
    out += fmt::format("{} {}", out.empty() ? "" : ",", phase_text(moment.phase));
  return out;
}

std::string where_text(const Site& site) { return site_text(site).empty() ? "" : at_text(site); }

void add_first_advice(const Finding& finding, std::string& out) {
  if (!finding.advice.empty()) out.append(" ").append(words_of(finding.advice.front()).text) += ".";
}

const Finding* primary_of(const Explanation& explanation, int failure) {
  for (const Finding& finding : explanation.findings) {
    if (finding.failure == failure && finding.primary) return &finding;
  }
  return nullptr;
}

std::string failure_summary(const Explanation& explanation) {
  const int index = explanation.lead_failure;
  const Failure& failure = explanation.failures[static_cast<size_t>(index)];
  std::string out =
      fmt::format("Out of memory on GPU {}{}", failure.device, when_text(failure.moment));
  if (const std::string where = where_text(failure.moment.site); !where.empty())
    out += ", " + where;
  out += fmt::format(": {} more were requested", size_text(failure.request_bytes));
  if (failure.allocated_bytes && failure.reserved_bytes)
    out += fmt::format(
        ", with {} allocated and {} reserved{}", size_text(*failure.allocated_bytes),
        size_text(*failure.reserved_bytes),
        failure.limit_bytes && !failure.limit_is_cap
            ? fmt::format(" of {} that PyTorch could get", size_text(*failure.limit_bytes))
            : "");
  out += ". ";
  const Finding* primary = primary_of(explanation, index);
  if (primary) {
    out += words_of(primary->text);
    add_first_advice(*primary, out);
  }
  for (const Finding& finding : explanation.findings) {
    if (finding.failure == index && finding.cause == Cause::kMemoryFraction && &finding != primary)
      out.append(" ").append(words_of(finding.text));
  }
  if (failure.recovered) out += " The program went on afterwards.";
  if (index == 1) out += " (An earlier failure is listed below.)";
  if (index > 1) out += fmt::format(" ({} earlier failures are listed below.)", index);
  return out;
}

// What the file can know of it: a snapshot ends where it was taken, whatever came then.
std::string no_failure_text(const Record& record) {
  if (record.kind == Record::Kind::kSnapshot) {
    if (record.events.empty())
      return "The snapshot has no history: whether the program ran out of memory is not in it.";
    return record.history_truncated
               ? "No out-of-memory error is in this part of the history, which ends where the "
                 "snapshot was taken."
               : "No out-of-memory error up to the moment at which the snapshot was taken.";
  }
  const bool cut = std::any_of(record.processes.begin(), record.processes.end(),
                               [](const record::Process& process) { return !process.ended; });
  return cut ? "It did not run out of memory as far as the record goes; it ends before the program "
               "did."
             : "It did not run out of memory.";
}

std::string largest_parts(const Breakdown& breakdown) {
  std::vector<BreakdownRow> rows = breakdown.rows;
  std::erase_if(rows, [](const BreakdownRow& row) {
    return row.category == Category::kCached || row.category == Category::kContext ||
           row.category == Category::kOther || row.category == Category::kManaged ||
           row.category == Category::kLocalMemory;
  });
  std::stable_sort(rows.begin(), rows.end(),
                   [](const BreakdownRow& a, const BreakdownRow& b) { return a.bytes > b.bytes; });
  std::string out;
  for (size_t i = 0; i < rows.size() && i < 3; ++i) {
    std::string name = category_name(rows[i].category);
    std::replace(name.begin(), name.end(), '_', ' ');
    out += fmt::format("{} {} {}", i == 0 ? "" : ",", name, size_text(rows[i].bytes));
  }
  return out.empty() ? "" : " Most of it:" + out + ".";
}

std::string peak_summary(const Record& record, const Report& report) {
  const DeviceReport* fullest = nullptr;
  for (const DeviceReport& device : report.devices) {
    if (device.reserved && (!fullest || device.reserved->bytes > fullest->reserved->bytes))
      fullest = &device;
  }
  if (!fullest || !fullest->allocated) return "The record holds no allocations of PyTorch's.";
  std::string out = fmt::format("{} PyTorch allocated up to {} and reserved {} on GPU {}",
                                no_failure_text(record), size_text(fullest->allocated->bytes),
                                size_text(fullest->reserved->bytes), fullest->index);
  if (fullest->allocated->moment.step > 0)
    out += fmt::format("; the peak is in step {}", fullest->allocated->moment.step);
  if (const std::string where = where_text(fullest->allocated->moment.site); !where.empty())
    out += ", " + where;
  return out + "." + largest_parts(fullest->allocated->breakdown);
}

std::string record_summary(const Explanation& explanation) {
  if (!explanation.failures.empty()) return failure_summary(explanation);
  std::string out = peak_summary(*explanation.record, *explanation.report);
  for (const Finding& finding : explanation.findings) {
    if (finding.kind != FindingKind::kLeak && finding.kind != FindingKind::kFragmentation) continue;
    out.append(" ").append(words_of(finding.text));
    add_first_advice(finding, out);
    break;
  }
  return out;
}

std::string log_summary(const Explanation& explanation) {
  if (explanation.failures.empty()) {
    std::string out =
        fmt::format("No out-of-memory message was found in {} lines.", explanation.log_lines);
    if (!explanation.findings.empty())
      out.append(" ").append(words_of(explanation.findings.front().text));
    return out;
  }
  const int lead = explanation.lead_failure;
  const Failure& failure = explanation.failures[static_cast<size_t>(lead)];
  const Finding* primary = primary_of(explanation, lead);
  const Cause cause = primary ? primary->cause : Cause::kUnknown;
  std::string out = cause == Cause::kKernelResources ? "Out of resources of a kernel"
                    : cause == Cause::kHostMemory    ? "Out of host memory"
                                                     : "Out of memory";
  if (failure.message->device) out += fmt::format(" on GPU {}", *failure.message->device);
  if (failure.rank) out += fmt::format(" (rank {})", *failure.rank);
  if (primary && primary->site) out += ", " + at_text(*primary->site);
  if (primary) {
    out += ": " + words_of(primary->text);
    add_first_advice(*primary, out);
  }
  for (const Finding& finding : explanation.findings) {
    if (finding.failure == lead && !finding.primary) out += " Besides: " + words_of(finding.text);
  }
  if (explanation.failures.size() > 1)
    out += fmt::format(" ({} out-of-memory messages in all.)", explanation.failures.size());
  return out;
}

}  // namespace

std::string summary_of(const Explanation& explanation) {
  return explanation.kind == Explanation::Kind::kLog ? log_summary(explanation)
                                                     : record_summary(explanation);
}

std::vector<std::string> limits_of(const Explanation& explanation) {
  std::vector<std::string> out;
  for (const Fact& limit : explanation.limits)
    if (limit.statement != Statement::kNothing) out.push_back(words_of(limit));
  return out;
}

std::vector<std::string> notes_of(const Explanation& explanation) {
  std::vector<std::string> out = explanation.notes;
  if (explanation.failures_left_out > 0)
    out.push_back(fmt::format("{} failures; the last {} are explained",
                              explanation.failures_left_out + explanation.failures.size(),
                              explanation.failures.size()));
  return out;
}

}  // namespace tonnage::report
