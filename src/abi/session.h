// The session: one memory-mapped file that `tonnage run` makes. All processes of the run share it.
//
// It describes the virtual devices (CardDesc, filled by src/cards from the card catalogue). It also
// has the ledger of their memory, so that several processes share a card as on a real machine.
// Plain types only: the CLI writes it, the virtual driver and the virtual NVML map it. The file's
// path is in the environment variable TONNAGE_SESSION.
#pragma once

#include <atomic>
#include <cstdint>

namespace tonnage::abi {

inline constexpr uint32_t kSessionMagic = 0x53474e54;  // "TNGS"
inline constexpr uint32_t kSessionVersion = 2;
inline constexpr int kMaxDevices = 16;
inline constexpr int kMaxProcesses = 1024;
inline constexpr int kAttributeCount = 192;  // CUdevice_attribute numbers, with room to grow
inline constexpr int kMaxClusterSize = 32;

// Everything that the virtual driver answers about one device. Sizes in bytes, rates in units per
// second, clocks in kHz.
struct CardDesc {
  char name[96];           // as cuDeviceGetName answers, e.g. "NVIDIA H200"
  char catalogue_key[64];  // the card's key in data/cards, e.g. "h200"
  uint8_t uuid[16];
  int32_t cc_major, cc_minor;
  int32_t pci_domain, pci_bus, pci_device;
  uint64_t total_bytes;       // cuDeviceTotalMem, cuMemGetInfo
  uint64_t nvml_total_bytes;  // NVML's figure includes what the driver reserves for itself
  uint64_t context_bytes;  // modelled: what one process's context takes before its first allocation
  int32_t attributes[kAttributeCount];  // by CUdevice_attribute
  // What occupancy needs beyond the attributes (NVIDIA's published per-architecture tables).
  int32_t register_allocation_unit;  // registers, per warp
  int32_t warp_allocation_granularity;
  int32_t shared_allocation_unit;  // bytes
  // Active clusters of an otherwise empty kernel that takes all shared memory of an SM, by cluster
  // size; [0] unused. It follows from how many SMs each GPC of this card really has.
  int32_t max_clusters[kMaxClusterSize + 1];
  double memory_bytes_per_s;
  double host_link_bytes_per_s;
  double peak_flops_fp32, peak_flops_tf32, peak_flops_fp16, peak_flops_bf16, peak_flops_fp8,
      peak_flops_int8;
  int32_t power_limit_watts;
  int32_t is_mig;                       // 1: a MIG slice
  char driver_version[32];              // NVML's, e.g. "580.159.04"
  int32_t cuda_driver_version;          // e.g. 13000
  int32_t pcie_generation, pcie_lanes;  // 0: unknown
  int32_t nvlink_links;                 // 0: no NVLink
  double nvlink_bytes_per_s;            // one link, one direction
  uint8_t sms_per_group[32];  // SMs of each GPC and left-over pair, 0 ends; what max_clusters
                              // follows from
  uint8_t reserved[12];
};

// What one process holds of every device. A device's memory in use is the sum over the processes
// that live; it is kept nowhere else, so a process that is killed at any moment leaves nothing to
// put right. Changed under the ledger's lock (session_locks.h), which says too who lives.
struct ProcessAccount {
  std::atomic<int32_t> pid;          // as the process itself sees it; 0: nobody's slot
  std::atomic<uint32_t> generation;  // how many processes have had the slot
  std::atomic<uint64_t> used_bytes[kMaxDevices];
};

// The first write of the record that failed, in any process: from then on the record has a gap.
struct RecordFailure {
  std::atomic<int32_t> error_number;  // errno; 0: none failed
  std::atomic<int32_t> pid;
};

struct Session {
  uint32_t magic;
  uint32_t version;
  uint32_t struct_bytes;  // sizeof(Session): a driver of another build refuses the file
  int32_t device_count;
  uint64_t start_ns;       // CLOCK_MONOTONIC at the start of the session
  char record_path[512];   // where processes append their record; empty: no record
  char recorder_dir[512];  // where compiled recorders for PyTorch builds are; empty: no recorder
  char tonnage_path[512];  // the tonnage binary, to build a recorder for an unknown PyTorch
  double assume_selected;  // share that data-dependent selections of unknown data take; < 0: their
                           // upper bound
  uint64_t known_integer_bytes;   // integer and boolean tensors up to this size are computed
                                  // (default 64 MiB)
  uint64_t known_float_elements;  // other tensors up to this many elements are computed
  uint32_t flags;                 // kFlag*
  CardDesc devices[kMaxDevices];
  RecordFailure record_failure;
  // The most that was ever in use on each device. Kept when its processes are gone.
  std::atomic<uint64_t> peak_bytes[kMaxDevices];
  std::atomic<uint32_t> drivers_loaded;  // processes that ever had a slot
  std::atomic<int32_t> slots_used;       // processes[] from here on were never anybody's
  ProcessAccount processes[kMaxProcesses];
};

inline constexpr uint32_t kFlagPassThrough = 1;  // forward to the real driver, log and account
inline constexpr uint32_t kFlagNoKnownValues = 2;
inline constexpr uint32_t kFlagNoStacks = 4;

}  // namespace tonnage::abi
