// What a device is: names, identity, place, abilities.
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "nvml/state.h"

using namespace tonnage::nvml;
using namespace tonnage::nvml;

namespace {

constexpr int kSms = 16, kMemoryBusWidth = 37, kEcc = 32, kPciId = 139, kPciSubsystemId = 140;

std::string_view text_of(const char* text, size_t capacity) {
  return {text, strnlen(text, capacity)};
}

// The whole card of a slice has the slice's name without what follows "MIG".
std::string_view name_of(const abi::CardDesc& card, bool slice) {
  const std::string_view name = text_of(card.name, sizeof card.name);
  const size_t mig = name.find(" MIG ");
  return card.is_mig && !slice && mig != std::string_view::npos ? name.substr(0, mig) : name;
}

void fill_pci(const abi::CardDesc& card, nvmlPciInfo_t* pci) {
  memset(pci, 0, sizeof *pci);
  bus_text(card, true, pci->busIdLegacy, sizeof pci->busIdLegacy);
  bus_text(card, false, pci->busId, sizeof pci->busId);
  pci->domain = static_cast<unsigned int>(card.pci_domain);
  pci->bus = static_cast<unsigned int>(card.pci_bus);
  pci->device = static_cast<unsigned int>(card.pci_device);
  pci->pciDeviceId = static_cast<unsigned int>(attribute(card, kPciId));
  pci->pciSubSystemId = static_cast<unsigned int>(attribute(card, kPciSubsystemId));
}

nvmlReturn_t give_pci(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(pci);
  fill_pci(card, pci);
  return NVML_SUCCESS;
}

unsigned int cores_per_sm(const abi::CardDesc& card) {
  const int cc = card.cc_major * 10 + card.cc_minor;
  return cc == 60 || cc == 70 || cc == 75 || cc == 80 ? 64 : 128;
}

// One node, all processors.
nvmlReturn_t all_processors(unsigned int size, unsigned long* set) {
  if (!set || size == 0) return NVML_ERROR_INVALID_ARGUMENT;
  memset(set, 0, size * sizeof *set);
  const long processors = sysconf(_SC_NPROCESSORS_CONF);
  for (long i = 0; i < processors && i < static_cast<long>(size) * 64; ++i)
    set[i / 64] |= 1ul << (i % 64);
  return NVML_SUCCESS;
}

template <class Value, class Given>
nvmlReturn_t give(nvmlDevice_t device, Value* out, Given given) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(out);
  *out = static_cast<Value>(given(card, *handle));
  return NVML_SUCCESS;
}

}  // namespace

NVML_ENTRY(nvmlDeviceGetName)(nvmlDevice_t device, char* name, unsigned int length) {
  NVML_DEVICE(device);
  return give_text(name_of(card, handle->is_slice), name, length);
}

NVML_ENTRY(nvmlDeviceGetUUID)(nvmlDevice_t device, char* uuid, unsigned int length) {
  NVML_DEVICE(device);
  char text[48];
  uuid_text(card, handle->is_slice, text);
  return give_text(text, uuid, length);
}

NVML_ENTRY(nvmlDeviceGetSerial)(nvmlDevice_t device, char* serial, unsigned int length) {
  NVML_DEVICE(device);
  if (family_of(card) != Family::kDataCentre && family_of(card) != Family::kWorkstation)
    return NVML_ERROR_NOT_SUPPORTED;
  unsigned long long number = 0;
  memcpy(&number, card.uuid, 6);
  char text[24];
  snprintf(text, sizeof text, "%013llu", number % 10'000'000'000'000ull);
  return give_text(text, serial, length);
}

NVML_ENTRY(nvmlDeviceGetHandleBySerial)(const char* serial, nvmlDevice_t* device) {
  if (!session()) return NVML_ERROR_UNINITIALIZED;
  if (!serial || !device) return NVML_ERROR_INVALID_ARGUMENT;
  for (int i = 0; i < session()->device_count; ++i) {
    char own[24];
    if (tonnage_nvmlDeviceGetSerial(device_handle(i), own, sizeof own) == NVML_SUCCESS &&
        strcmp(own, serial) == 0) {
      *device = device_handle(i);
      return NVML_SUCCESS;
    }
  }
  return NVML_ERROR_NOT_FOUND;
}

NVML_ENTRY(nvmlDeviceGetBrand)(nvmlDevice_t device, nvmlBrandType_t* brand) {
  return give(device, brand, [](const abi::CardDesc& card, const Handle&) {
    const std::string_view name = text_of(card.name, sizeof card.name);
    const auto starts = [name](std::string_view part) { return name.rfind(part, 0) == 0; };
    if (starts("Tesla")) return NVML_BRAND_TESLA;
    if (starts("Quadro RTX")) return NVML_BRAND_QUADRO_RTX;
    switch (family_of(card)) {
      case Family::kGeforce: return NVML_BRAND_GEFORCE;
      case Family::kTitan: return NVML_BRAND_TITAN;
      case Family::kWorkstation: return NVML_BRAND_NVIDIA_RTX;
      case Family::kDataCentre: break;
    }
    return NVML_BRAND_NVIDIA;
  });
}

NVML_ENTRY(nvmlDeviceGetIndex)(nvmlDevice_t device, unsigned int* index) {
  return give(device, index, [](const abi::CardDesc&, const Handle& handle) {
    return handle.is_slice ? 0 : handle.index;
  });
}
NVML_ENTRY(nvmlDeviceGetMinorNumber)(nvmlDevice_t device, unsigned int* number) {
  return give(device, number,
              [](const abi::CardDesc&, const Handle& handle) { return handle.index; });
}
NVML_ENTRY(nvmlDeviceGetModuleId)(nvmlDevice_t device, unsigned int* id) {
  return give(device, id,
              [](const abi::CardDesc&, const Handle& handle) { return handle.index + 1; });
}
NVML_ENTRY(nvmlDeviceGetBoardId)(nvmlDevice_t device, unsigned int* id) {
  return give(device, id, [](const abi::CardDesc& card, const Handle&) {
    return card.pci_bus << 8 | card.pci_device;
  });
}
NVML_ENTRY(nvmlDeviceGetMultiGpuBoard)(nvmlDevice_t device, unsigned int* several) {
  return give(device, several, [](const abi::CardDesc&, const Handle&) { return 0; });
}
NVML_ENTRY(nvmlDeviceGetNumaNodeId)(nvmlDevice_t device, unsigned int*) {
  NVML_DEVICE(device);
  return NVML_ERROR_NOT_SUPPORTED;  // the card's memory is not a node of the host's
}

NVML_ENTRY(nvmlDeviceGetCudaComputeCapability)(nvmlDevice_t device, int* major, int* minor) {
  NVML_DEVICE(device);
  if (!major || !minor) return NVML_ERROR_INVALID_ARGUMENT;
  *major = card.cc_major;
  *minor = card.cc_minor;
  return NVML_SUCCESS;
}

NVML_ENTRY(nvmlDeviceGetArchitecture)(nvmlDevice_t device, nvmlDeviceArchitecture_t* architecture) {
  return give(device, architecture, [](const abi::CardDesc& card, const Handle&) -> unsigned int {
    switch (card.cc_major * 10 + card.cc_minor) {
      case 60:
      case 61:
      case 62: return NVML_DEVICE_ARCH_PASCAL;
      case 70:
      case 72: return NVML_DEVICE_ARCH_VOLTA;
      case 75: return NVML_DEVICE_ARCH_TURING;
      case 80:
      case 86:
      case 87: return NVML_DEVICE_ARCH_AMPERE;
      case 89: return NVML_DEVICE_ARCH_ADA;
      case 90: return NVML_DEVICE_ARCH_HOPPER;
      default:
        return card.cc_major >= 10 && card.cc_major <= 12 ? NVML_DEVICE_ARCH_BLACKWELL
                                                          : NVML_DEVICE_ARCH_UNKNOWN;
    }
  });
}

NVML_ENTRY(nvmlDeviceGetNumGpuCores)(nvmlDevice_t device, unsigned int* cores) {
  return give(device, cores, [](const abi::CardDesc& card, const Handle&) {
    return static_cast<unsigned int>(attribute(card, kSms)) * cores_per_sm(card);
  });
}
NVML_ENTRY(nvmlDeviceGetMemoryBusWidth)(nvmlDevice_t device, unsigned int* bits) {
  return give(device, bits, [](const abi::CardDesc& card, const Handle&) {
    return attribute(card, kMemoryBusWidth);
  });
}

NVML_ENTRY(nvmlDeviceGetPciInfo)(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  return give_pci(device, pci);
}
NVML_ENTRY(nvmlDeviceGetPciInfo_v2)(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  return give_pci(device, pci);
}
NVML_ENTRY(nvmlDeviceGetPciInfo_v3)(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  return give_pci(device, pci);
}

NVML_ENTRY(nvmlDeviceGetPciInfoExt)(nvmlDevice_t device, nvmlPciInfoExt_t* pci) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(pci);
  if (pci->version != nvmlPciInfoExt_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  nvmlPciInfo_t info;
  fill_pci(card, &info);
  memset(pci, 0, sizeof *pci);
  pci->version = nvmlPciInfoExt_v1;
  pci->domain = info.domain;
  pci->bus = info.bus;
  pci->device = info.device;
  pci->pciDeviceId = info.pciDeviceId;
  pci->pciSubSystemId = info.pciSubSystemId;
  pci->baseClass = 0x03;  // display controller; 3D controller without display
  pci->subClass = family_of(card) == Family::kDataCentre ? 0x02 : 0x00;
  memcpy(pci->busId, info.busId, sizeof pci->busId);
  return NVML_SUCCESS;
}

NVML_ENTRY(nvmlDeviceGetVbiosVersion)(nvmlDevice_t device, char* version, unsigned int length) {
  NVML_DEVICE(device);
  return give_text("00.00.00.00.00", version, length);
}

NVML_ENTRY(nvmlDeviceGetCpuAffinity)(nvmlDevice_t device, unsigned int size, unsigned long* set) {
  NVML_DEVICE(device);
  return all_processors(size, set);
}
NVML_ENTRY(nvmlDeviceGetCpuAffinityWithinScope)
(nvmlDevice_t device, unsigned int size, unsigned long* set, nvmlAffinityScope_t) {
  NVML_DEVICE(device);
  return all_processors(size, set);
}
NVML_ENTRY(nvmlDeviceGetMemoryAffinity)
(nvmlDevice_t device, unsigned int size, unsigned long* set, nvmlAffinityScope_t) {
  NVML_DEVICE(device);
  if (!set || size == 0) return NVML_ERROR_INVALID_ARGUMENT;
  memset(set, 0, size * sizeof *set);
  set[0] = 1;
  return NVML_SUCCESS;
}
NVML_ENTRY(nvmlDeviceSetCpuAffinity)(nvmlDevice_t device) {
  NVML_DEVICE(device);
  return NVML_SUCCESS;  // all processors are near
}
NVML_ENTRY(nvmlDeviceClearCpuAffinity)(nvmlDevice_t device) {
  NVML_DEVICE(device);
  return NVML_SUCCESS;
}

// --- Modes ---

NVML_ENTRY(nvmlDeviceGetComputeMode)(nvmlDevice_t device, nvmlComputeMode_t* mode) {
  return give(device, mode,
              [](const abi::CardDesc&, const Handle&) { return NVML_COMPUTEMODE_DEFAULT; });
}
NVML_ENTRY(nvmlDeviceGetPersistenceMode)(nvmlDevice_t device, nvmlEnableState_t* mode) {
  return give(device, mode,
              [](const abi::CardDesc&, const Handle&) { return NVML_FEATURE_ENABLED; });
}
NVML_ENTRY(nvmlDeviceGetDisplayMode)(nvmlDevice_t device, nvmlEnableState_t* mode) {
  return give(device, mode,
              [](const abi::CardDesc&, const Handle&) { return NVML_FEATURE_DISABLED; });
}
NVML_ENTRY(nvmlDeviceGetDisplayActive)(nvmlDevice_t device, nvmlEnableState_t* mode) {
  return give(device, mode,
              [](const abi::CardDesc&, const Handle&) { return NVML_FEATURE_DISABLED; });
}
NVML_ENTRY(nvmlDeviceGetAccountingMode)(nvmlDevice_t device, nvmlEnableState_t* mode) {
  return give(device, mode,
              [](const abi::CardDesc&, const Handle&) { return NVML_FEATURE_DISABLED; });
}

NVML_ENTRY(nvmlDeviceGetVirtualizationMode)
(nvmlDevice_t device, nvmlGpuVirtualizationMode_t* mode) {
  return give(device, mode, [](const abi::CardDesc&, const Handle&) {
    return NVML_GPU_VIRTUALIZATION_MODE_NONE;
  });
}

NVML_ENTRY(nvmlDeviceGetEccMode)
(nvmlDevice_t device, nvmlEnableState_t* current, nvmlEnableState_t* pending) {
  NVML_DEVICE(device);
  if (!current || !pending) return NVML_ERROR_INVALID_ARGUMENT;
  const bool enabled = attribute(card, kEcc) != 0;
  if (!enabled && family_of(card) == Family::kGeforce) return NVML_ERROR_NOT_SUPPORTED;
  *current = *pending = enabled ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
  return NVML_SUCCESS;
}

NVML_ENTRY(nvmlDeviceGetTotalEccErrors)
(nvmlDevice_t device, nvmlMemoryErrorType_t, nvmlEccCounterType_t, unsigned long long* count) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(count);
  if (attribute(card, kEcc) == 0) return NVML_ERROR_NOT_SUPPORTED;
  *count = 0;
  return NVML_SUCCESS;
}
NVML_ENTRY(nvmlDeviceGetMemoryErrorCounter)
(nvmlDevice_t device, nvmlMemoryErrorType_t, nvmlEccCounterType_t, nvmlMemoryLocation_t,
 unsigned long long* count) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(count);
  if (attribute(card, kEcc) == 0) return NVML_ERROR_NOT_SUPPORTED;
  *count = 0;
  return NVML_SUCCESS;
}
// Since Ampere rows are remapped instead of pages retired.
NVML_ENTRY(nvmlDeviceGetRetiredPages)
(nvmlDevice_t device, nvmlPageRetirementCause_t, unsigned int* count, unsigned long long*) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(count);
  if (card.cc_major >= 8 || attribute(card, kEcc) == 0) return NVML_ERROR_NOT_SUPPORTED;
  *count = 0;
  return NVML_SUCCESS;
}
NVML_ENTRY(nvmlDeviceGetRetiredPages_v2)
(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int* count,
 unsigned long long* addresses, unsigned long long*) {
  return tonnage_nvmlDeviceGetRetiredPages(device, cause, count, addresses);
}
NVML_ENTRY(nvmlDeviceGetRetiredPagesPendingStatus)
(nvmlDevice_t device, nvmlEnableState_t* pending) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(pending);
  if (card.cc_major >= 8 || attribute(card, kEcc) == 0) return NVML_ERROR_NOT_SUPPORTED;
  *pending = NVML_FEATURE_DISABLED;
  return NVML_SUCCESS;
}
NVML_ENTRY(nvmlDeviceGetRemappedRows)
(nvmlDevice_t device, unsigned int* corrected, unsigned int* uncorrected, unsigned int* pending,
 unsigned int* failed) {
  NVML_DEVICE(device);
  if (!corrected || !uncorrected || !pending || !failed) return NVML_ERROR_INVALID_ARGUMENT;
  if (card.cc_major < 8 || attribute(card, kEcc) == 0) return NVML_ERROR_NOT_SUPPORTED;
  *corrected = *uncorrected = *pending = *failed = 0;
  return NVML_SUCCESS;
}
