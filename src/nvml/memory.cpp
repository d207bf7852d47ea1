// Memory and the processes that hold it, from the session's ledger.
#include <cstring>

#include "nvml/state.h"

using namespace tonnage::nvml;

namespace {

// Slices have numbers of their own; a card without MIG answers 0xFFFFFFFF.
constexpr unsigned int kNoInstance = 0xFFFFFFFFu;
constexpr unsigned int kGpuInstance = 1, kComputeInstance = 0;

void set_instance(nvmlProcessInfo_v1_t&, const Handle&, const abi::CardDesc&) {}
template <class Info>
void set_instance(Info& info, const Handle&, const abi::CardDesc& card) {
  info.gpuInstanceId = card.is_mig ? kGpuInstance : kNoInstance;
  info.computeInstanceId = card.is_mig ? kComputeInstance : kNoInstance;
}

// NVML's way with lists: *count is the room in, the number out; too little room is an error that
// still says the number.
template <class Info>
nvmlReturn_t give_processes(nvmlDevice_t device, unsigned int* count, Info* infos) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(count);
  if (*count > 0 && !infos) return NVML_ERROR_INVALID_ARGUMENT;
  unsigned int found = 0;
  const auto put = [&](int32_t pid, uint64_t used) {
    if (found < *count) {
      memset(&infos[found], 0, sizeof infos[found]);
      infos[found].pid = static_cast<unsigned int>(pid);
      infos[found].usedGpuMemory = used;
      set_instance(infos[found], *handle, card);
    }
    ++found;
  };
  each_process(
      *session(), handle->index,
      [](void* to, int32_t pid, uint64_t used) { (*static_cast<decltype(put)*>(to))(pid, used); },
      const_cast<void*>(static_cast<const void*>(&put)));
  const bool enough = found <= *count;
  *count = found;
  return enough ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

template <class Info>
nvmlReturn_t no_processes(nvmlDevice_t device, unsigned int* count, Info*) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(count);
  *count = 0;
  return NVML_SUCCESS;
}

uint64_t power_of_two_from(uint64_t bytes) {
  uint64_t out = 1ull << 28;
  while (out < bytes && out < (1ull << 62)) out <<= 1;
  return out;
}

}  // namespace

// The first version counts what the driver keeps for itself as used.
NVML_ENTRY(nvmlDeviceGetMemoryInfo)(nvmlDevice_t device, nvmlMemory_t* memory) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(memory);
  const uint64_t used = used_bytes(*session(), handle->index);
  memory->total = card.nvml_total_bytes;
  memory->free = card.total_bytes - used;
  memory->used = memory->total - memory->free;
  return NVML_SUCCESS;
}

NVML_ENTRY(nvmlDeviceGetMemoryInfo_v2)(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(memory);
  if (memory->version != nvmlMemory_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  memory->used = used_bytes(*session(), handle->index);
  memory->total = card.nvml_total_bytes;
  memory->reserved = card.nvml_total_bytes - card.total_bytes;
  memory->free = card.total_bytes - memory->used;
  return NVML_SUCCESS;
}

// How much of the memory the host can map: all of it, rounded up, as on cards with a large BAR.
NVML_ENTRY(nvmlDeviceGetBAR1MemoryInfo)(nvmlDevice_t device, nvmlBAR1Memory_t* memory) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(memory);
  memory->bar1Total = power_of_two_from(card.total_bytes);
  memory->bar1Used = 1ull << 20;
  memory->bar1Free = memory->bar1Total - memory->bar1Used;
  return NVML_SUCCESS;
}

NVML_ENTRY(nvmlDeviceGetComputeRunningProcesses)
(nvmlDevice_t device, unsigned int* count, nvmlProcessInfo_v1_t* infos) {
  return give_processes(device, count, infos);
}
NVML_ENTRY(nvmlDeviceGetComputeRunningProcesses_v2)
(nvmlDevice_t device, unsigned int* count, nvmlProcessInfo_v2_t* infos) {
  return give_processes(device, count, infos);
}
NVML_ENTRY(nvmlDeviceGetComputeRunningProcesses_v3)
(nvmlDevice_t device, unsigned int* count, nvmlProcessInfo_t* infos) {
  return give_processes(device, count, infos);
}
NVML_ENTRY(nvmlDeviceGetGraphicsRunningProcesses)
(nvmlDevice_t device, unsigned int* count, nvmlProcessInfo_v1_t* infos) {
  return no_processes(device, count, infos);
}
NVML_ENTRY(nvmlDeviceGetGraphicsRunningProcesses_v2)
(nvmlDevice_t device, unsigned int* count, nvmlProcessInfo_v2_t* infos) {
  return no_processes(device, count, infos);
}
NVML_ENTRY(nvmlDeviceGetGraphicsRunningProcesses_v3)
(nvmlDevice_t device, unsigned int* count, nvmlProcessInfo_t* infos) {
  return no_processes(device, count, infos);
}
NVML_ENTRY(nvmlDeviceGetMPSComputeRunningProcesses)
(nvmlDevice_t device, unsigned int* count, nvmlProcessInfo_v1_t* infos) {
  return no_processes(device, count, infos);
}
NVML_ENTRY(nvmlDeviceGetMPSComputeRunningProcesses_v2)
(nvmlDevice_t device, unsigned int* count, nvmlProcessInfo_v2_t* infos) {
  return no_processes(device, count, infos);
}
NVML_ENTRY(nvmlDeviceGetMPSComputeRunningProcesses_v3)
(nvmlDevice_t device, unsigned int* count, nvmlProcessInfo_t* infos) {
  return no_processes(device, count, infos);
}

NVML_ENTRY(nvmlDeviceGetRunningProcessDetailList)
(nvmlDevice_t device, nvmlProcessDetailList_t* list) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(list);
  if (list->version != nvmlProcessDetailList_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (list->mode >= NVML_PROCESS_MODE_MAX) return NVML_ERROR_INVALID_ARGUMENT;
  if (list->mode == NVML_PROCESS_MODE_COMPUTE || list->mode == NVML_PROCESS_MODE_ALL) {
    return give_processes(device, &list->numProcArrayEntries, list->procArray);
  }
  list->numProcArrayEntries = 0;
  return NVML_SUCCESS;
}

// Kernels take no time here, so no process has a share of the card's time to show.
NVML_ENTRY(nvmlDeviceGetProcessUtilization)
(nvmlDevice_t device, nvmlProcessUtilizationSample_t*, unsigned int* count, unsigned long long) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(count);
  *count = 0;
  return NVML_ERROR_NOT_FOUND;
}
