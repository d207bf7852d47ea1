// The lives of blocks and segments for the page (src/report/assets/segments.js reads them): the
// segment map of any moment is made there. Internal to the report room.
//
// {"process", "unit", "streams": [...], "segments", "shapes", "blocks": base64 of varints (7 bits a
// byte, lowest first; "±" is zigzag)}
//   segments, each:
//     from (since the last one's)
//     life (0: to the end, else events + 1)
//     ± address / unit (since the last one's end)
//     bytes / unit
//     2 * stream + expandable (stream: index into streams)
//   shapes, each (steps repeat themselves: thousands of blocks have a few hundred shapes):
//     ± address / unit (since the last one's)
//     bytes / unit
//     bytes not requested
//     category (index into category_order)
//     site + 1 (0: not known)
//   blocks, each:
//     from (since the last one's)
//     life until it is freed (as above)
//     life from there until it is gone (as above)
//     ± shape (since the last one's)
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "analysis/block_lives.h"

namespace tonnage::report {

// origin: category (index into category_order) and site (-1: not known) of a block. Nothing if it
// would take more than max_bytes, or holds addresses that a page's numbers cannot.
std::optional<nlohmann::ordered_json> encode_lives(
    const analysis::BlockLives& lives,
    const std::function<std::pair<uint64_t, int64_t>(const analysis::BlockLife&)>& origin,
    size_t max_bytes);

}  // namespace tonnage::report
