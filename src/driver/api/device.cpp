// Initialisation, version, devices, primary contexts' owners: the part of cuda.h that needs no
// context.
#include <stdio.h>
#include <string.h>

#include "driver/entry_points.h"
#include "driver/recording.h"
#include "driver/state.h"

namespace tonnage::driver {

CUresult cuInit(unsigned int flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return initialise();
}

CUresult cuDriverGetVersion(int* version) {
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  Driver* state = driver();
  const int told = state ? state->session->devices[0].cuda_driver_version : 0;
  *version = told > 0 ? told : 13000;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(Driver* state, int* count) {
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<int>(state->devices.size());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(Driver* state, CUdevice* device, int ordinal) {
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  if (!state->device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int length, Device* device) {
  if (!name || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  snprintf(name, static_cast<size_t>(length), "%s", device->card->name);
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, Device* device) {
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  *bytes = device->card->total_bytes;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid* uuid, Device* device) {
  if (!uuid) return CUDA_ERROR_INVALID_VALUE;
  memcpy(uuid->bytes, device->card->uuid, 16);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid_v2(CUuuid* uuid, Device* handle) { return cuDeviceGetUuid(uuid, handle); }

CUresult cuDeviceGetLuid(char*, unsigned int*, CUdevice) {
  return CUDA_ERROR_NOT_SUPPORTED;
}  // Windows only

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, Device* device) {
  if (!value || attribute < 1 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
    return CUDA_ERROR_INVALID_VALUE;
  *value = device->card->attributes[attribute];
  return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int* major, int* minor, Device* device) {
  if (!major || !minor) return CUDA_ERROR_INVALID_VALUE;
  *major = device->card->cc_major;
  *minor = device->card->cc_minor;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetProperties(CUdevprop* properties, Device* device) {
  if (!properties) return CUDA_ERROR_INVALID_VALUE;
  const int32_t* a = device->card->attributes;
  properties->maxThreadsPerBlock = a[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK];
  for (int i = 0; i < 3; i++) {
    properties->maxThreadsDim[i] = a[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i];
    properties->maxGridSize[i] = a[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + i];
  }
  properties->sharedMemPerBlock = a[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK];
  properties->totalConstantMemory = a[CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY];
  properties->SIMDWidth = a[CU_DEVICE_ATTRIBUTE_WARP_SIZE];
  properties->memPitch = a[CU_DEVICE_ATTRIBUTE_MAX_PITCH];
  properties->regsPerBlock = a[CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK];
  properties->clockRate = a[CU_DEVICE_ATTRIBUTE_CLOCK_RATE];
  properties->textureAlign = a[CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT];
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* text, int length, Device* device) {
  if (!text || length < 13) return CUDA_ERROR_INVALID_VALUE;  // "0000:00:00.0" and its NUL
  const abi::CardDesc& card = *device->card;
  snprintf(text, static_cast<size_t>(length), "%04X:%02X:%02X.0",
           static_cast<unsigned>(card.pci_domain), static_cast<unsigned>(card.pci_bus),
           static_cast<unsigned>(card.pci_device));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(Driver* state, CUdevice* handle, const char* text) {
  if (!handle || !text) return CUDA_ERROR_INVALID_VALUE;
  unsigned domain = 0, bus = 0, place = 0;
  if (sscanf(text, "%x:%x:%x", &domain, &bus, &place) != 3) {
    domain = 0;
    if (sscanf(text, "%x:%x", &bus, &place) != 2) return CUDA_ERROR_INVALID_VALUE;
  }
  for (auto& device : state->devices) {
    const abi::CardDesc& card = *device->card;
    if (card.pci_domain != static_cast<int>(domain) || card.pci_bus != static_cast<int>(bus) ||
        card.pci_device != static_cast<int>(place))
      continue;
    *handle = device->index;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t* elements, CUarray_format format,
                                            unsigned channels, Device* device) {
  if (!elements || channels == 0 || channels > 4) return CUDA_ERROR_INVALID_VALUE;
  size_t bytes = 4;
  if (format == CU_AD_FORMAT_UNSIGNED_INT8 || format == CU_AD_FORMAT_SIGNED_INT8) bytes = 1;
  if (format == CU_AD_FORMAT_UNSIGNED_INT16 || format == CU_AD_FORMAT_SIGNED_INT16 ||
      format == CU_AD_FORMAT_HALF)
    bytes = 2;
  *elements = static_cast<size_t>(
                  device->card->attributes[CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH]) /
              (bytes * channels);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetExecAffinitySupport(int* supported, CUexecAffinityType type, Device* device) {
  if (!supported) return CUDA_ERROR_INVALID_VALUE;
  *supported = type == CU_EXEC_AFFINITY_TYPE_SM_COUNT && device->card->cc_major >= 7 ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetHostAtomicCapabilities(unsigned int* capabilities,
                                           const CUatomicOperation* operations, unsigned int count,
                                           Device*) {
  if (!capabilities || !operations) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; i++) capabilities[i] = 0;  // no native host atomics over PCIe
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetNvSciSyncAttributes(void*, CUdevice, int) { return CUDA_ERROR_NOT_SUPPORTED; }

}  // namespace tonnage::driver
