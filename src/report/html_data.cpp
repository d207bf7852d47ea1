// What the HTML report's charts show, as JSON.
#include <nlohmann/json.hpp>

#include "analysis/timeline/breakdown.h"
#include "report/explain_json.h"
#include "report/html.h"
#include "report/html_device.h"
#include "report/json.h"
#include "report/json_parts.h"
#include "report/main_finding.h"
#include "report/need_text.h"
#include "report/text.h"
#include "report/words/words.h"

namespace tonnage::report {
namespace {

using Json = nlohmann::ordered_json;
using namespace analysis;
using parts::optional;

Json to_value(const Finding& finding, const Explanation& explanation) {
  const FindingWords words = words_of(finding, explanation);
  Json evidence = Json::array(), advice = Json::array();
  for (size_t i = 0; i < finding.evidence.size(); ++i)
    evidence.push_back({{"text", words.evidence[i]},
                        {"site", site_text(finding.evidence[i].site)},
                        {"bytes", optional(finding.evidence[i].bytes)}});
  for (size_t i = 0; i < finding.advice.size(); ++i)
    advice.push_back({{"text", words.advice[i].text},
                      {"saves_bytes", optional(finding.advice[i].saves_bytes)},
                      {"setting", words.advice[i].setting}});
  return {{"kind", finding_kind_name(finding.kind)},
          {"cause", cause_name(finding.cause)},
          {"primary", finding.primary},
          {"confidence", finding.confidence},
          {"device", finding.device},
          {"title", words.title},
          {"text", words.text},
          {"bytes", finding.bytes},
          {"site", finding.site ? site_text(*finding.site) : ""},
          {"bytes_per_step", optional(finding.bytes_per_step)},
          {"fails_at_step", optional(finding.fails_at_step)},
          {"evidence", std::move(evidence)},
          {"advice", std::move(advice)}};
}

// What `run` prints first of it; null for what is not a run.
Json verdict_of(const Explanation& explanation) {
  if (explanation.kind != Explanation::Kind::kRecord || !explanation.report) return nullptr;
  const Report& report = *explanation.report;
  return {{"name", verdict_name(report.verdict)},
          {"fits", fits(report.verdict)},
          {"headline", headline(report)},
          {"main_finding", main_finding(explanation)},
          {"need", need_lines(report)}};
}

Json report_of(const Explanation& explanation) {
  if (!explanation.report) return nullptr;
  const std::vector<std::string> finding = main_finding(explanation);
  return Json::parse(to_json(*explanation.report, -1, finding.empty() ? "" : finding.front()));
}

Json to_value(const Explanation& explanation, size_t& lives_budget) {
  Json findings = Json::array(), devices = Json::array(), tables = Json::object();
  for (const Finding& finding : explanation.findings)
    findings.push_back(to_value(finding, explanation));
  if (explanation.report && explanation.timeline) {
    OriginTables origins(*explanation.timeline);
    for (const DeviceReport& device : explanation.report->devices)
      if (explanation.timeline->devices().contains(device.index))
        devices.push_back(device_data(explanation, device, origins, lives_budget));
    tables = {
        {"strings", origins.strings()}, {"frames", origins.frames()}, {"stacks", origins.stacks()}};
  }
  Json order = Json::array();
  for (const Category category : kRowOrder) order.push_back(category_name(category));
  return {{"source", explanation.source},       {"summary", summary_of(explanation)},
          {"findings", std::move(findings)},    {"limits", limits_of(explanation)},
          {"notes", notes_of(explanation)},     {"category_order", std::move(order)},
          {"tables", std::move(tables)},        {"charts", std::move(devices)},
          {"verdict", verdict_of(explanation)}, {"report", report_of(explanation)}};
}

}  // namespace

std::string html_data(const std::vector<Explanation>& explanations, const HtmlLimits& limits,
                      const Diff* diff) {
  Json list = Json::array(), categories = Json::array();
  size_t lives_budget = limits.lives_bytes;
  for (const Explanation& explanation : explanations)
    list.push_back(to_value(explanation, lives_budget));
  for (const abi::CategoryInfo& info : abi::kCategories)
    categories.push_back({{"name", info.name}, {"title", info.title}});
  return Json{{"map_blocks", kMapBlocks},
              {"categories", std::move(categories)},
              {"diff", diff ? Json::parse(diff_to_json(*diff, {})) : Json(nullptr)},
              {"explanations", std::move(list)}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tonnage::report
