// Opens the input of `tonnage explain`: a PyTorch snapshot, a Tonnage record or a log. The first
// bytes show which it is.
#pragma once

#include <memory>
#include <string>
#include <variant>

#include "base/result.h"
#include "record/record.h"
#include "sources/messages/log_reader.h"

namespace tonnage::cli {

using ExplainInput = std::variant<std::shared_ptr<const record::Record>, sources::Log>;

// What a file argument is where none is given: the last run that was kept.
inline constexpr const char* kLastRun = "last";

// A record by its file, or a kept run by `last`, `last~1`.
Result<record::Record> open_run(const std::string& path);

// "-": standard input; `last`, `last~1`: kept runs. Errors: those of the readers; kUnsupported
// (binary, and none of these).
Result<ExplainInput> open_explain_input(const std::string& path);

// The same, if it must be a record or a snapshot.
Result<std::shared_ptr<const record::Record>> open_record_input(const std::string& path);

}  // namespace tonnage::cli
