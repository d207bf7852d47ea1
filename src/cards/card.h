// What the catalogue knows of one card: a value, read from a file of data/cards (docs/cards.md says
// what each key means).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "abi/session.h"
#include "base/result.h"

namespace tonnage::cards {

// What follows from the compute capability alone (data/cards/architectures.json).
struct Architecture {
  int cc_major = 0, cc_minor = 0;
  std::string name;  // "Hopper"
  std::map<int, int32_t>
      attributes;  // by CUdevice_attribute; what all architectures share is merged in
  int register_allocation_unit = 0;  // registers, per warp
  int warp_allocation_granularity = 0;
  int shared_allocation_unit = 0;      // bytes
  int largest_cluster = 0;             // blocks; 0: no clusters
  int persisting_l2_sixteenths = 0;    // share of L2 that persisting accesses may take
  double nvlink_link_bytes_per_s = 0;  // one link, one direction
  uint64_t context_bytes = 0;  // modelled: one process's context before its first allocation
};

// One way of slicing a card (Multi-Instance GPU).
struct MigProfile {
  std::string name;                           // "1g.10gb"
  int compute_slices = 0, memory_slices = 0;  // of 7 and of 8 (of 4 and of 4 on an A30)
  int sms = 0;
  int max_instances = 0;
  int copy_engines = 0;
  uint64_t total_bytes = 0;
};

struct Card {
  std::string key;   // "h100-sxm"; unique, lower case
  std::string name;  // as the driver answers, "NVIDIA H100 80GB HBM3"
  std::vector<std::string> aliases;
  std::string family;  // "geforce", "titan", "data-centre", "workstation", "laptop"
  std::string chip;    // "GH100"
  Architecture architecture;
  int sms = 0;
  std::vector<int> sms_per_group;  // GPCs and left-over pairs, cards/cluster.h
  uint64_t nominal_bytes = 0;      // the size on the box
  uint64_t total_bytes = 0;        // cuDeviceTotalMem
  uint64_t nvml_total_bytes = 0;   // NVML's total
  std::string memory_type;         // "HBM3e"
  int memory_bus_bits = 0;
  int memory_clock_khz = 0;
  double memory_bytes_per_s = 0;
  uint64_t l2_bytes = 0;
  int sm_clock_khz = 0;  // the highest clock that the driver reports
  // Dense rates in operations per second, matrix units where the card has them, with 32-bit
  // accumulation; missing: no such type.
  std::map<std::string, double> peak;       // fp32 tf32 fp16 bf16 fp8 int8
  std::string host_link;                    // "PCIe 4.0 x16", "NVLink-C2C"
  int pcie_generation = 0, pcie_lanes = 0;  // of the card; also what NVML answers
  double host_link_bytes_per_s = 0;         // one direction
  double nvlink_bytes_per_s = 0;            // both directions, all links; 0: none
  int power_limit_watts = 0;
  std::optional<uint64_t> context_bytes;  // the architecture's if missing
  std::map<int, int32_t> attributes;      // the card's own, over the architecture's
  std::vector<MigProfile> mig;
  // Where figures come from: path of the figure ("memory.total_bytes"; a prefix stands for all
  // below it; "" for all others)
  // -> "kind: text", kind one of: data sheet, whitepaper, guide, measured, reported, derived,
  // estimated, modelled.
  std::map<std::string, std::string> sources;
  std::string parent;  // a MIG slice: key of the whole card; else empty
  std::string origin;  // "built in" or the file

  bool is_mig() const { return !parent.empty(); }
};

// The source of the figure at `path`, by the longest prefix; empty if the file names none.
std::string source_of(const Card& card, const std::string& path);
// True if the figure was estimated or modelled rather than published, measured or derived from such.
bool is_estimated(const Card& card, const std::string& path);

// The attribute as cuDeviceGetAttribute answers it, before the session's PCI place (0 if nothing is
// known).
int32_t attribute_of(const Card& card, int attribute);

// Fills what the virtual driver and the virtual NVML answer for device `index` of a session.
// memory_override: bytes of device memory instead of the card's own (NVML's total moves with it). A
// card with that override keeps everything else.
abi::CardDesc to_desc(const Card& card, int index,
                      std::optional<uint64_t> memory_override = std::nullopt);

// The whole-card MIG slice as a card of its own ("h100-sxm-mig-1g.10gb").
Card slice_of(const Card& whole, const MigProfile& profile);

}  // namespace tonnage::cards
