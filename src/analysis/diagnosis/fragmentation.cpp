#include "analysis/diagnosis/fragmentation.h"

#include <algorithm>

namespace tonnage::analysis {
namespace {

using abi::EventKind;
using abi::MemoryEvent;
using State = BlockTracker::Block::State;

constexpr uint64_t kLargeSegmentBytes = 20 << 20;
constexpr uint64_t kMinLargeRequestBytes = 10 << 20;

bool is_small_request(uint64_t rounded) { return rounded <= kSmallPoolLimitBytes; }

// Whether a free block of the segment may serve the request.
bool serves(const MapSegment& segment, bool small_request, uint64_t stream) {
  return segment.stream == stream && (segment.expandable || segment.small_pool == small_request);
}

}  // namespace

uint64_t segment_request(uint64_t rounded) {
  if (is_small_request(rounded)) return kSmallSegmentBytes;
  if (rounded < kMinLargeRequestBytes) return kLargeSegmentBytes;
  if (rounded > UINT64_MAX - kSmallSegmentBytes) return rounded;
  return (rounded + kSmallSegmentBytes - 1) / kSmallSegmentBytes * kSmallSegmentBytes;
}

Replay::Replay(const record::Record& record, int device, uint32_t process)
    : record_(record), device_(device), process_(process), tracker_(record.settings) {
  if (process == 0) {
    auto states = initial_states(record);
    if (auto found = states.find(device); found != states.end())
      initial_ = std::move(found->second);
  }
  std::vector<BlockTracker::Tag> tags(initial_.blocks.size());
  for (size_t i = 0; i < tags.size(); ++i) tags[i] = kOldTag | static_cast<BlockTracker::Tag>(i);
  apply_initial_state(initial_, tracker_, &tags);
  for (const auto& segment : initial_.segments) streams_[segment.address] = segment.stream;
}

void Replay::apply(uint32_t index, const MemoryEvent& event) {
  if (event.kind == EventKind::kAlloc) {
    tracker_.alloc(event.address, event.size_bytes, index);
    return;
  }
  if (event.kind == EventKind::kSegmentAlloc) streams_[event.address] = event.stream;
  play(event, tracker_);
}

uint64_t Replay::stream_of(uint64_t segment) const {
  const auto found = streams_.find(segment);
  return found == streams_.end() ? 0 : found->second;
}

void Replay::origin(const BlockTracker::Block& block, uint32_t& alloc_event,
                    uint32_t& stack) const {
  if (block.tag == BlockTracker::kNoTag) return;
  if ((block.tag & kOldTag) != 0 && (block.tag & ~kOldTag) < initial_.blocks.size()) {
    stack = initial_.blocks[block.tag & ~kOldTag].stack;
  } else if (block.tag < record_.events.size()) {
    alloc_event = block.tag;
    stack = record_.events[block.tag].stack;
  }
}

SegmentMap segment_map_at(const Timeline& timeline, int device, uint32_t process, uint64_t event) {
  SegmentMap map;
  map.device = device;
  map.process = process;
  map.event = event;
  Replay replay(timeline.record(), device, process);
  replay.run(event == UINT64_MAX ? event : event + 1, [](uint32_t, const MemoryEvent&) {});
  const BlockTracker& tracker = replay.tracker();

  const MapBlock* previous = nullptr;
  uint64_t previous_segment = 0;
  for (const auto& [address, block] : tracker.blocks()) {
    const bool continues = previous != nullptr && block.segment == previous_segment &&
                           previous->address + previous->size_bytes == address;
    if (!continues) {
      MapSegment segment;
      segment.address = address;
      segment.expandable = block.expandable;
      // Expandable ids carry the stream below their top bit (block_tracker.cpp).
      segment.stream =
          block.expandable ? block.segment & ~(uint64_t{1} << 63) : replay.stream_of(block.segment);
      map.segments.push_back(std::move(segment));
    }
    MapSegment& segment = map.segments.back();
    MapBlock entry;
    entry.address = address;
    entry.size_bytes = block.size_bytes;
    entry.requested_bytes = block.requested_bytes;
    entry.state = block.state;
    if (block.state != State::kFree) replay.origin(block, entry.alloc_event, entry.stack);
    segment.size_bytes += block.size_bytes;
    if (block.state == State::kLive) segment.live_bytes += block.size_bytes;
    if (block.state == State::kPending) segment.pending_bytes += block.size_bytes;
    if (block.state == State::kFree) {
      segment.free_bytes += block.size_bytes;
      segment.largest_free_bytes = std::max(segment.largest_free_bytes, block.size_bytes);
    }
    segment.blocks.push_back(entry);
    previous = &segment.blocks.back();
    previous_segment = block.segment;
  }
  for (MapSegment& segment : map.segments)
    segment.small_pool = !segment.expandable && segment.size_bytes == kSmallSegmentBytes;
  return map;
}

Fragmentation measure_fragmentation(const SegmentMap& map) {
  Fragmentation out;
  for (const MapSegment& segment : map.segments) {
    ++out.segments;
    out.reserved += segment.size_bytes;
    out.pending += segment.pending_bytes;
    for (const MapBlock& block : segment.blocks) {
      if (block.state != State::kLive) continue;
      const uint64_t requested = std::min(block.requested_bytes, block.size_bytes);
      out.requested += requested;
      out.rounding += block.size_bytes - requested;
    }
    if (segment.free_bytes == segment.size_bytes) {
      out.cached += segment.free_bytes;
    } else if (segment.free_bytes > 0) {
      out.pinned += segment.free_bytes;
      ++out.pinned_segments;
    }
  }
  return out;
}

FreePieces free_pieces(const SegmentMap& map, uint64_t request, uint64_t stream) {
  FreePieces pieces;
  const bool small = is_small_request(request);
  for (const MapSegment& segment : map.segments) {
    if (!serves(segment, small, stream)) continue;
    for (const MapBlock& block : segment.blocks) {
      if (block.state != State::kFree) continue;
      ++pieces.count;
      pieces.total_bytes += block.size_bytes;
      pieces.largest_bytes = std::max(pieces.largest_bytes, block.size_bytes);
    }
  }
  return pieces;
}

std::optional<MovePlan> smallest_move(const SegmentMap& map, uint64_t request, uint64_t stream,
                                      uint64_t headroom) {
  std::optional<MovePlan> best;
  const auto offer = [&best](MovePlan plan) {
    if (!best || plan.move_bytes < best->move_bytes) best = std::move(plan);
  };
  const auto held = [](const MapBlock& block) {
    return block.state == State::kFree ? uint64_t{0} : block.size_bytes;
  };
  const bool small = is_small_request(request);

  // One free piece: the cheapest run of neighbouring blocks that is long enough. Both ends of the
  // window only move forward.
  for (const MapSegment& segment : map.segments) {
    if (!serves(segment, small, stream) || segment.size_bytes < request) continue;
    size_t first = 0, best_first = 0, best_end = 0;
    uint64_t length = 0, live = 0, best_live = UINT64_MAX;
    for (size_t end = 0; end < segment.blocks.size(); ++end) {
      length += segment.blocks[end].size_bytes;
      live += held(segment.blocks[end]);
      while (length - segment.blocks[first].size_bytes >= request) {
        length -= segment.blocks[first].size_bytes;
        live -= held(segment.blocks[first]);
        ++first;
      }
      if (length >= request && live < best_live) {
        best_live = live;
        best_first = first;
        best_end = end + 1;
      }
    }
    if (best_live == UINT64_MAX || (best && best->move_bytes <= best_live)) continue;
    MovePlan plan;
    plan.move_bytes = best_live;
    plan.segments.push_back(segment.address);
    for (size_t i = best_first; i < best_end; ++i) {
      plan.gained_bytes += segment.blocks[i].size_bytes;
      if (held(segment.blocks[i]) > 0) plan.blocks.push_back(segment.blocks[i]);
    }
    offer(std::move(plan));
  }

  // Empties whole segments, beginning with the segments that hold least.
  const uint64_t wanted = segment_request(request);
  std::vector<const MapSegment*> order;
  for (const MapSegment& segment : map.segments) {
    if (!segment.expandable) order.push_back(&segment);
  }
  std::stable_sort(order.begin(), order.end(), [](const MapSegment* a, const MapSegment* b) {
    const double left =
        static_cast<double>(a->size_bytes - a->free_bytes) / static_cast<double>(a->size_bytes);
    const double right =
        static_cast<double>(b->size_bytes - b->free_bytes) / static_cast<double>(b->size_bytes);
    return left < right;
  });
  uint64_t gained = headroom;
  std::vector<const MapSegment*> chosen;
  for (const MapSegment* segment : order) {
    if (gained >= wanted) break;
    chosen.push_back(segment);
    gained += segment->size_bytes;
  }
  if (gained >= wanted && !chosen.empty()) {
    // After the last segments, some earlier ones may not be needed any more: leaves out the most
    // expensive of these.
    std::vector<const MapSegment*> by_cost = chosen;
    std::stable_sort(by_cost.begin(), by_cost.end(), [](const MapSegment* a, const MapSegment* b) {
      return a->size_bytes - a->free_bytes > b->size_bytes - b->free_bytes;
    });
    for (const MapSegment* segment : by_cost) {
      if (gained - segment->size_bytes < wanted) continue;
      gained -= segment->size_bytes;
      chosen.erase(std::find(chosen.begin(), chosen.end(), segment));
    }
    MovePlan plan;
    plan.empties_segments = true;
    plan.gained_bytes = gained - headroom;
    for (const MapSegment* segment : chosen) {
      plan.segments.push_back(segment->address);
      for (const MapBlock& block : segment->blocks) {
        if (held(block) == 0) continue;
        plan.move_bytes += block.size_bytes;
        plan.blocks.push_back(block);
      }
    }
    offer(std::move(plan));
  }
  // Moved blocks need room elsewhere. Without enough other free memory, moving does not help.
  if (best) {
    uint64_t free_elsewhere = headroom;
    for (const MapSegment& segment : map.segments) free_elsewhere += segment.free_bytes;
    if (free_elsewhere < request) return std::nullopt;
    std::stable_sort(
        best->blocks.begin(), best->blocks.end(),
        [](const MapBlock& a, const MapBlock& b) { return a.size_bytes > b.size_bytes; });
  }
  return best;
}

}  // namespace tonnage::analysis
