// Occupancy: how many blocks of a kernel an SM holds, from registers, shared memory, warps and
// barriers.
//
// The rules are those that NVIDIA publishes in cuda_occupancy.h (CUDA Toolkit 13.0), written anew.
// Return values are CUresult numbers (0, 1 invalid value, 912 invalid cluster size), so that the
// driver hands them on.
#pragma once

#include <cstddef>

#include "abi/session.h"
#include "cards/kernel_attributes.h"

namespace tonnage::cards {

// cuOccupancyMaxActiveBlocksPerMultiprocessor; its WithFlags form differs only on 5.x and 6.x.
int max_active_blocks(const abi::CardDesc& card, const KernelAttributes& kernel, int block_threads,
                      size_t dynamic_shared_bytes, int* blocks);

// cuOccupancyAvailableDynamicSMemPerBlock: the dynamic shared memory with which `blocks` blocks
// still fit on one SM.
int available_dynamic_shared(const abi::CardDesc& card, const KernelAttributes& kernel, int blocks,
                             int block_threads, size_t* bytes);

// cuOccupancyMaxPotentialBlockSize. `shared_for_block` (may be null) gives the dynamic shared memory
// of a block of so many threads; `dynamic_shared_bytes` counts without it. block_limit 0: none.
int max_potential_block_size(const abi::CardDesc& card, const KernelAttributes& kernel,
                             size_t (*shared_for_block)(int), size_t dynamic_shared_bytes,
                             int block_limit, int* min_grid, int* block_threads);

// A launch as the cluster queries see it.
struct ClusterLaunch {
  unsigned block[3] = {1, 1, 1};
  unsigned grid[3] = {0, 0, 0};     // must be whole clusters; 0: not checked
  unsigned cluster[3] = {0, 0, 0};  // 0: not in the launch's attributes
  size_t dynamic_shared_bytes = 0;
};

// cuOccupancyMaxActiveClusters: clusters of this size that the whole card holds; 0 where neither
// launch nor code names a size.
int max_active_clusters(const abi::CardDesc& card, const KernelAttributes& kernel,
                        const ClusterLaunch& launch, int* clusters);

// cuOccupancyMaxPotentialClusterSize: the largest cluster of which the card holds at least one.
int max_potential_cluster_size(const abi::CardDesc& card, const KernelAttributes& kernel,
                               const ClusterLaunch& launch, int* size);

// The shared memory that an SM sets aside when so much is asked for: the next carve-out of its
// architecture. -1: more than it has.
int64_t carveout_bytes(const abi::CardDesc& card, int64_t wanted_bytes);

}  // namespace tonnage::cards
