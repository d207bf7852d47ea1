// Reads what torch.cuda.memory._dump_snapshot() writes (PyTorch 2.0 to today, and the older bare
// list of segments) into a Record.
//
// Layouts: torch/cuda/memory.py and torch/csrc/cuda/memory_snapshot.cpp. Fields come and go between
// versions: what is missing stays at its default, what is not known is ignored. Nothing in the file
// is executed (see pickle_machine.h). Memory: about 72 bytes an event plus 24 to 56 for the
// pickle's own memo, which is freed at the end.
//
// A file that ends too early gives what was complete, with a note in Record::notes and
// info["partial"] = "1". Errors: those of Input and of pickle::Machine; kCorrupt "not a memory
// snapshot".
#pragma once

#include <string>

#include "base/result.h"
#include "record/record.h"
#include "sources/compressed_input.h"

namespace tonnage::sources {

Result<record::Record> read_snapshot(const std::string& path);  // "-": standard input
Result<record::Record> read_snapshot(Input& input);

// Whether the first bytes look like a pickle (protocol 2 and later, or a text pickle that begins
// with a dict or a list).
bool looks_like_pickle(std::string_view first_bytes);

}  // namespace tonnage::sources
