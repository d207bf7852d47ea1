#include "driver/small_memory.h"

#include "driver/recording.h"

namespace tonnage::driver {
namespace {

constexpr uint64_t kSmallAlign = 512;

// One shared block: which of its 512-byte units are taken.
struct SmallBlock {
  Context* context = nullptr;
  gpu::FreeRanges free{0, gpu::kAllocationGranularity};  // offsets
  uint64_t used_bytes = 0;
};

// By the block's address; guarded by the mutex below, which is taken before Driver::memory_mutex.
std::mutex& blocks_mutex() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}
std::map<uint64_t, SmallBlock>& blocks() {
  static auto& all = *new std::map<uint64_t, SmallBlock>;
  return all;
}

}  // namespace

CUresult allocate_small(Context* context, size_t bytes, CUdeviceptr* out) {
  const uint64_t size = gpu::round_up(bytes, kSmallAlign);
  std::lock_guard lock(blocks_mutex());
  auto place = [&](uint64_t base, SmallBlock& block) {
    const auto piece = block.free.first_fit(size);
    if (piece == block.free.end()) return false;
    block.used_bytes += size;
    Allocation allocation;
    allocation.address = base + block.free.take(piece, size);
    allocation.requested_bytes = bytes;
    allocation.context = context;
    allocation.device = context->device;
    allocation.buffer_id = driver()->new_id();
    add_allocation(allocation);
    *out = allocation.address;
    return true;
  };
  for (auto& [base, block] : blocks())
    if (block.context == context && place(base, block)) return CUDA_SUCCESS;
  CUdeviceptr base = 0;
  const CUresult result = allocate_device_memory(
      context->device, context, gpu::kAllocationGranularity, abi::DeviceMemoryKind::kPlain, &base);
  if (result != CUDA_SUCCESS) return result;
  Allocation whole;
  remove_allocation(base, &whole);  // its parts are known by themselves
  SmallBlock& block = blocks()[base];
  block.context = context;
  place(base, block);
  return CUDA_SUCCESS;
}

CUresult free_small(const Allocation& allocation) {
  std::lock_guard lock(blocks_mutex());
  auto it = blocks().upper_bound(allocation.address);
  if (it == blocks().begin()) return CUDA_ERROR_INVALID_VALUE;
  --it;
  const uint64_t base = it->first;
  SmallBlock& block = it->second;
  if (allocation.address >= base + gpu::kAllocationGranularity) return CUDA_ERROR_INVALID_VALUE;
  Allocation removed;
  if (!remove_allocation(allocation.address, &removed)) return CUDA_ERROR_INVALID_VALUE;
  Driver* state = driver();
  const uint64_t size = gpu::round_up(removed.requested_bytes, kSmallAlign);
  state->content.forget(allocation.address, size);
  block.used_bytes -= size;
  block.free.give_back(allocation.address - base, size);
  if (block.used_bytes > 0) return CUDA_SUCCESS;
  Device* device = removed.device;
  blocks().erase(it);
  {
    std::lock_guard memory_lock(state->memory_mutex);
    device->addresses->release(base);
  }
  refund_device(device, gpu::kAllocationGranularity);
  record_device_free(device->index, base, gpu::kAllocationGranularity,
                     abi::DeviceMemoryKind::kPlain);
  return CUDA_SUCCESS;
}

}  // namespace tonnage::driver
