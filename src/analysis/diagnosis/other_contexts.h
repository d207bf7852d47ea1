// Ranks of a job that hold something on a GPU which is another rank's.
#pragma once

#include <vector>

#include "analysis/diagnosis/findings.h"

namespace tonnage::analysis {

std::vector<Finding> find_other_contexts(const Timeline& timeline);

}  // namespace tonnage::analysis
