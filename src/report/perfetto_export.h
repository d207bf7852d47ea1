// Memory over time as a trace, for ui.perfetto.dev and other readers of traces.
//
// One group of tracks for each device: counters (allocated, by category, reserved, the whole
// device), blocks and segments as slices from allocation to free, failures as instants. One for
// each process: steps, phases and annotations as slices.
#pragma once

#include <vector>

#include "analysis/diagnosis/findings.h"
#include "report/sink.h"
#include "report/trace/json_format.h"

namespace tonnage::report {

// In Perfetto's own format: all events and blocks, however many. Logs are left out: they have no
// events. False: the sink refused.
bool write_perfetto(const std::vector<analysis::Explanation>& explanations, const Sink& sink);

// In Chrome's JSON. Viewers load the whole file: beyond the limits counters keep the peak of each
// equal share of the events, and the smallest blocks are left out (the trace's otherData says so).
bool write_chrome_trace(const std::vector<analysis::Explanation>& explanations, const Sink& sink,
                        const trace::JsonLimits& limits = {});

}  // namespace tonnage::report
