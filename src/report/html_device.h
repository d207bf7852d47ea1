// One device's part of the page. Internal to the report room.
#pragma once

#include <nlohmann/json.hpp>

#include "analysis/diagnosis/findings.h"
#include "report/html_sites.h"

namespace tonnage::report {

// {"index", "series", "lives", "largest_lives", "other_lives", "maps", "sites", "by_stack",
// "by_module"}. lives: null if they do not fit into the budget, which is lowered by what they take,
// or if the events contradict each other; then largest_lives has the largest blocks. other_lives:
// what the driver gave to others than PyTorch's allocator.
nlohmann::ordered_json device_data(const analysis::Explanation& explanation,
                                   const analysis::DeviceReport& device, OriginTables& tables,
                                   size_t& lives_budget);

}  // namespace tonnage::report
