// PCIe, NVLink, who reaches whom.
#include "nvml/links.h"

#include <cstdio>
#include <cstring>

using namespace tonnage::nvml;
using namespace tonnage::nvml;

namespace tonnage::nvml {

constexpr int kDirectRdma = 116;

int bridged_neighbour(const abi::Session& session, int index) {
  const int other = index ^ 1;
  if (other >= session.device_count) return -1;
  const abi::CardDesc &a = session.devices[index], &b = session.devices[other];
  const bool alike =
      a.nvlink_links > 0 && a.nvlink_links == b.nvlink_links && !a.is_mig && !b.is_mig;
  return alike && !is_switched(a) ? other : -1;
}

bool is_linked(const abi::Session& session, int index) {
  const abi::CardDesc& card = session.devices[index];
  if (card.is_mig || card.nvlink_links <= 0) return false;
  if (!is_switched(card)) return bridged_neighbour(session, index) >= 0;
  for (int i = 0; i < session.device_count; ++i) {
    if (i != index && nvlink_joins(session, index, i)) return true;
  }
  return false;
}

bool link_is_active(const abi::Session& session, int index, unsigned int link) {
  return is_linked(session, index) &&
         link < static_cast<unsigned int>(session.devices[index].nvlink_links);
}

bool nvlink_joins(const abi::Session& session, int a, int b) {
  const abi::CardDesc &one = session.devices[a], &two = session.devices[b];
  if (a == b || one.is_mig || two.is_mig) return false;
  if (is_switched(one) && is_switched(two)) return one.cc_major == two.cc_major;
  return bridged_neighbour(session, a) == b;
}

bool peers(const abi::Session& session, int a, int b) {
  const abi::CardDesc &one = session.devices[a], &two = session.devices[b];
  if (a == b || one.is_mig || two.is_mig) return false;
  if (nvlink_joins(session, a, b)) return true;
  // As the virtual driver's cuDeviceCanAccessPeer: cards that other devices may read, of one
  // generation.
  return attribute(one, kDirectRdma) != 0 && attribute(two, kDirectRdma) != 0 &&
         one.cc_major == two.cc_major;
}

unsigned int link_megabytes_per_s(const abi::CardDesc& card) {
  const double megabytes = card.nvlink_bytes_per_s / 1e6;
  return static_cast<unsigned int>(card.cc_major >= 9 ? megabytes * 17 / 16 : megabytes);
}

unsigned int link_version(const abi::CardDesc& card) {
  switch (card.cc_major * 10 + card.cc_minor) {
    case 60: return NVML_NVLINK_VERSION_1_0;
    case 70: return NVML_NVLINK_VERSION_2_0;
    case 75: return NVML_NVLINK_VERSION_2_2;
    case 80: return NVML_NVLINK_VERSION_3_0;
    case 86: return NVML_NVLINK_VERSION_3_1;
    case 90: return NVML_NVLINK_VERSION_4_0;
    default: return NVML_NVLINK_VERSION_5_0;
  }
}

}  // namespace tonnage::nvml

namespace {

constexpr int kFallbackGeneration = 4, kFallbackLanes = 16;

nvmlReturn_t give_generation(nvmlDevice_t device, unsigned int* generation) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(generation);
  *generation = static_cast<unsigned int>(card.pcie_generation > 0 ? card.pcie_generation
                                                                   : kFallbackGeneration);
  return NVML_SUCCESS;
}

nvmlReturn_t give_width(nvmlDevice_t device, unsigned int* lanes) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(lanes);
  *lanes = static_cast<unsigned int>(card.pcie_lanes > 0 ? card.pcie_lanes : kFallbackLanes);
  return NVML_SUCCESS;
}

// What NVML says of a link that a card does not have.
nvmlReturn_t no_such_link(const Handle& handle) {
  return is_linked(*session(), handle.index) ? NVML_ERROR_INVALID_ARGUMENT
                                             : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t give_fabric_state(nvmlDevice_t device, unsigned char* state) {
  NVML_DEVICE(device);
  if (card.cc_major < 9 || card.is_mig) return NVML_ERROR_NOT_SUPPORTED;
  const bool registered = is_switched(card) && is_linked(*session(), handle->index);
  *state = registered ? NVML_GPU_FABRIC_STATE_COMPLETED : NVML_GPU_FABRIC_STATE_NOT_SUPPORTED;
  return NVML_SUCCESS;
}

// Where a link leads: the neighbour's place, or a switch that the machine does not show, as in
// virtual machines.
nvmlReturn_t give_remote(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t* pci) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(pci);
  if (!link_is_active(*session(), handle->index, link)) return no_such_link(*handle);
  memset(pci, 0, sizeof *pci);
  if (is_switched(card)) {
    snprintf(pci->busId, sizeof pci->busId, "FFFFFFFF:FF:FF.0");
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "FFFFFFF:FF:FF.0");
    pci->domain = 0xFFFFFFFFu;
    pci->bus = pci->device = 0xFF;
    return NVML_SUCCESS;
  }
  const abi::CardDesc& other = session()->devices[bridged_neighbour(*session(), handle->index)];
  bus_text(other, false, pci->busId, sizeof pci->busId);
  bus_text(other, true, pci->busIdLegacy, sizeof pci->busIdLegacy);
  pci->domain = static_cast<unsigned int>(other.pci_domain);
  pci->bus = static_cast<unsigned int>(other.pci_bus);
  pci->device = static_cast<unsigned int>(other.pci_device);
  return NVML_SUCCESS;
}

}  // namespace

NVML_ENTRY(nvmlDeviceGetMaxPcieLinkGeneration)(nvmlDevice_t device, unsigned int* generation) {
  return give_generation(device, generation);
}
NVML_ENTRY(nvmlDeviceGetGpuMaxPcieLinkGeneration)(nvmlDevice_t device, unsigned int* generation) {
  return give_generation(device, generation);
}
NVML_ENTRY(nvmlDeviceGetCurrPcieLinkGeneration)(nvmlDevice_t device, unsigned int* generation) {
  return give_generation(device, generation);
}
NVML_ENTRY(nvmlDeviceGetMaxPcieLinkWidth)(nvmlDevice_t device, unsigned int* lanes) {
  return give_width(device, lanes);
}
NVML_ENTRY(nvmlDeviceGetCurrPcieLinkWidth)(nvmlDevice_t device, unsigned int* lanes) {
  return give_width(device, lanes);
}

NVML_ENTRY(nvmlDeviceGetPcieThroughput)
(nvmlDevice_t device, nvmlPcieUtilCounter_t, unsigned int* value) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(value);
  *value = 0;
  return NVML_SUCCESS;
}
NVML_ENTRY(nvmlDeviceGetPcieReplayCounter)(nvmlDevice_t device, unsigned int* value) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(value);
  *value = 0;
  return NVML_SUCCESS;
}

NVML_ENTRY(nvmlDeviceGetP2PStatus)
(nvmlDevice_t device, nvmlDevice_t other, nvmlGpuP2PCapsIndex_t index, nvmlGpuP2PStatus_t* status) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(status);
  const Handle* peer = handle_of(other);
  if (!peer || index >= NVML_P2P_CAPS_INDEX_UNKNOWN) return NVML_ERROR_INVALID_ARGUMENT;
  if (peer->index == handle->index) {  // NCCL asks for every pair, a device with itself too
    *status = NVML_P2P_STATUS_OK;
    return NVML_SUCCESS;
  }
  const bool joined = nvlink_joins(*session(), handle->index, peer->index);
  bool can = peers(*session(), handle->index, peer->index);
  if (index == NVML_P2P_CAPS_INDEX_NVLINK || index == NVML_P2P_CAPS_INDEX_ATOMICS) can = joined;
  if (index == NVML_P2P_CAPS_INDEX_PCI)
    can = can && !joined;  // cards that NVLink joins do not answer for PCIe
  *status = can ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
  return NVML_SUCCESS;
}

NVML_ENTRY(nvmlDeviceGetTopologyCommonAncestor)
(nvmlDevice_t device, nvmlDevice_t other, nvmlGpuTopologyLevel_t* level) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(level);
  if (!handle_of(other)) return NVML_ERROR_INVALID_ARGUMENT;
  *level =
      handle_of(other)->index == handle->index ? NVML_TOPOLOGY_INTERNAL : NVML_TOPOLOGY_HOSTBRIDGE;
  return NVML_SUCCESS;
}

NVML_ENTRY(nvmlDeviceGetTopologyNearestGpus)
(nvmlDevice_t device, nvmlGpuTopologyLevel_t level, unsigned int* count, nvmlDevice_t* devices) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(count);
  const unsigned int room = devices ? *count : 0;
  unsigned int found = 0;
  for (int i = 0; level == NVML_TOPOLOGY_HOSTBRIDGE && i < session()->device_count; ++i) {
    if (i == handle->index) continue;
    if (found < room) devices[found] = device_handle(i);
    ++found;
  }
  *count = found;
  return !devices || found <= room ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

NVML_ENTRY(nvmlDeviceOnSameBoard)(nvmlDevice_t device, nvmlDevice_t other, int* same) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(same);
  if (!handle_of(other)) return NVML_ERROR_INVALID_ARGUMENT;
  *same = handle_of(other)->index == handle->index;
  return NVML_SUCCESS;
}

NVML_ENTRY(nvmlDeviceGetNvLinkState)
(nvmlDevice_t device, unsigned int link, nvmlEnableState_t* state) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(state);
  if (!link_is_active(*session(), handle->index, link)) return no_such_link(*handle);
  *state = NVML_FEATURE_ENABLED;
  return NVML_SUCCESS;
}

NVML_ENTRY(nvmlDeviceGetNvLinkVersion)
(nvmlDevice_t device, unsigned int link, unsigned int* version) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(version);
  if (!link_is_active(*session(), handle->index, link)) return no_such_link(*handle);
  *version = link_version(card);
  return NVML_SUCCESS;
}

NVML_ENTRY(nvmlDeviceGetNvLinkCapability)
(nvmlDevice_t device, unsigned int link, nvmlNvLinkCapability_t capability, unsigned int* able) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(able);
  if (capability >= NVML_NVLINK_CAP_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  if (!link_is_active(*session(), handle->index, link)) return no_such_link(*handle);
  *able = capability == NVML_NVLINK_CAP_VALID || capability == NVML_NVLINK_CAP_P2P_SUPPORTED ||
          capability == NVML_NVLINK_CAP_P2P_ATOMICS;
  return NVML_SUCCESS;
}

NVML_ENTRY(nvmlDeviceGetNvLinkRemotePciInfo)
(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t* pci) {
  return give_remote(device, link, pci);
}
NVML_ENTRY(nvmlDeviceGetNvLinkRemotePciInfo_v2)
(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t* pci) {
  return give_remote(device, link, pci);
}

NVML_ENTRY(nvmlDeviceGetNvLinkRemoteDeviceType)
(nvmlDevice_t device, unsigned int link, nvmlIntNvLinkDeviceType_t* type) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(type);
  if (!link_is_active(*session(), handle->index, link)) return no_such_link(*handle);
  *type = is_switched(card) ? NVML_NVLINK_DEVICE_TYPE_SWITCH : NVML_NVLINK_DEVICE_TYPE_GPU;
  return NVML_SUCCESS;
}

NVML_ENTRY(nvmlDeviceGetGpuFabricInfo)(nvmlDevice_t device, nvmlGpuFabricInfo_t* info) {
  unsigned char state = 0;
  const nvmlReturn_t result = give_fabric_state(device, &state);
  if (result != NVML_SUCCESS) return result;
  NVML_NOT_NULL(info);
  *info = {};
  info->state = state;
  return NVML_SUCCESS;
}

NVML_ENTRY(nvmlDeviceGetGpuFabricInfoV)(nvmlDevice_t device, nvmlGpuFabricInfoV_t* info) {
  unsigned char state = 0;
  const nvmlReturn_t result = give_fabric_state(device, &state);
  if (result != NVML_SUCCESS) return result;
  NVML_NOT_NULL(info);
  const unsigned int version = info->version;
  if (version == nvmlGpuFabricInfo_v2) {
    auto* old = reinterpret_cast<nvmlGpuFabricInfo_v2_t*>(info);
    *old = {};
    old->version = version;
    old->state = state;
    return NVML_SUCCESS;
  }
  if (version != nvmlGpuFabricInfo_v3) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  *info = {};
  info->version = version;
  info->state = state;
  return NVML_SUCCESS;
}
