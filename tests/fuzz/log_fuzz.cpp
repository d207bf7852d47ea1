// libFuzzer target of the log reader and of the diagnoses of what it finds.
#include <cstdlib>

#include "analysis/diagnosis/findings.h"
#include "report/words/words.h"
#include "sources/messages/log_reader.h"

using namespace tonnage;

namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n) {
  const std::string_view text(reinterpret_cast<const char*>(data), n);
  auto input = sources::Input::from_memory(text, "fuzz");
  if (!input) return 0;
  const auto log = sources::read_log(**input);
  if (!log) return 0;
  for (const auto& oom : log->ooms) {
    check(oom.text.size() <= 2000 && oom.line_number >= 1 && oom.line_number <= log->lines);
    check(oom.frames.size() <= 200 && oom.processes.size() <= 1000);
    if (oom.requested) check(!oom.requested->text.empty());
  }
  const auto explanation = analysis::explain(*log);
  check(!report::summary_of(explanation).empty());
  check(explanation.failures.size() == log->ooms.size());
  return 0;
}
