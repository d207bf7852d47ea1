// One device's part of the report. Internal to the analysis room.
#pragma once

#include "analysis/report.h"
#include "analysis/timeline/failures.h"
#include "analysis/timeline/timeline.h"

namespace tonnage::analysis {

// refusals: of all devices. The verdict is left to judge() (analysis/verdict.h).
DeviceReport make_device_report(const Timeline& timeline, const record::Device& device,
                                const std::vector<Refusal>& refusals, const ReportOptions& options);

// What the program was doing at the event.
Moment moment_of(const Timeline& timeline, uint64_t event);

// The largest live groups on the device after the event: PyTorch's tensors and device allocations
// that are not its segments.
std::vector<LiveGroup> largest_live(const Timeline& timeline, int device, uint64_t event,
                                    size_t count);

}  // namespace tonnage::analysis
