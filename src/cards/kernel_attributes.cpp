#include "cards/kernel_attributes.h"

#include <algorithm>

namespace tonnage::cards {
namespace {

constexpr int kOk = 0, kInvalidValue = 1;
// CUdevice_attribute
constexpr int kMaxThreadsPerBlock = 1, kSharedPerBlock = 8, kWarpSize = 10, kRegistersPerBlock = 12,
              kSharedPerBlockOptin = 97;
constexpr int kPartitions = 4;  // of an SM, on every architecture since Maxwell but 6.0

int round_up(int value, int unit) { return unit > 1 ? (value + unit - 1) / unit * unit : value; }

int capped(uint64_t value) { return static_cast<int>(std::min<uint64_t>(value, INT32_MAX)); }

}  // namespace

int max_threads_for_registers(int registers, const abi::CardDesc& card) {
  const int device_max = card.attributes[kMaxThreadsPerBlock];
  const int warp = std::max(card.attributes[kWarpSize], 1);
  const int per_warp = round_up(registers * warp, std::max(card.register_allocation_unit, 1));
  if (per_warp <= 0) return device_max;
  const int warps = card.attributes[kRegistersPerBlock] / per_warp / kPartitions * kPartitions;
  return std::min(device_max, warps * warp);
}

KernelAttributes resolve(const image::KernelInfo& kernel, const KernelSettings& settings,
                         const abi::CardDesc& card) {
  KernelAttributes out;
  out.registers = kernel.registers;
  out.static_shared_bytes = capped(kernel.static_shared_bytes);
  out.local_bytes = capped(kernel.local_bytes);
  out.const_bytes = capped(kernel.const_bytes);
  out.ptx_version = kernel.ptx_version;
  out.binary_version = kernel.binary_version;
  const int by_registers = max_threads_for_registers(kernel.registers, card);
  out.max_threads = kernel.max_threads > 0
                        ? std::min(kernel.max_threads, card.attributes[kMaxThreadsPerBlock])
                        : by_registers;
  out.dynamic_shared_set = settings.max_dynamic_shared_bytes >= 0;
  out.max_dynamic_shared_bytes =
      out.dynamic_shared_set
          ? settings.max_dynamic_shared_bytes
          : std::max(card.attributes[kSharedPerBlock] - out.static_shared_bytes, 0);
  out.carveout_percent = settings.carveout_percent;
  out.cache_config = settings.cache_config;
  out.barriers = kernel.barriers;
  const bool fixed = kernel.required_cluster[0] > 0;
  for (int i = 0; i < 3; ++i)
    out.required_cluster[i] = fixed ? kernel.required_cluster[i] : settings.cluster[i];
  out.cluster_must_be_set = kernel.explicit_cluster;
  out.non_portable_cluster = settings.non_portable_cluster != 0;
  out.scheduling_policy = settings.scheduling_policy;
  return out;
}

int get_kernel_attribute(const KernelAttributes& kernel, int attribute, int* value) {
  switch (attribute) {
    case 0: *value = kernel.max_threads; break;
    case 1: *value = kernel.static_shared_bytes; break;
    case 2: *value = kernel.const_bytes; break;
    case 3: *value = kernel.local_bytes; break;
    case 4: *value = kernel.registers; break;
    case 5: *value = kernel.ptx_version; break;
    case 6: *value = kernel.binary_version; break;
    case 7: *value = 0; break;  // compiled with -dlcm=ca
    case 8: *value = kernel.max_dynamic_shared_bytes; break;
    case 9: *value = kernel.carveout_percent; break;
    case 10: *value = kernel.cluster_must_be_set ? 1 : 0; break;
    case 11:
    case 12:
    case 13: *value = kernel.required_cluster[attribute - 11]; break;
    case 14: *value = kernel.non_portable_cluster ? 1 : 0; break;
    case 15: *value = kernel.scheduling_policy; break;
    default: return kInvalidValue;
  }
  return kOk;
}

int set_kernel_attribute(const image::KernelInfo& kernel, KernelSettings* settings,
                         const abi::CardDesc& card, int attribute, int value) {
  switch (attribute) {
    case 8:
      if (value < 0 ||
          int64_t{value} + kernel.static_shared_bytes > card.attributes[kSharedPerBlockOptin])
        return kInvalidValue;
      settings->max_dynamic_shared_bytes = value;
      return kOk;
    case 9:
      if (value < -1 || value > 100) return kInvalidValue;
      settings->carveout_percent = value;
      return kOk;
    case 11:
    case 12:
    case 13:
      if (value < 0) return kInvalidValue;
      // What the code fixes can only be repeated.
      if (kernel.required_cluster[0] > 0)
        return value == kernel.required_cluster[attribute - 11] ? kOk : kInvalidValue;
      settings->cluster[attribute - 11] = value;
      return kOk;
    case 14: settings->non_portable_cluster = value != 0; return kOk;
    case 15:
      if (value < 0 || value > 2) return kInvalidValue;
      settings->scheduling_policy = value;
      return kOk;
    default: return kInvalidValue;
  }
}

}  // namespace tonnage::cards
