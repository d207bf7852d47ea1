// Numbers of fields and values: https://github.com/google/perfetto, protos/perfetto/trace, the
// files trace_packet.proto, track_event/{track_event, track_descriptor, counter_descriptor,
// debug_annotation}.proto and interned_data/interned_data.proto. tests/e2e/test_trace.py reads what
// is written here with the classes that Perfetto's Python package makes of these files.
#include "report/trace/perfetto_format.h"

#include <algorithm>

namespace tonnage::report::trace {

using namespace analysis;

namespace {

namespace trace_field {
constexpr uint32_t kPacket = 1;
}
namespace packet_field {
constexpr uint32_t kTimestamp = 8, kSequence = 10, kTrackEvent = 11, kInternedData = 12,
                   kSequenceFlags = 13, kTrackDescriptor = 60;
}
constexpr uint64_t kStateCleared = 1, kNeedsState = 2;  // TracePacket.SequenceFlags
namespace event_field {
constexpr uint32_t kCategory = 3, kArgument = 4, kType = 9, kName = 10, kTrack = 11,
                   kCounterValue = 30;
}
constexpr uint32_t kSliceBegin = 1, kSliceEnd = 2, kInstant = 3, kCounter = 4;  // TrackEvent.Type
namespace track_field {
constexpr uint32_t kUuid = 1, kName = 2, kParent = 5, kCounter = 8, kChildOrder = 11, kRank = 12;
}
constexpr uint64_t kLexicographic = 1, kExplicit = 3;  // TrackDescriptor.ChildTracksOrdering
constexpr uint32_t kCounterUnit = 3;                   // CounterDescriptor
constexpr uint64_t kSizeBytes = 3;                     // CounterDescriptor.Unit
namespace argument_field {                             // DebugAnnotation
constexpr uint32_t kName = 1, kBool = 2, kUint = 3, kString = 6, kPointer = 7, kInternedString = 17;
}
constexpr uint32_t kInternedNumber = 1, kInternedText = 2;  // of all entries of InternedData

constexpr uint64_t kOurSequence = 1;  // all packets are of one writer

// Places of the tracks in a group: counters first.
enum Rank : uint64_t { kAllocated, kCategories, kReserved, kDevice, kFailures, kNested, kFolders };

}  // namespace

void PerfettoFormat::write_packet(Message& packet) {
  packet.number(packet_field::kSequence, kOurSequence);
  packet.number(packet_field::kSequenceFlags, begun_ ? kNeedsState : kStateCleared | kNeedsState);
  begun_ = true;
  if (!interned_data_.bytes().empty()) packet.message(packet_field::kInternedData, interned_data_);
  interned_data_.clear();
  written_.clear();
  written_.message(trace_field::kPacket, packet);
  packet.clear();
  out_.put(written_.bytes());
}

uint64_t PerfettoFormat::intern(Interned& interned, const std::string& text) {
  const auto [at, made] = interned.numbers.try_emplace(text, interned.numbers.size() + 1);
  if (made) {
    Message entry;
    entry.number(kInternedNumber, at->second);
    entry.text(kInternedText, text);
    interned_data_.message(interned.field, entry);
  }
  return at->second;
}

// The text is looked for once for each stack, not for each of its slices.
uint64_t PerfettoFormat::intern_stack(const StackText& stack) {
  const auto [at, made] = stacks_.try_emplace(stack.number);
  if (made) at->second = intern(strings_, std::string(stack.text));
  return at->second;
}

PerfettoFormat::Track PerfettoFormat::make_track(Track parent, const std::string& name,
                                                 uint64_t rank, bool counter, bool by_name) {
  const Track track = next_track_++;
  Message descriptor;
  descriptor.number(track_field::kUuid, track);
  descriptor.text(track_field::kName, name);
  if (parent != 0) descriptor.number(track_field::kParent, parent);
  if (counter) {
    Message unit;
    unit.number(kCounterUnit, kSizeBytes);
    descriptor.message(track_field::kCounter, unit);
  } else {
    descriptor.number(track_field::kChildOrder, by_name ? kLexicographic : kExplicit);
  }
  descriptor.number(track_field::kRank, rank);
  packet_.clear();
  packet_.message(packet_field::kTrackDescriptor, descriptor);
  write_packet(packet_);
  return track;
}

void PerfettoFormat::group(int group, const std::string& name) {
  groups_[group] = make_track(0, name, static_cast<uint64_t>(group));
}

void PerfettoFormat::add_argument(const Argument& argument) {
  inner_.clear();
  inner_.number(argument_field::kName, intern(argument_names_, std::string(argument.name)));
  if (const auto* number = std::get_if<uint64_t>(&argument.value)) {
    inner_.number(argument_field::kUint, *number);
  } else if (const auto* flag = std::get_if<bool>(&argument.value)) {
    inner_.number(argument_field::kBool, *flag ? 1 : 0);
  } else if (const auto* address = std::get_if<Address>(&argument.value)) {
    inner_.number(argument_field::kPointer, address->value);
  } else if (const auto* stack = std::get_if<StackText>(&argument.value)) {
    inner_.number(argument_field::kInternedString, intern_stack(*stack));
  } else {
    inner_.text(argument_field::kString, std::get<std::string_view>(argument.value));
  }
  event_.message(event_field::kArgument, inner_);
}

void PerfettoFormat::write_event(Track track, uint32_t type, uint64_t ns, const char* category,
                                 const std::string* name, Arguments arguments) {
  event_.clear();
  event_.number(event_field::kType, type);
  event_.number(event_field::kTrack, track);
  if (category != nullptr) event_.number(event_field::kCategory, intern(categories_, category));
  if (name != nullptr) event_.number(event_field::kName, intern(names_, *name));
  for (const Argument& argument : arguments) add_argument(argument);
  packet_.clear();
  packet_.number(packet_field::kTimestamp, ns);
  packet_.message(packet_field::kTrackEvent, event_);
  write_packet(packet_);
}

// Only what has changed is written.
void PerfettoFormat::count(Counter& counter, Track parent, const std::string& name, uint64_t rank,
                           uint64_t ns, uint64_t value) {
  if (counter.track == 0) {
    counter.track = make_track(parent, name, rank, true);
  } else if (counter.value == value) {
    return;
  }
  counter.value = value;
  event_.clear();
  event_.number(event_field::kType, kCounter);
  event_.number(event_field::kTrack, counter.track);
  event_.number(event_field::kCounterValue, value);
  packet_.clear();
  packet_.number(packet_field::kTimestamp, ns);
  packet_.message(packet_field::kTrackEvent, event_);
  write_packet(packet_);
}

void PerfettoFormat::counters(int group, uint64_t ns, const CategoryPoint& point,
                              const CounterKinds& kinds) {
  Counters& known = counters_[group];
  const Track parent = groups_[group];
  if (kinds.allocator) {
    count(known.allocated, parent, "allocated", kAllocated, ns, point.allocated_bytes);
    if (known.categories == 0)
      known.categories = make_track(parent, "allocated by category", kCategories);
    for (size_t i = 0; i < kRowOrder.size(); ++i) {
      const auto category = static_cast<size_t>(kRowOrder[i]);
      if (kinds.category[category])
        count(known.category[category], known.categories, category_name(kRowOrder[i]), i, ns,
              point.by_category[category]);
    }
    count(known.reserved, parent, "reserved", kReserved, ns, point.reserved_bytes);
  }
  if (kinds.device) count(known.device, parent, "device", kDevice, ns, point.device_bytes);
}

void PerfettoFormat::crossing_slice(int group, const char* category, const std::string& name,
                                    uint64_t from_ns, uint64_t to_ns, Arguments arguments) {
  Track& folder = folders_[{group, category}];
  if (folder == 0)
    folder = make_track(groups_[group], std::string(category) + "s", kFolders, false, true);
  Rows& rows = rows_[{group, category, name}];
  Track row = 0;
  if (!rows.empty() && rows.top().first <= from_ns) {
    row = rows.top().second;
    rows.pop();
  } else {
    // Rows of one name are drawn as one track.
    row = make_track(folder, name, 0);
  }
  to_ns = std::max(from_ns, to_ns);
  rows.emplace(to_ns, row);
  write_event(row, kSliceBegin, from_ns, category, &name, arguments);
  write_event(row, kSliceEnd, to_ns, nullptr, nullptr, {});
}

void PerfettoFormat::track(int group, int track, const std::string& name, int order) {
  tracks_[{group, track}] =
      make_track(groups_[group], name, kNested + static_cast<uint64_t>(order));
}

void PerfettoFormat::slice(int group, int track, const char* category, const std::string& name,
                           uint64_t from_ns, uint64_t to_ns) {
  // Slices come in the order of their begin; whatever begins before this one ends is inside it.
  write_event(tracks_[{group, track}], kSliceBegin, from_ns, category, &name, {});
  write_event(tracks_[{group, track}], kSliceEnd, to_ns, nullptr, nullptr, {});
}

void PerfettoFormat::instant(int group, const char* category, const std::string& name, uint64_t ns,
                             Arguments arguments) {
  Track& track = instants_[{group, category}];
  if (track == 0) {
    std::string title = category;
    std::ranges::replace(title, '_', ' ');
    track = make_track(groups_[group], title, kFailures);
  }
  write_event(track, kInstant, ns, category, &name, arguments);
}

void PerfettoFormat::fact(std::string name, std::string value) {
  facts_.emplace_back(std::move(name), std::move(value));
}

bool PerfettoFormat::finish() {
  const Track track = make_track(0, "about this trace", 0);
  std::vector<Argument> arguments = {{"made_by", std::string_view("tonnage")}};
  for (const auto& [name, value] : facts_) arguments.push_back({name, std::string_view(value)});
  const std::string title = "about this trace";
  write_event(track, kInstant, 0, "about", &title, arguments);
  return out_.flush();
}

}  // namespace tonnage::report::trace
