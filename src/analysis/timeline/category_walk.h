// The course of a device's memory by category, sample by sample, without a list of all of them.
#pragma once

#include <functional>

#include "analysis/timeline/breakdown.h"

namespace tonnage::analysis {

// Calls visit for every sample of the device, in order: the points of category_series, all of them.
// Memory: four bytes for each allocation of the device.
void walk_categories(const Timeline& timeline, int device,
                     const std::function<void(const CategoryPoint&)>& visit);

}  // namespace tonnage::analysis
