// How many thread block clusters a card can hold at once, from how its SMs are grouped.
//
// A cluster lives inside one GPC (CUDA programming guide, "Thread Block Clusters"). Which SMs of a
// die are switched off differs from card to card, and some SMs are left over in pairs that belong
// to no GPC of the card as it is sold: a pair can hold clusters of one or two blocks. So a card is
// a list of groups, each with its number of SMs, and an otherwise empty kernel whose blocks each
// take a whole SM has sum(floor(SMs in group / cluster size)) active clusters. The groups of the
// H200 in data/cards reproduce, for every size, what cuOccupancyMaxActiveClusters answered on a
// real one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi/session.h"

namespace tonnage::cards {

// sms_per_group: SMs of each group. cluster_size: blocks per cluster, at least 1. blocks_per_sm:
// blocks of the kernel that fit on one SM (its occupancy). A cluster's blocks spread over the
// group's block slots. Returns 0 for sizes that do not fit.
template <class Count>
inline int max_active_clusters(const Count* sms_per_group, size_t groups, int cluster_size,
                               int blocks_per_sm = 1) {
  if (cluster_size < 1 || blocks_per_sm < 1) return 0;
  int64_t clusters = 0;
  for (size_t i = 0; i < groups; ++i)
    clusters += int64_t{sms_per_group[i]} * blocks_per_sm / cluster_size;
  return clusters > INT32_MAX ? INT32_MAX : static_cast<int>(clusters);
}

// Fills card->max_clusters; sizes above `largest_cluster` (0: the card has no clusters) answer 0.
// [0] stays 0.
template <class Count>
inline void fill_max_clusters(abi::CardDesc* card, const Count* sms_per_group, size_t groups,
                              int largest_cluster) {
  for (int size = 0; size <= abi::kMaxClusterSize; ++size) {
    card->max_clusters[size] =
        size >= 1 && size <= largest_cluster ? max_active_clusters(sms_per_group, groups, size) : 0;
  }
}

}  // namespace tonnage::cards
