// Measures a real card: asks a real driver everything that the virtual one must answer for it.
#pragma once

#include <string>
#include <vector>

#include "cards/catalogue.h"

namespace tonnage::cards {

// The groups of SMs (GPCs and left-over pairs) of a card, from its active clusters by cluster size:
// [k] clusters of k blocks, each block taking a whole SM, [0] unused. It inverts
// cards::max_active_clusters: a group of the largest size m counts once in every k of (m/2, m], so
// groups are found from the largest down and what they hold of smaller clusters is taken off. Empty
// if the numbers follow from no grouping.
std::vector<int> groups_from_clusters(const std::vector<int>& clusters);

struct MeasuredCard {
  Card card;
  std::vector<std::string>
      missing;  // figures that could not be measured; they are the catalogue's, or estimated
};

// driver_library: a path or name for dlopen. index: as cuDeviceGet counts. What a driver does not
// say (peak rates, link) is taken from the catalogue's card of that name, else from one of the same
// compute capability, and its source says so. Errors: no driver, a virtual driver, no such device,
// a compute capability without an architecture in the catalogue. Runs code of the driver in this
// process and makes a context on the card.
Result<MeasuredCard> measure_card(const std::string& driver_library, int index,
                                  const Catalogue& catalogue);

}  // namespace tonnage::cards
