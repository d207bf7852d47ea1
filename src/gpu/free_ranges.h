// Free pieces of an address range, merged with their neighbours when they come back.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>

namespace tonnage::gpu {

// Addresses or offsets; the caller picks a piece by its own rule. Not thread-safe.
class FreeRanges {
 public:
  using Pieces = std::map<uint64_t, uint64_t>;  // start -> bytes
  using Piece = Pieces::const_iterator;

  FreeRanges() = default;
  FreeRanges(uint64_t start, uint64_t bytes) { pieces_[start] = bytes; }

  Piece begin() const { return pieces_.begin(); }
  Piece end() const { return pieces_.end(); }

  // The first piece that is large enough; end() if there is none.
  Piece first_fit(uint64_t bytes) const {
    auto piece = pieces_.begin();
    while (piece != pieces_.end() && piece->second < bytes) ++piece;
    return piece;
  }
  // The smallest piece that is large enough, the lowest of equals; end() if there is none.
  Piece best_fit(uint64_t bytes) const {
    auto best = pieces_.end();
    for (auto piece = pieces_.begin(); piece != pieces_.end(); ++piece)
      if (piece->second >= bytes && (best == pieces_.end() || piece->second < best->second))
        best = piece;
    return best;
  }

  // Takes `bytes` from the beginning of a piece; returns where they begin.
  uint64_t take(Piece piece, uint64_t bytes) {
    const auto [start, room] = *piece;
    pieces_.erase(piece);
    if (room > bytes) pieces_[start + bytes] = room - bytes;
    return start;
  }

  // Gives back what was taken; returns the bytes of the piece that it is part of now.
  uint64_t give_back(uint64_t start, uint64_t bytes) {
    auto next = pieces_.lower_bound(start);
    if (next != pieces_.end() && start + bytes == next->first) {
      bytes += next->second;
      next = pieces_.erase(next);
    }
    if (next != pieces_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == start) return before->second = before->second + bytes;
    }
    pieces_[start] = bytes;
    return bytes;
  }

 private:
  Pieces pieces_;
};

}  // namespace tonnage::gpu
