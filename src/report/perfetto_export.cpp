#include "report/perfetto_export.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <unordered_map>

#include "analysis/timeline/breakdown.h"

namespace tonnage::report {
namespace {

using namespace analysis;
using abi::EventKind;
using abi::MemoryEvent;

constexpr size_t kStackFrames = 12;
// Track groups need numbers that do not meet: each source has kSourceStep of them, devices first,
// then its processes.
constexpr int kSourceStep = 100'000, kFirstDevice = 1, kFirstProcess = 1000;
// Tracks of a process: the steps, then two for each of its threads; slices that cross others of
// their track go to the same number kLaneStep further on.
constexpr int kStepTrack = 1, kFirstThreadTrack = 2, kLaneStep = 1'000'000;
constexpr size_t kLanes = 64;  // of a track; what crosses even more is cut off where it does

std::string json_text(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

class PerfettoWriter {
 public:
  PerfettoWriter(const Sink& sink, const PerfettoLimits& limits) : out_(sink), limits_(limits) {}

  bool write(const std::vector<Explanation>& explanations) {
    out_.put("{\"traceEvents\":[");
    for (size_t i = 0; i < explanations.size() && out_.ok(); ++i) {
      if (explanations[i].timeline) source(explanations[i], static_cast<int>(i));
    }
    out_.put("\n],\"displayTimeUnit\":\"ms\",\"otherData\":{\"made_by\":\"tonnage\"");
    for (const auto& [key, value] : facts_) out_.print(",{}:{}", json_text(key), json_text(value));
    out_.put("}}\n");
    return out_.flush();
  }

 private:
  void source(const Explanation& explanation, int number) {
    timeline_ = explanation.timeline.get();
    record_ = &timeline_->record();
    base_ = number * kSourceStep;
    timed_ = std::any_of(record_->events.begin(), record_->events.end(),
                         [](const MemoryEvent& event) { return event.time_ns > 0; });
    stack_texts_.clear();
    // Threads write their events late, by a little: no track may go back in time for it.
    end_ns_ = 0;
    times_.resize(record_->events.size());
    for (size_t i = 0; i < times_.size(); ++i)
      times_[i] = end_ns_ = std::max(end_ns_, timed_ ? record_->events[i].time_ns : 1000 * i);
    const std::string prefix = number == 0 ? "" : fmt::format("{} ", number + 1);
    fact(prefix + "source", explanation.source);
    fact(prefix + "time", timed_ ? "since the start of the record"
                                 : "the record has no times: one microsecond for each event");
    for (const auto& [device, timeline] : timeline_->devices()) {
      name_device(device);
      counters(device, timeline);
      segments(device);
      blocks(device, prefix);
    }
    processes();
    failures(explanation);
  }

  // --- the format ---
  uint64_t time_ns(size_t event) const { return event < times_.size() ? times_[event] : end_ns_; }
  void begin(char phase, int track_group, int track, uint64_t ns) {
    out_.print("{}\n{{\"ph\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":{}.{:03}", first_ ? "" : ",",
               phase, track_group, track, ns / 1000, ns % 1000);
    first_ = false;
  }
  void name_track(const char* what, int track_group, int track, const std::string& name,
                  int order) {
    begin('M', track_group, track, 0);
    out_.print(",\"name\":\"{}_name\",\"args\":{{\"name\":{}}}}}", what, json_text(name));
    begin('M', track_group, track, 0);
    out_.print(",\"name\":\"{}_sort_index\",\"args\":{{\"sort_index\":{}}}}}", what, order);
  }
  void fact(std::string key, std::string value) {
    facts_.emplace_back(std::move(key), std::move(value));
  }
  int device_group(int device) const { return base_ + kFirstDevice + device; }
  int process_group(uint32_t process) const {
    return base_ + kFirstProcess + static_cast<int>(process);
  }

  // --- devices ---
  void name_device(int device) {
    std::string name = fmt::format("GPU {}", device);
    for (const record::Device& known : record_->devices) {
      if (known.index == device && !known.name.empty()) name += " " + known.name;
    }
    name_track("process", device_group(device), 0, name, device_group(device));
  }

  void counters(int device, const DeviceTimeline& memory) {
    const std::vector<CategoryPoint> points =
        category_series(*timeline_, device, limits_.counter_points);
    if (memory.samples.size() > points.size())
      fact(fmt::format("counters of GPU {}", device),
           fmt::format("{} of {} points: the peak of each equal share of the events", points.size(),
                       memory.samples.size()));
    bool any[kCategoryCount] = {};
    for (const CategoryPoint& point : points) {
      for (size_t i = 0; i < kCategoryCount; ++i) any[i] = any[i] || point.by_category[i] > 0;
    }
    const int group = device_group(device);
    for (const CategoryPoint& point : points) {
      const uint64_t ns = time_ns(point.event);
      if (memory.has_allocator) {
        begin('C', group, 0, ns);
        out_.print(",\"name\":\"allocated\",\"args\":{{\"bytes\":{}}}}}", point.allocated_bytes);
        begin('C', group, 0, ns);
        out_.put(",\"name\":\"allocated by category\",\"args\":{");
        bool comma = false;
        for (const Category category : kRowOrder) {
          if (!any[static_cast<size_t>(category)]) continue;
          out_.print("{}\"{}\":{}", comma ? "," : "", category_name(category),
                     point.by_category[static_cast<size_t>(category)]);
          comma = true;
        }
        out_.put("}}");
        begin('C', group, 0, ns);
        out_.print(",\"name\":\"reserved\",\"args\":{{\"bytes\":{}}}}}", point.reserved_bytes);
      }
      if (!memory.has_device) continue;
      begin('C', group, 0, ns);
      out_.print(",\"name\":\"device\",\"args\":{{\"bytes\":{}}}}}", point.device_bytes);
    }
  }

  // An asynchronous slice: slices of one name share a lane in the viewers.
  template <class Args>
  void slice(int group, const char* category, const std::string& name, uint64_t from_ns,
             uint64_t to_ns, Args&& arguments) {
    const uint64_t id = ++next_id_;
    const std::string title = json_text(name);
    begin('b', group, 0, from_ns);
    out_.print(",\"cat\":\"{}\",\"id\":\"0x{:x}\",\"name\":{},\"args\":{{", category, id, title);
    arguments();
    out_.put("}}");
    begin('e', group, 0, std::max(from_ns, to_ns));
    out_.print(",\"cat\":\"{}\",\"id\":\"0x{:x}\",\"name\":{}}}", category, id, title);
  }

  void segments(int device) {
    struct Open {
      uint64_t from_ns = 0, size_bytes = 0, stream = 0;
      uint32_t stack = abi::kNoId;
      bool old = false;
    };
    std::map<uint64_t, Open> open;
    const auto close = [&](uint64_t address, const Open& segment, uint64_t to_ns, bool freed) {
      slice(device_group(device), "segment", "segment " + size_text(segment.size_bytes),
            segment.from_ns, to_ns, [&] {
              out_.print(
                  "\"address\":\"0x{:x}\",\"bytes\":{},\"stream\":{},\"freed\":{},\"older_than_the_"
                  "history\":{},\"stack\":{}",
                  address, segment.size_bytes, segment.stream, freed, segment.old,
                  stack_text(segment.stack));
            });
    };
    for (const auto& [index, state] : initial_states(*record_)) {
      if (index != device) continue;
      for (const InitialState::Segment& segment : state.segments) {
        if (!segment.expandable)
          open[segment.address] = {0, segment.size_bytes, segment.stream, abi::kNoId, true};
      }
    }
    for (size_t i = 0; i < record_->events.size() && out_.ok(); ++i) {
      const MemoryEvent& event = record_->events[i];
      if (event.device != device) continue;
      if (event.kind == EventKind::kSegmentAlloc) {
        open[event.address] = {time_ns(i), event.size_bytes, event.stream, event.stack, false};
      } else if (event.kind == EventKind::kSegmentFree) {
        const auto found = open.find(event.address);
        if (found == open.end()) continue;
        close(event.address, found->second, time_ns(i), true);
        open.erase(found);
      } else if (event.kind == EventKind::kSegmentMap || event.kind == EventKind::kSegmentUnmap) {
        // Expandable segments grow and shrink by pages, not as they were mapped: no slices.
        begin('i', device_group(device), 0, time_ns(i));
        out_.print(
            ",\"s\":\"t\",\"cat\":\"segment\",\"name\":\"segment_{} "
            "{}\",\"args\":{{\"address\":\"0x{:x}\",\"bytes\":{},\"stack\":{}}}}}",
            event.kind == EventKind::kSegmentMap ? "map" : "unmap", size_text(event.size_bytes),
            event.address, event.size_bytes, stack_text(event.stack));
      }
    }
    for (const auto& [address, segment] : open) close(address, segment, end_ns_, false);
  }

  void blocks(int device, const std::string& prefix) {
    const auto& allocations = timeline_->allocations();
    std::vector<uint32_t> chosen;
    for (uint32_t i = 0; i < allocations.size(); ++i) {
      if (allocations[i].device == device) chosen.push_back(i);
    }
    if (chosen.size() > limits_.blocks) {
      const auto larger = [&](uint32_t a, uint32_t b) {
        return allocations[a].block_bytes != allocations[b].block_bytes
                   ? allocations[a].block_bytes > allocations[b].block_bytes
                   : a < b;
      };
      std::nth_element(chosen.begin(), chosen.begin() + static_cast<std::ptrdiff_t>(limits_.blocks),
                       chosen.end(), larger);
      fact(fmt::format("{}blocks of GPU {}", prefix, device),
           fmt::format("the {} largest of {}", limits_.blocks, chosen.size()));
      chosen.resize(limits_.blocks);
      std::sort(chosen.begin(), chosen.end());
    }
    for (const uint32_t index : chosen) {
      if (!out_.ok()) return;
      const Allocation& a = allocations[index];
      const MemoryEvent* event = a.before_history || a.alloc_event >= record_->events.size()
                                     ? nullptr
                                     : &record_->events[a.alloc_event];
      const Site site = event ? timeline_->stacks().site(*event)
                              : timeline_->stacks().site(a.stack, abi::kNoId, abi::kNoId);
      std::string name = site_text(site);
      if (name.empty()) name = "line not known";
      const bool freed = a.free_event < record_->events.size();
      slice(device_group(device), "block", name, event ? time_ns(a.alloc_event) : 0,
            freed ? time_ns(a.free_event) : end_ns_, [&] {
              out_.print(
                  "\"requested_bytes\":{},\"block_bytes\":{},\"address\":\"0x{:x}\",\"category\":"
                  "\"{}\",\"freed\":{}",
                  a.requested_bytes, a.block_bytes, a.address, category_name(a.category), freed);
              if (a.before_history) out_.put(",\"older_than_the_history\":true");
              if (a.name != abi::kNoId)
                out_.print(",\"name\":{}", json_text(record_->string(a.name)));
              if (!site.op.empty()) out_.print(",\"op\":{}", json_text(site.op));
              if (!site.module.empty()) out_.print(",\"module\":{}", json_text(site.module));
              out_.print(",\"stack\":{}", stack_text(a.stack));
            });
    }
  }

  // The frames, innermost first, one a line, already quoted. Stacks repeat: each is made once.
  const std::string& stack_text(uint32_t stack) {
    auto [at, made] = stack_texts_.try_emplace(stack);
    if (!made) return at->second;
    std::string text;
    if (stack < record_->stacks.size()) {
      const auto& frames = record_->stacks[stack];
      for (size_t i = 0; i < frames.size() && i < kStackFrames; ++i)
        text += fmt::format("{}{} ({}:{})", i == 0 ? "" : "\n", record_->string(frames[i].function),
                            record_->string(frames[i].file), frames[i].line);
      if (frames.size() > kStackFrames)
        text += fmt::format("\n({} more)", frames.size() - kStackFrames);
    }
    at->second = json_text(text);
    return at->second;
  }

  // --- processes ---
  struct Slice {
    int group = 0, track = 0;
    const char* category = "";
    std::string name;
    uint64_t from_ns = 0, to_ns = 0;
  };
  struct Track {
    std::string name;
    int order = 0;
  };

  void complete(int group, int track, const char* category, std::string name, uint64_t from_ns,
                uint64_t to_ns) {
    slices_.push_back({group, track, category, std::move(name), from_ns, std::max(from_ns, to_ns)});
  }

  // Slices of a track must nest, and what is around must come first. Those that cross get further
  // tracks of the same name.
  void write_slices() {
    std::stable_sort(slices_.begin(), slices_.end(), [](const Slice& a, const Slice& b) {
      return std::tuple(a.group, a.track, a.from_ns, b.to_ns) <
             std::tuple(b.group, b.track, b.from_ns, a.to_ns);
    });
    std::vector<std::vector<uint64_t>> lanes;  // the ends of the slices that are open
    std::pair<int, int> current(-1, -1);
    for (Slice& slice : slices_) {
      if (std::pair(slice.group, slice.track) != current) {
        current = {slice.group, slice.track};
        lanes.clear();
      }
      size_t lane = 0;
      for (;; ++lane) {
        if (lane == lanes.size()) {
          lanes.emplace_back();
          const Track& track = tracks_[current];
          name_track("thread", slice.group, slice.track + static_cast<int>(lane) * kLaneStep,
                     track.name, track.order);
        }
        auto& open = lanes[lane];
        while (!open.empty() && open.back() <= slice.from_ns) open.pop_back();
        if (open.empty() || slice.to_ns <= open.back()) break;
        if (lane + 1 == kLanes) {
          slice.to_ns = open.back();
          break;
        }
      }
      lanes[lane].push_back(slice.to_ns);
      begin('X', slice.group, slice.track + static_cast<int>(lane) * kLaneStep, slice.from_ns);
      const uint64_t ns = slice.to_ns - slice.from_ns;
      out_.print(",\"dur\":{}.{:03},\"cat\":\"{}\",\"name\":{}}}", ns / 1000, ns % 1000,
                 slice.category, json_text(slice.name));
    }
    slices_.clear();
    tracks_.clear();
  }

  void processes() {
    for (uint32_t process = 0; process < record_->processes.size(); ++process) {
      const record::Process& known = record_->processes[process];
      name_track("process", process_group(process), 0,
                 known.command.empty() ? fmt::format("process {}", known.pid)
                                       : fmt::format("{} ({})", known.command, known.pid),
                 process_group(process));
    }
    for (const Step& step : timeline_->steps()) {
      if (step.first_event >= step.end_event) continue;
      tracks_[{process_group(step.process), kStepTrack}] = {"steps", 0};
      complete(
          process_group(step.process), kStepTrack, "step",
          step.complete ? fmt::format("step {}", step.number) : std::string("after the last step"),
          time_ns(step.first_event), time_ns(step.end_event - 1));
    }
    threads();
    write_slices();
  }

  void threads() {
    struct Thread {
      std::optional<size_t> phase;  // the event that entered it
      std::vector<size_t> annotations;
    };
    std::map<std::pair<uint32_t, uint32_t>, Thread> threads;
    const auto track = [&](std::pair<uint32_t, uint32_t> key, int which) {
      const int number =
          kFirstThreadTrack + 2 * static_cast<int>(key.second % (kSourceStep / 4)) + which;
      tracks_[{process_group(key.first), number}] = {
          fmt::format("{} of thread {}", which == 0 ? "phases" : "annotations", key.second),
          number};
      return number;
    };
    const auto end_phase = [&](std::pair<uint32_t, uint32_t> key, uint64_t to_ns) {
      Thread& thread = threads[key];
      if (!thread.phase) return;
      const MemoryEvent& event = record_->events[*thread.phase];
      const uint64_t from_ns = time_ns(*thread.phase);
      thread.phase.reset();
      const auto phase = static_cast<Phase>(event.value);
      if (phase == Phase::kOther) return;
      const std::string& detail = record_->string(event.name);
      complete(process_group(key.first), track(key, 0), "phase",
               detail.empty() ? phase_name(phase) : fmt::format("{} {}", phase_name(phase), detail),
               from_ns, to_ns);
    };
    const auto end_annotation = [&](std::pair<uint32_t, uint32_t> key, size_t started,
                                    uint64_t to_ns) {
      complete(process_group(key.first), track(key, 1), "annotation",
               record_->string(record_->events[started].name), time_ns(started), to_ns);
    };
    for (size_t i = 0; i < record_->events.size(); ++i) {
      const MemoryEvent& event = record_->events[i];
      const std::pair key(event.process, event.thread);
      if (event.kind == EventKind::kPhase) {
        end_phase(key, time_ns(i));
        threads[key].phase = i;
      } else if (event.kind == EventKind::kAnnotation && event.value == 0) {
        threads[key].annotations.push_back(i);
      } else if (event.kind == EventKind::kAnnotation) {
        auto& open = threads[key].annotations;
        const auto found = std::find_if(open.rbegin(), open.rend(), [&](size_t started) {
          return record_->events[started].name == event.name;
        });
        if (found == open.rend()) continue;
        end_annotation(key, *found, time_ns(i));
        open.erase(std::next(found).base());
      }
    }
    for (auto& [key, thread] : threads) {
      end_phase(key, end_ns_);
      for (const size_t started : thread.annotations) end_annotation(key, started, end_ns_);
    }
  }

  void failures(const Explanation& explanation) {
    for (const Failure& failure : explanation.failures) {
      begin('i', device_group(failure.device), 0, time_ns(failure.moment.event));
      out_.print(
          ",\"s\":\"g\",\"cat\":\"out_of_memory\",\"name\":{},\"args\":{{\"requested_bytes\":{}",
          json_text("out of memory: " + size_text(failure.request_bytes)), failure.request_bytes);
      const std::pair<const char*, std::optional<uint64_t>> figures[] = {
          {"free_bytes", failure.free_bytes},
          {"allocated_bytes", failure.allocated_bytes},
          {"reserved_bytes", failure.reserved_bytes}};
      for (const auto& [name, value] : figures) {
        if (value) out_.print(",\"{}\":{}", name, *value);
      }
      out_.print(",\"line\":{},\"stack\":{}}}}}", json_text(site_text(failure.moment.site)),
                 stack_text(record_->events[failure.moment.event].stack));
    }
  }

  SinkBuffer out_;
  const PerfettoLimits& limits_;
  const Timeline* timeline_ = nullptr;
  const record::Record* record_ = nullptr;
  std::unordered_map<uint32_t, std::string> stack_texts_;
  std::vector<std::pair<std::string, std::string>> facts_;
  std::vector<uint64_t> times_;  // by event, never going back
  std::vector<Slice> slices_;
  std::map<std::pair<int, int>, Track> tracks_;  // group and number
  uint64_t end_ns_ = 0, next_id_ = 0;
  int base_ = 0;
  bool timed_ = true, first_ = true;
};

}  // namespace

bool write_perfetto(const std::vector<Explanation>& explanations, const Sink& sink,
                    const PerfettoLimits& limits) {
  return PerfettoWriter(sink, limits).write(explanations);
}

}  // namespace tonnage::report
