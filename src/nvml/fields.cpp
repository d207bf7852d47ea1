// nvmlDeviceGetFieldValues: many single figures by number. Those that a virtual card has are
// answered, the others say "not supported" one by one, as NVML does.
#include <time.h>

#include "nvml/links.h"

using namespace tonnage::nvml;
using namespace tonnage::nvml;

namespace {

constexpr int kEcc = 32;

void give(nvmlFieldValue_t& field, unsigned int value) {
  field.valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
  field.value.uiVal = value;
  field.nvmlReturn = NVML_SUCCESS;
}

void give_wide(nvmlFieldValue_t& field, unsigned long long value) {
  field.valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
  field.value.ullVal = value;
  field.nvmlReturn = NVML_SUCCESS;
}

// The link of a per-link figure; -1: the figure is none.
int link_of(unsigned int id) {
  if (id >= NVML_FI_DEV_NVLINK_SPEED_MBPS_L0 && id <= NVML_FI_DEV_NVLINK_SPEED_MBPS_L5)
    return static_cast<int>(id - NVML_FI_DEV_NVLINK_SPEED_MBPS_L0);
  if (id >= NVML_FI_DEV_NVLINK_SPEED_MBPS_L6 && id <= NVML_FI_DEV_NVLINK_SPEED_MBPS_L11)
    return static_cast<int>(id - NVML_FI_DEV_NVLINK_SPEED_MBPS_L6) + 6;
  return -1;
}

void answer(int index, const abi::CardDesc& card, nvmlFieldValue_t& field) {
  const abi::Session& all = *session();
  const bool linked = is_linked(all, index);
  const bool speed_by_link = card.cc_major < 9;  // newer cards answer NVLINK_GET_SPEED only
  const unsigned int limit = static_cast<unsigned int>(card.power_limit_watts) * 1000u;
  field.nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
  if (const int link = link_of(field.fieldId); link >= 0) {
    if (speed_by_link && link_is_active(all, index, static_cast<unsigned int>(link)))
      give(field, link_megabytes_per_s(card));
    return;
  }
  switch (field.fieldId) {
    case NVML_FI_DEV_ECC_CURRENT:
    case NVML_FI_DEV_ECC_PENDING: return give_wide(field, attribute(card, kEcc) != 0);
    case NVML_FI_DEV_NVLINK_LINK_COUNT:
      if (linked) give(field, static_cast<unsigned int>(card.nvlink_links));
      return;
    case NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON:
      if (speed_by_link && linked) give(field, link_megabytes_per_s(card));
      return;
    // The link is in scopeId.
    case NVML_FI_DEV_NVLINK_GET_SPEED:
      if (link_is_active(all, index, field.scopeId)) give(field, link_megabytes_per_s(card));
      return;
    case NVML_FI_DEV_NVLINK_GET_STATE:
      if (link_is_active(all, index, field.scopeId)) give(field, 1);
      return;
    case NVML_FI_DEV_NVLINK_GET_VERSION:
      if (link_is_active(all, index, field.scopeId)) give(field, link_version(card));
      return;
    case NVML_FI_DEV_PCIE_REPLAY_COUNTER: return give(field, 0);
    case NVML_FI_DEV_POWER_AVERAGE:
    case NVML_FI_DEV_POWER_INSTANT: return give(field, limit / 10);
    case NVML_FI_DEV_MEMORY_TEMP: return give(field, kRestingCelsius);
    case NVML_FI_DEV_POWER_MIN_LIMIT: return give(field, least_power_limit(card));
    case NVML_FI_DEV_POWER_MAX_LIMIT:
    case NVML_FI_DEV_POWER_DEFAULT_LIMIT:
    case NVML_FI_DEV_POWER_CURRENT_LIMIT:
    case NVML_FI_DEV_POWER_REQUESTED_LIMIT: return give(field, limit);
    case NVML_FI_DEV_ECC_SBE_VOL_TOTAL:
    case NVML_FI_DEV_ECC_DBE_VOL_TOTAL:
    case NVML_FI_DEV_ECC_SBE_AGG_TOTAL:
    case NVML_FI_DEV_ECC_DBE_AGG_TOTAL:
      if (attribute(card, kEcc) != 0) give_wide(field, 0);
      return;
    default: return;
  }
}

}  // namespace

NVML_ENTRY(nvmlDeviceGetFieldValues)(nvmlDevice_t device, int count, nvmlFieldValue_t* values) {
  NVML_DEVICE(device);
  if (!values || count < 1) return NVML_ERROR_INVALID_ARGUMENT;
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  for (int i = 0; i < count; ++i) {
    values[i].timestamp = static_cast<long long>(now.tv_sec) * 1'000'000 + now.tv_nsec / 1000;
    values[i].latencyUsec = 0;
    answer(handle->index, card, values[i]);
  }
  return NVML_SUCCESS;
}
