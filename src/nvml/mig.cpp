// Multi-Instance GPU: a device of the session that is a slice is seen as a whole card in MIG mode
// with that one slice on it.
#include "nvml/state.h"

using namespace tonnage::nvml;
using namespace tonnage::nvml;

namespace {

constexpr int kSms = 16, kCopyEngines = 40;
constexpr unsigned int kGpuInstance = 1, kComputeInstance = 0, kMostSlices = 7;

bool can_slice(const abi::CardDesc& card) {
  if (card.is_mig) return true;
  const int cc = card.cc_major * 10 + card.cc_minor;
  return family_of(card) == Family::kDataCentre && (cc == 80 || cc == 90 || cc == 100 || cc == 103);
}

nvmlReturn_t give_attributes(nvmlDevice_t device, nvmlDeviceAttributes_t* attributes) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(attributes);
  if (!handle->is_slice) return NVML_ERROR_NOT_SUPPORTED;
  *attributes = {};
  attributes->multiprocessorCount = static_cast<unsigned int>(attribute(card, kSms));
  attributes->sharedCopyEngineCount = static_cast<unsigned int>(attribute(card, kCopyEngines));
  attributes->gpuInstanceSliceCount = 1;
  attributes->computeInstanceSliceCount = 1;
  attributes->memorySizeMB = card.total_bytes >> 20;
  return NVML_SUCCESS;
}

}  // namespace

NVML_ENTRY(nvmlDeviceGetMigMode)
(nvmlDevice_t device, unsigned int* current, unsigned int* pending) {
  NVML_DEVICE(device);
  if (!current || !pending) return NVML_ERROR_INVALID_ARGUMENT;
  if (handle->is_slice) return NVML_ERROR_INVALID_ARGUMENT;
  if (!can_slice(card)) return NVML_ERROR_NOT_SUPPORTED;
  *current = *pending = card.is_mig ? NVML_DEVICE_MIG_ENABLE : NVML_DEVICE_MIG_DISABLE;
  return NVML_SUCCESS;
}

NVML_ENTRY(nvmlDeviceIsMigDeviceHandle)(nvmlDevice_t device, unsigned int* is_slice) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(is_slice);
  *is_slice = handle->is_slice;
  return NVML_SUCCESS;
}

NVML_ENTRY(nvmlDeviceGetMaxMigDeviceCount)(nvmlDevice_t device, unsigned int* count) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(count);
  *count = card.is_mig ? kMostSlices : 0;
  return NVML_SUCCESS;
}

NVML_ENTRY(nvmlDeviceGetMigDeviceHandleByIndex)
(nvmlDevice_t device, unsigned int index, nvmlDevice_t* slice) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(slice);
  if (handle->is_slice || index >= kMostSlices) return NVML_ERROR_INVALID_ARGUMENT;
  if (!can_slice(card)) return NVML_ERROR_NOT_SUPPORTED;
  if (!card.is_mig || index > 0) return NVML_ERROR_NOT_FOUND;
  *slice = slice_handle(handle->index);
  return NVML_SUCCESS;
}

NVML_ENTRY(nvmlDeviceGetDeviceHandleFromMigDeviceHandle)(nvmlDevice_t slice, nvmlDevice_t* device) {
  NVML_DEVICE(slice);
  NVML_NOT_NULL(device);
  if (!handle->is_slice) return NVML_ERROR_INVALID_ARGUMENT;
  *device = device_handle(handle->index);
  return NVML_SUCCESS;
}

NVML_ENTRY(nvmlDeviceGetGpuInstanceId)(nvmlDevice_t device, unsigned int* id) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(id);
  if (!handle->is_slice) return NVML_ERROR_NOT_SUPPORTED;
  *id = kGpuInstance;
  return NVML_SUCCESS;
}

NVML_ENTRY(nvmlDeviceGetComputeInstanceId)(nvmlDevice_t device, unsigned int* id) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(id);
  if (!handle->is_slice) return NVML_ERROR_NOT_SUPPORTED;
  *id = kComputeInstance;
  return NVML_SUCCESS;
}

NVML_ENTRY(nvmlDeviceGetAttributes)(nvmlDevice_t device, nvmlDeviceAttributes_t* attributes) {
  return give_attributes(device, attributes);
}
NVML_ENTRY(nvmlDeviceGetAttributes_v2)(nvmlDevice_t device, nvmlDeviceAttributes_t* attributes) {
  return give_attributes(device, attributes);
}
