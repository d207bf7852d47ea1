#include "driver/pinned_memory.h"

#include <string.h>
#include <sys/mman.h>

namespace tonnage::driver {
namespace {

constexpr uint64_t kLargestShared = 1ull << 20;
constexpr uint64_t kUnit = 512;

// Granules of host memory: a range of its own, or a block that small pieces share.
struct Granules {
  Device* device = nullptr;
  uint64_t bytes = 0;
  bool shared = false;
  gpu::FreeRanges gaps;                 // shared: addresses
  std::map<uint64_t, uint64_t> pieces;  // shared: address -> bytes
};

struct Pinned {
  std::mutex mutex;                  // taken before Driver::memory_mutex
  std::map<uint64_t, Granules> all;  // by address
};
Pinned& pinned() {
  static Pinned& instance = *new Pinned;
  return instance;
}

uint64_t map_granules(Device* device, uint64_t bytes) {
  Driver* state = driver();
  std::lock_guard lock(state->memory_mutex);
  const uint64_t address = device->addresses->allocate(bytes);
  if (address == 0) return 0;
  void* memory = mmap(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (memory == MAP_FAILED) {
    device->addresses->release(address);
    return 0;
  }
  gpu::HostRegions::set_host_memory(address, bytes, true);
  return address;
}

void unmap_granules(uint64_t address, const Granules& granules) {
  Driver* state = driver();
  std::lock_guard lock(state->memory_mutex);
  // Back to address space that faults; the region may go back to the host with it.
  mmap(reinterpret_cast<void*>(address), granules.bytes, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  gpu::HostRegions::set_host_memory(address, granules.bytes, false);
  granules.device->addresses->release(address);
}

void* take_shared(Pinned& state, Device* device, uint64_t bytes) {
  Granules* best = nullptr;
  gpu::FreeRanges::Piece gap;
  for (auto& [address, granules] : state.all) {
    if (!granules.shared || granules.device != device) continue;
    const auto piece = granules.gaps.best_fit(bytes);
    if (piece == granules.gaps.end() || (best && piece->second >= gap->second)) continue;
    best = &granules;
    gap = piece;
  }
  if (!best) {
    const uint64_t address = map_granules(device, gpu::kAllocationGranularity);
    if (address == 0) return nullptr;
    best = &state.all[address];
    *best = {device, gpu::kAllocationGranularity, true, {address, gpu::kAllocationGranularity}, {}};
    gap = best->gaps.begin();
  }
  const uint64_t address = best->gaps.take(gap, bytes);
  best->pieces[address] = bytes;
  return reinterpret_cast<void*>(address);
}

}  // namespace

void* take_pinned(Device* device, size_t bytes) {
  Pinned& state = pinned();
  std::lock_guard lock(state.mutex);
  if (bytes <= kLargestShared) {
    void* memory = take_shared(state, device, gpu::round_up(bytes, kUnit));
    if (memory) memset(memory, 0, bytes);
    return memory;
  }
  const uint64_t size = gpu::round_up(bytes, gpu::kAllocationGranularity);
  if (size < bytes) return nullptr;
  const uint64_t address = map_granules(device, size);
  if (address) state.all[address] = {device, size, false, {}, {}};
  return reinterpret_cast<void*>(address);
}

void give_back_pinned(void* memory) {
  const auto address = reinterpret_cast<uint64_t>(memory);
  Pinned& state = pinned();
  std::lock_guard lock(state.mutex);
  auto it = state.all.upper_bound(address);
  if (it == state.all.begin()) return;
  --it;
  Granules& granules = it->second;
  if (granules.shared) {
    const auto piece = granules.pieces.find(address);
    if (piece == granules.pieces.end()) return;
    granules.gaps.give_back(address, piece->second);
    granules.pieces.erase(piece);
    if (!granules.pieces.empty()) return;
  } else if (it->first != address) {
    return;
  }
  unmap_granules(it->first, granules);
  state.all.erase(it);
}

}  // namespace tonnage::driver
