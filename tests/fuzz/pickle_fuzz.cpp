// libFuzzer target of the snapshot reader, and of the analyses on whatever it made of the bytes.
#include <cstdlib>

#include "analysis/diagnosis/findings.h"
#include "report/words/words.h"
#include "sources/snapshot/snapshot_reader.h"

using namespace tonnage;

namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

void check_record(const record::Record& record) {
  check(!record.strings.empty() && record.strings[0].empty());
  check(!record.stacks.empty() && record.stacks[0].empty());
  for (const auto& event : record.events) {
    check(event.kind != abi::EventKind::kNone);
    check(event.stack < record.stacks.size() && event.name < record.strings.size());
    check(event.process < record.processes.size());
  }
  for (const auto& stack : record.stacks)
    for (const auto& frame : stack)
      check(frame.function < record.strings.size() && frame.file < record.strings.size());
  for (const auto& segment : record.final_segments) {
    check(segment.address <= UINT64_MAX - segment.total_bytes &&
          segment.stack < record.stacks.size());
    for (const auto& block : segment.blocks)
      check(block.address <= UINT64_MAX - block.size_bytes && block.stack < record.stacks.size());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n) {
  auto input = sources::Input::from_memory({reinterpret_cast<const char*>(data), n}, "fuzz");
  if (!input) return 0;
  auto record = sources::read_snapshot(**input);
  if (!record) {
    check(!record.error().message.empty());
    return 0;
  }
  check_record(*record);
  const auto explanation = analysis::explain(std::make_shared<record::Record>(std::move(*record)));
  check(!report::summary_of(explanation).empty());
  return 0;
}
