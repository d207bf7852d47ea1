// A small chart of memory over time for the terminal.
#pragma once

#include <string>

#include "report/style.h"

namespace tonnage::report {

// Lines of text, each ended by a newline: allocated filled, reserved (or, without PyTorch, the
// device) shaded above it, marks under the axis where steps end. Empty if there is nothing to draw.
std::string draw_chart(const analysis::DeviceReport& device, const Style& style);

}  // namespace tonnage::report
