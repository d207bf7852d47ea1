// Two tables as comma-separated values (RFC 4180, a header line, missing values empty, sizes in
// bytes): docs/explain.md has the columns.
#pragma once

#include <vector>

#include "analysis/diagnosis/findings.h"
#include "report/sink.h"

namespace tonnage::report {

// One row for each allocation of PyTorch's and of the driver's other users: its life, its block,
// its category and its line. False: the sink refused.
bool write_allocations_csv(const std::vector<analysis::Explanation>& explanations,
                           const Sink& sink);

// One row for each event of the history, in its order, with the memory of the event's device after
// it.
bool write_events_csv(const std::vector<analysis::Explanation>& explanations, const Sink& sink);

}  // namespace tonnage::report
