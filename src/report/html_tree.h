// The live memory at one moment as a tree, for the icicle chart. Internal to the report room.
//
// A node: {"n": name, "b": bytes, "c": allocations, "g": the category that most of its bytes have,
// "k": children, largest first}. Bytes are those of the blocks: the root has exactly what PyTorch
// counts as allocated. Children below 1/2000 of the root are put together, so that nothing gets lost.
#pragma once

#include <nlohmann/json.hpp>

#include "analysis/timeline/timeline.h"

namespace tonnage::report {

// From the outermost frame of the user's and installed packages' code inwards, then the operator;
// PyTorch's own frames are left out unless there are no others.
nlohmann::ordered_json tree_by_stack(const analysis::Timeline& timeline, int device,
                                     uint64_t event);
// By parts of the module's path; null if the record names no modules.
nlohmann::ordered_json tree_by_module(const analysis::Timeline& timeline, int device,
                                      uint64_t event);

}  // namespace tonnage::report
