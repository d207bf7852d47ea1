#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

#include "cards/attributes.h"
#include "cards/card.h"
#include "cards/cluster.h"

namespace tonnage::cards {
namespace {

// What a driver of this version answers; the virtual driver speaks CUDA 13.0.
constexpr char kDriverVersion[] = "580.159.04";
constexpr int kCudaDriverVersion = 13000;
// Bus 0 and one device number per card, as virtual machines have it and as the measured H200
// (00:06.0) was seen.
constexpr int kFirstPciDevice = 6;

void copy_text(char* out, size_t capacity, const std::string& text) {
  const size_t n = std::min(capacity - 1, text.size());
  std::memcpy(out, text.data(), n);
  std::memset(out + n, 0, capacity - n);
}

uint64_t mix(uint64_t x) {  // splitmix64's finaliser
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The same card at the same index has the same UUID in every run; it has the form of a random one
// (RFC 4122, version 4).
void fill_uuid(uint8_t out[16], const std::string& key, int index) {
  uint64_t seed = 0xcbf29ce484222325u;
  for (const char c : key) seed = (seed ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  for (int half = 0; half < 2; ++half) {
    const uint64_t bits =
        mix(seed + static_cast<uint64_t>(index) * 2 + static_cast<uint64_t>(half));
    std::memcpy(out + 8 * half, &bits, 8);
  }
  out[6] = static_cast<uint8_t>((out[6] & 0x0f) | 0x40);
  out[8] = static_cast<uint8_t>((out[8] & 0x3f) | 0x80);
}

double peak_of(const Card& card, const char* type) {
  const auto found = card.peak.find(type);
  return found == card.peak.end() ? 0 : found->second;
}

}  // namespace

std::string source_of(const Card& card, const std::string& path) {
  for (std::string prefix = path;;) {
    const auto found = card.sources.find(prefix);
    if (found != card.sources.end()) return found->second;
    if (prefix.empty()) return {};
    const size_t dot = prefix.rfind('.');
    prefix = dot == std::string::npos ? std::string() : prefix.substr(0, dot);
  }
}

bool is_estimated(const Card& card, const std::string& path) {
  const std::string source = source_of(card, path);
  return source.rfind("estimated", 0) == 0 || source.rfind("modelled", 0) == 0;
}

int32_t attribute_of(const Card& card, int attribute) {
  if (const auto own = card.attributes.find(attribute); own != card.attributes.end())
    return own->second;
  switch (attribute) {
    case kClockRate: return card.sm_clock_khz;
    case kMultiprocessorCount: return card.sms;
    case kMemoryClockRate: return card.memory_clock_khz;
    case kMemoryBusWidth: return card.memory_bus_bits;
    case kL2CacheSize: return static_cast<int32_t>(card.l2_bytes);
    case kMaxPersistingL2:
      return static_cast<int32_t>(card.l2_bytes / 16 * card.architecture.persisting_l2_sixteenths);
    default: break;
  }
  const auto shared = card.architecture.attributes.find(attribute);
  return shared == card.architecture.attributes.end() ? 0 : shared->second;
}

abi::CardDesc to_desc(const Card& card, int index, std::optional<uint64_t> memory_override) {
  abi::CardDesc desc;
  std::memset(&desc, 0, sizeof desc);
  copy_text(desc.name, sizeof desc.name, card.name);
  copy_text(desc.catalogue_key, sizeof desc.catalogue_key, card.key);
  fill_uuid(desc.uuid, card.key, index);
  desc.cc_major = card.architecture.cc_major;
  desc.cc_minor = card.architecture.cc_minor;
  desc.pci_domain = 0;
  desc.pci_bus = 0;
  desc.pci_device = kFirstPciDevice + index;
  desc.total_bytes = memory_override.value_or(card.total_bytes);
  desc.nvml_total_bytes = desc.total_bytes + (card.nvml_total_bytes - card.total_bytes);
  desc.context_bytes = card.context_bytes.value_or(card.architecture.context_bytes);
  for (int i = 1; i <= kLastAttribute; ++i) desc.attributes[i] = attribute_of(card, i);
  desc.attributes[kPciBusId] = desc.pci_bus;
  desc.attributes[kPciDeviceId] = desc.pci_device;
  desc.attributes[kPciDomainId] = desc.pci_domain;
  desc.register_allocation_unit = card.architecture.register_allocation_unit;
  desc.warp_allocation_granularity = card.architecture.warp_allocation_granularity;
  desc.shared_allocation_unit = card.architecture.shared_allocation_unit;
  cards::fill_max_clusters(&desc, card.sms_per_group.data(), card.sms_per_group.size(),
                           card.architecture.largest_cluster);
  desc.memory_bytes_per_s = card.memory_bytes_per_s;
  desc.host_link_bytes_per_s = card.host_link_bytes_per_s;
  desc.peak_flops_fp32 = peak_of(card, "fp32");
  desc.peak_flops_tf32 = peak_of(card, "tf32");
  desc.peak_flops_fp16 = peak_of(card, "fp16");
  desc.peak_flops_bf16 = peak_of(card, "bf16");
  desc.peak_flops_fp8 = peak_of(card, "fp8");
  desc.peak_flops_int8 = peak_of(card, "int8");
  desc.power_limit_watts = card.power_limit_watts;
  desc.is_mig = card.is_mig() ? 1 : 0;
  desc.pcie_generation = card.pcie_generation;
  desc.pcie_lanes = card.pcie_lanes;
  if (card.nvlink_bytes_per_s > 0) {
    desc.nvlink_bytes_per_s = card.architecture.nvlink_link_bytes_per_s;
    desc.nvlink_links =
        static_cast<int32_t>(std::lround(card.nvlink_bytes_per_s / 2 / desc.nvlink_bytes_per_s));
  }
  for (size_t i = 0; i < std::min(card.sms_per_group.size(), std::size(desc.sms_per_group)); ++i) {
    desc.sms_per_group[i] = static_cast<uint8_t>(card.sms_per_group[i]);
  }
  copy_text(desc.driver_version, sizeof desc.driver_version, kDriverVersion);
  desc.cuda_driver_version = kCudaDriverVersion;
  return desc;
}

Card slice_of(const Card& whole, const MigProfile& profile) {
  Card slice = whole;
  slice.parent = whole.key;
  slice.key = whole.key + "-mig-" + profile.name;
  slice.name = whole.name + " MIG " + profile.name;
  slice.aliases.clear();
  slice.mig.clear();
  slice.sms = profile.sms;
  // The whole card's groups, filled from the largest, until the slice has its SMs.
  slice.sms_per_group.clear();
  int left = profile.sms;
  for (const int sms : whole.sms_per_group) {
    const int take = std::min(left, sms);
    if (take > 0) slice.sms_per_group.push_back(take);
    left -= take;
  }
  int slices = 1;  // the profile of the whole card has them all
  for (const MigProfile& p : whole.mig) slices = std::max(slices, p.memory_slices);
  const double memory_share = static_cast<double>(profile.memory_slices) / slices;
  const double compute_share = static_cast<double>(profile.sms) / whole.sms;
  const uint64_t reserved = whole.nvml_total_bytes - whole.total_bytes;
  slice.total_bytes = profile.total_bytes;
  slice.nvml_total_bytes =
      profile.total_bytes + static_cast<uint64_t>(static_cast<double>(reserved) * memory_share);
  slice.nominal_bytes =
      static_cast<uint64_t>(static_cast<double>(whole.nominal_bytes) * memory_share);
  slice.l2_bytes = static_cast<uint64_t>(static_cast<double>(whole.l2_bytes) * memory_share);
  slice.memory_bytes_per_s = whole.memory_bytes_per_s * memory_share;
  slice.memory_bus_bits = static_cast<int>(whole.memory_bus_bits * memory_share);
  for (auto& [type, rate] : slice.peak) rate *= compute_share;
  slice.nvlink_bytes_per_s = 0;
  slice.attributes[kAsyncEngineCount] = profile.copy_engines;
  slice.attributes.erase(kMultiprocessorCount);
  slice.attributes.erase(kL2CacheSize);
  slice.attributes.erase(kMaxPersistingL2);
  slice.attributes.erase(kMemoryBusWidth);
  for (const char* path : {"peak", "memory.l2_bytes", "memory.bytes_per_s", "memory.nominal_bytes",
                           "memory.bus_bits", "memory.nvml_total_bytes"}) {
    slice.sources[path] = "derived: the slice's share of the whole card";
  }
  slice.sources["sms_per_group"] = "estimated: the whole card's groups, filled from the first";
  slice.sources["sms"] = source_of(whole, "mig");
  slice.sources["memory.total_bytes"] = source_of(whole, "mig");
  return slice;
}

}  // namespace tonnage::cards
