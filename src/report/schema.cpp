#include "report/schema.h"

#include "analysis/diagnosis/findings.h"
#include "analysis/diagnosis/findings_diff.h"
#include "analysis/timeline/breakdown.h"
#include "analysis/timeline/failures.h"
#include "cards/card_json.h"
#include "report/explain_json.h"
#include "report/json.h"
#include "report/schema_parts.h"

namespace tonnage::report {
namespace {

using namespace schema;
using namespace analysis;

std::vector<std::string> categories() {
  std::vector<std::string> out;
  for (size_t i = 0; i < abi::kCategoryCount; ++i)
    out.emplace_back(category_name(static_cast<Category>(i)));
  return out;
}
Json category() { return words(categories()); }
Json phase() { return words(words_of_enum<Phase>(phase_name)); }
Json verdict() { return words(words_of_enum<Verdict>(verdict_name)); }

Json version(int now) {
  return {{"const", now}, {"description", "grows when a field goes away or changes its meaning"}};
}

void add_places(Json& parts) {
  parts["place"] =
      object({{"file", text()}, {"line", maybe(count())}, {"function", maybe(text())}});
  parts["site"] =
      object({{"line", about(maybe(part("place")), "the innermost line, perhaps a library's")},
              {"user_line", about(maybe(part("place")), "the caller in the user's own code")},
              {"op", maybe(text())},
              {"module", maybe(text())}});
  parts["moment"] = object({{"event", count()},
                            {"time_ns", about(count(), "since the start of the record")},
                            {"step", maybe(count())},
                            {"phase", phase()},
                            {"process", about(count(), "the place in `processes`")},
                            {"site", part("site")}});
}

void add_peaks(Json& parts) {
  parts["breakdown"] = object(
      {{"total_bytes", bytes("what the rows add up to")},
       {"total_is_device", about(flag(), "the total is the device's; else the reserved memory")},
       {"allocated_bytes", bytes()},
       {"reserved_bytes", bytes()},
       {"requested_bytes", bytes()},
       {"pending_bytes", bytes("freed, but another stream may still use it; part of `cached`")},
       {"rows", list(object({{"category", category()},
                             {"bytes", bytes()},
                             {"inferred_bytes", bytes("of it by the tensors' lives, not told")},
                             {"confidence", share()},
                             {"modelled", flag()}}))}});
  parts["peak"] =
      object({{"bytes", bytes()}, {"moment", part("moment")}, {"breakdown", part("breakdown")}});
}

void add_device(Json& parts) {
  parts["live_group"] = object({{"count", count()},
                                {"size_bytes", bytes("of one")},
                                {"block_bytes", bytes()},
                                {"category", category()},
                                {"inferred", flag()},
                                {"name", maybe(text())},
                                {"kind", maybe(text())},
                                {"step", maybe(count())},
                                {"site", part("site")}});
  parts["step"] = object({{"step", count()},
                          {"complete", flag()},
                          {"peak_allocated_bytes", bytes()},
                          {"peak_reserved_bytes", bytes()},
                          {"peak_device_bytes", maybe(bytes())},
                          {"allocated_after_bytes", bytes()},
                          {"duration_ns", count()},
                          {"launches", maybe(count())}});
  parts["refusal"] =
      object({{"request_bytes", bytes()},
              {"free_bytes", maybe(bytes())},
              {"allocated_bytes", bytes()},
              {"reserved_bytes", bytes()},
              {"asker", about(words(words_of_enum<Asker>(asker_name)), "or the name of a library")},
              {"from_pytorch", flag()},
              {"ended", about(flag(), "the command ended by it")},
              {"went_on", flag()},
              {"count", count()},
              {"moment", part("moment")}});
  parts["series"] = object({{"event", list(count())},
                            {"time_ns", list(count())},
                            {"allocated_bytes", list(bytes())},
                            {"reserved_bytes", list(bytes())},
                            {"device_bytes", maybe(list(bytes()))},
                            {"step_marks", list(count())}});
  const Json counter = object({{"name", text()},
                               {"process", count()},
                               {"pytorch", bytes()},
                               {"tonnage", maybe(bytes())},
                               {"equal", maybe(flag())}});
  parts["device"] =
      object({{"index", count()},
              {"name", maybe(text())},
              {"total_bytes", maybe(bytes("of the card"))},
              {"verdict", verdict()},
              {"verdict_text", maybe(prose())},
              {"headroom_bytes", maybe(integer())},
              {"uses_pytorch", flag()},
              {"allocations", count()},
              {"peak_allocated", maybe(part("peak"))},
              {"peak_reserved", maybe(part("peak"))},
              {"peak_device", maybe(part("peak"))},
              {"context_bytes_modelled", maybe(bytes())},
              {"device_bytes_by_kind", maybe(map_of(bytes()))},
              {"largest", about(list(part("live_group")), "at the allocated peak")},
              {"beside_pytorch", about(list(part("live_group")),
                                       "local memory by kernel, managed memory by line, at the "
                                       "peak of the device")},
              {"steps", list(part("step"))},
              {"out_of_memory", about(list(part("refusal")), "requests that were refused")},
              {"peak_of_steps_bytes", maybe(bytes("where the peak came after the last step"))},
              {"retries", count()},
              {"other_ways", count()},
              {"counters", about(list(counter), "PyTorch's own figures beside these")},
              {"series", part("series")}});
}

void add_process(Json& parts) {
  parts["process"] = object({{"pid", count()},
                             {"command", maybe(text())},
                             {"ended", flag()},
                             {"launches", maybe(count())},
                             {"peak_allocated_bytes", map_of(bytes())},
                             {"peak_reserved_bytes", map_of(bytes())},
                             {"peak_device_bytes", map_of(bytes())}});
  parts["end"] = object(
      {{"exit_code", integer()},
       {"signal", maybe(count())},
       {"wall_ns", count()},
       {"stopped", flag()},
       {"errors", list(object({{"pid", count()},
                               {"type", text()},
                               {"text", maybe(text())},
                               {"place", maybe(part("place"))},
                               {"memory", about(flag(), "it says that memory was missing")}}))}});
  parts["need"] = object(
      {{"repeats", about(flag(), "two steps had the same peak")},
       {"takes_share", about(flag(), "the program takes a share of any card")},
       {"steps", count()},
       {"devices", list(object({{"index", count()},
                                {"device_bytes", bytes()},
                                {"allocated_bytes", bytes()},
                                {"reserved_bytes", bytes()}}))},
       {"cards", about(list(object({{"name", text()}, {"total_bytes", bytes()}})),
                       "of the catalogue, that would do")},
       {"remedies", list(object({{"text", prose()},
                                 {"needs_bytes", bytes()},
                                 {"enough", flag()},
                                 {"was_run", about(flag(), "with this batch; else estimated")},
                                 {"batch", maybe(count())},
                                 {"batch_share", number()}}))}});
  parts["host_refusal"] =
      object({{"limit", words({"address_space", "pinned_memory", "cgroup_memory"})},
              {"request_bytes", maybe(bytes())},
              {"limit_bytes", maybe(bytes())},
              {"ended", about(flag(), "the command ended by it")},
              {"count", count()},
              {"moment", maybe(part("moment"))}});
}

void add_report(Json& parts) {
  add_places(parts);
  add_peaks(parts);
  add_device(parts);
  add_process(parts);
  const Json line = object(
      {{"count", count()}, {"bytes", bytes()}, {"name", maybe(text())}, {"site", part("site")}});
  Json assumed = line;
  assumed["properties"]["taken"] = count();
  assumed["required"].push_back("taken");
  parts["report"] = object(
      {{"schema", version(kJsonSchema)},
       {"kind", {{"const", "report"}}},
       {"source", about(maybe(text()), "the file, or which kept run")},
       {"from_snapshot", flag()},
       {"history_truncated", flag()},
       {"torch_version", maybe(text())},
       {"alloc_conf", maybe(text())},
       {"info", about(map_of(text()), "what else the file says; names may come and go")},
       {"verdict", verdict()},
       {"headline", prose()},
       {"main_finding", maybe(prose())},
       {"cut", maybe(words(words_of_enum<CutReason>(cut_reason_name)))},
       {"end", about(maybe(part("end")), "how the command ended")},
       {"need", about(maybe(part("need")), "of the second run, on a card without limit")},
       {"host_refusals",
        about(list(part("host_refusal")), "requests that this machine refused, not the card")},
       {"events", count()},
       {"launches", maybe(count())},
       {"host_pinned_peak_bytes", maybe(bytes())},
       {"devices", list(part("device"))},
       {"processes", list(part("process"))},
       {"stub_calls", about(list(text()), "functions of the driver that do nothing here")},
       {"unknown_reads", list(line)},
       {"assumed_sizes", list(assumed)},
       {"messages",
        list(object(
            {{"text", prose()}, {"level", words({"warning", "note"})}, {"count", count()}}))},
       {"inconsistencies", count()}});
}

void add_message(Json& parts) {
  parts["printed_size"] =
      object({{"bytes", bytes()}, {"plus_minus_bytes", bytes()}, {"text", text()}});
  const Json size = maybe(part("printed_size"));
  const Json process = object(
      {{"pid", maybe(count())}, {"is_self", flag()}, {"in_use", size}, {"plausible", flag()}});
  const Json frame =
      object({{"file", text()}, {"line", count()}, {"function", text()}, {"code", maybe(text())}});
  Json message = object(
      {{"format", words(words_of_enum<sources::OomFormat>(sources::oom_format_name))},
       {"framework", words(words_of_enum<sources::LogFramework>(sources::log_framework_name))},
       {"backend", maybe(text())},
       {"device", maybe(count())},
       {"rank", maybe(count())}});
  const auto add = [&](const char* name, Json value) {
    message["properties"][name] = std::move(value);
    message["required"].push_back(name);
  };
  for (const char* name : {"requested", "capacity", "free", "allocated", "reserved", "unallocated",
                           "private_pools", "allowed", "other", "peak", "arguments", "outputs",
                           "temporaries", "program", "fragmentation"})
    add(name, size);
  for (const char* name : {"tokens", "tokens_that_fit"}) add(name, maybe(count()));
  add("fraction", maybe(number()));
  for (const char* name : {"units", "units_there", "ooms", "retries"}) add(name, maybe(count()));
  add("processes", list(process));
  add("shape", list(integer()));
  for (const char* name : {"dtype", "detail", "hint"}) add(name, maybe(text()));
  add("frames", list(frame));
  add("line_number", count());
  add("count", count());
  add("text", text());
  parts["message"] = std::move(message);
}

void add_explanation(Json& parts) {
  add_report(parts);
  add_message(parts);
  parts["failure"] = object({{"device", count()},
                             {"rank", maybe(count())},
                             {"request_bytes", maybe(bytes())},
                             {"segment_bytes", maybe(bytes())},
                             {"free_bytes", maybe(bytes())},
                             {"capacity_bytes", maybe(bytes())},
                             {"allocated_bytes", maybe(bytes())},
                             {"reserved_bytes", maybe(bytes())},
                             {"limit_bytes", maybe(bytes())},
                             {"limit_is_cap", flag()},
                             {"limit_is_estimate", flag()},
                             {"limit_at_least_bytes", maybe(bytes())},
                             {"recovered", flag()},
                             {"event", maybe(count())},
                             {"step", maybe(count())},
                             {"phase", maybe(phase())},
                             {"site", maybe(part("site"))},
                             {"message", maybe(part("message"))}});
  const Json evidence = object({{"text", prose()},
                                {"bytes", maybe(bytes())},
                                {"site", maybe(part("site"))},
                                {"events", list(count())},
                                {"addresses", list(count())}});
  const Json advice =
      object({{"text", prose()}, {"saves_bytes", maybe(bytes())}, {"setting", maybe(text())}});
  parts["finding"] = object({{"kind", words(words_of_enum<FindingKind>(finding_kind_name))},
                             {"cause", words(words_of_enum<Cause>(cause_name))},
                             {"primary", about(flag(), "the main reason of its failure")},
                             {"confidence", share()},
                             {"device", count()},
                             {"failure", about(maybe(count()), "the place in `failures`")},
                             {"title", prose()},
                             {"text", prose()},
                             {"bytes", bytes()},
                             {"site", maybe(part("site"))},
                             {"bytes_per_step", maybe(bytes())},
                             {"fails_at_step", maybe(count())},
                             {"evidence", list(evidence)},
                             {"advice", list(advice)}});
  parts["explanation"] = object({{"source", about(text(), "the file, or which kept run")},
                                 {"kind", words({"log", "snapshot", "record"})},
                                 {"summary", prose()},
                                 {"failures", list(part("failure"))},
                                 {"findings", list(part("finding"))},
                                 {"limits", about(list(prose()), "what cannot be known")},
                                 {"notes", list(prose())},
                                 {"log_lines", maybe(count())},
                                 {"report", maybe(part("report"))}});
}

Json explain_schema(Json& parts) {
  add_explanation(parts);
  return object({{"schema", version(kExplainSchema)}, {"explanations", list(part("explanation"))}});
}

Json diff_schema(Json& parts) {
  add_places(parts);
  parts.erase("moment");
  parts["device"] = object(
      {{"device", count()},
       {"metrics", list(object({{"name", words({"allocated_peak", "reserved_peak", "device_peak"})},
                                {"before", maybe(bytes())},
                                {"after", maybe(bytes())}}))},
       {"categories",
        list(object({{"category", category()}, {"before", bytes()}, {"after", bytes()}}))},
       {"lines", list(object({{"site", maybe(part("site"))},
                              {"category", category()},
                              {"before", bytes()},
                              {"after", bytes()},
                              {"count_before", count()},
                              {"count_after", count()}}))}});
  return object({{"schema", version(kExplainSchema)},
                 {"before", text()},
                 {"after", text()},
                 {"notes", about(list(object({{"source", maybe(text())}, {"text", prose()}})),
                                 "what must be known of one side's figures")},
                 {"devices", list(part("device"))}});
}

Json check_schema(Json&) {
  const Json row = object({{"name", words({"max_peak", "baseline", "no_leak", "out_of_memory",
                                           "verdict", "baseline_complete"})},
                           {"value", maybe(bytes())},
                           {"limit", maybe(bytes())},
                           {"passed", flag()},
                           {"text", prose()}});
  return object({{"schema", version(kExplainSchema)},
                 {"source", text()},
                 {"metric", words({"allocated", "reserved", "device"})},
                 {"passed", flag()},
                 {"checks", list(row)}});
}

Json doctor_schema(Json&) {
  return object({{"schema", version(1)},
                 {"problems", count()},
                 {"findings", list(object({{"state", words({"ok", "note", "problem"})},
                                           {"subject", text()},
                                           {"text", prose()},
                                           {"hint", maybe(prose())}}))}});
}

// The fields of a card file are described in docs/cards.md; its own reader checks them.
Json gpus_schema(Json& parts) {
  Json card = object({{"schema", version(cards::kCardSchema)},
                      {"key", text()},
                      {"name", text()},
                      {"compute_capability", text()},
                      {"sms", count()},
                      {"memory", {{"type", "object"}}}});
  card["x-more"] = true;
  parts["card"] = std::move(card);
  parts["answers"] = object({{"name", text()},
                             {"context_bytes", bytes()},
                             {"context_is_modelled", flag()},
                             {"max_active_clusters", list(count())},
                             {"attributes", map_of(integer())}});
  return {{"oneOf", Json::array({object({{"schema", version(cards::kCardSchema)},
                                         {"cards", list(part("card"))}}),
                                 object({{"schema", version(cards::kCardSchema)},
                                         {"card", part("card")},
                                         {"answers", part("answers")}})})}};
}

Json report_schema(Json& parts) {
  add_report(parts);
  Json own = parts["report"];
  parts.erase("report");
  return own;
}

}  // namespace

const std::vector<SchemaEntry>& schemas() {
  static const std::vector<SchemaEntry> kAll = {
      {"report", "what `tonnage run --json` and `tonnage report --json` write"},
      {"explain", "what `tonnage explain --json` writes"},
      {"diff", "what `tonnage diff --json` writes"},
      {"check", "what `tonnage check --json` writes"},
      {"gpus", "what `tonnage gpus --json` writes"},
      {"doctor", "what `tonnage doctor --json` writes"}};
  return kAll;
}

std::string schema_json(std::string_view name) {
  if (name == "run") name = "report";
  Json parts = Json::object(), top;
  if (name == "report") top = report_schema(parts);
  if (name == "explain") top = explain_schema(parts);
  if (name == "diff") top = diff_schema(parts);
  if (name == "check") top = check_schema(parts);
  if (name == "gpus") top = gpus_schema(parts);
  if (name == "doctor") top = doctor_schema(parts);
  if (top.is_null()) return "";
  Json out = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
              {"$id", "urn:tonnage:schema:" + std::string(name) + ":1"},
              {"title", "tonnage " + std::string(name)}};
  for (const SchemaEntry& entry : schemas()) {
    if (name == entry.name) out["description"] = entry.about;
  }
  out.update(top);
  if (!parts.empty()) out["$defs"] = parts;
  return out.dump(2) + "\n";
}

}  // namespace tonnage::report
