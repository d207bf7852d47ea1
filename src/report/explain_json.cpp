#include "report/explain_json.h"

#include <nlohmann/json.hpp>

#include "report/json.h"
#include "report/json_parts.h"
#include "report/need_text.h"
#include "report/words/words.h"

namespace tonnage::report {
namespace {

using Json = nlohmann::ordered_json;
using namespace analysis;
using parts::optional;
using parts::text;

// Of a finding or a block: null where nothing is known of it.
Json to_value(const Site& site) {
  const bool known = site.line.known() || site.user_line.known() || !site.op.empty();
  return known ? parts::to_value(site) : Json(nullptr);
}

Json to_value(const std::optional<sources::LogSize>& size) {
  if (!size) return nullptr;
  return {
      {"bytes", size->bytes}, {"plus_minus_bytes", size->plus_minus_bytes}, {"text", size->text}};
}

Json to_value(const sources::LogOom& oom) {
  Json processes = Json::array();
  for (const auto& process : oom.processes)
    processes.push_back({{"pid", optional(process.pid)},
                         {"is_self", process.is_self},
                         {"in_use", to_value(std::optional(process.in_use))},
                         {"plausible", process.plausible}});
  Json frames = Json::array();
  for (const auto& frame : oom.frames)
    frames.push_back({{"file", frame.file},
                      {"line", frame.line},
                      {"function", frame.function},
                      {"code", text(frame.code)}});
  return {{"format", sources::oom_format_name(oom.format)},
          {"framework", sources::log_framework_name(oom.framework)},
          {"backend", text(oom.backend)},
          {"device", optional(oom.device)},
          {"rank", optional(oom.rank)},
          {"requested", to_value(oom.requested)},
          {"capacity", to_value(oom.capacity)},
          {"free", to_value(oom.free)},
          {"allocated", to_value(oom.allocated)},
          {"reserved", to_value(oom.reserved)},
          {"unallocated", to_value(oom.unallocated)},
          {"private_pools", to_value(oom.private_pools)},
          {"allowed", to_value(oom.allowed)},
          {"other", to_value(oom.other)},
          {"peak", to_value(oom.peak)},
          {"arguments", to_value(oom.arguments)},
          {"outputs", to_value(oom.outputs)},
          {"temporaries", to_value(oom.temporaries)},
          {"program", to_value(oom.program)},
          {"fragmentation", to_value(oom.fragmentation)},
          {"tokens", optional(oom.tokens)},
          {"tokens_that_fit", optional(oom.tokens_that_fit)},
          {"fraction", optional(oom.fraction)},
          {"units", optional(oom.units)},
          {"units_there", optional(oom.units_there)},
          {"ooms", optional(oom.ooms)},
          {"retries", optional(oom.retries)},
          {"processes", std::move(processes)},
          {"shape", oom.shape},
          {"dtype", text(oom.dtype)},
          {"detail", text(oom.detail)},
          {"hint", text(oom.hint)},
          {"frames", std::move(frames)},
          {"line_number", oom.line_number},
          {"count", oom.count},
          {"text", oom.text}};
}

Json to_value(const Failure& failure) {
  return {{"device", failure.device},
          {"rank", optional(failure.rank)},
          {"request_bytes", failure.request_bytes ? Json(failure.request_bytes) : Json(nullptr)},
          {"segment_bytes", optional(failure.segment_bytes)},
          {"free_bytes", optional(failure.free_bytes)},
          {"capacity_bytes", optional(failure.capacity_bytes)},
          {"allocated_bytes", optional(failure.allocated_bytes)},
          {"reserved_bytes", optional(failure.reserved_bytes)},
          {"limit_bytes", optional(failure.limit_bytes)},
          {"limit_is_cap", failure.limit_is_cap},
          {"limit_is_estimate", failure.limit_is_estimate},
          {"limit_at_least_bytes",
           failure.limit_is_estimate ? Json(failure.limit_at_least_bytes) : Json(nullptr)},
          {"recovered", failure.recovered},
          {"event", failure.message ? Json(nullptr) : Json(failure.moment.event)},
          {"step", failure.moment.step ? Json(failure.moment.step) : Json(nullptr)},
          {"phase", failure.message ? Json(nullptr) : Json(phase_name(failure.moment.phase))},
          {"site", to_value(failure.moment.site)},
          {"message", failure.message ? to_value(*failure.message) : Json(nullptr)}};
}

Json to_value(const Finding& finding, const Explanation& explanation) {
  const report::FindingWords words = report::words_of(finding, explanation);
  Json evidence = Json::array();
  for (size_t i = 0; i < finding.evidence.size(); ++i) {
    const Evidence& entry = finding.evidence[i];
    evidence.push_back({{"text", words.evidence[i]},
                        {"bytes", optional(entry.bytes)},
                        {"site", to_value(entry.site)},
                        {"events", entry.events},
                        {"addresses", entry.addresses}});
  }
  Json advice = Json::array();
  for (size_t i = 0; i < finding.advice.size(); ++i)
    advice.push_back({{"text", words.advice[i].text},
                      {"saves_bytes", optional(finding.advice[i].saves_bytes)},
                      {"setting", text(words.advice[i].setting)}});
  return {{"kind", finding_kind_name(finding.kind)},
          {"cause", cause_name(finding.cause)},
          {"primary", finding.primary},
          {"confidence", finding.confidence},
          {"device", finding.device},
          {"failure", finding.failure >= 0 ? Json(finding.failure) : Json(nullptr)},
          {"title", words.title},
          {"text", words.text},
          {"bytes", finding.bytes},
          {"site", finding.site ? to_value(*finding.site) : Json(nullptr)},
          {"bytes_per_step", optional(finding.bytes_per_step)},
          {"fails_at_step", optional(finding.fails_at_step)},
          {"evidence", std::move(evidence)},
          {"advice", std::move(advice)}};
}

Json to_value(const Explanation& explanation) {
  Json failures = Json::array(), findings = Json::array();
  for (const Failure& failure : explanation.failures) failures.push_back(to_value(failure));
  for (const Finding& finding : explanation.findings)
    findings.push_back(to_value(finding, explanation));
  const char* kind = explanation.kind == Explanation::Kind::kLog        ? "log"
                     : explanation.kind == Explanation::Kind::kSnapshot ? "snapshot"
                                                                        : "record";
  Json out = {
      {"source", explanation.source},
      {"kind", kind},
      {"summary", report::summary_of(explanation)},
      {"failures", std::move(failures)},
      {"findings", std::move(findings)},
      {"limits", report::limits_of(explanation)},
      {"notes", report::notes_of(explanation)},
      {"log_lines",
       explanation.kind == Explanation::Kind::kLog ? Json(explanation.log_lines) : Json(nullptr)},
      {"report", nullptr}};
  if (explanation.report) out["report"] = Json::parse(report::to_json(*explanation.report, -1));
  return out;
}

// File names and log lines may hold any bytes: what is not UTF-8 is replaced.
std::string dump(const Json& value) {
  return value.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string explanations_to_json(const std::vector<Explanation>& explanations) {
  Json list = Json::array();
  for (const Explanation& explanation : explanations) list.push_back(to_value(explanation));
  return dump({{"schema", kExplainSchema}, {"explanations", std::move(list)}});
}

std::string diff_to_json(const Diff& diff, const std::vector<DiffNote>& notes) {
  Json devices = Json::array(), sides = Json::array();
  for (const DiffNote& note : notes)
    sides.push_back({{"source", text(note.source)}, {"text", note.text}});
  for (const DeviceDiff& device : diff.devices) {
    Json metrics = Json::array(), categories = Json::array(), lines = Json::array();
    for (const DiffMetric& metric : device.metrics)
      metrics.push_back({{"name", metric.name},
                         {"before", optional(metric.before)},
                         {"after", optional(metric.after)}});
    for (const DiffCategory& row : device.categories)
      categories.push_back({{"category", category_name(row.category)},
                            {"before", row.before},
                            {"after", row.after}});
    for (const DiffLine& line : device.lines)
      lines.push_back({{"site", to_value(line.site)},
                       {"category", category_name(line.category)},
                       {"before", line.before},
                       {"after", line.after},
                       {"count_before", line.count_before},
                       {"count_after", line.count_after}});
    devices.push_back({{"device", device.device},
                       {"metrics", std::move(metrics)},
                       {"categories", std::move(categories)},
                       {"lines", std::move(lines)}});
  }
  return dump({{"schema", kExplainSchema},
               {"before", diff.before},
               {"after", diff.after},
               {"notes", std::move(sides)},
               {"devices", std::move(devices)}});
}

std::string check_to_json(const std::string& source, const std::string& metric,
                          const std::vector<CheckRow>& rows, bool passed) {
  Json checks = Json::array();
  for (const CheckRow& row : rows)
    checks.push_back({{"name", row.name},
                      {"value", optional(row.value)},
                      {"limit", optional(row.limit)},
                      {"passed", row.passed},
                      {"text", row.text}});
  return dump({{"schema", kExplainSchema},
               {"source", source},
               {"metric", metric},
               {"passed", passed},
               {"checks", std::move(checks)}});
}

}  // namespace tonnage::report
