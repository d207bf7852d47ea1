// The machine: versions, errors, processes' names, counts and handles.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "nvml/state.h"

using namespace tonnage::nvml;
using namespace tonnage::nvml;

NVML_TEXT_ENTRY(nvmlErrorString)(nvmlReturn_t result) {
  switch (result) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_ALREADY_INITIALIZED: return "Already Initialized";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_INSUFFICIENT_POWER: return "Insufficient External Power";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT: return "Timeout";
    case NVML_ERROR_IRQ_ISSUE: return "Interrupt Request Issue";
    case NVML_ERROR_LIBRARY_NOT_FOUND: return "NVML Shared Library Not Found";
    case NVML_ERROR_FUNCTION_NOT_FOUND: return "Function Not Found";
    case NVML_ERROR_CORRUPTED_INFOROM: return "Corrupted infoROM";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_RESET_REQUIRED: return "GPU requires reset";
    case NVML_ERROR_OPERATING_SYSTEM: return "GPU access blocked by the operating system";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    case NVML_ERROR_IN_USE: return "In use by another client";
    case NVML_ERROR_MEMORY: return "Insufficient Memory";
    case NVML_ERROR_NO_DATA: return "No data";
    case NVML_ERROR_VGPU_ECC_NOT_SUPPORTED: return "vGPU with ECC is not supported";
    case NVML_ERROR_INSUFFICIENT_RESOURCES: return "Insufficient resources";
    case NVML_ERROR_FREQ_NOT_SUPPORTED: return "Frequency not supported";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
    case NVML_ERROR_DEPRECATED: return "Deprecated";
    case NVML_ERROR_NOT_READY: return "Not ready";
    case NVML_ERROR_GPU_NOT_FOUND: return "No GPUs were found";
    case NVML_ERROR_INVALID_STATE: return "Invalid state";
    default: return "Unknown Error";
  }
}

namespace {

std::string_view driver_version(const abi::Session& session) {
  if (session.device_count == 0) return "580.159.04";
  const char* text = session.devices[0].driver_version;
  return {text, strnlen(text, sizeof session.devices[0].driver_version)};
}

nvmlReturn_t cuda_version(int* version) {
  if (!session()) return NVML_ERROR_UNINITIALIZED;
  NVML_NOT_NULL(version);
  *version = session()->device_count > 0 ? session()->devices[0].cuda_driver_version : 13000;
  return NVML_SUCCESS;
}

nvmlReturn_t device_count(unsigned int* count) {
  if (!session()) return NVML_ERROR_UNINITIALIZED;
  NVML_NOT_NULL(count);
  *count = static_cast<unsigned int>(session()->device_count);
  return NVML_SUCCESS;
}

nvmlReturn_t by_index(unsigned int index, nvmlDevice_t* device) {
  if (!session()) return NVML_ERROR_UNINITIALIZED;
  if (!device || index >= static_cast<unsigned int>(session()->device_count))
    return NVML_ERROR_INVALID_ARGUMENT;
  *device = device_handle(static_cast<int>(index));
  return NVML_SUCCESS;
}

// "domain:bus:device.function" in hexadecimal; the domain and the function may be missing.
nvmlReturn_t by_bus(const char* text, nvmlDevice_t* device) {
  if (!session()) return NVML_ERROR_UNINITIALIZED;
  if (!text || !device || strnlen(text, 33) > 32) return NVML_ERROR_INVALID_ARGUMENT;
  unsigned int domain = 0, bus = 0, place = 0;
  if (sscanf(text, "%8x:%2x:%2x", &domain, &bus, &place) != 3) {
    domain = 0;
    if (sscanf(text, "%2x:%2x", &bus, &place) != 2) return NVML_ERROR_INVALID_ARGUMENT;
  }
  for (int i = 0; i < session()->device_count; ++i) {
    const abi::CardDesc& card = session()->devices[i];
    if (static_cast<unsigned>(card.pci_domain) == domain &&
        static_cast<unsigned>(card.pci_bus) == bus &&
        static_cast<unsigned>(card.pci_device) == place) {
      *device = device_handle(i);
      return NVML_SUCCESS;
    }
  }
  return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t by_uuid(const char* text, nvmlDevice_t* device) {
  if (!session()) return NVML_ERROR_UNINITIALIZED;
  if (!text || !device) return NVML_ERROR_INVALID_ARGUMENT;
  for (int i = 0; i < session()->device_count; ++i) {
    char own[48];
    uuid_text(session()->devices[i], false, own);
    if (strcmp(own, text) == 0) {
      *device = device_handle(i);
      return NVML_SUCCESS;
    }
    uuid_text(session()->devices[i], true, own);
    if (session()->devices[i].is_mig && strcmp(own, text) == 0) {
      *device = slice_handle(i);
      return NVML_SUCCESS;
    }
  }
  return NVML_ERROR_NOT_FOUND;
}

}  // namespace

NVML_ENTRY(nvmlSystemGetDriverVersion)(char* version, unsigned int length) {
  if (!session()) return NVML_ERROR_UNINITIALIZED;
  return give_text(driver_version(*session()), version, length);
}

NVML_ENTRY(nvmlSystemGetNVMLVersion)(char* version, unsigned int length) {
  if (!session()) return NVML_ERROR_UNINITIALIZED;
  const std::string_view driver = driver_version(*session());
  char text[64];
  snprintf(text, sizeof text, "%s.%.*s", NVML_API_VERSION_STR, static_cast<int>(driver.size()),
           driver.data());
  return give_text(text, version, length);
}

NVML_ENTRY(nvmlSystemGetCudaDriverVersion)(int* version) { return cuda_version(version); }
NVML_ENTRY(nvmlSystemGetCudaDriverVersion_v2)(int* version) { return cuda_version(version); }

NVML_ENTRY(nvmlSystemGetProcessName)(unsigned int pid, char* name, unsigned int length) {
  if (!session()) return NVML_ERROR_UNINITIALIZED;
  if (!name || length == 0) return NVML_ERROR_INVALID_ARGUMENT;
  char path[64], text[1024];
  snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return NVML_ERROR_NOT_FOUND;
  const ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  if (n <= 0) return NVML_ERROR_NO_DATA;
  text[n] = 0;  // the first argument ends with its own zero
  const size_t size = strlen(text);
  const size_t kept = size < length ? size : length - 1;  // NVML cuts names that are too long
  memcpy(name, text, kept);
  name[kept] = 0;
  return NVML_SUCCESS;
}

NVML_ENTRY(nvmlSystemGetHicVersion)(unsigned int* count, nvmlHwbcEntry_t*) {
  if (!session()) return NVML_ERROR_UNINITIALIZED;
  NVML_NOT_NULL(count);
  *count = 0;
  return NVML_SUCCESS;
}

NVML_ENTRY(nvmlUnitGetCount)(unsigned int* count) {
  if (!session()) return NVML_ERROR_UNINITIALIZED;
  NVML_NOT_NULL(count);
  *count = 0;
  return NVML_SUCCESS;
}

NVML_ENTRY(nvmlGetExcludedDeviceCount)(unsigned int* count) {
  NVML_NOT_NULL(count);
  *count = 0;
  return NVML_SUCCESS;
}

// Confidential computing is off; NCCL asks and stops where this is an error.
NVML_ENTRY(nvmlSystemGetConfComputeState)(nvmlConfComputeSystemState_t* state) {
  if (!session()) return NVML_ERROR_UNINITIALIZED;
  NVML_NOT_NULL(state);
  *state = {};
  return NVML_SUCCESS;
}

NVML_ENTRY(nvmlSystemGetConfComputeCapabilities)(nvmlConfComputeSystemCaps_t* caps) {
  if (!session()) return NVML_ERROR_UNINITIALIZED;
  NVML_NOT_NULL(caps);
  *caps = {};
  return NVML_SUCCESS;
}

NVML_ENTRY(nvmlSystemGetConfComputeSettings)(nvmlSystemConfComputeSettings_t* settings) {
  if (!session()) return NVML_ERROR_UNINITIALIZED;
  NVML_NOT_NULL(settings);
  if (settings->version != nvmlSystemConfComputeSettings_v1)
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  *settings = {};
  settings->version = nvmlSystemConfComputeSettings_v1;
  return NVML_SUCCESS;
}

NVML_ENTRY(nvmlDeviceGetCount)(unsigned int* count) { return device_count(count); }
NVML_ENTRY(nvmlDeviceGetCount_v2)(unsigned int* count) { return device_count(count); }
NVML_ENTRY(nvmlDeviceGetHandleByIndex)(unsigned int index, nvmlDevice_t* device) {
  return by_index(index, device);
}
NVML_ENTRY(nvmlDeviceGetHandleByIndex_v2)(unsigned int index, nvmlDevice_t* device) {
  return by_index(index, device);
}
NVML_ENTRY(nvmlDeviceGetHandleByPciBusId)(const char* text, nvmlDevice_t* device) {
  return by_bus(text, device);
}
NVML_ENTRY(nvmlDeviceGetHandleByPciBusId_v2)(const char* text, nvmlDevice_t* device) {
  return by_bus(text, device);
}
NVML_ENTRY(nvmlDeviceGetHandleByUUID)(const char* text, nvmlDevice_t* device) {
  return by_uuid(text, device);
}

NVML_ENTRY(nvmlDeviceGetHandleByUUIDV)(const nvmlUUID_t* uuid, nvmlDevice_t* device) {
  if (!session()) return NVML_ERROR_UNINITIALIZED;
  if (!uuid || !device) return NVML_ERROR_INVALID_ARGUMENT;
  if (uuid->version != nvmlUUID_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (uuid->type == NVML_UUID_TYPE_ASCII) {
    char text[NVML_DEVICE_UUID_ASCII_LEN + 1] = {};
    memcpy(text, uuid->value.str, NVML_DEVICE_UUID_ASCII_LEN);
    return by_uuid(text, device);
  }
  if (uuid->type != NVML_UUID_TYPE_BINARY) return NVML_ERROR_INVALID_ARGUMENT;
  for (int i = 0; i < session()->device_count; ++i) {
    if (memcmp(session()->devices[i].uuid, uuid->value.bytes, 16) == 0) {
      *device = device_handle(i);
      return NVML_SUCCESS;
    }
  }
  return NVML_ERROR_NOT_FOUND;
}
