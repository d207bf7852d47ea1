// What is on the card beside PyTorch's memory and has a name of its own: local memory, by the
// kernel that made the driver take it, and managed memory, by its line.
#pragma once

#include <cstddef>
#include <vector>

#include "analysis/report.h"
#include "analysis/timeline/timeline.h"

namespace tonnage::analysis {

// After the event, largest first, at most `count` groups.
std::vector<LiveGroup> largest_beside_pytorch(const Timeline& timeline, int device, uint64_t event,
                                              size_t count);

}  // namespace tonnage::analysis
