// What existed before a snapshot's history: its end state played backwards (see block_tracker.h).
#include <algorithm>
#include <unordered_map>

#include "analysis/timeline/block_tracker.h"

namespace tonnage::analysis {
namespace {

using abi::EventKind;
using abi::MemoryEvent;

// Disjoint mapped ranges of expandable segments, of one stream.
class Ranges {
 public:
  void add(uint64_t start, uint64_t end) {
    remove(start, end);
    ranges_[start] = end;
  }
  void remove(uint64_t start, uint64_t end) {
    auto it = ranges_.upper_bound(start);
    if (it != ranges_.begin()) --it;
    while (it != ranges_.end() && it->first < end) {
      const auto [from, to] = *it;
      if (to <= start) {
        ++it;
        continue;
      }
      it = ranges_.erase(it);
      if (from < start) ranges_[from] = start;
      if (to > end) it = ranges_.emplace(end, to).first;
    }
  }
  const std::map<uint64_t, uint64_t>& all() const { return ranges_; }

 private:
  std::map<uint64_t, uint64_t> ranges_;  // start -> end
};

struct Backwards {
  std::unordered_map<uint64_t, InitialState::OldBlock> live;
  std::map<uint64_t, InitialState::Segment> segments;
  std::map<uint64_t, Ranges> mapped;  // by stream

  void undo(const MemoryEvent& event) {
    const uint64_t end = event.address + event.size_bytes;
    switch (event.kind) {
      case EventKind::kAlloc: live.erase(event.address); break;
      case EventKind::kFreeCompleted:
        live[event.address] = {event.address, event.size_bytes, 0, abi::kNoId, true};
        break;
      case EventKind::kFreeRequested: {
        auto [it, made] = live.try_emplace(
            event.address,
            InitialState::OldBlock{event.address, event.size_bytes, 0, abi::kNoId, false});
        it->second.pending = false;
        break;
      }
      case EventKind::kSegmentAlloc: segments.erase(event.address); break;
      case EventKind::kSegmentFree:
        segments[event.address] = {event.address, event.size_bytes, event.stream, false};
        break;
      case EventKind::kSegmentMap:
        if (end > event.address) mapped[event.stream].remove(event.address, end);
        break;
      case EventKind::kSegmentUnmap:
        if (end > event.address) mapped[event.stream].add(event.address, end);
        break;
      default: break;
    }
  }
};

bool any_unknown(const InitialState& state) {
  return std::any_of(state.blocks.begin(), state.blocks.end(),
                     [](const auto& block) { return block.block_bytes == 0; });
}

// Plays the history once to learn the sizes of old blocks that later events give away.
void learn_sizes(const record::Record& record, int device, InitialState& state) {
  BlockTracker tracker(record.settings);
  apply_initial_state(state, tracker, nullptr);
  for (const MemoryEvent& event : record.events) {
    if (event.device == device) play(event, tracker);
  }
  for (auto& block : state.blocks) {
    if (auto it = tracker.corrections().find(block.address);
        block.block_bytes == 0 && it != tracker.corrections().end())
      block.block_bytes = it->second;
  }
}

}  // namespace

void play(const MemoryEvent& event, BlockTracker& tracker) {
  switch (event.kind) {
    case EventKind::kAlloc:
      tracker.alloc(event.address, event.size_bytes, BlockTracker::kNoTag - 1);
      break;
    case EventKind::kFreeRequested: tracker.free_requested(event.address); break;
    case EventKind::kFreeCompleted: tracker.free_completed(event.address); break;
    case EventKind::kSegmentAlloc: tracker.segment_alloc(event.address, event.size_bytes); break;
    case EventKind::kSegmentFree: tracker.segment_free(event.address, event.size_bytes); break;
    case EventKind::kSegmentMap:
      tracker.segment_map(event.address, event.size_bytes, event.stream);
      break;
    case EventKind::kSegmentUnmap:
      tracker.segment_unmap(event.address, event.size_bytes, event.stream);
      break;
    default: break;
  }
}

void apply_initial_state(const InitialState& state, BlockTracker& tracker,
                         const std::vector<BlockTracker::Tag>* tags) {
  for (const auto& segment : state.segments) {
    if (segment.expandable) {
      tracker.segment_map(segment.address, segment.size_bytes, segment.stream);
    } else {
      tracker.segment_alloc(segment.address, segment.size_bytes);
    }
  }
  for (size_t i = 0; i < state.blocks.size(); ++i) {
    const auto& block = state.blocks[i];
    tracker.add_old_block(block.address, block.requested_bytes, block.block_bytes, block.pending,
                          tags != nullptr ? (*tags)[i] : BlockTracker::kNoTag - 1);
  }
  tracker.settle_old_blocks();
}

std::map<int, InitialState> initial_states(const record::Record& record) {
  std::map<int, InitialState> states;
  if (record.final_segments.empty()) return states;
  std::map<int, Backwards> undo;
  for (const auto& segment : record.final_segments) {
    Backwards& device = undo[segment.device];
    if (segment.is_expandable) {
      const uint64_t end = segment.address + segment.total_bytes;
      if (end > segment.address) device.mapped[segment.stream].add(segment.address, end);
    } else {
      device.segments[segment.address] = {segment.address, segment.total_bytes, segment.stream,
                                          false};
    }
    for (const auto& block : segment.blocks) {
      if (block.state == record::BlockState::State::kInactive) continue;
      device.live[block.address] = {block.address, block.requested_bytes, block.size_bytes,
                                    block.stack,
                                    block.state == record::BlockState::State::kPendingFree};
    }
  }
  for (auto it = record.events.rbegin(); it != record.events.rend(); ++it)
    undo[it->device].undo(*it);
  for (auto& [index, device] : undo) {
    InitialState state;
    for (const auto& [address, segment] : device.segments) state.segments.push_back(segment);
    for (const auto& [stream, ranges] : device.mapped) {
      for (const auto& [start, end] : ranges.all())
        state.segments.push_back({start, end - start, stream, true});
    }
    for (const auto& [address, block] : device.live) state.blocks.push_back(block);
    std::sort(state.blocks.begin(), state.blocks.end(),
              [](const auto& a, const auto& b) { return a.address < b.address; });
    if (state.segments.empty() && state.blocks.empty()) continue;
    if (any_unknown(state)) learn_sizes(record, index, state);
    states[index] = std::move(state);
  }
  return states;
}

}  // namespace tonnage::analysis
