#include "gpu/memory_pool.h"

#include <algorithm>

namespace tonnage::gpu {

bool MemoryPool::open() {
  if (base_) return true;
  const uint64_t card_bytes = card_->total_bytes();
  const uint64_t limit = most_bytes_ ? std::min(most_bytes_, card_bytes) : card_bytes;
  const uint64_t bytes = round_up(limit, kPoolChunk);
  base_ = addresses_->reserve(bytes);
  if (!base_) return false;
  backed_.assign(bytes / kPoolChunk, false);
  free_[base_] = bytes;
  return true;
}

void MemoryPool::close() {
  if (base_) addresses_->release(base_);
  base_ = 0;
}

uint64_t MemoryPool::find_backed(uint64_t size) const {
  uint64_t best = 0, best_bytes = ~0ull;
  if (reserved < size) return 0;
  for (const auto& [start, bytes] : free_) {
    // Runs of memory inside this free piece.
    const uint64_t end = start + bytes;
    for (uint64_t at = start; at < end;) {
      uint64_t run = at;
      while (run < end && backed_[(run - base_) / kPoolChunk])
        run = std::min(end, (run - base_) / kPoolChunk * kPoolChunk + kPoolChunk + base_);
      if (run - at >= size && run - at < best_bytes) {
        best = at;
        best_bytes = run - at;
      }
      at = std::max(run, (at - base_) / kPoolChunk * kPoolChunk + kPoolChunk + base_);
    }
  }
  return best;
}

uint64_t MemoryPool::find_lowest(uint64_t size) const {
  for (const auto& [start, bytes] : free_)
    if (bytes >= size) return start;
  return 0;
}

bool MemoryPool::back(uint64_t address, uint64_t size) {
  const size_t first = (address - base_) / kPoolChunk,
               last = (address + size - 1 - base_) / kPoolChunk;
  uint64_t missing = 0;
  for (size_t i = first; i <= last; i++) missing += backed_[i] ? 0 : kPoolChunk;
  if (most_bytes_ && reserved + missing > round_up(most_bytes_, kPoolChunk)) return false;
  // Not charged at once: the caller may still find memory elsewhere, and a refusal is told.
  if (card_->free_bytes() < missing || !card_->charge(missing)) return false;
  for (size_t i = first; i <= last; i++) {
    if (backed_[i]) continue;
    backed_[i] = true;
    card_->tell_of_alloc(base_ + i * kPoolChunk, kPoolChunk, abi::DeviceMemoryKind::kPool);
  }
  reserved += missing;
  reserved_high = std::max(reserved_high, reserved);
  return true;
}

uint64_t MemoryPool::allocate(uint64_t bytes) {
  if (bytes > card_->total_bytes() || !open()) return 0;
  const uint64_t size = round_up(bytes, kPoolUnit);
  uint64_t address = find_backed(size);
  if (!address) {
    address = find_lowest(size);
    if (!address || !back(address, size)) return 0;
  }
  const auto piece = std::prev(free_.upper_bound(address));
  const auto [start, length] = *piece;
  free_.erase(piece);
  if (address > start) free_[start] = address - start;
  if (start + length > address + size) free_[address + size] = start + length - address - size;
  blocks[address] = size;
  used += size;
  used_high = std::max(used_high, used);
  return address;
}

bool MemoryPool::release(uint64_t address) {
  const auto it = blocks.find(address);
  if (it == blocks.end()) return false;
  uint64_t bytes = it->second;
  blocks.erase(it);
  used -= bytes;
  auto next = free_.lower_bound(address);
  if (next != free_.end() && next->first == address + bytes) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == address) {
      before->second += bytes;
      return true;
    }
  }
  free_[address] = bytes;
  return true;
}

uint64_t MemoryPool::trim(uint64_t keep_bytes) {
  uint64_t given = 0;
  for (size_t i = backed_.size(); i-- > 0 && reserved > 0 && reserved - kPoolChunk >= keep_bytes;) {
    if (!backed_[i]) continue;
    const uint64_t chunk = base_ + i * kPoolChunk;
    const auto piece = free_.upper_bound(chunk);
    if (piece == free_.begin()) continue;
    const auto& [start, bytes] = *std::prev(piece);
    if (start > chunk || start + bytes < chunk + kPoolChunk) continue;  // a block lies in it
    backed_[i] = false;
    reserved -= kPoolChunk;
    given += kPoolChunk;
    card_->tell_of_free(chunk, kPoolChunk, abi::DeviceMemoryKind::kPool);
    card_->refund(kPoolChunk);
  }
  return given;
}

}  // namespace tonnage::gpu
