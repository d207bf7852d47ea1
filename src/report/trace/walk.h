// Walks over the records of explanations and tells a trace format what is in them.
#pragma once

#include <vector>

#include "analysis/diagnosis/findings.h"
#include "report/trace/format.h"

namespace tonnage::report::trace {

// Logs are left out: they have no events. False: the sink refused.
bool walk(const std::vector<analysis::Explanation>& explanations, Format& format);

}  // namespace tonnage::report::trace
