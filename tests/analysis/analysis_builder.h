// Makes records by hand, and a plain caching allocator whose own counts are the truth that the
// block tracker is held against.
#pragma once

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "record/record.h"

namespace tonnage::analysis::testing {

using abi::Category;
using abi::EventKind;
using abi::MemoryEvent;
using abi::Phase;

inline constexpr uint64_t kMiB = 1 << 20;

class RecordBuilder {
 public:
  RecordBuilder() {
    record.devices.push_back({0, "Test GPU", 1024 * kMiB, 64 * kMiB});
    record.processes.push_back({100, "python train.py", true});
  }

  uint32_t text(const std::string& value) {
    for (uint32_t i = 0; i < record.strings.size(); ++i) {
      if (record.strings[i] == value) return i;
    }
    record.strings.push_back(value);
    return static_cast<uint32_t>(record.strings.size() - 1);
  }
  // Frames as {file, line, function}, innermost first.
  struct FrameText {
    std::string file;
    uint32_t line;
    std::string function;
  };
  uint32_t stack(const std::vector<FrameText>& frames) {
    std::vector<abi::Frame> made;
    for (const FrameText& frame : frames)
      made.push_back({text(frame.function), text(frame.file), frame.line});
    record.stacks.push_back(made);
    return static_cast<uint32_t>(record.stacks.size() - 1);
  }

  // What the next events carry.
  RecordBuilder& in(Phase value) {
    now.phase = value;
    return *this;
  }
  RecordBuilder& op(const std::string& value) {
    now.op = text(value);
    return *this;
  }
  RecordBuilder& module(const std::string& value) {
    now.module = text(value);
    return *this;
  }
  RecordBuilder& from(uint32_t value) {
    now.stack = value;
    return *this;
  }
  RecordBuilder& process(uint32_t value) {
    now.process = value;
    return *this;
  }
  RecordBuilder& device(uint8_t value) {
    now.device = value;
    return *this;
  }

  MemoryEvent& add(EventKind kind, uint64_t address = 0, uint64_t size_bytes = 0,
                   uint64_t value = 0, const std::string& name = "") {
    MemoryEvent event = now;
    event.kind = kind;
    event.address = address;
    event.size_bytes = size_bytes;
    event.value = value;
    event.name = text(name);
    event.time_ns = 1000 * (record.events.size() + 1);
    record.events.push_back(event);
    return record.events.back();
  }
  MemoryEvent& alloc(uint64_t address, uint64_t size) {
    return add(EventKind::kAlloc, address, size);
  }
  void release(uint64_t address, uint64_t size) {
    add(EventKind::kFreeRequested, address, size);
    add(EventKind::kFreeCompleted, address, size);
  }
  // A segment as the driver and PyTorch record it.
  void segment(uint64_t address, uint64_t size) {
    add(EventKind::kDeviceAlloc, address, size);
    add(EventKind::kSegmentAlloc, address, size);
  }
  uint32_t last() const { return static_cast<uint32_t>(record.events.size() - 1); }

  record::Record record;
  MemoryEvent now;
};

// PyTorch's allocator as its rules say, written for clearness: best fit by (size, address), split,
// merge. One stream.
class PlainAllocator {
 public:
  struct Piece {
    uint64_t size = 0, requested = 0, segment = 0;
    bool used = false, small = false;
  };

  explicit PlainAllocator(RecordBuilder& out, uint64_t max_split = UINT64_MAX)
      : out_(out), max_split_(max_split) {}

  uint64_t alloc(uint64_t requested) {
    const uint64_t size = std::max<uint64_t>(512, (requested + 511) / 512 * 512);
    const bool small = size <= kMiB;
    auto best = pieces.end();
    for (auto it = pieces.begin(); it != pieces.end(); ++it) {
      if (it->second.used || it->second.small != small || it->second.size < size) continue;
      if (size < max_split_ && it->second.size >= max_split_) continue;
      if (size >= max_split_ && it->second.size >= size + 20 * kMiB) continue;
      if (best == pieces.end() || it->second.size < best->second.size) best = it;
    }
    if (best == pieces.end()) {
      const uint64_t bytes = small              ? 2 * kMiB
                             : size < 10 * kMiB ? 20 * kMiB
                                                : (size + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB);
      best = pieces.emplace(next_, Piece{bytes, 0, next_, false, small}).first;
      out_.segment(next_, bytes);
      reserved += bytes;
      next_ += bytes;  // neighbouring segments: their blocks must not merge
    }
    Piece& piece = best->second;
    const uint64_t rest = piece.size - size;
    if (small ? rest >= 512 : (size < max_split_ && rest > kMiB)) {
      pieces.emplace(best->first + size, Piece{rest, 0, piece.segment, false, small});
      piece.size = size;
    }
    piece.used = true;
    piece.requested = requested;
    allocated += piece.size;
    out_.alloc(best->first, requested);
    return best->first;
  }

  void release(uint64_t address) {
    auto it = pieces.find(address);
    allocated -= it->second.size;
    out_.release(address, it->second.requested);
    it->second.used = false;
    auto join = [&](auto left, auto right) {
      if (left->second.used || right->second.used || left->second.segment != right->second.segment)
        return false;
      left->second.size += right->second.size;
      pieces.erase(right);
      return true;
    };
    if (auto next = std::next(it); next != pieces.end()) join(it, next);
    if (it != pieces.begin()) join(std::prev(it), it);
  }

  void empty_cache() {
    for (auto it = pieces.begin(); it != pieces.end();) {
      auto next = std::next(it);
      const bool whole = !it->second.used && it->first == it->second.segment &&
                         (next == pieces.end() || next->second.segment != it->second.segment);
      if (whole) {
        out_.add(EventKind::kDeviceFree, it->first, it->second.size);
        out_.add(EventKind::kSegmentFree, it->first, it->second.size);
        reserved -= it->second.size;
        it = pieces.erase(it);
      } else {
        it = next;
      }
    }
  }

  // The end state as a snapshot has it.
  std::vector<record::SegmentState> segments() const {
    std::map<uint64_t, record::SegmentState> made;
    for (const auto& [address, piece] : pieces) {
      record::SegmentState& segment = made[piece.segment];
      segment.address = piece.segment;
      segment.total_bytes += piece.size;
      segment.is_large = !piece.small;
      record::BlockState block;
      block.address = address;
      block.size_bytes = piece.size;
      block.requested_bytes = piece.used ? piece.requested : 0;
      block.state =
          piece.used ? record::BlockState::State::kActive : record::BlockState::State::kInactive;
      segment.blocks.push_back(block);
    }
    std::vector<record::SegmentState> out;
    for (auto& [address, segment] : made) out.push_back(std::move(segment));
    return out;
  }

  std::map<uint64_t, Piece> pieces;  // by address
  uint64_t allocated = 0, reserved = 0;

 private:
  RecordBuilder& out_;
  uint64_t max_split_;
  uint64_t next_ = 0x7f0000000000;
};

// A random program: after_each is called after every allocation and free.
template <class F>
void random_program(PlainAllocator& allocator, unsigned seed, int operations, F after_each) {
  std::mt19937 random(seed);
  std::vector<uint64_t> live;
  for (int i = 0; i < operations; ++i) {
    const unsigned choice = random() % 100;
    if (choice < 55 || live.empty()) {
      static constexpr uint64_t kScales[] = {2000, 300'000, 3'000'000, 15'000'000, 40'000'000};
      live.push_back(allocator.alloc(1 + random() % kScales[random() % 5]));
    } else if (choice < 98) {
      const size_t at = random() % live.size();
      allocator.release(live[at]);
      live[at] = live.back();
      live.pop_back();
    } else {
      allocator.empty_cache();
    }
    after_each();
  }
}

}  // namespace tonnage::analysis::testing
