#include "analysis/timeline/block_tracker.h"

#include <algorithm>
#include <bit>

namespace tonnage::analysis {

uint64_t round_request(uint64_t requested, const std::vector<uint32_t>& divisions) {
  if (requested < kMinBlockBytes) return kMinBlockBytes;
  if (!divisions.empty()) {
    const int log2 = 63 - std::countl_zero(requested);
    const size_t index = std::min<size_t>(std::max(log2 - 20, 0), divisions.size() - 1);
    const uint64_t parts = divisions[index];
    if (parts > 1 && std::has_single_bit(parts) && requested > kMinBlockBytes * parts) {
      if (std::has_single_bit(requested)) return requested;
      const uint64_t power = uint64_t{1} << log2;
      const uint64_t step = power >> std::countr_zero(parts);
      if (step == 0) return power << 1;
      const uint64_t floor = requested & ~(step - 1);
      return floor == requested ? floor : floor + step;
    }
  }
  if (requested > UINT64_MAX - kMinBlockBytes)
    return requested;  // a hostile record must not wrap round to 0
  return (requested + kMinBlockBytes - 1) / kMinBlockBytes * kMinBlockBytes;
}

namespace {

constexpr uint64_t kExpandableMark = uint64_t{1} << 63;

uint64_t expandable_id(uint64_t stream) { return stream | kExpandableMark; }

uint64_t end_of(uint64_t address, uint64_t size) {
  return address > UINT64_MAX - size ? UINT64_MAX : address + size;
}

}  // namespace

BlockTracker::BlockTracker(const record::AllocatorSettings& settings) : settings_(settings) {}

bool BlockTracker::splits(uint64_t rounded, uint64_t rest, bool expandable) const {
  if (rounded <= kSmallPoolLimitBytes || expandable || settings_.expandable_segments)
    return rest >= kMinBlockBytes;
  return rounded < settings_.max_split_size_bytes && rest > kSmallPoolLimitBytes;
}

BlockTracker::Blocks::iterator BlockTracker::containing(uint64_t address) {
  auto it = blocks_.upper_bound(address);
  if (it == blocks_.begin()) return blocks_.end();
  --it;
  return address - it->first < it->second.size_bytes ? it : blocks_.end();
}

// Takes out every block (or part of a free one) in the range. Live ones are dropped and counted.
void BlockTracker::drop_range(uint64_t address, uint64_t size) {
  const uint64_t end = end_of(address, size);
  auto it = containing(address);
  if (it == blocks_.end()) it = blocks_.lower_bound(address);
  while (it != blocks_.end() && it->first < end) {
    const uint64_t start = it->first;
    const Block block = it->second;
    const uint64_t block_end = end_of(start, block.size_bytes);
    it = blocks_.erase(it);
    if (block.state != Block::State::kFree) {
      ++inconsistencies_;
      (block.state == Block::State::kLive ? allocated_bytes_ : pending_bytes_) -= block.size_bytes;
      requested_bytes_ -= block.requested_bytes;
      reserved_bytes_ -= block.size_bytes;
      continue;
    }
    reserved_bytes_ -= std::min(block_end, end) - std::max(start, address);
    if (start < address) {
      Block left = block;
      left.size_bytes = address - start;
      blocks_.emplace(start, left);
    }
    if (block_end > end) {
      Block right = block;
      right.size_bytes = block_end - end;
      right.front_assumed = false;
      it = blocks_.emplace(end, right).first;
      break;
    }
  }
}

void BlockTracker::segment_alloc(uint64_t address, uint64_t size) {
  if (size == 0) return;
  auto next = blocks_.lower_bound(address);
  if (containing(address) != blocks_.end() ||
      (next != blocks_.end() && next->first < end_of(address, size))) {
    ++inconsistencies_;  // its end was not seen
    drop_range(address, size);
  }
  Block block;
  block.size_bytes = size;
  block.segment = address;
  blocks_[address] = block;
  reserved_bytes_ += size;
}

void BlockTracker::segment_free(uint64_t address, uint64_t size) {
  auto it = blocks_.find(address);
  if (it == blocks_.end() || it->second.size_bytes != size ||
      it->second.state != Block::State::kFree)
    ++inconsistencies_;
  drop_range(address, size);
}

void BlockTracker::segment_map(uint64_t address, uint64_t size, uint64_t stream) {
  if (size == 0) return;
  auto next = blocks_.lower_bound(address);
  if (containing(address) != blocks_.end() ||
      (next != blocks_.end() && next->first < end_of(address, size))) {
    ++inconsistencies_;
    drop_range(address, size);
  }
  Block block;
  block.size_bytes = size;
  block.segment = expandable_id(stream);
  block.expandable = true;
  auto it = blocks_.insert_or_assign(address, block).first;
  reserved_bytes_ += size;
  merge_neighbours(it);
}

void BlockTracker::segment_unmap(uint64_t address, uint64_t size, uint64_t) {
  auto it = containing(address);
  if (it == blocks_.end() || it->second.state != Block::State::kFree ||
      end_of(it->first, it->second.size_bytes) < end_of(address, size)) {
    ++inconsistencies_;
  }
  drop_range(address, size);
}

BlockTracker::Blocks::iterator BlockTracker::merge_neighbours(Blocks::iterator it) {
  auto joins = [](const Blocks::iterator& left, const Blocks::iterator& right) {
    return left->second.state == Block::State::kFree &&
           right->second.state == Block::State::kFree &&
           left->second.segment == right->second.segment &&
           left->first + left->second.size_bytes == right->first;
  };
  if (it != blocks_.begin()) {
    auto previous = std::prev(it);
    if (joins(previous, it)) {
      previous->second.size_bytes += it->second.size_bytes;
      blocks_.erase(it);
      it = previous;
    }
  }
  auto next = std::next(it);
  if (next != blocks_.end() && joins(it, next)) {
    it->second.size_bytes += next->second.size_bytes;
    blocks_.erase(next);
  }
  return it;
}

// An allocation starts inside a free block whose own start was only assumed: the old block before
// it reaches up to here.
bool BlockTracker::correct_front(Blocks::iterator free_block, uint64_t address) {
  if (!free_block->second.front_assumed || free_block == blocks_.begin()) return false;
  auto old = std::prev(free_block);
  const uint64_t extra = address - free_block->first;
  if (!old->second.size_assumed || extra > kSmallPoolLimitBytes ||
      old->first + old->second.size_bytes != free_block->first)
    return false;
  Block rest = free_block->second;
  rest.size_bytes -= extra;
  rest.front_assumed = false;
  old->second.size_bytes += extra;
  old->second.size_assumed = false;
  (old->second.state == Block::State::kLive ? allocated_bytes_ : pending_bytes_) += extra;
  corrections_[old->first] = old->second.size_bytes;
  blocks_.erase(free_block);
  blocks_.emplace(address, rest);
  return true;
}

BlockTracker::Placed BlockTracker::alloc(uint64_t address, uint64_t requested, Tag tag) {
  const uint64_t rounded = round_request(requested, settings_.roundup_power2_divisions);
  Placed placed;
  auto it = blocks_.find(address);
  if (it == blocks_.end()) {
    auto around = containing(address);
    if (around != blocks_.end() && around->second.state == Block::State::kFree) {
      if (!correct_front(around, address)) {
        // PyTorch always hands out a block's front, so a block boundary was missed: make one here.
        ++inconsistencies_;
        placed.consistent = false;
        Block right = around->second;
        right.size_bytes -= address - around->first;
        right.front_assumed = false;
        around->second.size_bytes = address - around->first;
        blocks_.emplace(address, right);
      }
      it = blocks_.find(address);
    }
  } else if (it->second.state == Block::State::kFree && it->second.front_assumed) {
    it->second.front_assumed = false;
    if (it != blocks_.begin()) {
      auto old = std::prev(it);
      if (old->second.size_assumed) {
        old->second.size_assumed = false;
        corrections_[old->first] = old->second.size_bytes;
      }
    }
  }
  if (it == blocks_.end() || it->second.state != Block::State::kFree ||
      it->second.size_bytes < rounded) {
    ++inconsistencies_;
    placed.consistent = false;
    placed.block_bytes = rounded;
    Block block;
    block.size_bytes = rounded;
    block.requested_bytes = requested;
    block.tag = tag;
    block.state = Block::State::kLive;
    if (auto old = loose_.find(address); old != loose_.end()) {
      allocated_bytes_ -= old->second.size_bytes;
      requested_bytes_ -= old->second.requested_bytes;
    }
    loose_[address] = block;
    allocated_bytes_ += rounded;
    requested_bytes_ += requested;
    return placed;
  }
  Block& block = it->second;
  const uint64_t rest = block.size_bytes - rounded;
  if (rest > 0 && splits(rounded, rest, block.expandable)) {
    Block remainder = block;
    remainder.size_bytes = rest;
    blocks_.emplace_hint(std::next(it), address + rounded, remainder);
    block.size_bytes = rounded;
  }
  block.state = Block::State::kLive;
  block.requested_bytes = requested;
  block.tag = tag;
  block.size_assumed = false;
  allocated_bytes_ += block.size_bytes;
  requested_bytes_ += requested;
  placed.block_bytes = block.size_bytes;
  return placed;
}

std::optional<BlockTracker::Block> BlockTracker::free_requested(uint64_t address) {
  auto it = blocks_.find(address);
  if (it == blocks_.end() || it->second.state != Block::State::kLive) {
    it = loose_.find(address);
    if (it == loose_.end()) {
      ++inconsistencies_;
      return std::nullopt;
    }
    const Block gone = it->second;
    loose_.erase(it);
    allocated_bytes_ -= gone.size_bytes;
    requested_bytes_ -= gone.requested_bytes;
    return gone;
  }
  Block& block = it->second;
  block.state = Block::State::kPending;
  allocated_bytes_ -= block.size_bytes;
  pending_bytes_ += block.size_bytes;
  return block;
}

std::optional<BlockTracker::Block> BlockTracker::free_completed(uint64_t address) {
  auto it = blocks_.find(address);
  // A loose allocation ends with the request to free it. If one is alive here, that request was not
  // seen.
  if (it == blocks_.end() || it->second.state == Block::State::kFree) return std::nullopt;
  const Block gone = it->second;
  requested_bytes_ -= gone.requested_bytes;
  if (gone.state == Block::State::kLive) {
    ++inconsistencies_;
    allocated_bytes_ -= gone.size_bytes;
  } else {
    pending_bytes_ -= gone.size_bytes;
  }
  release(it);
  return gone;
}

void BlockTracker::release(Blocks::iterator it) {
  Block& block = it->second;
  block.state = Block::State::kFree;
  block.requested_bytes = 0;
  block.tag = kNoTag;
  block.size_assumed = false;
  block.front_assumed = false;
  auto next = std::next(it);
  if (next != blocks_.end()) next->second.front_assumed = false;
  merge_neighbours(it);
}

void BlockTracker::add_old_block(uint64_t address, uint64_t requested, uint64_t block_bytes,
                                 bool pending, Tag tag) {
  const uint64_t rounded =
      block_bytes != 0 ? block_bytes : round_request(requested, settings_.roundup_power2_divisions);
  auto it = containing(address);
  if (it == blocks_.end() || it->second.state != Block::State::kFree ||
      it->second.size_bytes - (address - it->first) < rounded) {
    ++inconsistencies_;
    if (pending) return;
    Block loose;
    loose.size_bytes = rounded;
    loose.requested_bytes = requested;
    loose.tag = tag;
    loose.state = Block::State::kLive;
    if (!loose_.emplace(address, loose).second) return;
    allocated_bytes_ += rounded;
    requested_bytes_ += requested;
    return;
  }
  const uint64_t front = address - it->first;
  Block block = it->second;
  const uint64_t rest = block.size_bytes - front - rounded;
  Block remainder = block;
  if (front > 0) {
    it->second.size_bytes = front;
  } else {
    blocks_.erase(it);
  }
  block.size_bytes = rounded;
  block.requested_bytes = requested;
  block.tag = tag;
  block.state = pending ? Block::State::kPending : Block::State::kLive;
  block.size_assumed = block_bytes == 0 && !splits(rounded, kMinBlockBytes, block.expandable);
  block.front_assumed = false;
  blocks_[address] = block;
  if (rest > 0) {
    remainder.size_bytes = rest;
    remainder.front_assumed = block.size_assumed;
    blocks_[address + rounded] = remainder;
  }
  (pending ? pending_bytes_ : allocated_bytes_) += rounded;
  requested_bytes_ += requested;
}

void BlockTracker::settle_old_blocks() {
  for (auto it = blocks_.begin(); it != blocks_.end(); ++it) {
    if (!it->second.size_assumed) continue;
    auto next = std::next(it);
    if (next == blocks_.end() || next->second.segment != it->second.segment ||
        next->second.state != Block::State::kFree) {
      it->second.size_assumed = false;  // its neighbour follows at once
      continue;
    }
    // Blocks of the large pool are larger than 1 MiB; what is smaller cannot be a free block of its
    // own. A request at or above max_split_size is never split, whatever the rest.
    const uint64_t rounded = it->second.size_bytes;
    if (next->second.size_bytes > kSmallPoolLimitBytes && rounded < settings_.max_split_size_bytes)
      continue;
    const uint64_t extra = next->second.size_bytes;
    it->second.size_bytes += extra;
    it->second.size_assumed = false;
    (it->second.state == Block::State::kLive ? allocated_bytes_ : pending_bytes_) += extra;
    blocks_.erase(next);
  }
}

BlockTracker::Tag BlockTracker::find(uint64_t address) const {
  for (const Blocks* blocks : {&blocks_, &loose_}) {
    auto it = blocks->upper_bound(address);
    if (it == blocks->begin()) continue;
    --it;
    if (address - it->first < it->second.size_bytes && it->second.state != Block::State::kFree)
      return it->second.tag;
  }
  return kNoTag;
}

}  // namespace tonnage::analysis
