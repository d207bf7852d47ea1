// From the facts of a failure to its causes: the main one first, then what else contributed.
#pragma once

#include <vector>

#include "analysis/diagnosis/oom_facts.h"

namespace tonnage::analysis {

// Empty only if the record has nothing about allocated memory. The first one is primary.
std::vector<Finding> diagnose(const OomFacts& facts, const Timeline& timeline);

// What growth means and what to do about it; also used where nothing failed.
Finding growth_finding(const Growth& growth, const GrowthReport& report);

}  // namespace tonnage::analysis
