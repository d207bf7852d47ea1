#include "report/csv_export.h"

#include <algorithm>
#include <map>

#include "analysis/timeline/breakdown.h"

namespace tonnage::report {
namespace {

using namespace analysis;
using abi::EventKind;
using abi::MemoryEvent;

const char* event_kind_name(EventKind kind) {
  switch (kind) {
    case EventKind::kNone: return "none";
    case EventKind::kDeviceAlloc: return "device_alloc";
    case EventKind::kDeviceFree: return "device_free";
    case EventKind::kContext: return "context";
    case EventKind::kModuleLoad: return "module_load";
    case EventKind::kHostAlloc: return "host_alloc";
    case EventKind::kHostFree: return "host_free";
    case EventKind::kDeviceOom: return "device_oom";
    case EventKind::kUnknownRead: return "unknown_read";
    case EventKind::kAssumedSize: return "assumed_size";
    case EventKind::kStubCall: return "stub_call";
    case EventKind::kAlloc: return "alloc";
    case EventKind::kFreeRequested: return "free_requested";
    case EventKind::kFreeCompleted: return "free_completed";
    case EventKind::kFreed: return "freed";
    case EventKind::kSegmentAlloc: return "segment_alloc";
    case EventKind::kSegmentFree: return "segment_free";
    case EventKind::kSegmentMap: return "segment_map";
    case EventKind::kSegmentUnmap: return "segment_unmap";
    case EventKind::kOom: return "oom";
    case EventKind::kSnapshot: return "snapshot";
    case EventKind::kStep: return "step";
    case EventKind::kPhase: return "phase";
    case EventKind::kLabel: return "label";
    case EventKind::kCounter: return "counter";
    case EventKind::kMessage: return "message";
    case EventKind::kAnnotation: return "annotation";
    case EventKind::kProcessStart: return "process_start";
    case EventKind::kProcessEnd: return "process_end";
    case EventKind::kKernelCount: return "kernel_count";
    case EventKind::kFact: return "fact";
    case EventKind::kHostRefusal: return "host_refusal";
    case EventKind::kSlot: return "slot";
    case EventKind::kSlotGone: return "slot_gone";
    case EventKind::kContextEnd: return "context_end";
  }
  return "unknown";
}

// A field: quoted where it must be. Text from outside that a spreadsheet would take for a formula
// gets a quote in front.
std::string field(std::string_view text) {
  if (text.empty()) return "";
  const bool formula = std::string_view("=+-@\t\r").find(text.front()) != std::string_view::npos;
  if (!formula && text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string out = formula ? "\"'" : "\"";
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  out += '"';
  return out;
}

std::string place_field(const Place& place) {
  return place.known() ? field(fmt::format("{}:{}", place.file, place.line)) : "";
}
std::string optional(bool known, uint64_t value) { return known ? std::to_string(value) : ""; }

class CsvWriter {
 public:
  CsvWriter(const Explanation& explanation, SinkBuffer& out)
      : out_(out),
        timeline_(*explanation.timeline),
        record_(timeline_.record()),
        source_(field(explanation.source)) {
    timed_ = std::any_of(record_.events.begin(), record_.events.end(),
                         [](const MemoryEvent& event) { return event.time_ns > 0; });
  }

  void allocations() {
    std::map<int, uint64_t> peaks;  // the event of each device's peak: of PyTorch's memory, or of
                                    // the whole device without PyTorch
    for (const auto& [index, device] : timeline_.devices()) {
      const size_t peak = device.has_allocator ? device.allocated_peak : device.device_peak;
      if (peak < device.samples.size()) peaks[index] = device.samples[peak].event;
    }
    uint64_t number = 0;
    for (const Allocation& a : timeline_.allocations()) {
      if (!out_.ok()) return;
      const MemoryEvent* event = a.before_history || a.alloc_event >= record_.events.size()
                                     ? nullptr
                                     : &record_.events[a.alloc_event];
      const Site site = event ? timeline_.stacks().site(*event)
                              : timeline_.stacks().site(a.stack, abi::kNoId, abi::kNoId);
      const bool freed = a.free_event < record_.events.size();
      out_.print("{},{},pytorch,{},{},0x{:x},{},{},", source_, number++, pid(a.process), a.device,
                 a.address, a.requested_bytes, a.block_bytes);
      out_.print("{},{},{},{},", category_name(a.category),
                 a.source == CategorySource::kTold       ? "told"
                 : a.source == CategorySource::kInferred ? "inferred"
                                                         : "",
                 a.confidence_percent, field(record_.string(a.name)));
      life(event != nullptr, a.alloc_event, freed, a.free_event, a.process);
      out_.print("{},{},{},", peaks.contains(a.device) && a.live_at(peaks[a.device]) ? 1 : 0,
                 event ? phase_name(event->phase) : "", event ? std::to_string(event->stream) : "");
      place(site);
    }
    for (const DeviceAllocation& a : timeline_.device_allocations()) {
      if (a.is_segment || !out_.ok()) continue;  // PyTorch's segments hold the allocations above
      const MemoryEvent& event = record_.events[a.alloc_event];
      out_.print("{},{},{},{},{},0x{:x},{},{},other,told,100,{},", source_, number++,
                 memory_kind_name(a.kind), pid(a.process), a.device, a.address, a.size_bytes,
                 a.size_bytes, field(record_.string(event.name)));
      life(true, a.alloc_event, a.free_event < record_.events.size(), a.free_event, a.process);
      out_.print("{},{},{},", peaks.contains(a.device) && a.live_at(peaks[a.device]) ? 1 : 0,
                 phase_name(event.phase), event.stream);
      place(timeline_.stacks().site(event));
    }
  }

  void events() {
    struct Cursor {
      const DeviceTimeline* device;
      size_t next = 0;
    };
    std::map<int, Cursor> cursors;
    for (const auto& [index, device] : timeline_.devices()) cursors[index] = {&device};
    for (size_t i = 0; i < record_.events.size() && out_.ok(); ++i) {
      const MemoryEvent& event = record_.events[i];
      out_.print("{},{},{},{},{},{},{},{},{},", source_, i, optional(timed_, event.time_ns),
                 pid(event.process), event.device, event_kind_name(event.kind),
                 event.address == 0 ? "" : fmt::format("0x{:x}", event.address), event.size_bytes,
                 event.value);
      out_.print("{},{},{},{},", event.stream, event.thread, step_text(event.process, i),
                 phase_name(event.phase));
      const auto found = cursors.find(event.device);
      const Sample* now = nullptr;
      if (found != cursors.end()) {
        auto& [device, next] = found->second;
        while (next < device->samples.size() && device->samples[next].event <= i) ++next;
        if (next > 0) now = &device->samples[next - 1];
        out_.print("{},{},{},",
                   optional(now && device->has_allocator, now ? now->allocated_bytes : 0),
                   optional(now && device->has_allocator, now ? now->reserved_bytes : 0),
                   optional(now && device->has_device, now ? now->device_bytes : 0));
      } else {
        out_.put(",,,");
      }
      out_.print("{},", field(record_.string(event.name)));
      place(timeline_.stacks().site(event));
    }
  }

 private:
  std::string pid(uint32_t process) const {
    return process < record_.processes.size() && record_.processes[process].pid != 0
               ? std::to_string(record_.processes[process].pid)
               : "";
  }
  std::string step_text(uint32_t process, uint64_t event) const {
    const Step* step = step_at(timeline_.steps(), process, event);
    return step ? std::to_string(step->number) : "";
  }
  void life(bool born, uint32_t from, bool freed, uint32_t to, uint32_t process) {
    out_.print("{},{},", optional(born, from), optional(freed, to));
    out_.print("{},{},", optional(born && timed_, born ? record_.events[from].time_ns : 0),
               optional(freed && timed_, freed ? record_.events[to].time_ns : 0));
    out_.print("{},", born ? step_text(process, from) : "");
  }
  void place(const Site& site) {
    out_.print("{},{},{},{},{}\n", field(site.op), field(site.module), place_field(site.line),
               field(site.line.function), place_field(site.user_line));
  }

  SinkBuffer& out_;
  const Timeline& timeline_;
  const record::Record& record_;
  std::string source_;
  bool timed_ = true;
};

}  // namespace

bool write_allocations_csv(const std::vector<Explanation>& explanations, const Sink& sink) {
  SinkBuffer out(sink);
  out.put(
      "source,allocation,kind,pid,device,address,requested_bytes,block_bytes,category,category_"
      "source,confidence_percent,name,alloc_event,free_event,"
      "alloc_time_ns,free_time_ns,step,live_at_peak,phase,stream,op,module,line,function,user_"
      "line\n");
  for (const Explanation& explanation : explanations) {
    if (explanation.timeline) CsvWriter(explanation, out).allocations();
  }
  return out.flush();
}

bool write_events_csv(const std::vector<Explanation>& explanations, const Sink& sink) {
  SinkBuffer out(sink);
  out.put(
      "source,event,time_ns,pid,device,kind,address,size_bytes,value,stream,thread,step,phase,"
      "allocated_bytes,reserved_bytes,device_bytes,name,op,module,line,function,user_line\n");
  for (const Explanation& explanation : explanations) {
    if (explanation.timeline) CsvWriter(explanation, out).events();
  }
  return out.flush();
}

}  // namespace tonnage::report
