// The report as one HTML file that needs nothing else. It makes no requests, and its content
// security policy forbids them.
//
// It has the JSON report, unchanged, and what the charts need:
//   - the timeline by category, in at most kSeriesPoints parts of the events. Each part has its own
//     peak, so peaks are exact;
//   - the lives of all blocks and segments (html_lives.h). From them the page makes the table of
//     all allocations and, for any moment, the segment map and the live memory by stack;
//   - segment maps at chosen moments;
//   - the live memory at the peak, by stack and by module.
#pragma once

#include <string>
#include <vector>

#include "analysis/diagnosis/findings.h"
#include "analysis/diagnosis/findings_diff.h"

namespace tonnage::report {

inline constexpr size_t kSeriesPoints = 2000;
inline constexpr size_t kMapMoments = 16;  // of one device
inline constexpr size_t kLivesBytes =
    20 << 20;  // of one page: beyond it, a moment that the reader holds shows the nearest stored
               // map, and the page says so
inline constexpr size_t kTableBlocks =
    100'000;  // of one device: where not every life is in the page, its largest blocks are
inline constexpr size_t kMapBlocks =
    6000;  // of one map; beyond it, small neighbours in the same state are drawn as one

struct HtmlLimits {
  size_t lives_bytes = kLivesBytes;
};

// Explanations of records and logs; several get a chooser. Cost: about one replay of the
// allocator's events for each map.
// With diff, two explanations are shown side by side.
std::string render_html(const std::vector<analysis::Explanation>& explanations,
                        const HtmlLimits& limits = {}, const analysis::Diff* diff = nullptr);

// The data in the page as JSON, not yet escaped for HTML.
std::string html_data(const std::vector<analysis::Explanation>& explanations,
                      const HtmlLimits& limits = {}, const analysis::Diff* diff = nullptr);

// JSON that may stand inside a <script> element: no "<", ">", "&", U+2028 or U+2029 remain.
std::string escape_for_script(const std::string& json);

}  // namespace tonnage::report
