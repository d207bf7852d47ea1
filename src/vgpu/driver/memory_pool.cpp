#include "vgpu/driver/memory_pool.h"

#include <algorithm>

#include "vgpu/driver/recording.h"

namespace tonnage::vgpu {

// The smallest free block that is large enough, the lowest of equals.
bool MemoryPool::take_free(uint64_t size, uint64_t* address) {
  auto best = free_blocks.end();
  for (auto it = free_blocks.begin(); it != free_blocks.end(); ++it)
    if (it->second >= size && (best == free_blocks.end() || it->second < best->second)) best = it;
  if (best == free_blocks.end()) return false;
  const auto [start, bytes] = *best;
  free_blocks.erase(best);
  if (bytes > size) free_blocks[start + size] = bytes - size;
  *address = start;
  return true;
}

bool MemoryPool::grow(uint64_t bytes) {
  if (props.maxSize && (bytes > props.maxSize || reserved > props.maxSize - bytes)) return false;
  if (driver()->account.free(device->physical) < bytes) return false;
  if (!charge_device(device, bytes)) return false;
  const uint64_t address = reserve_range(bytes);
  if (!address) {
    refund_device(device, bytes);
    return false;
  }
  chunks[address] = bytes;
  free_blocks[address] = bytes;
  reserved += bytes;
  reserved_high = std::max(reserved_high, reserved);
  record_device_alloc(device->index, address, bytes, record::DeviceMemoryKind::kPool);
  return true;
}

CUresult MemoryPool::allocate(uint64_t bytes, uint64_t* address) {
  if (bytes > (1ull << 50)) return CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t size = round_up(bytes, kPoolUnit);
  if (!take_free(size, address)) {
    // What is unused but in pieces is given up before the card is found full; near its end smaller chunks must do.
    const bool grown = grow(round_up(size, kPoolChunk)) || (trim(0) > 0 && grow(round_up(size, kPoolChunk))) ||
                       grow(round_up(size, kGranule));
    if (!grown || !take_free(size, address)) {
      record_device_oom(device->index, bytes, driver()->account.free(device->physical));
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  blocks[*address] = size;
  used += size;
  used_high = std::max(used_high, used);
  return CUDA_SUCCESS;
}

bool MemoryPool::release(uint64_t address) {
  const auto it = blocks.find(address);
  if (it == blocks.end()) return false;
  uint64_t bytes = it->second;
  blocks.erase(it);
  used -= bytes;
  // Merge with free neighbours of the same chunk.
  const auto chunk = std::prev(chunks.upper_bound(address));
  const uint64_t chunk_end = chunk->first + chunk->second;
  auto next = free_blocks.lower_bound(address);
  if (next != free_blocks.end() && next->first == address + bytes && next->first < chunk_end) {
    bytes += next->second;
    next = free_blocks.erase(next);
  }
  if (next != free_blocks.begin()) {
    const auto before = std::prev(next);
    if (before->first >= chunk->first && before->first + before->second == address) {
      before->second += bytes;
      return true;
    }
  }
  free_blocks[address] = bytes;
  return true;
}

uint64_t MemoryPool::trim(uint64_t keep_bytes) {
  uint64_t given = 0;
  for (auto it = chunks.begin(); it != chunks.end() && reserved > keep_bytes;) {
    const auto [address, bytes] = *it;
    const auto unused = free_blocks.find(address);
    if (unused == free_blocks.end() || unused->second != bytes || reserved - bytes < keep_bytes) {
      ++it;
      continue;
    }
    free_blocks.erase(unused);
    it = chunks.erase(it);
    reserved -= bytes;
    given += bytes;
    release_range(address, bytes);
    refund_device(device, bytes);
    record_device_free(device->index, address, bytes, record::DeviceMemoryKind::kPool);
  }
  return given;
}

}  // namespace tonnage::vgpu
