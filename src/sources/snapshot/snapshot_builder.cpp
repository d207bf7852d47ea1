#include "sources/snapshot/snapshot_builder.h"

#include <algorithm>

namespace tonnage::sources::snapshot {

using abi::EventKind;
using pickle::Heap;
using pickle::Machine;
using pickle::Object;
using pickle::ObjectKind;
using pickle::Tag;
using pickle::Value;

namespace {

constexpr size_t kFirstReserve = 4096;

uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
  return hash ^ hash >> 32;
}

}  // namespace

void Builder::attach(Heap& heap) {
  heap_ = &heap;
#define X(name, text) heap.intern(text);
  TONNAGE_SNAPSHOT_WORDS(X)
#undef X
  stack_slots_.assign(1024, 0);
}

pickle::Visitor::Role Builder::list_role(Machine& machine, size_t position) {
  // The lists that matter lie close to the bottom of the stack.
  if (position == 0) return {kSegmentList, 0};
  const pickle::Place place = machine.place(position);
  if (!place.known) return {};
  if (!place.in_list) {
    if (place.container != 0 || !place.key.is(Tag::kString)) return {};
    if (place.key.payload() == kWordSegments) return {kSegmentList, 0};
    if (place.key.payload() == kWordExternalAnnotations) return {kAnnotationList, 0};
    return {};
  }
  const pickle::Place outer = machine.place(place.container);
  if (outer.known && !outer.in_list && outer.container == 0 && outer.key.is(Tag::kString) &&
      outer.key.payload() == kWordDeviceTraces && place.index < counts_.size())
    return {kTraceList, place.index};
  return {};
}

uint64_t Builder::new_event(uint8_t device) {
  if (record_.events.size() == record_.events.capacity()) {
    const size_t have = record_.events.size();
    size_t wanted = have + have / 2;
    if (have == 0) wanted = kFirstReserve;
    record_.events.reserve(wanted);
  }
  abi::MemoryEvent event;
  event.device = device;
  record_.events.push_back(event);
  return record_.events.size() - 1;
}

void Builder::set_action(abi::MemoryEvent& event, uint32_t action) {
  DeviceCount& count = counts_[event.device];
  switch (action) {
    case kWordAlloc:
      event.kind = abi::EventKind::kAlloc;
      ++count.allocs;
      break;
    case kWordFreeRequested: event.kind = abi::EventKind::kFreeRequested; break;
    case kWordFreeCompleted:
      event.kind = abi::EventKind::kFreeCompleted;
      ++count.frees;
      break;
    case kWordFree:
      event.kind = abi::EventKind::kFreeRequested;
      ++count.frees;
      old_frees_.push_back(static_cast<uint64_t>(&event - record_.events.data()));
      break;
    case kWordSegmentAlloc: event.kind = abi::EventKind::kSegmentAlloc; break;
    case kWordSegmentFree: event.kind = abi::EventKind::kSegmentFree; break;
    case kWordSegmentMap: event.kind = abi::EventKind::kSegmentMap; break;
    case kWordSegmentUnmap: event.kind = abi::EventKind::kSegmentUnmap; break;
    case kWordSnapshot: event.kind = abi::EventKind::kSnapshot; break;
    case kWordOom: event.kind = abi::EventKind::kOom; break;
    case kWordUserDefined:
    case kWordAnnotate: event.kind = abi::EventKind::kAnnotation; break;
    default:
      event.kind = abi::EventKind::kNone;
      if (unknown_actions_.size() < 100)
        ++unknown_actions_[std::string(heap_->string(action).substr(0, 40))];
  }
}

void Builder::set_event(abi::MemoryEvent& event, const Value* items, size_t count) {
  for (size_t i = 0; i + 1 < count; i += 2) {
    if (!items[i].is(Tag::kString)) continue;
    const Value value = items[i + 1];
    switch (items[i].payload()) {
      case kWordAction:
        if (value.is(Tag::kString)) set_action(event, static_cast<uint32_t>(value.payload()));
        break;
      case kWordAddr: event.address = heap_->to_unsigned(value).value_or(0); break;
      case kWordSize: event.size_bytes = heap_->to_unsigned(value).value_or(0); break;
      case kWordStream: event.stream = heap_->to_unsigned(value).value_or(0); break;
      case kWordTimeUs: {
        const auto us = heap_->to_unsigned(value);
        if (!us || *us > kMaxTimeUs) break;
        if (base_us_ == kNoTime) base_us_ = *us;
        // Relative to the first event; earlier ones are put right in finish_events.
        const int64_t after = static_cast<int64_t>(*us) - static_cast<int64_t>(base_us_);
        earliest_us_ = std::min(earliest_us_, after);
        event.time_ns = static_cast<uint64_t>(after * 1000);
        break;
      }
      case kWordFrames: event.stack = stack_of(value); break;
      case kWordDeviceFree: event.value = heap_->to_unsigned(value).value_or(0); break;
      case kWordUserMetadata:
        if (value.is(Tag::kString)) {
          if (value.payload() != kWordEmpty) event.name = record_string(value);
        } else if (heap_->is_object(value, ObjectKind::kDict) && heap_->object(value).size) {
          event.name = record_string(heap_->make_string(text_of(value)));
        }
        break;
      case kWordCompileContext:
        if (value.is(Tag::kString) && value.payload() != kWordNotCompiled &&
            value.payload() != kWordEmpty && event.name == abi::kNoId)
          event.name = record_string(value);
        break;
      default: break;
    }
  }
}

uint64_t Builder::dict_items(Machine& machine, Role role, uint64_t token, const Value* items,
                             size_t count) {
  if (token == pickle::kNoToken) {
    if (record_.events.empty()) first_event_offset_ = machine.offset();
    const size_t have = record_.events.size();
    if (have == record_.events.capacity() && have >= kFirstReserve &&
        known_size_ > machine.offset()) {
      // The rest of the file most likely holds events of the same length.
      const double per_event =
          static_cast<double>(machine.offset() - first_event_offset_) / static_cast<double>(have);
      const double more =
          static_cast<double>(known_size_ - machine.offset()) / std::max(per_event, 16.0);
      record_.events.reserve(have + static_cast<size_t>(more * 1.05) + 1024);
    }
    token = new_event(static_cast<uint8_t>(role.tag));
    ++counts_[role.tag].events;
  }
  if (token < record_.events.size()) set_event(record_.events[token], items, count);
  return token;
}

void Builder::list_items(Machine&, Role role, const Value* items, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (!items[i].is(Tag::kObject)) {
      ++odd_items_;
      continue;
    }
    Object& object = heap_->object(items[i]);
    if (object.kind == ObjectKind::kToken && object.role == pickle::kDictToken) {
      if (role.kind != kTraceList) continue;
      if (object.token >= appended_events_) {
        appended_events_ = object.token + 1;
      } else if (object.token < record_.events.size()) {
        // The same dict again: the event happened again.
        abi::MemoryEvent again = record_.events[object.token];
        again.device = static_cast<uint8_t>(role.tag);
        record_.events[new_event(again.device)] = again;
        DeviceCount& counted = counts_[again.device];
        ++counted.events;
        counted.allocs += again.kind == abi::EventKind::kAlloc;
        counted.frees += again.kind == abi::EventKind::kFreeCompleted;
        appended_events_ = record_.events.size();
      }
    } else if (object.kind == ObjectKind::kDict) {
      add_dict(static_cast<RoleKind>(role.kind), role.tag, object);
      if (role.kind == kTraceList)
        heap_->make_token(object, pickle::kDictToken, record_.events.size() - 1);
      else
        heap_->release(object);
    } else {
      ++odd_items_;
    }
  }
}

void Builder::add_dict(RoleKind kind, uint64_t tag, const Object& dict) {
  switch (kind) {
    case kTraceList: {
      const uint64_t event = new_event(static_cast<uint8_t>(tag));
      ++counts_[tag].events;
      set_event(record_.events[event], dict.items, dict.size);
      appended_events_ = event + 1;
      break;
    }
    case kSegmentList: add_segment(dict.items, dict.size); break;
    case kAnnotationList: add_annotation(dict.items, dict.size); break;
  }
}

void Builder::add_list(RoleKind kind, uint64_t tag, Value list) {
  if (!heap_->is_sequence(list)) return;
  const Object& object = heap_->object(list);
  for (uint32_t i = 0; i < object.size; ++i) {
    if (heap_->is_object(object.items[i], ObjectKind::kDict))
      add_dict(kind, tag, heap_->object(object.items[i]));
    else
      ++odd_items_;
  }
}

uint32_t Builder::record_string(Value text) {
  const auto id = static_cast<uint32_t>(text.payload());
  if (id >= string_ids_.size())
    string_ids_.resize(std::max<size_t>(heap_->string_count(), id + 1), 0);
  if (string_ids_[id] == 0) {
    if (id == kWordEmpty) {
      string_ids_[id] = abi::kNoId + 1;
    } else {
      record_.strings.emplace_back(heap_->string(id));
      string_ids_[id] = static_cast<uint32_t>(record_.strings.size());
    }
  }
  return string_ids_[id] - 1;
}

// One level of a dict as "key=value, key=value".
std::string Builder::text_of(Value value) const {
  const auto scalar = [this](Value v) -> std::string {
    if (v.is(Tag::kString)) return std::string(heap_->string(v).substr(0, 200));
    if (const auto number = heap_->to_signed(v)) return std::to_string(*number);
    if (const auto number = heap_->to_double(v)) return std::to_string(*number);
    return v.is(Tag::kNone) ? "None" : "…";
  };
  if (!heap_->is_object(value, ObjectKind::kDict)) return scalar(value);
  const Object& dict = heap_->object(value);
  std::string text;
  for (uint32_t i = 0; i + 1 < dict.size && text.size() < 1000; i += 2) {
    if (!text.empty()) text += ", ";
    text += scalar(dict.items[i]) + "=" + scalar(dict.items[i + 1]);
  }
  return text;
}

uint32_t Builder::frame_of(Value value) {
  if (!value.is(Tag::kObject)) return UINT32_MAX;
  Object& object = heap_->object(value);
  if (object.kind == ObjectKind::kToken && object.role == kFrameToken)
    return static_cast<uint32_t>(object.token);
  if (object.kind != ObjectKind::kDict) return UINT32_MAX;
  abi::Frame frame;
  for (uint32_t i = 0; i + 1 < object.size; i += 2) {
    if (!object.items[i].is(Tag::kString)) continue;
    const Value item = object.items[i + 1];
    switch (object.items[i].payload()) {
      case kWordName:
        if (item.is(Tag::kString)) frame.function = record_string(item);
        break;
      case kWordFilename:
        if (item.is(Tag::kString)) frame.file = record_string(item);
        break;
      case kWordLine: {
        const uint64_t line = heap_->to_unsigned(item).value_or(0);
        frame.line =
            line <= INT32_MAX ? static_cast<uint32_t>(line) : 0;  // -1, also as 2^64 - 1: not known
        break;
      }
      default: break;
    }
  }
  const uint64_t hash = mix(mix(mix(1, frame.function), frame.file), frame.line);
  uint32_t id = UINT32_MAX;
  for (const uint32_t known : frame_index_[hash])
    if (frames_[known].function == frame.function && frames_[known].file == frame.file &&
        frames_[known].line == frame.line)
      id = known;
  if (id == UINT32_MAX) {
    id = static_cast<uint32_t>(frames_.size());
    frames_.push_back(frame);
    frame_index_[hash].push_back(id);
  }
  heap_->make_token(object, kFrameToken, id);
  return id;
}

uint32_t Builder::stack_of(Value value) {
  if (!value.is(Tag::kObject)) return abi::kNoId;
  Object& object = heap_->object(value);
  if (object.kind == ObjectKind::kToken)
    return object.role == kStackToken ? static_cast<uint32_t>(object.token) : abi::kNoId;
  if (object.kind != ObjectKind::kList && object.kind != ObjectKind::kTuple) return abi::kNoId;
  scratch_frames_.clear();
  for (uint32_t i = 0; i < object.size; ++i) {
    const uint32_t frame = frame_of(object.items[i]);
    if (frame != UINT32_MAX) scratch_frames_.push_back(frame);
  }
  const uint32_t stack = intern_stack(scratch_frames_);
  heap_->make_token(object, kStackToken, stack);
  return stack;
}

uint32_t Builder::intern_stack(const std::vector<uint32_t>& frames) {
  if (frames.empty()) return abi::kNoId;
  uint64_t hash = frames.size();
  for (const uint32_t frame : frames)
    hash = (hash ^ frame) * 0x9e3779b97f4a7c15ull, hash ^= hash >> 29;
  const size_t mask = stack_slots_.size() - 1;
  size_t slot = hash & mask;
  while (const uint32_t id = stack_slots_[slot]) {
    if (stack_hashes_[id] == hash && record_.stacks[id].size() == frames.size()) {
      const auto& known = record_.stacks[id];
      bool same = true;
      for (size_t i = 0; i < frames.size() && same; ++i) {
        const abi::Frame& a = known[i];
        const abi::Frame& b = frames_[frames[i]];
        same = a.function == b.function && a.file == b.file && a.line == b.line;
      }
      if (same) return id;
    }
    slot = (slot + 1) & mask;
  }
  const auto id = static_cast<uint32_t>(record_.stacks.size());
  std::vector<abi::Frame>& stack = record_.stacks.emplace_back();
  stack.reserve(frames.size());
  for (const uint32_t frame : frames) stack.push_back(frames_[frame]);
  stack_hashes_.push_back(hash);
  stack_slots_[slot] = id;
  if (record_.stacks.size() * 2 > stack_slots_.size()) {
    std::vector<uint32_t> slots(stack_slots_.size() * 2, 0);
    for (uint32_t s = 1; s < record_.stacks.size(); ++s) {
      size_t at = stack_hashes_[s] & (slots.size() - 1);
      while (slots[at]) at = (at + 1) & (slots.size() - 1);
      slots[at] = s;
    }
    stack_slots_ = std::move(slots);
  }
  return id;
}

}  // namespace tonnage::sources::snapshot
