// Memory over time in Chrome's trace format, for ui.perfetto.dev, chrome://tracing and other
// readers.
//
// One track group for each device: counters (allocated, by category, reserved, the whole device),
// blocks and segments as asynchronous slices from allocation to free, out-of-memory as instants.
// One for each process: steps, phases and annotations as slices.
#pragma once

#include <vector>

#include "analysis/diagnosis/findings.h"
#include "report/sink.h"

namespace tonnage::report {

// Viewers load the whole file. Up to these numbers everything is written; beyond them counters keep
// the peak of each equal share of the events, and the smallest blocks are left out (the trace's
// otherData says how many).
inline constexpr size_t kPerfettoCounterPoints = 200'000;
inline constexpr size_t kPerfettoBlocks = 100'000;

struct PerfettoLimits {
  size_t counter_points = kPerfettoCounterPoints;
  size_t blocks = kPerfettoBlocks;  // of one device
};

// Logs are left out: they have no events. False: the sink refused.
bool write_perfetto(const std::vector<analysis::Explanation>& explanations, const Sink& sink,
                    const PerfettoLimits& limits = {});

}  // namespace tonnage::report
