#include "gpu/address_space.h"

#include <sys/mman.h>

#include <atomic>

namespace tonnage::gpu {
namespace {

constexpr uint64_t kAddressBits = 47;
constexpr uint64_t kPage = 4096;

// One bit per unit of a 47-bit address space, in pages that are only touched where they are used.
template <uint64_t kUnit>
class AddressBits {
 public:
  bool test(uint64_t address) const {
    const std::atomic<uint64_t>* bits = bits_.load(std::memory_order_acquire);
    if (!bits || address >> kAddressBits) return false;
    const uint64_t i = address / kUnit;
    return (bits[i / 64].load(std::memory_order_relaxed) >> (i % 64)) & 1;
  }
  bool set(uint64_t address, uint64_t bytes, bool value) {
    std::atomic<uint64_t>* bits = made();
    if (!bits) return false;
    for (uint64_t i = address / kUnit; i < (address + bytes) / kUnit && i / 64 < kWords; i++) {
      if (value)
        bits[i / 64].fetch_or(1ull << (i % 64));
      else
        bits[i / 64].fetch_and(~(1ull << (i % 64)));
    }
    return true;
  }

 private:
  static constexpr uint64_t kWords = (1ull << kAddressBits) / kUnit / 64;
  std::atomic<uint64_t>* made() {
    std::atomic<uint64_t>* bits = bits_.load(std::memory_order_acquire);
    if (bits) return bits;
    void* memory = mmap(nullptr, kWords * 8, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    auto* fresh = static_cast<std::atomic<uint64_t>*>(memory);
    if (bits_.compare_exchange_strong(bits, fresh)) return fresh;
    munmap(memory, kWords * 8);
    return bits;
  }
  std::atomic<std::atomic<uint64_t>*> bits_{nullptr};
};

AddressBits<kRegion> g_regions;
AddressBits<kAllocationGranularity> g_host_memory;

}  // namespace

bool HostRegions::contains(uint64_t address) {
  return g_regions.test(address) && !g_host_memory.test(address);
}

void HostRegions::set_host_memory(uint64_t address, uint64_t bytes, bool is_host) {
  g_host_memory.set(address, bytes, is_host);
}

uint64_t HostRegions::take(uint64_t bytes) {
  const uint64_t size = round_up(bytes, kRegion);
  if (size < bytes) return 0;
  // As the real driver: a range longer by the alignment less a page, of which the highest aligned
  // part is kept. So a gap is used only if it is longer than the region by that much; and the
  // kernel, which aligns whole multiples of huge pages and then passes by gaps that just fit, takes
  // the highest.
  const uint64_t asked = size + kRegion - kPage;
  void* memory = mmap(reinterpret_cast<void*>(hint_), asked, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return 0;
  const uint64_t start = reinterpret_cast<uint64_t>(memory), end = start + asked;
  const uint64_t kept = hint_ ? round_up(start, kRegion) : (end - size) / kRegion * kRegion;
  if (kept > start) munmap(memory, kept - start);
  if (end > kept + size) munmap(reinterpret_cast<void*>(kept + size), end - kept - size);
  if (kept + size > 1ull << kAddressBits) {
    munmap(reinterpret_cast<void*>(kept), size);
    return 0;
  }
  if (hint_) hint_ = kept + size;
  if (!g_regions.set(kept, size, true)) {
    munmap(reinterpret_cast<void*>(kept), size);
    return 0;
  }
  return kept;
}

void HostRegions::give_back(uint64_t address, uint64_t bytes) {
  g_regions.set(address, bytes, false);
  munmap(reinterpret_cast<void*>(address), bytes);
}

uint64_t AddressSpace::carve(std::list<Region>::iterator region, FreeRanges::Piece piece,
                             uint64_t bytes) {
  const uint64_t address = region->free.take(piece, bytes);
  live_[address] = {region, bytes};
  return address;
}

uint64_t AddressSpace::allocate(uint64_t bytes, RegionSource* source) {
  const uint64_t size = round_up(bytes, kAllocationGranularity);
  if (size < bytes || size == 0) return 0;
  for (auto region = regions_.begin(); region != regions_.end(); ++region) {
    const auto piece = region->free.best_fit(size);
    if (piece != region->free.end()) return carve(region, piece, size);
  }
  const uint64_t region_bytes = round_up(size, kRegion);
  const uint64_t start = source->take(region_bytes);
  if (start == 0) return 0;
  regions_.push_front({start, region_bytes, source, {start, region_bytes}});
  return carve(regions_.begin(), regions_.begin()->free.begin(), size);
}

void AddressSpace::release(uint64_t address) {
  const auto found = live_.find(address);
  if (found == live_.end()) return;
  const auto region = found->second.region;
  const uint64_t free = region->free.give_back(address, found->second.bytes);
  live_.erase(found);
  if (free < region->bytes) return;
  region->source->give_back(region->start, region->bytes);
  regions_.erase(region);
}

void AddressSpace::prepare_further_context() {
  for (uint64_t mebibytes : {4, 2, 2, 2, 4, 4, 2, 2, 2, 6}) allocate(mebibytes << 20);
}

uint64_t AddressSpace::prepare_context() {
  constexpr uint64_t kMiB = 1ull << 20;
  const uint64_t own = high_->take(96 * kMiB);
  if (own == 0) return 0;
  regions_.push_front({own, 96 * kMiB, high_, {own + 72 * kMiB, 24 * kMiB}});
  live_[own] = {regions_.begin(), 72 * kMiB};
  const uint64_t heap = high_->take(416 * kMiB);
  if (heap == 0) return 0;
  regions_.push_front({heap, 416 * kMiB, high_, {heap + 414 * kMiB, 2 * kMiB}});
  live_[heap] = {regions_.begin(), 414 * kMiB};
  return heap;
}

uint64_t AddressSpace::move(uint64_t address, uint64_t bytes) {
  const uint64_t moved = allocate(bytes);
  release(address);
  return moved;
}

}  // namespace tonnage::gpu
