// The trace and the tables: what they say must be what the record says, and hostile names must stay
// inside their fields.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "analysis/analysis_builder.h"
#include "report/csv_export.h"
#include "report/perfetto_export.h"
#include "report/words/words.h"
#include "sources/snapshot/snapshot_reader.h"

namespace tonnage::report {
namespace {

using abi::Category;
using abi::Phase;
using analysis::testing::EventKind;
using analysis::testing::kMiB;
using analysis::testing::PlainAllocator;
using analysis::testing::RecordBuilder;
using nlohmann::json;

constexpr const char* kHostile = "=1+2,\"x\"\n</script>\xff";

std::vector<analysis::Explanation> explained(const RecordBuilder& builder) {
  return {analysis::explain(std::make_shared<const record::Record>(builder.record))};
}

// Two steps of a program with phases, an annotation, a failure, and a tensor with a hostile name.
struct Sample {
  RecordBuilder b;
  PlainAllocator allocator{b};
  Sample() {
    b.record.source = "a, b.tonnage";
    const uint32_t line =
        b.stack({{"/home/u/model.py", 21, kHostile}, {"/home/u/train.py", 90, "main"}});
    for (uint64_t step = 1; step <= 2; ++step) {
      b.add(EventKind::kPhase, 0, 0, static_cast<uint64_t>(Phase::kForward));
      b.add(EventKind::kAnnotation, 0, 0, 0, "load");
      b.in(Phase::kForward).from(line).op("aten::mm").module(kHostile);
      const uint64_t large = allocator.alloc(12 * kMiB);
      b.add(EventKind::kLabel, large, 0, static_cast<uint64_t>(Category::kActivation), kHostile);
      const uint64_t small = allocator.alloc(1000);
      b.add(EventKind::kAnnotation, 0, 0, 1, "load");
      b.add(EventKind::kPhase, 0, 0, static_cast<uint64_t>(Phase::kBackward));
      allocator.release(large);
      if (step == 2) allocator.release(small);
      b.add(EventKind::kStep, 0, 0, step);
    }
    b.add(EventKind::kOom, 0, 900 * kMiB, 5 * kMiB);
  }
};

json trace_of(const std::vector<analysis::Explanation>& explanations,
              const trace::JsonLimits& limits = {}) {
  std::string text;
  EXPECT_TRUE(write_chrome_trace(
      explanations,
      [&](std::string_view piece) {
        text += piece;
        return true;
      },
      limits));
  return json::parse(text);
}

std::vector<json> of(const json& trace, const std::string& phase,
                     const std::string& category = "") {
  std::vector<json> out;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] == phase && (category.empty() || event.value("cat", "") == category))
      out.push_back(event);
  }
  return out;
}

// What viewers rely on (the Trace Event Format): fields by kind of event, counters in order, slices
// of a track that nest, asynchronous slices that begin and end, a name for every track, steps one
// after the other.
void check_trace(const json& trace) {
  ASSERT_TRUE(trace.is_object() && trace["traceEvents"].is_array() &&
              trace["otherData"].is_object());
  EXPECT_EQ(trace["displayTimeUnit"], "ms");
  using Track = std::pair<int64_t, int64_t>;
  std::map<std::pair<int64_t, std::string>, int64_t> counters;
  std::map<Track, std::vector<int64_t>> open;  // ends of the slices around the last one
  std::map<Track, int64_t> begun;
  std::map<std::string, json> async;
  std::set<std::string> ids;
  std::set<int64_t> used, named;
  std::set<Track> used_tracks, named_tracks;
  std::map<int64_t, uint64_t> last_step;
  std::map<int64_t, int64_t> step_end;
  const auto ns = [](const json& us) {
    return static_cast<int64_t>(std::llround(us.get<double>() * 1000));
  };
  for (const json& event : trace["traceEvents"]) {
    ASSERT_TRUE(event["ph"].is_string() && event["name"].is_string() &&
                event["pid"].is_number_integer() && event["tid"].is_number_integer())
        << event;
    ASSERT_TRUE(event["ts"].is_number() && event["ts"] >= 0) << event;
    const std::string ph = event["ph"], name = event["name"];
    const int64_t pid = event["pid"], ts = ns(event["ts"]);
    const Track track{pid, event["tid"]};
    if (ph == "M") {
      ASSERT_TRUE(name == "process_name" || name == "thread_name" || name == "process_sort_index" ||
                  name == "thread_sort_index")
          << event;
      ASSERT_TRUE(name.ends_with("_name") ? event["args"]["name"].is_string()
                                          : event["args"]["sort_index"].is_number_integer())
          << event;
      const bool first = name == "process_name"  ? named.insert(pid).second
                         : name == "thread_name" ? named_tracks.insert(track).second
                                                 : true;
      EXPECT_TRUE(first) << event;
      continue;
    }
    used.insert(pid);
    if (ph == "C") {
      ASSERT_TRUE(event["args"].is_object() && !event["args"].empty()) << event;
      for (const auto& [key, value] : event["args"].items())
        ASSERT_TRUE(value.is_number_unsigned()) << event;
      const auto [last, first] = counters.try_emplace({pid, name}, ts);
      EXPECT_TRUE(first || last->second <= ts) << event;
      last->second = ts;
    } else if (ph == "X") {
      used_tracks.insert(track);
      const int64_t end = ts + ns(event["dur"]);
      ASSERT_GE(end, ts) << event;
      const auto [last, first] = begun.try_emplace(track, ts);
      EXPECT_LE(last->second, ts) << event;
      last->second = ts;
      auto& around = open[track];
      while (!around.empty() && around.back() <= ts && around.back() < end) around.pop_back();
      EXPECT_TRUE(around.empty() || end <= around.back())
          << "overlaps the slice around it: " << event;
      around.push_back(end);
      if (event["cat"] == "step") {
        EXPECT_TRUE(!step_end.contains(pid) || step_end[pid] <= ts) << event;
        step_end[pid] = end;
        if (name.starts_with("step ")) {
          const uint64_t number = std::stoull(name.substr(5));
          EXPECT_GT(number, last_step[pid]) << event;
          last_step[pid] = number;
        }
      }
    } else if (ph == "b" || ph == "e") {
      const std::string id = event["id"];
      if (ph == "b") {
        EXPECT_TRUE(ids.insert(id).second) << event;
        async[id] = event;
        continue;
      }
      ASSERT_TRUE(async.contains(id)) << event;
      EXPECT_TRUE(async[id]["name"] == name && async[id]["cat"] == event["cat"] &&
                  async[id]["pid"] == event["pid"] && ns(async[id]["ts"]) <= ts)
          << event;
      async.erase(id);
    } else {
      ASSERT_EQ(ph, "i") << event;
      EXPECT_TRUE(event["s"] == "t" || event["s"] == "p" || event["s"] == "g") << event;
    }
  }
  EXPECT_TRUE(async.empty());
  EXPECT_EQ(used.size(), std::count_if(used.begin(), used.end(),
                                       [&](int64_t pid) { return named.contains(pid); }));
  for (const Track& track : used_tracks)
    EXPECT_TRUE(named_tracks.contains(track)) << track.first << " " << track.second;
}

TEST(TraceExport, IsWhatViewersRelyOn) {
  Sample sample;
  check_trace(trace_of(explained(sample.b)));
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(TONNAGE_SOURCE_DIR) +
                                                               "/tests/data/snapshots")) {
    if (entry.path().extension() != ".xz") continue;
    auto record = sources::read_snapshot(entry.path().string());
    ASSERT_TRUE(record.has_value());
    SCOPED_TRACE(entry.path().filename().string());
    check_trace(
        trace_of({analysis::explain(std::make_shared<const record::Record>(std::move(*record)))}));
    ++files;
  }
  EXPECT_GE(files, 8u);
}

TEST(TraceExport, AnnotationsThatCrossGetTracksOfTheirOwn) {
  RecordBuilder b;
  PlainAllocator allocator(b);
  const auto annotate = [&](const char* name, uint64_t ends) {
    b.add(EventKind::kAnnotation, 0, 0, ends, name);
  };
  annotate("outer", 0);
  annotate("load", 0);
  allocator.alloc(4 * kMiB);
  annotate("compute", 0);  // begins within "load" and ends after it
  annotate("load", 1);
  allocator.alloc(4 * kMiB);
  annotate("compute", 1);
  annotate("outer", 1);
  const json trace = trace_of(explained(b));
  check_trace(trace);
  const auto slices = of(trace, "X", "annotation");
  ASSERT_EQ(slices.size(), 3u);
  EXPECT_EQ(slices[0]["name"], "outer");  // what is around comes first
  std::map<std::string, int> tracks;
  for (const json& slice : slices) tracks[slice["name"]] = slice["tid"];
  EXPECT_EQ(tracks["outer"], tracks["load"]);
  EXPECT_NE(tracks["load"], tracks["compute"]);
}

TEST(TraceExport, ThousandsThatCrossAreBounded) {
  RecordBuilder b;
  PlainAllocator allocator(b);
  allocator.alloc(4 * kMiB);
  for (const uint64_t ends : {0u, 1u}) {
    for (int i = 0; i < 3000; ++i) b.add(EventKind::kAnnotation, 0, 0, ends, std::to_string(i));
  }
  const json trace = trace_of(explained(b));
  check_trace(trace);
  EXPECT_EQ(of(trace, "X", "annotation").size(), 3000u);
}

TEST(TraceExport, AHistoryThatBeginsInTheMiddleHasAStepTrack) {
  Sample sample;
  uint64_t number = 7;
  for (auto& event : sample.b.record.events) {
    if (event.kind == EventKind::kStep) event.value = number++;
  }
  const json trace = trace_of(explained(sample.b));
  check_trace(trace);
  ASSERT_FALSE(of(trace, "X", "step").empty());
  EXPECT_EQ(of(trace, "X", "step")[0]["name"], "step 7");
}

// Threads write their events late: times may go back by a little.
TEST(TraceExport, TimesThatGoBackAreSetRight) {
  Sample sample;
  for (size_t i = 3; i < sample.b.record.events.size(); i += 4)
    sample.b.record.events[i].time_ns -= 2500;
  check_trace(trace_of(explained(sample.b)));
}

TEST(TraceExport, CountersAreTheTimeline) {
  Sample sample;
  const auto explanations = explained(sample.b);
  const json trace = trace_of(explanations);
  uint64_t peak = 0, reserved = 0;
  for (const json& counter : of(trace, "C")) {
    if (counter["name"] == "allocated") peak = std::max<uint64_t>(peak, counter["args"]["bytes"]);
    if (counter["name"] == "reserved")
      reserved = std::max<uint64_t>(reserved, counter["args"]["bytes"]);
  }
  EXPECT_EQ(peak, explanations[0].report->devices.at(0).allocated->bytes);
  EXPECT_EQ(reserved, explanations[0].report->devices.at(0).reserved->bytes);
  // By category and as a sum: the same at every point.
  std::map<double, uint64_t> sums, totals;
  for (const json& counter : of(trace, "C")) {
    if (counter["name"] == "allocated") totals[counter["ts"]] = counter["args"]["bytes"];
    if (counter["name"] != "allocated by category") continue;
    uint64_t sum = 0;
    for (const auto& [name, bytes] : counter["args"].items()) sum += bytes.get<uint64_t>();
    sums[counter["ts"]] = sum;
  }
  EXPECT_GT(sums.size(), 4u);
  EXPECT_EQ(sums, totals);
}

TEST(TraceExport, BlocksLiveFromAllocationToFree) {
  Sample sample;
  const json trace = trace_of(explained(sample.b));
  const auto begun = of(trace, "b", "block"), ended = of(trace, "e", "block");
  ASSERT_EQ(begun.size(), 4u);
  ASSERT_EQ(ended.size(), 4u);
  std::map<std::string, double> ends;
  for (const json& end : ended) ends[end["id"]] = end["ts"];
  size_t freed = 0;
  for (const json& block : begun) {
    ASSERT_TRUE(ends.contains(block["id"]));
    EXPECT_LT(block["ts"].get<double>(), ends[block["id"]]);
    EXPECT_EQ(block["name"], "model.py:21");
    EXPECT_EQ(block["args"]["op"], "aten::mm");
    EXPECT_NE(block["args"]["stack"].get<std::string>().find("main (/home/u/train.py:90)"),
              std::string::npos);
    freed += block["args"]["freed"] == true;
  }
  EXPECT_EQ(freed, 3u);
  EXPECT_EQ(of(trace, "b", "segment").size(), 2u);
}

TEST(TraceExport, StepsPhasesAnnotationsAndFailures) {
  Sample sample;
  const json trace = trace_of(explained(sample.b));
  std::set<std::string> names;
  for (const json& slice : of(trace, "X")) {
    names.insert(slice["name"]);
    EXPECT_GE(slice["dur"].get<double>(), 0);
  }
  for (const char* name : {"step 1", "step 2", "forward", "backward", "load"})
    EXPECT_TRUE(names.contains(name)) << name;
  const auto failures = of(trace, "i", "out_of_memory");
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0]["args"]["requested_bytes"], 900 * kMiB);
  EXPECT_EQ(failures[0]["args"]["free_bytes"], 5 * kMiB);
  EXPECT_EQ(failures[0]["s"], "g");
}

TEST(TraceExport, SourcesAndTheirTracksAreApart) {
  Sample first, second;
  std::vector<analysis::Explanation> both = explained(first.b);
  both.push_back(explained(second.b).front());
  both.emplace_back();  // a log has no events
  const json trace = trace_of(both);
  std::set<int> groups;
  std::set<std::string> ids;
  for (const json& event : trace["traceEvents"]) groups.insert(event["pid"].get<int>());
  for (const json& event : of(trace, "b")) EXPECT_TRUE(ids.insert(event["id"]).second);
  EXPECT_EQ(groups.size(), 4u);  // a device and a process of each
}

TEST(TraceExport, TooMuchForAViewerIsLeftOutAndSaid) {
  Sample sample;
  const json trace = trace_of(explained(sample.b), {3, 2});
  EXPECT_EQ(of(trace, "C").size(), 3u * 4);
  const auto blocks = of(trace, "b", "block");
  ASSERT_EQ(blocks.size(), 2u);
  for (const json& block : blocks) EXPECT_EQ(block["args"]["requested_bytes"], 12 * kMiB);
  EXPECT_EQ(trace["otherData"]["blocks of GPU 0"], "the 2 largest of 4");
  EXPECT_TRUE(trace["otherData"].contains("counters of GPU 0"));
}

TEST(TraceExport, WithoutTimesEventsAreCounted) {
  Sample sample;
  for (auto& event : sample.b.record.events) event.time_ns = 0;
  const json trace = trace_of(explained(sample.b));
  double last = 0;
  for (const json& event : of(trace, "X", "step")) {
    EXPECT_GE(event["ts"].get<double>(), last);
    last = event["ts"];
  }
  EXPECT_GT(last, 0);
}

TEST(TraceExport, AFullDiskStopsIt) {
  Sample sample;
  int pieces = 0;
  EXPECT_FALSE(write_chrome_trace(explained(sample.b), [&](std::string_view) {
    ++pieces;
    return false;
  }));
  EXPECT_EQ(pieces, 1);
}

TEST(TraceExport, WhateverACutSnapshotGivesCanBeWritten) {
  std::ifstream file(std::string(TONNAGE_SOURCE_DIR) + "/tests/data/pickles/protocol4.pickle",
                     std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(file)), {});
  ASSERT_GT(whole.size(), 1000u);
  size_t answers = 0;
  for (size_t size = 1; size <= whole.size(); ++size) {
    auto input = sources::Input::from_memory(std::string_view(whole).substr(0, size), "cut");
    ASSERT_TRUE(input.has_value());
    auto record = sources::read_snapshot(**input);
    if (!record) continue;
    ++answers;
    const std::vector<analysis::Explanation> explanations = {
        analysis::explain(std::make_shared<const record::Record>(std::move(*record)))};
    EXPECT_FALSE(report::summary_of(explanations[0]).empty());
    trace_of(explanations);
    EXPECT_TRUE(write_perfetto(explanations, [](std::string_view) { return true; }));
    EXPECT_TRUE(write_allocations_csv(explanations, [](std::string_view) { return true; }));
    EXPECT_TRUE(write_events_csv(explanations, [](std::string_view) { return true; }));
  }
  EXPECT_GT(answers, 10u);
}

// A reader of RFC 4180, as spreadsheets and pandas are.
std::vector<std::map<std::string, std::string>> rows_of(const std::string& text) {
  std::vector<std::vector<std::string>> lines(1, {""});
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '"' && i + 1 < text.size() && text[i + 1] == '"')
      lines.back().back() += text[++i];
    else if (c == '"')
      quoted = !quoted;
    else if (!quoted && c == ',')
      lines.back().emplace_back();
    else if (!quoted && c == '\n')
      lines.push_back({""});
    else
      lines.back().back() += c;
  }
  lines.pop_back();
  std::vector<std::map<std::string, std::string>> rows;
  for (size_t i = 1; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i].size(), lines[0].size()) << i;
    if (lines[i].size() != lines[0].size()) continue;
    auto& row = rows.emplace_back();
    for (size_t column = 0; column < lines[i].size(); ++column)
      row[lines[0][column]] = lines[i][column];
  }
  return rows;
}

template <class Write>
std::vector<std::map<std::string, std::string>> table(
    Write write, const std::vector<analysis::Explanation>& explanations) {
  std::string text;
  EXPECT_TRUE(write(explanations, [&](std::string_view piece) {
    text += piece;
    return true;
  }));
  return rows_of(text);
}

TEST(CsvExport, AllocationsLiveAtThePeakAddUpToIt) {
  Sample sample;
  const auto explanations = explained(sample.b);
  const auto rows = table(write_allocations_csv, explanations);
  ASSERT_EQ(rows.size(), 4u);
  uint64_t live = 0;
  for (const auto& row : rows) {
    EXPECT_EQ(row.at("source"), "a, b.tonnage");
    EXPECT_EQ(row.at("pid"), "100");
    EXPECT_EQ(row.at("line"), "/home/u/model.py:21");
    EXPECT_EQ(row.at("op"), "aten::mm");
    EXPECT_EQ(row.at("phase"), "forward");
    if (row.at("live_at_peak") == "1") live += std::stoull(row.at("block_bytes"));
  }
  EXPECT_EQ(live, explanations[0].report->devices.at(0).allocated->bytes);
  EXPECT_EQ(rows[0].at("category"), "activations");
  EXPECT_EQ(rows[0].at("category_source"), "told");
  EXPECT_EQ(rows[0].at("step"), "1");
  EXPECT_EQ(rows[1].at("free_event"), "");  // the first step's small tensor stays
  EXPECT_EQ(rows[1].at("free_time_ns"), "");
  EXPECT_NE(rows[3].at("free_event"), "");
}

TEST(CsvExport, EventsCarryTheMemoryAfterThem) {
  Sample sample;
  const auto explanations = explained(sample.b);
  const auto rows = table(write_events_csv, explanations);
  ASSERT_EQ(rows.size(), sample.b.record.events.size());
  uint64_t peak = 0;
  for (const auto& row : rows) {
    if (!row.at("allocated_bytes").empty())
      peak = std::max<uint64_t>(peak, std::stoull(row.at("allocated_bytes")));
  }
  EXPECT_EQ(peak, explanations[0].report->devices.at(0).allocated->bytes);
  EXPECT_EQ(rows.back().at("kind"), "oom");
  EXPECT_EQ(rows.back().at("value"), std::to_string(5 * kMiB));
}

TEST(CsvExport, HostileTextStaysInItsFieldAndIsNoFormula) {
  Sample sample;
  const auto rows = table(write_allocations_csv, explained(sample.b));
  EXPECT_EQ(rows[0].at("name"), std::string("'") + kHostile);
  EXPECT_EQ(rows[0].at("module"), std::string("'") + kHostile);
  EXPECT_EQ(rows[0].at("function"), std::string("'") + kHostile);
}

}  // namespace
}  // namespace tonnage::report
