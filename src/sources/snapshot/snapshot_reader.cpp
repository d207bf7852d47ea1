#include "sources/snapshot/snapshot_reader.h"

#include "sources/snapshot/pickle_machine.h"
#include "sources/snapshot/snapshot_builder.h"

namespace tonnage::sources {

bool looks_like_pickle(std::string_view first) {
  if (first.empty()) return false;
  const auto byte = [&first](size_t i) {
    return i < first.size() ? static_cast<unsigned char>(first[i]) : 0;
  };
  if (byte(0) == 0x80) return byte(1) <= 5 || byte(1) > 127 || first.size() == 1;
  // Protocols 0 and 1: a dict or a list, then a PUT or a key.
  if (byte(0) == '(') return byte(1) == 'd' || byte(1) == 'l';
  if (byte(0) == '}' || byte(0) == ']') return byte(1) == 'q' || byte(1) == '(' || byte(1) == '.';
  return false;
}

Result<record::Record> read_snapshot(Input& input) {
  auto first = input.peek(64);
  if (!first) return first.error();
  // A pickle that begins with GLOBAL ('c') goes to the machine, which refuses it by name.
  if (!first->empty() && !looks_like_pickle(*first) && (*first)[0] != 'c')
    return Error{ErrorCode::kCorrupt, "not a pickle, so not a memory snapshot", input.name(),
                 "a snapshot comes from torch.cuda.memory._dump_snapshot(\"file.pickle\")"};
  snapshot::Builder builder(input.known_size());
  pickle::Machine machine(input, &builder);
  builder.attach(machine.heap());
  auto root = machine.run();
  if (!root) {
    if (!machine.truncated()) return root.error();
    const pickle::Value partial = machine.close_open_containers();
    auto record = builder.finish(partial, input.name(), true);
    // Too little to be worth anything: the first error says more.
    if (!record || (record->events.empty() && record->final_segments.empty())) return root.error();
    record->info["partial"] = "1";
    record->notes.insert(record->notes.begin(), "partial: " + root.error().message + "; " +
                                                    std::to_string(record->events.size()) +
                                                    " events were read");
    return record;
  }
  const bool trailing = machine.has_trailing_bytes();
  auto record = builder.finish(*root, input.name(), false);
  if (record && trailing) record->notes.push_back("bytes after the end of the pickle were ignored");
  return record;
}

Result<record::Record> read_snapshot(const std::string& path) {
  auto input = Input::open(path);
  if (!input) return input.error();
  return read_snapshot(**input);
}

}  // namespace tonnage::sources
