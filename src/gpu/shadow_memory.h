// Shadow memory: the content of device memory, where it is known.
//
// The virtual card has no memory behind its addresses. But programs read small values back and act
// on them. So bytes that were copied to the device, set or copied there, or computed by the
// recorder are kept here. A piece is one of three: bytes; a repeated pattern, so that a memset of
// any size costs nothing; or a promise, for bytes that another process has. A promise is fetched
// when somebody reads it. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace tonnage::gpu {

// Bytes that are fetched when they are first read. `fetch` may wait; it is called once, with no
// lock of the store held.
class Promise {
 public:
  virtual ~Promise() = default;
  // Writes n bytes, the number that was promised; false: they are not known after all.
  virtual bool fetch(void* out, size_t n) = 0;
};

class ShadowMemory {
 public:
  // Bytes kept in all; beyond it the store refuses new bytes (they become unknown) and counts them.
  explicit ShadowMemory(uint64_t capacity_bytes = 2ull << 30) : capacity_bytes_(capacity_bytes) {}

  void set(uint64_t address, const void* bytes, size_t n);
  // Fills [address, address + n) with a pattern of `width` bytes (1, 2 or 4); n is a multiple of
  // width.
  void fill(uint64_t address, uint32_t pattern, unsigned width, size_t n);
  // The n bytes are the promise's.
  void promise(uint64_t address, size_t n, std::unique_ptr<Promise> promise);
  void forget(uint64_t address, size_t n);
  // dst becomes what src is, known or unknown.
  void copy(uint64_t dst, uint64_t src, size_t n);
  // True, and the bytes, if the whole range is known. False leaves `out` untouched. Waits for
  // promises.
  bool get(uint64_t address, void* out, size_t n);
  // Known bytes are written to `out`, unknown ones become zero. Returns how many were unknown.
  // Waits for promises.
  size_t read(uint64_t address, void* out, size_t n);
  // Whether any byte is known, or promised.
  bool any(uint64_t address, size_t n) const;

  uint64_t kept_bytes() const { return kept_bytes_.load(std::memory_order_relaxed); }
  uint64_t refused_bytes() const { return refused_bytes_.load(std::memory_order_relaxed); }

 private:
  struct Buffer;
  struct Pending;
  struct Piece {
    size_t n = 0;
    std::shared_ptr<Buffer> bytes;     // both null: a pattern
    std::shared_ptr<Pending> pending;  // a promise
    size_t offset = 0;                 // into bytes, or what is promised
    uint32_t pattern = 0;
    unsigned width = 1;
    uint64_t phase_base = 0;  // address at which the pattern starts
  };
  using Map = std::map<uint64_t, Piece>;

  static constexpr unsigned kFilterBits = 16;
  static size_t filter_slot(uint64_t address) {
    return (address >> 21) & ((1u << kFilterBits) - 1);
  }
  void count(uint64_t address, size_t n, int delta);
  void insert(uint64_t address, Piece piece);
  void erase_range(uint64_t address, size_t n);
  Map::const_iterator first_overlap(uint64_t address) const;
  // Turns the promises of the range into bytes, or takes them out.
  void settle(uint64_t address, size_t n);
  std::shared_ptr<Buffer> make_buffer(size_t n);
  static void write_piece(uint64_t piece_address, const Piece& piece, uint64_t from, size_t n,
                          unsigned char* out);

  mutable std::mutex mutex_;
  Map pieces_;
  uint64_t capacity_bytes_;
  std::atomic<uint64_t> kept_bytes_{0}, refused_bytes_{0};
  std::atomic<uint64_t> promises_{0};  // pieces that are one
  // Pieces by 2 MiB page of address (hashed): lets `any` say no without the lock, which is the
  // common case.
  std::atomic<uint32_t> filter_[1u << kFilterBits] = {};
};

}  // namespace tonnage::gpu
