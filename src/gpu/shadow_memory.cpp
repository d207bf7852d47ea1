#include "gpu/shadow_memory.h"

#include <cstring>
#include <new>
#include <utility>
#include <vector>

namespace tonnage::gpu {

struct ShadowMemory::Buffer {
  Buffer(std::atomic<uint64_t>* kept, size_t n)
      : kept_bytes(kept), size(n), data(new (std::nothrow) unsigned char[n]) {
    if (data) kept_bytes->fetch_add(size, std::memory_order_relaxed);
  }
  ~Buffer() {
    if (data) kept_bytes->fetch_sub(size, std::memory_order_relaxed);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::atomic<uint64_t>* kept_bytes;
  size_t size;
  std::unique_ptr<unsigned char[]> data;
};

struct ShadowMemory::Pending {
  Pending(size_t bytes, std::unique_ptr<Promise> p) : n(bytes), promise(std::move(p)) {}
  const size_t n;
  std::mutex mutex;  // held while fetching: others wait for the same bytes
  bool done = false;
  std::unique_ptr<Promise> promise;
  std::shared_ptr<Buffer> bytes;  // when done; null: not known
};

std::shared_ptr<ShadowMemory::Buffer> ShadowMemory::make_buffer(size_t n) {
  if (kept_bytes_.load(std::memory_order_relaxed) + n <= capacity_bytes_) {
    auto buffer = std::make_shared<Buffer>(&kept_bytes_, n);
    if (buffer->data) return buffer;
  }
  refused_bytes_.fetch_add(n, std::memory_order_relaxed);
  return nullptr;
}

void ShadowMemory::count(uint64_t address, size_t n, int delta) {
  // A piece that spans more pages than the filter has slots counts once in each slot.
  uint64_t pages = ((address + n - 1) >> 21) - (address >> 21) + 1;
  if (pages > (1u << kFilterBits)) pages = 1u << kFilterBits;
  for (uint64_t i = 0; i < pages; i++)
    filter_[filter_slot(address + (i << 21))].fetch_add(static_cast<uint32_t>(delta),
                                                        std::memory_order_relaxed);
}

void ShadowMemory::insert(uint64_t address, Piece piece) {
  count(address, piece.n, 1);
  if (piece.pending) promises_.fetch_add(1, std::memory_order_relaxed);
  pieces_[address] = std::move(piece);
}

ShadowMemory::Map::const_iterator ShadowMemory::first_overlap(uint64_t address) const {
  auto it = pieces_.upper_bound(address);
  if (it != pieces_.begin()) {
    auto before = std::prev(it);
    if (before->first + before->second.n > address) return before;
  }
  return it;
}

void ShadowMemory::erase_range(uint64_t address, size_t n) {
  const uint64_t end = address + n;
  auto it = first_overlap(address);
  while (it != pieces_.end() && it->first < end) {
    const uint64_t start = it->first;
    Piece piece = it->second;
    const uint64_t stop = start + piece.n;
    count(start, piece.n, -1);
    if (piece.pending) promises_.fetch_sub(1, std::memory_order_relaxed);
    it = pieces_.erase(it);
    if (start < address) {
      Piece head = piece;
      head.n = address - start;
      insert(start, std::move(head));
    }
    if (stop > end) {
      Piece tail = piece;
      tail.n = stop - end;
      if (tail.bytes || tail.pending) tail.offset += end - start;
      insert(end, std::move(tail));
    }
  }
}

void ShadowMemory::set(uint64_t address, const void* bytes, size_t n) {
  if (n == 0) return;
  std::shared_ptr<Buffer> buffer = make_buffer(n);
  if (buffer) std::memcpy(buffer->data.get(), bytes, n);
  std::lock_guard lock(mutex_);
  erase_range(address, n);
  if (!buffer) return;
  Piece piece;
  piece.n = n;
  piece.bytes = std::move(buffer);
  insert(address, std::move(piece));
}

void ShadowMemory::fill(uint64_t address, uint32_t pattern, unsigned width, size_t n) {
  if (n == 0) return;
  std::lock_guard lock(mutex_);
  erase_range(address, n);
  Piece piece;
  piece.n = n;
  piece.pattern = pattern;
  piece.width = width;
  piece.phase_base = address;
  insert(address, std::move(piece));
}

void ShadowMemory::promise(uint64_t address, size_t n, std::unique_ptr<Promise> promise) {
  if (n == 0) return;
  Piece piece;
  piece.n = n;
  piece.pending = std::make_shared<Pending>(n, std::move(promise));
  std::lock_guard lock(mutex_);
  erase_range(address, n);
  insert(address, std::move(piece));
}

void ShadowMemory::settle(uint64_t address, size_t n) {
  while (promises_.load(std::memory_order_relaxed) != 0) {
    std::shared_ptr<Pending> pending;
    {
      std::lock_guard lock(mutex_);
      for (auto it = first_overlap(address);
           it != pieces_.end() && it->first < address + n && !pending; ++it)
        pending = it->second.pending;
    }
    if (!pending) return;
    {
      std::lock_guard fetching(pending->mutex);
      if (!pending->done) {
        auto buffer = make_buffer(pending->n);
        if (buffer && pending->promise->fetch(buffer->data.get(), pending->n))
          pending->bytes = std::move(buffer);
        pending->promise.reset();
        pending->done = true;
      }
    }
    // Its pieces in the range become what was fetched; pieces elsewhere do so when they are read.
    std::lock_guard lock(mutex_);
    std::vector<std::pair<uint64_t, Piece>> parts;
    for (auto it = first_overlap(address); it != pieces_.end() && it->first < address + n; ++it)
      if (it->second.pending == pending) parts.emplace_back(it->first, it->second);
    for (auto& [at, piece] : parts) {
      erase_range(at, piece.n);
      piece.pending = nullptr;
      piece.bytes = pending->bytes;
      if (piece.bytes) insert(at, std::move(piece));
    }
  }
}

void ShadowMemory::forget(uint64_t address, size_t n) {
  if (n == 0 || !any(address, n)) return;
  std::lock_guard lock(mutex_);
  erase_range(address, n);
}

bool ShadowMemory::any(uint64_t address, size_t n) const {
  if (n == 0) return false;
  const uint64_t pages = ((address + n - 1) >> 21) - (address >> 21) + 1;
  bool maybe = pages > 64;
  for (uint64_t i = 0; i < pages && !maybe; i++)
    maybe = filter_[filter_slot(address + (i << 21))].load(std::memory_order_relaxed) != 0;
  if (!maybe) return false;
  std::lock_guard lock(mutex_);
  auto it = first_overlap(address);
  return it != pieces_.end() && it->first < address + n;
}

void ShadowMemory::write_piece(uint64_t piece_address, const Piece& piece, uint64_t from, size_t n,
                               unsigned char* out) {
  if (piece.bytes) {
    std::memcpy(out, piece.bytes->data.get() + piece.offset + (from - piece_address), n);
    return;
  }
  unsigned char pattern[4];
  std::memcpy(pattern, &piece.pattern, 4);
  if (piece.width == 1) {
    std::memset(out, pattern[0], n);
    return;
  }
  for (size_t i = 0; i < n; i++) out[i] = pattern[(from + i - piece.phase_base) % piece.width];
}

bool ShadowMemory::get(uint64_t address, void* out, size_t n) {
  if (n == 0) return true;
  if (!any(address, 1)) return false;
  settle(address, n);
  std::lock_guard lock(mutex_);
  const auto begin = first_overlap(address);
  uint64_t at = address;
  for (auto it = begin; at < address + n; ++it) {
    if (it == pieces_.end() || it->first > at || it->second.pending) return false;
    at = it->first + it->second.n;
  }
  at = address;
  auto* bytes = static_cast<unsigned char*>(out);
  for (auto it = begin; at < address + n; ++it) {
    const uint64_t stop = std::min<uint64_t>(it->first + it->second.n, address + n);
    write_piece(it->first, it->second, at, stop - at, bytes + (at - address));
    at = stop;
  }
  return true;
}

size_t ShadowMemory::read(uint64_t address, void* out, size_t n) {
  settle(address, n);
  auto* bytes = static_cast<unsigned char*>(out);
  std::memset(bytes, 0, n);
  size_t known = 0;
  std::lock_guard lock(mutex_);
  for (auto it = first_overlap(address); it != pieces_.end() && it->first < address + n; ++it) {
    if (it->second.pending) continue;  // promised since
    const uint64_t from = std::max(it->first, address);
    const uint64_t stop = std::min<uint64_t>(it->first + it->second.n, address + n);
    write_piece(it->first, it->second, from, stop - from, bytes + (from - address));
    known += stop - from;
  }
  return n - known;
}

void ShadowMemory::copy(uint64_t dst, uint64_t src, size_t n) {
  if (n == 0 || dst == src) return;
  if (!any(src, n)) {
    forget(dst, n);
    return;
  }
  std::lock_guard lock(mutex_);
  std::vector<std::pair<uint64_t, Piece>> parts;
  for (auto it = first_overlap(src); it != pieces_.end() && it->first < src + n; ++it) {
    const uint64_t from = std::max(it->first, src);
    const uint64_t stop = std::min<uint64_t>(it->first + it->second.n, src + n);
    Piece piece = it->second;
    piece.n = stop - from;
    if (piece.bytes || piece.pending) piece.offset += from - it->first;
    piece.phase_base = piece.phase_base - src + dst;
    parts.emplace_back(from - src + dst, std::move(piece));
  }
  erase_range(dst, n);
  for (auto& [address, piece] : parts) insert(address, std::move(piece));
}

}  // namespace tonnage::gpu
