// Ranks of a job that hold memory on the GPU of another rank.
#pragma once

#include <vector>

#include "analysis/diagnosis/findings.h"

namespace tonnage::analysis {

std::vector<Finding> find_other_contexts(const Timeline& timeline);

}  // namespace tonnage::analysis
