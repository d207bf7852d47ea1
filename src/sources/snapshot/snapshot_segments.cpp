// The parts of a snapshot that are not events: segments, blocks, settings, annotations; and what
// ties them together at the end.
#include <algorithm>
#include <charconv>

#include "sources/snapshot/native_frames.h"
#include "sources/snapshot/snapshot_builder.h"

namespace tonnage::sources::snapshot {

using abi::EventKind;
using pickle::Object;
using pickle::ObjectKind;
using pickle::Tag;
using pickle::Value;

void Builder::add_block(record::SegmentState& segment, const Object& dict, uint64_t& next_address) {
  record::BlockState block;
  bool has_address = false, has_requested = false;
  for (uint32_t i = 0; i + 1 < dict.size; i += 2) {
    if (!dict.items[i].is(Tag::kString)) continue;
    const Value value = dict.items[i + 1];
    switch (dict.items[i].payload()) {
      case kWordAddress:
        if (const auto address = heap_->to_unsigned(value)) {
          block.address = *address;
          has_address = true;
        }
        break;
      case kWordSize: block.size_bytes = heap_->to_unsigned(value).value_or(0); break;
      case kWordRequestedSize:
        if (const auto size = heap_->to_unsigned(value)) {
          block.requested_bytes = *size;
          has_requested = true;
        }
        break;
      case kWordFrames: block.stack = stack_of(value); break;
      case kWordState:
        if (!value.is(Tag::kString)) break;
        if (value.payload() == kWordActiveAllocated)
          block.state = record::BlockState::State::kActive;
        if (value.payload() == kWordActivePendingFree || value.payload() == kWordActiveAwaitingFree)
          block.state = record::BlockState::State::kPendingFree;
        break;
      case kWordHistory: {
        // Before PyTorch 2.1: the allocations that were made in this block, the latest first.
        if (!heap_->is_sequence(value) || heap_->object(value).size == 0) break;
        const Value latest = heap_->object(value).items[0];
        if (!heap_->is_object(latest, ObjectKind::kDict)) break;
        const Object& entry = heap_->object(latest);
        if (const auto size = heap_->to_unsigned(heap_->find(entry, kWordRealSize));
            size && !has_requested) {
          block.requested_bytes = *size;
          has_requested = true;
        }
        if (block.stack == abi::kNoId) block.stack = stack_of(heap_->find(entry, kWordFrames));
        break;
      }
      default: break;
    }
  }
  if (!has_address) block.address = next_address;
  if (!has_requested) block.requested_bytes = block.size_bytes;
  if (block.size_bytes == 0 || block.size_bytes > UINT64_MAX - block.address) return;
  next_address = block.address + block.size_bytes;
  segment.blocks.push_back(block);
}

void Builder::add_segment(const Value* items, size_t count) {
  record::SegmentState segment;
  bool has_address = false;
  Value blocks{};
  for (size_t i = 0; i + 1 < count; i += 2) {
    if (!items[i].is(Tag::kString)) continue;
    const Value value = items[i + 1];
    switch (items[i].payload()) {
      case kWordDevice:
        segment.device =
            static_cast<int>(std::min<uint64_t>(heap_->to_unsigned(value).value_or(0), 255));
        break;
      case kWordAddress:
        if (const auto address = heap_->to_unsigned(value)) {
          segment.address = *address;
          has_address = true;
        }
        break;
      case kWordTotalSize: segment.total_bytes = heap_->to_unsigned(value).value_or(0); break;
      case kWordStream: segment.stream = heap_->to_unsigned(value).value_or(0); break;
      case kWordSegmentType:
        segment.is_large = value.is(Tag::kString) && value.payload() == kWordLarge;
        break;
      case kWordIsExpandable:
        segment.is_expandable = heap_->to_unsigned(value).value_or(0) != 0;
        break;
      case kWordSegmentPoolId:
      case kWordPoolId:
        if (heap_->is_sequence(value) && heap_->object(value).size == 2) {
          segment.pool_first = heap_->to_signed(heap_->object(value).items[0]).value_or(0);
          segment.pool_second = heap_->to_signed(heap_->object(value).items[1]).value_or(0);
        }
        break;
      case kWordFrames: segment.stack = stack_of(value); break;
      case kWordBlocks: blocks = value; break;
      default: break;
    }
  }
  if (!has_address || segment.total_bytes == 0 ||
      segment.total_bytes > UINT64_MAX - segment.address) {
    ++bad_segments_;
    return;
  }
  if (heap_->is_sequence(blocks)) {
    Object& list = heap_->object(blocks);
    uint64_t next_address = segment.address;
    segment.blocks.reserve(std::min<uint32_t>(list.size, 1u << 20));
    for (uint32_t i = 0; i < list.size; ++i) {
      if (!heap_->is_object(list.items[i], ObjectKind::kDict)) continue;
      Object& block = heap_->object(list.items[i]);
      add_block(segment, block, next_address);
      heap_->release(block);
    }
    heap_->release(list);
  }
  record_.final_segments.push_back(std::move(segment));
}

void Builder::add_annotation(const Value* items, size_t count) {
  abi::MemoryEvent event;
  event.kind = abi::EventKind::kAnnotation;
  bool known_stage = false;
  for (size_t i = 0; i + 1 < count; i += 2) {
    if (!items[i].is(Tag::kString)) continue;
    const Value value = items[i + 1];
    switch (items[i].payload()) {
      case kWordName:
        if (value.is(Tag::kString)) event.name = record_string(value);
        break;
      case kWordStage:
        known_stage = value.is(Tag::kString) &&
                      (value.payload() == kWordStart || value.payload() == kWordEnd);
        event.value = value.is(Tag::kString) && value.payload() == kWordEnd;
        break;
      case kWordDevice:
        event.device =
            static_cast<uint8_t>(std::min<uint64_t>(heap_->to_unsigned(value).value_or(0), 255));
        break;
      case kWordTimeUs: {
        const uint64_t us = heap_->to_unsigned(value).value_or(0);
        event.time_ns =
            us <= kMaxTimeUs ? us : 0;  // absolute, in microseconds, until finish_events
        break;
      }
      default: break;
    }
  }
  if (known_stage && event.name != abi::kNoId)
    annotations_.push_back(event);
  else
    ++odd_items_;
}

void Builder::read_settings(const Object& dict) {
  record::AllocatorSettings& settings = record_.settings;
  for (uint32_t i = 0; i + 1 < dict.size; i += 2) {
    if (!dict.items[i].is(Tag::kString)) continue;
    const Value value = dict.items[i + 1];
    const std::string key(heap_->string(dict.items[i]));
    switch (dict.items[i].payload()) {
      case kWordAllocConf:
        if (value.is(Tag::kString)) settings.text = std::string(heap_->string(value));
        continue;
      case kWordMaxSplitSize: {
        const auto size = heap_->to_unsigned(value);  // -1: unlimited
        settings.max_split_size_bytes = size.value_or(UINT64_MAX);
        continue;
      }
      case kWordGarbageCollection:
        settings.garbage_collection_threshold = heap_->to_double(value).value_or(0);
        continue;
      case kWordExpandableSegments:
        settings.expandable_segments = heap_->to_unsigned(value).value_or(0) != 0;
        continue;
      case kWordRoundupDivisions: {
        if (!heap_->is_object(value, ObjectKind::kDict)) continue;
        const Object& divisions = heap_->object(value);
        std::map<uint64_t, uint32_t> by_size;  // "1" … "32768": MiB
        for (uint32_t d = 0; d + 1 < divisions.size; d += 2) {
          if (!divisions.items[d].is(Tag::kString)) continue;
          const std::string_view text = heap_->string(divisions.items[d]);
          uint64_t mib = 0;
          if (std::from_chars(text.data(), text.data() + text.size(), mib).ec != std::errc())
            continue;
          by_size[mib] = static_cast<uint32_t>(std::min<uint64_t>(
              heap_->to_unsigned(divisions.items[d + 1]).value_or(0), UINT32_MAX));
        }
        settings.roundup_power2_divisions.clear();
        if (by_size.size() == 16 && std::any_of(by_size.begin(), by_size.end(),
                                                [](const auto& entry) { return entry.second > 1; }))
          for (const auto& [mib, parts] : by_size)
            settings.roundup_power2_divisions.push_back(parts);
        continue;
      }
      case kWordTraceOverflowed:
        if (heap_->to_unsigned(value).value_or(0)) {
          record_.history_truncated = true;
          record_.notes.push_back(
              "the history's ring was full: its beginning was overwritten; record with a larger "
              "max_entries");
        }
        break;
      default: break;
    }
    if (!value.is(Tag::kObject) && record_.info.size() < 100)
      record_.info["allocator." + key.substr(0, 80)] = text_of(value);
  }
}

// Blocks that the end state has and the history cannot explain were there before it began.
void Builder::note_old_blocks() {
  std::array<uint64_t, 256> final_live{};
  for (const auto& segment : record_.final_segments)
    for (const auto& block : segment.blocks)
      if (block.state != record::BlockState::State::kInactive)
        ++final_live[static_cast<size_t>(segment.device)];
  uint64_t old_blocks = 0;
  for (size_t device = 0; device < counts_.size(); ++device) {
    if (counts_[device].events == 0) continue;
    const uint64_t explained = final_live[device] + counts_[device].frees;
    if (explained > counts_[device].allocs) old_blocks += explained - counts_[device].allocs;
  }
  if (old_blocks == 0) return;
  record_.history_truncated = true;
  record_.info["blocks_before_history"] = std::to_string(old_blocks);
  record_.notes.push_back(
      std::to_string(old_blocks) +
      " allocations are older than the history: recording began late, or its ring was full "
      "(max_entries); an earlier peak is not in this file");
}

void Builder::finish_events(bool truncated) {
  auto& events = record_.events;
  // An event whose dict never reached its list was cut off in the middle.
  if (truncated && !events.empty() && appended_events_ < events.size() &&
      events.size() - appended_events_ == 1 &&
      (events.back().kind == abi::EventKind::kNone || events.back().size_bytes == 0))
    events.pop_back();
  if (!old_frees_.empty()) {
    std::vector<abi::MemoryEvent> expanded;
    expanded.reserve(events.size() + old_frees_.size());
    size_t next = 0;
    for (size_t i = 0; i < events.size(); ++i) {
      expanded.push_back(events[i]);
      if (next < old_frees_.size() && old_frees_[next] == i) {
        ++next;
        expanded.push_back(events[i]);
        expanded.back().kind = abi::EventKind::kFreeCompleted;
        expanded.back().stack = abi::kNoId;
      }
    }
    events = std::move(expanded);
  }
  if (std::any_of(events.begin(), events.end(), [](const abi::MemoryEvent& event) {
        return event.kind == abi::EventKind::kNone;
      }))
    events.erase(std::remove_if(events.begin(), events.end(),
                                [](const abi::MemoryEvent& event) {
                                  return event.kind == abi::EventKind::kNone;
                                }),
                 events.end());
  const bool timed = base_us_ != kNoTime;
  if (!timed) {
    if (!annotations_.empty() && !events.empty())
      record_.notes.push_back("annotations were left out: the events have no times");
    return;
  }
  record_.info["start_time_us"] = std::to_string(static_cast<int64_t>(base_us_) + earliest_us_);
  if (earliest_us_ < 0)
    for (abi::MemoryEvent& event : events)
      event.time_ns += static_cast<uint64_t>(-earliest_us_ * 1000);

  // Each device's trace is in program order; its times may not be (they are approximate). Merge
  // without reordering within one.
  const auto earlier = [](const abi::MemoryEvent& a, const abi::MemoryEvent& b) {
    return a.time_ns < b.time_ns;
  };
  const bool several = std::count_if(counts_.begin(), counts_.end(), [](const DeviceCount& count) {
                         return count.events != 0;
                       }) > 1;
  for (size_t merged = 0; several && merged < events.size();) {
    size_t end = merged;
    while (end < events.size() && events[end].device == events[merged].device) ++end;
    std::inplace_merge(events.begin(), events.begin() + static_cast<ptrdiff_t>(merged),
                       events.begin() + static_cast<ptrdiff_t>(end), earlier);
    merged = end;
  }
  if (annotations_.empty()) return;
  const int64_t start_us = static_cast<int64_t>(base_us_) + earliest_us_;
  std::stable_sort(annotations_.begin(), annotations_.end(), earlier);
  // A ring that was overwritten begins after many of them; those stay before its first event.
  const auto first = std::find_if(annotations_.begin(), annotations_.end(),
                                  [&](const abi::MemoryEvent& annotation) {
                                    return static_cast<int64_t>(annotation.time_ns) >= start_us;
                                  });
  for (abi::MemoryEvent& annotation : annotations_)
    annotation.time_ns = static_cast<uint64_t>(std::max<int64_t>(
                             0, static_cast<int64_t>(annotation.time_ns) - start_us)) *
                         1000;
  const auto middle = static_cast<ptrdiff_t>(events.size());
  events.insert(events.end(), first, annotations_.end());
  std::inplace_merge(events.begin(), events.begin() + middle, events.end(), earlier);
  events.insert(events.begin(), annotations_.begin(), first);
}

Result<record::Record> Builder::finish(Value root, const std::string& source, bool truncated) {
  const bool is_dict = heap_->is_object(root, ObjectKind::kDict);
  bool recognised = !record_.final_segments.empty() || !record_.events.empty();
  if (is_dict) {
    const Object& dict = heap_->object(root);
    const Value segments = heap_->find(dict, kWordSegments),
                traces = heap_->find(dict, kWordDeviceTraces);
    recognised |= segments.is(Tag::kObject) || traces.is(Tag::kObject);
    add_list(kSegmentList, 0, segments);
    if (heap_->is_sequence(traces)) {
      const Object& outer = heap_->object(traces);
      for (uint32_t device = 0; device < outer.size; ++device) {
        if (device < counts_.size())
          add_list(kTraceList, device, outer.items[device]);
        else if (device == counts_.size())
          record_.notes.push_back("devices beyond the 256th were left out");
      }
    }
    add_list(kAnnotationList, 0, heap_->find(dict, kWordExternalAnnotations));
    const Value settings = heap_->find(dict, kWordAllocatorSettings);
    if (heap_->is_object(settings, ObjectKind::kDict)) read_settings(heap_->object(settings));
    if (heap_->find(dict, kWordHostTraces).is(Tag::kObject) ||
        heap_->find(dict, kWordHostSegments).is(Tag::kObject))
      record_.notes.push_back("the file also holds pinned host memory, which is not read");
  } else {
    add_list(kSegmentList, 0, root);
  }
  if (!recognised && record_.final_segments.empty())
    return Error{ErrorCode::kCorrupt,
                 "this pickle is not a memory snapshot: it has neither segments nor device_traces",
                 source, "a snapshot comes from torch.cuda.memory._dump_snapshot(\"file.pickle\")"};

  record_.source = source;
  record_.kind = record::Record::Kind::kSnapshot;
  record_.processes.emplace_back();
  if (truncated && !record_.events.empty() && !record_.final_segments.empty()) {
    // The end state belongs to the end of the history, which is missing: together they would
    // contradict each other.
    record_.final_segments.clear();
    record_.notes.push_back(
        "the end state (segments) was set aside, since the end of the history is missing");
  } else {
    note_old_blocks();
  }
  std::array<bool, 256> present{};
  for (size_t device = 0; device < counts_.size(); ++device)
    present[device] = counts_[device].events != 0;
  for (const auto& segment : record_.final_segments)
    present[static_cast<size_t>(segment.device)] = true;
  if (record_.events.empty() && !truncated)
    record_.notes.push_back(
        "the history is empty: torch.cuda.memory._record_memory_history() was not on; only the end "
        "state is known");
  finish_events(truncated);
  digest_native_frames(record_);
  for (size_t device = 0; device < present.size(); ++device) {
    if (!present[device]) continue;
    record::Device entry;
    entry.index = static_cast<int>(device);
    record_.devices.push_back(entry);
  }
  if (odd_items_)
    record_.notes.push_back(std::to_string(odd_items_) +
                            " entries of an unknown form were left out");
  if (bad_segments_)
    record_.notes.push_back(std::to_string(bad_segments_) +
                            " segments without an address or size were left out");
  for (const auto& [action, count] : unknown_actions_)
    record_.notes.push_back(std::to_string(count) + " events of the unknown kind \"" + action +
                            "\" were left out");
  if (record_.settings.text.size()) record_.info["alloc_conf"] = record_.settings.text;
  return std::move(record_);
}

}  // namespace tonnage::sources::snapshot
