#include "report/json.h"

#include <nlohmann/json.hpp>

#include "analysis/timeline/failures.h"
#include "report/headline.h"
#include "report/json_parts.h"
#include "report/need_text.h"
#include "report/text.h"

namespace tonnage::report {
namespace {

using Json = nlohmann::ordered_json;
using namespace analysis;
using parts::optional;
using parts::text;
using parts::to_value;

Json to_value(const Moment& moment) {
  return {{"event", moment.event},
          {"time_ns", moment.time_ns},
          {"step", moment.step > 0 ? Json(moment.step) : Json(nullptr)},
          {"phase", phase_name(moment.phase)},
          {"process", moment.process},
          {"site", to_value(moment.site)}};
}

Json to_value(const Breakdown& breakdown) {
  Json rows = Json::array();
  for (const BreakdownRow& row : breakdown.rows) {
    rows.push_back({{"category", category_name(row.category)},
                    {"bytes", row.bytes},
                    {"inferred_bytes", row.inferred_bytes},
                    {"confidence", row.confidence},
                    {"modelled", row.modelled}});
  }
  return {{"total_bytes", breakdown.total_bytes},
          {"total_is_device", breakdown.total_is_device},
          {"allocated_bytes", breakdown.allocated_bytes},
          {"reserved_bytes", breakdown.reserved_bytes},
          {"requested_bytes", breakdown.requested_bytes},
          {"pending_bytes", breakdown.pending_bytes},
          {"rows", std::move(rows)}};
}

Json to_value(const std::optional<Peak>& peak) {
  if (!peak) return nullptr;
  return {{"bytes", peak->bytes},
          {"moment", to_value(peak->moment)},
          {"breakdown", to_value(peak->breakdown)}};
}

Json to_value(const LiveGroup& group) {
  return {{"count", group.count},
          {"size_bytes", group.size_bytes},
          {"block_bytes", group.block_bytes},
          {"category", category_name(group.category)},
          {"inferred", group.inferred},
          {"name", text(group.name)},
          {"kind", text(group.kind)},
          {"step", group.step > 0 ? Json(group.step) : Json(nullptr)},
          {"site", to_value(group.site)}};
}

Json to_value(const StepRow& step) {
  return {{"step", step.number},
          {"complete", step.complete},
          {"peak_allocated_bytes", step.peak_allocated},
          {"peak_reserved_bytes", step.peak_reserved},
          {"peak_device_bytes", optional(step.peak_device)},
          {"allocated_after_bytes", step.allocated_after},
          {"duration_ns", step.duration_ns},
          {"launches", optional(step.launches)}};
}

Json to_value(const OutOfMemory& oom) {
  return {{"request_bytes", oom.request_bytes},
          {"free_bytes", optional(oom.free_bytes)},
          {"allocated_bytes", oom.allocated_bytes},
          {"reserved_bytes", oom.reserved_bytes},
          {"asker", oom.asker == Asker::kOtherLibrary ? oom.library : asker_name(oom.asker)},
          {"from_pytorch", oom.from_pytorch},
          {"ended", oom.ended},
          {"went_on", oom.went_on},
          {"count", oom.count},
          {"moment", to_value(oom.moment)}};
}

Json to_value(const LineCount& line, bool sizes) {
  Json out = {{"count", line.count},
              {"bytes", line.bytes},
              {"name", text(line.name)},
              {"site", to_value(line.site)}};
  if (sizes) out["taken"] = line.taken;
  return out;
}

Json to_value(const DeviceReport& device);
Json to_value(const ProcessReport& process);

Json to_value(const HostRefusal& refusal) {
  return {
      {"limit", refusal.limit},
      {"request_bytes", refusal.request_bytes > 0 ? Json(refusal.request_bytes) : Json(nullptr)},
      {"limit_bytes", refusal.limit_bytes > 0 ? Json(refusal.limit_bytes) : Json(nullptr)},
      {"ended", refusal.ended},
      {"count", refusal.count},
      {"moment", refusal.moment ? to_value(*refusal.moment) : Json(nullptr)}};
}

template <class List>
Json list(const List& values) {
  Json out = Json::array();
  for (const auto& value : values) out.push_back(to_value(value));
  return out;
}

Json to_value(const Series& series) {
  Json out = {{"event", series.event},
              {"time_ns", series.time_ns},
              {"allocated_bytes", series.allocated},
              {"reserved_bytes", series.reserved}};
  out["device_bytes"] = series.has_device ? Json(series.device) : Json(nullptr);
  out["step_marks"] = series.step_marks;
  return out;
}

Json to_value(const DeviceReport& device) {
  Json counters = Json::array();
  for (const CounterCheck& check : device.counters) {
    counters.push_back({{"name", check.name},
                        {"process", check.process},
                        {"pytorch", check.theirs},
                        {"tonnage", optional(check.ours)},
                        {"equal", check.ours ? Json(check.equal()) : Json(nullptr)}});
  }
  return {
      {"index", device.index},
      {"name", text(device.name)},
      {"total_bytes", optional(device.total_bytes)},
      {"verdict", verdict_name(device.verdict)},
      {"verdict_text", text(device_verdict_text(device))},
      {"headroom_bytes", optional(device.headroom_bytes)},
      {"uses_pytorch", device.uses_pytorch},
      {"allocations", device.allocations},
      {"peak_allocated", to_value(device.allocated)},
      {"peak_reserved", to_value(device.reserved)},
      {"peak_device", to_value(device.device)},
      {"context_bytes_modelled", device.device ? Json(device.context_bytes) : Json(nullptr)},
      {"device_bytes_by_kind", device.device ? Json(device.device_bytes_by_kind) : Json(nullptr)},
      {"largest", list(device.largest)},
      {"beside_pytorch", list(device.beside_pytorch)},
      {"steps", list(device.steps)},
      {"out_of_memory", list(device.out_of_memory)},
      {"peak_of_steps_bytes", optional(device.peak_of_steps)},
      {"retries", device.retries},
      {"other_ways", device.other_ways},
      {"counters", std::move(counters)},
      {"series", to_value(device.series)}};
}

Json to_value(const ProcessReport& process) {
  auto by_device = [](const std::map<int, uint64_t>& values) {
    Json out = Json::object();
    for (const auto& [device, bytes] : values) out[std::to_string(device)] = bytes;
    return out;
  };
  return {{"pid", process.pid},
          {"command", text(process.command)},
          {"ended", process.ended},
          {"launches", optional(process.launches)},
          {"peak_allocated_bytes", by_device(process.peak_allocated)},
          {"peak_reserved_bytes", by_device(process.peak_reserved)},
          {"peak_device_bytes", by_device(process.peak_device)}};
}

// What the command needed on a card without limit; null if that is not known.
Json need_of(const Report& report) {
  if (!report.need.known) return nullptr;
  Json devices = Json::array(), remedies = Json::array(), cards = Json::array();
  for (const record::DeviceNeed& need : report.need.devices)
    devices.push_back({{"index", need.device},
                       {"device_bytes", need.device_bytes},
                       {"allocated_bytes", need.allocated_bytes},
                       {"reserved_bytes", need.reserved_bytes}});
  const record::DeviceNeed* deciding = deciding_need(report);
  if (deciding != nullptr && !report.need.takes_share) {
    for (const CardChoice& card : cards_with(deciding->device_bytes))
      cards.push_back({{"name", card.name}, {"total_bytes", card.total_bytes}});
  }
  for (const record::Remedy& remedy : report.need.remedies)
    remedies.push_back({{"text", remedy_text(remedy, report.command)},
                        {"needs_bytes", remedy.needs_bytes},
                        {"enough", remedy.enough},
                        {"was_run", remedy.was_run},
                        {"batch", remedy.batch > 0 ? Json(remedy.batch) : Json(nullptr)},
                        {"batch_share", remedy.batch_share}});
  return {{"repeats", report.need.repeats}, {"takes_share", report.need.takes_share},
          {"steps", report.need.steps},     {"devices", std::move(devices)},
          {"cards", std::move(cards)},      {"remedies", std::move(remedies)}};
}

// How the command ended; null for what is not a run, or if it is not known.
Json end_of(const Report& report) {
  if (!report.end.known) return nullptr;
  Json errors = Json::array();
  for (const record::CommandError& error : report.end.errors)
    errors.push_back({{"pid", error.pid},
                      {"type", error.type},
                      {"text", text(error.text)},
                      {"place", to_value(Place{error.file, error.line, error.function})},
                      {"memory", error.memory}});
  return {{"exit_code", report.end.exit_code},
          {"signal", report.end.signal != 0 ? Json(report.end.signal) : Json(nullptr)},
          {"wall_ns", report.end.wall_ns},
          {"stopped", report.stopped},
          {"errors", std::move(errors)}};
}

}  // namespace

std::string to_json(const Report& report, int indent, const std::string& main_finding) {
  Json messages = Json::array();
  for (const Message& message : report.messages)
    messages.push_back({{"text", message.text},
                        {"level", message.warning ? "warning" : "note"},
                        {"count", message.count}});
  Json unknown = Json::array(), assumed = Json::array();
  for (const LineCount& line : report.unknown_reads) unknown.push_back(to_value(line, false));
  for (const LineCount& line : report.assumed_sizes) assumed.push_back(to_value(line, true));
  Json out = {{"schema", kJsonSchema},
              {"kind", "report"},
              {"source", text(report.source)},
              {"from_snapshot", report.from_snapshot},
              {"history_truncated", report.history_truncated},
              {"torch_version", text(report.torch_version)},
              {"alloc_conf", text(report.alloc_conf)},
              {"info", report.info},
              {"verdict", verdict_name(report.verdict)},
              {"headline", headline(report)},
              {"main_finding", text(main_finding)},
              {"cut", text(cut_reason_name(report.cut))},
              {"end", end_of(report)},
              {"need", need_of(report)},
              {"host_refusals", list(report.host_refusals)},
              {"events", report.events},
              {"launches", optional(report.launches)},
              {"host_pinned_peak_bytes",
               report.from_snapshot ? Json(nullptr) : Json(report.host_pinned_peak_bytes)},
              {"devices", list(report.devices)},
              {"processes", list(report.processes)},
              {"stub_calls", report.stub_calls},
              {"unknown_reads", std::move(unknown)},
              {"assumed_sizes", std::move(assumed)},
              {"messages", std::move(messages)},
              {"inconsistencies", report.inconsistencies}};
  return out.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tonnage::report
