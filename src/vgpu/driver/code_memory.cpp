#include "vgpu/driver/code_memory.h"

#include "vgpu/driver/module.h"
#include "vgpu/driver/recording.h"

namespace tonnage::vgpu {
namespace {

// Code and variables live in heaps of the driver's own, which grow by whole granules.
struct Heap {
  uint64_t reserved_bytes = 0, used_bytes = 0;
};
struct CodeHeaps {
  std::mutex mutex;
  std::map<Device*, Heap> code;
  std::map<Device*, uint64_t> variable_cursor, variable_end;
};
CodeHeaps& heaps() {
  static CodeHeaps& all = *new CodeHeaps;
  return all;
}

void grow(Device* device, uint64_t bytes, std::string_view name) {
  Driver* state = driver();
  CodeHeaps& all = heaps();
  uint64_t more = 0;
  {
    std::lock_guard lock(all.mutex);
    Heap& heap = all.code[device];
    heap.used_bytes += bytes;
    const uint64_t need = round_up(heap.used_bytes, kGranule);
    if (need > heap.reserved_bytes) {
      more = need - heap.reserved_bytes;
      heap.reserved_bytes = need;
    }
  }
  if (!more) return;
  state->account.charge_always(device->physical, more);
  device->code_bytes.fetch_add(more);
  record_module_load(device->index, more, name);
}

}  // namespace

CUresult place_variable(Context* context, Device* device, size_t bytes, CUdeviceptr* out) {
  Driver* state = driver();
  const uint64_t size = round_up(bytes ? bytes : 1, 512);
  CodeHeaps& all = heaps();
  uint64_t address = 0;
  {
    std::lock_guard lock(all.mutex);
    uint64_t& cursor = all.variable_cursor[device];
    uint64_t& end = all.variable_end[device];
    if (cursor + size > end) {
      // Not from the addresses that allocations come from: a region of its own.
      std::lock_guard memory_lock(state->memory_mutex);
      const uint64_t region = state->regions->take_low(std::max<uint64_t>(size, kRegion));
      if (!region) return CUDA_ERROR_OUT_OF_MEMORY;
      cursor = region;
      end = region + round_up(size, kRegion);
    }
    address = cursor;
    cursor += size;
  }
  Allocation allocation;
  allocation.address = address;
  allocation.requested_bytes = bytes;
  allocation.kind = record::DeviceMemoryKind::kModuleData;
  allocation.context = context;
  allocation.device = device;
  allocation.buffer_id = state->new_id();
  allocation.owned_elsewhere = true;
  add_allocation(allocation);
  grow(device, size, "module variables");
  *out = address;
  return CUDA_SUCCESS;
}

void release_variable(Device*, CUdeviceptr address) {
  Allocation allocation;
  if (remove_allocation(address, &allocation)) driver()->content.forget(address, allocation.requested_bytes);
}

void make_resident(Function* function) {
  if (function->resident.load(std::memory_order_relaxed) || function->resident.exchange(true)) return;
  grow(function->module->device, function->info->code_bytes, function->name);
}

}  // namespace tonnage::vgpu
