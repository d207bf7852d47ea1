#include "report/trace/walk.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "analysis/timeline/category_walk.h"

namespace tonnage::report::trace {
namespace {

using namespace analysis;
using abi::EventKind;
using abi::MemoryEvent;

constexpr size_t kStackFrames = 12;
// Groups need numbers that do not meet: each source has kSourceStep of them, devices first, then
// its processes.
constexpr int kSourceStep = 100'000, kFirstDevice = 1, kFirstProcess = 1000;
// Tracks of a process: the steps, then two for each of its threads; slices that cross others of
// their track go to the same number kLaneStep further on.
constexpr int kStepTrack = 1, kFirstThreadTrack = 2, kLaneStep = 1'000'000;
constexpr size_t kLanes = 64;  // of a track; what crosses even more is cut off where it does

class Walk {
 public:
  explicit Walk(Format& format) : out_(format) {}

  bool run(const std::vector<Explanation>& explanations) {
    for (size_t i = 0; i < explanations.size() && out_.ok(); ++i) {
      if (explanations[i].timeline) source(explanations[i], static_cast<int>(i));
    }
    return out_.finish();
  }

 private:
  void source(const Explanation& explanation, int number) {
    timeline_ = explanation.timeline.get();
    record_ = &timeline_->record();
    base_ = number * kSourceStep;
    timed_ = std::any_of(record_->events.begin(), record_->events.end(),
                         [](const MemoryEvent& event) { return event.time_ns > 0; });
    stack_texts_.clear();
    out_.begin_source();
    // Threads write their events late, by a little: no track may go back in time for it.
    end_ns_ = 0;
    times_.resize(record_->events.size());
    for (size_t i = 0; i < times_.size(); ++i)
      times_[i] = end_ns_ = std::max(end_ns_, timed_ ? record_->events[i].time_ns : 1000 * i);
    const std::string prefix = number == 0 ? "" : fmt::format("{} ", number + 1);
    out_.fact(prefix + "source", explanation.source);
    out_.fact(prefix + "time", timed_ ? "since the start of the record"
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

  uint64_t time_ns(size_t event) const { return event < times_.size() ? times_[event] : end_ns_; }
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
    out_.group(device_group(device), name);
  }

  void counters(int device, const DeviceTimeline& memory) {
    CounterKinds kinds;
    kinds.allocator = memory.has_allocator;
    kinds.device = memory.has_device;
    const int group = device_group(device);
    const size_t most = out_.most_counter_points();
    if (memory.samples.size() <= most) {
      walk_categories(*timeline_, device, [&](const CategoryPoint& point) { note(point, kinds); });
      walk_categories(*timeline_, device, [&](const CategoryPoint& point) {
        if (out_.ok()) out_.counters(group, time_ns(point.event), point, kinds);
      });
      return;
    }
    const std::vector<CategoryPoint> points = category_series(*timeline_, device, most);
    out_.fact(fmt::format("counters of GPU {}", device),
              fmt::format("{} of {} points: the peak of each equal share of the events",
                          points.size(), memory.samples.size()));
    for (const CategoryPoint& point : points) note(point, kinds);
    for (const CategoryPoint& point : points)
      out_.counters(group, time_ns(point.event), point, kinds);
  }
  static void note(const CategoryPoint& point, CounterKinds& kinds) {
    for (size_t i = 0; i < kCategoryCount; ++i)
      kinds.category[i] = kinds.category[i] || point.by_category[i] > 0;
  }

  struct Segment {
    uint64_t address = 0, from_ns = 0, to_ns = 0, size_bytes = 0, stream = 0;
    uint32_t stack = abi::kNoId;
    bool old = false, freed = false;
  };

  void segments(int device) {
    std::map<uint64_t, Segment> open;
    std::vector<Segment> done;
    for (const auto& [index, state] : initial_states(*record_)) {
      if (index != device) continue;
      for (const InitialState::Segment& segment : state.segments) {
        if (!segment.expandable)
          open[segment.address] = {segment.address, 0,          0,   segment.size_bytes,
                                   segment.stream,  abi::kNoId, true};
      }
    }
    for (size_t i = 0; i < record_->events.size() && out_.ok(); ++i) {
      const MemoryEvent& event = record_->events[i];
      if (event.device != device) continue;
      if (event.kind == EventKind::kSegmentAlloc) {
        open[event.address] = {event.address, time_ns(i),  0,    event.size_bytes,
                               event.stream,  event.stack, false};
      } else if (event.kind == EventKind::kSegmentFree) {
        const auto found = open.find(event.address);
        if (found == open.end()) continue;
        found->second.to_ns = time_ns(i);
        found->second.freed = true;
        done.push_back(found->second);
        open.erase(found);
      } else if (event.kind == EventKind::kSegmentMap || event.kind == EventKind::kSegmentUnmap) {
        // Expandable segments grow and shrink by pages, not as they were mapped: no slices.
        const Argument arguments[] = {{"address", Address{event.address}},
                                      {"bytes", event.size_bytes},
                                      {"stack", stack_text(event.stack)}};
        out_.instant(
            device_group(device), "segment",
            fmt::format("segment_{} {}", event.kind == EventKind::kSegmentMap ? "map" : "unmap",
                        size_text(event.size_bytes)),
            time_ns(i), arguments);
      }
    }
    for (auto& [address, segment] : open) {
      segment.to_ns = end_ns_;
      done.push_back(segment);
    }
    std::ranges::stable_sort(done, {}, &Segment::from_ns);
    for (const Segment& segment : done) {
      const Argument arguments[] = {{"address", Address{segment.address}},
                                    {"bytes", segment.size_bytes},
                                    {"stream", segment.stream},
                                    {"freed", segment.freed},
                                    {"older_than_the_history", segment.old},
                                    {"stack", stack_text(segment.stack)}};
      out_.crossing_slice(device_group(device), "segment",
                          "segment " + size_text(segment.size_bytes), segment.from_ns,
                          segment.to_ns, arguments);
    }
  }

  // The allocations of the device that the format takes, in order.
  std::vector<uint32_t> largest_blocks(int device, const std::string& prefix) {
    const auto& allocations = timeline_->allocations();
    const size_t most = out_.most_blocks();
    std::vector<uint32_t> chosen;
    for (uint32_t i = 0; i < allocations.size(); ++i) {
      if (allocations[i].device == device) chosen.push_back(i);
    }
    if (chosen.size() <= most) return chosen;
    const auto larger = [&](uint32_t a, uint32_t b) {
      return allocations[a].block_bytes != allocations[b].block_bytes
                 ? allocations[a].block_bytes > allocations[b].block_bytes
                 : a < b;
    };
    std::nth_element(chosen.begin(), chosen.begin() + static_cast<std::ptrdiff_t>(most),
                     chosen.end(), larger);
    out_.fact(fmt::format("{}blocks of GPU {}", prefix, device),
              fmt::format("the {} largest of {}", most, chosen.size()));
    chosen.resize(most);
    std::sort(chosen.begin(), chosen.end());
    return chosen;
  }

  void blocks(int device, const std::string& prefix) {
    for (const uint32_t index : largest_blocks(device, prefix)) {
      if (!out_.ok()) return;
      block(device, timeline_->allocations()[index]);
    }
  }

  void block(int device, const Allocation& a) {
    const MemoryEvent* event = a.before_history || a.alloc_event >= record_->events.size()
                                   ? nullptr
                                   : &record_->events[a.alloc_event];
    const Site site = event ? timeline_->stacks().site(*event)
                            : timeline_->stacks().site(a.stack, abi::kNoId, abi::kNoId);
    std::string name = site_text(site);
    if (name.empty()) name = "line not known";
    const bool freed = a.free_event < record_->events.size();
    std::vector<Argument>& arguments = arguments_;
    arguments = {{"requested_bytes", a.requested_bytes},
                 {"block_bytes", a.block_bytes},
                 {"address", Address{a.address}},
                 {"category", std::string_view(category_name(a.category))},
                 {"freed", freed}};
    if (a.before_history) arguments.push_back({"older_than_the_history", true});
    if (a.name != abi::kNoId)
      arguments.push_back({"name", std::string_view(record_->string(a.name))});
    if (!site.op.empty()) arguments.push_back({"op", std::string_view(site.op)});
    if (!site.module.empty()) arguments.push_back({"module", std::string_view(site.module)});
    arguments.push_back({"stack", stack_text(a.stack)});
    out_.crossing_slice(device_group(device), "block", name, event ? time_ns(a.alloc_event) : 0,
                        freed ? time_ns(a.free_event) : end_ns_, arguments);
  }

  StackText stack_text(uint32_t stack) {
    auto [at, made] = stack_texts_.try_emplace(stack);
    std::string& text = at->second;
    if (made && stack < record_->stacks.size()) {
      const auto& frames = record_->stacks[stack];
      for (size_t i = 0; i < frames.size() && i < kStackFrames; ++i)
        text += fmt::format("{}{} ({}:{})", i == 0 ? "" : "\n", record_->string(frames[i].function),
                            record_->string(frames[i].file), frames[i].line);
      if (frames.size() > kStackFrames)
        text += fmt::format("\n({} more)", frames.size() - kStackFrames);
    }
    return {stack, text};
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
          out_.track(slice.group, slice.track + static_cast<int>(lane) * kLaneStep, track.name,
                     track.order);
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
      out_.slice(slice.group, slice.track + static_cast<int>(lane) * kLaneStep, slice.category,
                 slice.name, slice.from_ns, slice.to_ns);
    }
    slices_.clear();
    tracks_.clear();
  }

  void processes() {
    for (uint32_t process = 0; process < record_->processes.size(); ++process) {
      const record::Process& known = record_->processes[process];
      out_.group(process_group(process), known.command.empty()
                                             ? fmt::format("process {}", known.pid)
                                             : fmt::format("{} ({})", known.command, known.pid));
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
      const std::string line = site_text(failure.moment.site);
      std::vector<Argument> arguments = {{"requested_bytes", failure.request_bytes}};
      const std::pair<const char*, std::optional<uint64_t>> figures[] = {
          {"free_bytes", failure.free_bytes},
          {"allocated_bytes", failure.allocated_bytes},
          {"reserved_bytes", failure.reserved_bytes}};
      for (const auto& [name, value] : figures) {
        if (value) arguments.push_back({name, *value});
      }
      arguments.push_back({"line", std::string_view(line)});
      arguments.push_back({"stack", stack_text(record_->events[failure.moment.event].stack)});
      out_.instant(device_group(failure.device), "out_of_memory",
                   "out of memory: " + size_text(failure.request_bytes),
                   time_ns(failure.moment.event), arguments);
    }
  }

  Format& out_;
  const Timeline* timeline_ = nullptr;
  const record::Record* record_ = nullptr;
  std::unordered_map<uint32_t, std::string> stack_texts_;
  std::vector<uint64_t> times_;  // by event, never going back
  std::vector<Argument> arguments_;
  std::vector<Slice> slices_;
  std::map<std::pair<int, int>, Track> tracks_;  // group and number
  uint64_t end_ns_ = 0;
  int base_ = 0;
  bool timed_ = true;
};

}  // namespace

bool walk(const std::vector<Explanation>& explanations, Format& format) {
  return Walk(format).run(explanations);
}

}  // namespace tonnage::report::trace
