#include "report/perfetto_export.h"

#include "report/trace/perfetto_format.h"
#include "report/trace/walk.h"

namespace tonnage::report {

bool write_perfetto(const std::vector<analysis::Explanation>& explanations, const Sink& sink) {
  trace::PerfettoFormat format(sink);
  return trace::walk(explanations, format);
}

bool write_chrome_trace(const std::vector<analysis::Explanation>& explanations, const Sink& sink,
                        const trace::JsonLimits& limits) {
  trace::JsonFormat format(sink, limits);
  return trace::walk(explanations, format);
}

}  // namespace tonnage::report
