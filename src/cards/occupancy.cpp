#include "cards/occupancy.h"

#include <algorithm>
#include <climits>

#include "cards/cluster.h"

namespace tonnage::cards {
namespace {

constexpr int kOk = 0, kInvalidValue = 1, kInvalidClusterSize = 912;
constexpr int kPortableCluster = 8;      // what every card with clusters can run
constexpr int kNonPortableCluster = 16;  // the largest that an H200 names
constexpr int kClusteredBlocksPerSm = 8;

// CUdevice_attribute
enum : int {
  kMaxThreadsPerBlock = 1,
  kSharedPerBlock = 8,
  kWarpSize = 10,
  kRegistersPerBlock = 12,
  kSmCount = 16,
  kThreadsPerSm = 39,
  kSharedPerSm = 81,
  kRegistersPerSm = 82,
  kSharedPerBlockOptin = 97,
  kBlocksPerSm = 106,
  kReservedSharedPerBlock = 111,
  kClusterLaunch = 120,
};

constexpr int kPartitions = 4;

int64_t round_up(int64_t value, int64_t unit) {
  return unit > 1 ? (value + unit - 1) / unit * unit : value;
}

int warps_of(const abi::CardDesc& card, int block_threads) {
  const int warp = std::max(card.attributes[kWarpSize], 1);
  return (block_threads + warp - 1) / warp;
}

int limit_by_registers(const abi::CardDesc& card, const KernelAttributes& kernel, int warps) {
  const int64_t per_warp = round_up(int64_t{kernel.registers} * card.attributes[kWarpSize],
                                    card.register_allocation_unit);
  if (per_warp <= 0) return INT_MAX;
  // The hardware's check for a launch takes the same number of warps on each partition.
  if (per_warp * round_up(warps, kPartitions) > card.attributes[kRegistersPerBlock]) return 0;
  const int64_t warps_per_partition = card.attributes[kRegistersPerSm] / kPartitions / per_warp;
  return static_cast<int>(warps_per_partition * kPartitions / warps);
}

int reserved_shared(const abi::CardDesc& card) {
  return card.cc_major >= 8 ? card.attributes[kReservedSharedPerBlock] : 0;
}

// What one block may take of shared memory, the reserved part included.
int64_t shared_limit_per_block(const abi::CardDesc& card, const KernelAttributes& kernel,
                               int64_t most_wanted) {
  int64_t limit = card.attributes[kSharedPerBlock];
  if (kernel.dynamic_shared_set && most_wanted > limit)
    limit = card.attributes[kSharedPerBlockOptin];
  return limit + reserved_shared(card);
}

// The SM's shared memory under the kernel's preference.
int64_t preferred_shared(const abi::CardDesc& card, const KernelAttributes& kernel) {
  int percent = kernel.carveout_percent;
  if (percent < 0) {
    // CUfunc_cache: 1 shared, 2 L1, 3 equal
    percent = kernel.cache_config == 1   ? 100
              : kernel.cache_config == 2 ? 0
              : kernel.cache_config == 3 ? 50
                                         : -1;
  }
  const int64_t all = card.attributes[kSharedPerSm];
  return percent < 0 ? all : carveout_bytes(card, all * percent / 100);
}

int limit_by_shared(const abi::CardDesc& card, const KernelAttributes& kernel,
                    size_t dynamic_bytes) {
  const int64_t fixed = kernel.static_shared_bytes + reserved_shared(card);
  if (dynamic_bytes > static_cast<size_t>(INT_MAX)) return 0;
  if (kernel.dynamic_shared_set &&
      static_cast<int64_t>(dynamic_bytes) > kernel.max_dynamic_shared_bytes)
    return 0;
  const int64_t taken =
      round_up(fixed + static_cast<int64_t>(dynamic_bytes), card.shared_allocation_unit);
  if (taken > shared_limit_per_block(card, kernel, fixed + kernel.max_dynamic_shared_bytes))
    return 0;
  if (taken == 0) return INT_MAX;
  int64_t available = preferred_shared(card, kernel);
  if (available < taken) available = carveout_bytes(card, taken);
  return available < 0 ? 0 : static_cast<int>(available / taken);
}

int limit_by_barriers(const abi::CardDesc& card, const KernelAttributes& kernel) {
  if (card.cc_major < 9 || kernel.barriers <= 0) return INT_MAX;
  const bool two_per_block = card.cc_major == 9 || (card.cc_major == 10 && card.cc_minor != 1);
  return card.attributes[kBlocksPerSm] * (two_per_block ? 2 : 1) / kernel.barriers;
}

// The card's groups of SMs from its table of active clusters. max_clusters[s] = sum over groups of
// floor(SMs / s), and a group of exactly s SMs adds one to the entry s and nothing above, so the
// table is solved from its largest size down. groups[s]: how many groups have s SMs. False where
// the table is not of that form.
bool groups_of(const abi::CardDesc& card, int (&groups)[abi::kMaxClusterSize + 1]) {
  std::fill(groups, groups + abi::kMaxClusterSize + 1, 0);
  for (int size = abi::kMaxClusterSize; size >= 1; --size) {
    int count = card.max_clusters[size];
    for (int larger = size + 1; larger <= abi::kMaxClusterSize; ++larger)
      count -= groups[larger] * (larger / size);
    if (count < 0) return false;
    groups[size] = count;
  }
  return true;
}

// *size 0: the launch names no cluster and the code requires none.
int cluster_size_of(const KernelAttributes& kernel, const ClusterLaunch& launch, int64_t* size) {
  const bool named = launch.cluster[0] || launch.cluster[1] || launch.cluster[2];
  *size = named || kernel.required_cluster[0] > 0 ? 1 : 0;
  for (int i = 0; i < 3 && *size; ++i) {
    const int64_t required = kernel.required_cluster[i];
    const int64_t width =
        named ? std::max<int64_t>(launch.cluster[i], 1) : std::max<int64_t>(required, 1);
    if (kernel.cluster_must_be_set && width != required) return kInvalidClusterSize;
    if (width > abi::kMaxClusterSize * 4 || launch.grid[i] % width != 0) return kInvalidClusterSize;
    *size *= width;
  }
  return kOk;
}

int threads_of(const ClusterLaunch& launch, int* threads) {
  const uint64_t product = uint64_t{launch.block[0]} * launch.block[1] * launch.block[2];
  if (product == 0 || product > INT_MAX) return kInvalidValue;
  *threads = static_cast<int>(product);
  return kOk;
}

// A cluster's blocks are spread over the SMs of one group, so that a group holds no cluster of more
// blocks than it has SMs, and each SM takes up to eight of a clustered kernel's blocks. Both follow
// from what an H200 answered for six occupancies and twenty sizes.
int clusters_on_card(const abi::CardDesc& card, int64_t size, int blocks_per_sm) {
  if (size < 1 || size > abi::kMaxClusterSize || blocks_per_sm < 1 || card.max_clusters[size] == 0)
    return 0;
  if (blocks_per_sm == 1) return card.max_clusters[size];
  const int64_t blocks = std::min(blocks_per_sm, kClusteredBlocksPerSm);
  int groups[abi::kMaxClusterSize + 1];
  if (!groups_of(card, groups)) return static_cast<int>(card.max_clusters[size] * blocks);
  int64_t clusters = 0;
  for (int sms = static_cast<int>(size); sms <= abi::kMaxClusterSize; ++sms)
    clusters += groups[sms] * (sms * blocks / size);
  return static_cast<int>(std::min<int64_t>(clusters, INT_MAX));
}

}  // namespace

int64_t carveout_bytes(const abi::CardDesc& card, int64_t wanted_bytes) {
  // KiB; cuda_occupancy.h, "Align up shared memory based on compute major configurations"
  static constexpr int kVolta[] = {0, 8, 16, 32, 64, 96};
  static constexpr int kTuring[] = {32, 64};
  static constexpr int kAmpere[] = {0, 8, 16, 32, 64, 100, 132, 164, 196, 228};
  const int64_t most = card.attributes[kSharedPerSm];
  const int* first = kAmpere;
  const int* last = kAmpere + std::size(kAmpere);
  if (card.cc_major < 7) return wanted_bytes <= most ? most : -1;
  if (card.cc_major == 7) {
    first = card.cc_minor == 5 ? kTuring : kVolta;
    last = card.cc_minor == 5 ? kTuring + std::size(kTuring) : kVolta + std::size(kVolta);
  }
  for (; first != last; ++first) {
    const int64_t bytes = int64_t{*first} * 1024;
    if (bytes > most) break;
    if (wanted_bytes <= bytes) return bytes;
  }
  return -1;
}

int max_active_blocks(const abi::CardDesc& card, const KernelAttributes& kernel, int block_threads,
                      size_t dynamic_shared_bytes, int* blocks) {
  if (block_threads <= 0) return kInvalidValue;
  *blocks = 0;
  if (block_threads > card.attributes[kMaxThreadsPerBlock]) return kOk;
  const int warps = warps_of(card, block_threads);
  int limit = card.attributes[kThreadsPerSm] / std::max(card.attributes[kWarpSize], 1) / warps;
  limit = std::min(limit, card.attributes[kBlocksPerSm]);
  limit = std::min(limit, limit_by_registers(card, kernel, warps));
  limit = std::min(limit, limit_by_shared(card, kernel, dynamic_shared_bytes));
  limit = std::min(limit, limit_by_barriers(card, kernel));
  *blocks = limit;
  return kOk;
}

int available_dynamic_shared(const abi::CardDesc& card, const KernelAttributes& kernel, int blocks,
                             int block_threads, size_t* bytes) {
  if (blocks <= 0 || block_threads <= 0) return kInvalidValue;
  int possible = 0;
  const int status = max_active_blocks(card, kernel, block_threads, 0, &possible);
  if (status != kOk) return status;
  if (possible < blocks) return kInvalidValue;
  const int64_t per_block = shared_limit_per_block(card, kernel, card.attributes[kSharedPerSm]);
  int64_t all = per_block;
  if (blocks > 1) {
    all = preferred_shared(card, kernel);
    if (all == 0) all = carveout_bytes(card, 1);
  }
  int64_t each = all / blocks;
  if (card.shared_allocation_unit > 1)
    each = each / card.shared_allocation_unit * card.shared_allocation_unit;
  // The reserved part is not taken off, by the published code and by the driver (an H200 answers
  // 116736 for two blocks).
  each = std::min(each, per_block) - kernel.static_shared_bytes;
  *bytes = static_cast<size_t>(std::clamp<int64_t>(each, 0, kernel.max_dynamic_shared_bytes));
  return kOk;
}

int max_potential_block_size(const abi::CardDesc& card, const KernelAttributes& kernel,
                             size_t (*shared_for_block)(int), size_t dynamic_shared_bytes,
                             int block_limit, int* min_grid, int* block_threads) {
  const int warp = std::max(card.attributes[kWarpSize], 1);
  int limit = std::min(card.attributes[kMaxThreadsPerBlock], kernel.max_threads);
  if (block_limit > 0) limit = std::min(limit, block_limit);
  int best_threads = 0, best_block = 0, best_blocks = 0;
  for (int aligned = static_cast<int>(round_up(limit, warp)); aligned > 0; aligned -= warp) {
    const int block = std::min(limit, aligned);
    if (shared_for_block) dynamic_shared_bytes = shared_for_block(block);
    int blocks = 0;
    const int status = max_active_blocks(card, kernel, block, dynamic_shared_bytes, &blocks);
    if (status != kOk) return status;
    if (block * blocks > best_threads) {
      best_threads = block * blocks;
      best_block = block;
      best_blocks = blocks;
    }
    if (best_threads == card.attributes[kThreadsPerSm]) break;
  }
  *min_grid = best_blocks * card.attributes[kSmCount];
  *block_threads = best_block;
  return kOk;
}

int max_active_clusters(const abi::CardDesc& card, const KernelAttributes& kernel,
                        const ClusterLaunch& launch, int* clusters) {
  *clusters = 0;
  int threads = 0, blocks = 0;
  int64_t size = 1;
  if (const int status = threads_of(launch, &threads); status != kOk) return status;
  if (const int status = cluster_size_of(kernel, launch, &size); status != kOk) return status;
  if (const int status =
          max_active_blocks(card, kernel, threads, launch.dynamic_shared_bytes, &blocks);
      status != kOk)
    return status;
  if (size > kPortableCluster && !kernel.non_portable_cluster) return kInvalidClusterSize;
  *clusters = clusters_on_card(card, size, blocks);
  return kOk;
}

int max_potential_cluster_size(const abi::CardDesc& card, const KernelAttributes& kernel,
                               const ClusterLaunch& launch, int* size) {
  *size = 0;
  int threads = 0, blocks = 0;
  if (const int status = threads_of(launch, &threads); status != kOk) return status;
  if (const int status =
          max_active_blocks(card, kernel, threads, launch.dynamic_shared_bytes, &blocks);
      status != kOk)
    return status;
  if (kernel.cluster_must_be_set) return kInvalidClusterSize;
  const int most = kernel.non_portable_cluster ? kNonPortableCluster : kPortableCluster;
  for (int candidate = most; candidate >= 1; --candidate) {
    if (clusters_on_card(card, candidate, blocks) > 0) {
      *size = candidate;
      break;
    }
  }
  return kOk;
}

}  // namespace tonnage::cards
