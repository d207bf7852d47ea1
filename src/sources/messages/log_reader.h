// Reads a training log of any size and finds its out-of-memory messages.
//
// Line by line, in bounded memory: lines beyond 64 KiB are cut, at most 1000 messages are kept.
// Messages that were wrapped over several lines are put together. Colour codes, time stamps and
// rank prefixes ("[rank3]:") do not matter.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "sources/compressed_input.h"
#include "sources/messages/log_oom.h"
#include "sources/messages/log_tables.h"

namespace tonnage::sources {

struct Log {
  std::string source;
  uint64_t lines = 0;
  std::vector<LogOom> ooms;       // in the log's order
  std::vector<LogCard> cards;     // of the last nvidia-smi table
  std::vector<LogOom> summaries;  // of torch.cuda.memory_summary() that count no error
  std::vector<std::string> notes;
  // PyTorch's warning that a checkpointed part has no input that wants gradients: nothing in it is
  // trained. 0: not seen.
  uint64_t checkpoint_warning_line = 0;
};

Result<Log> read_log(const std::string& path);  // "-": standard input
Result<Log> read_log(Input& input);

// The first message in a piece of text (one or several lines), or nothing.
std::optional<LogOom> parse_oom_message(std::string_view text);
// lines: how many further lines may belong to it, if they are not in the text yet.
std::optional<LogOom> parse_oom_message(std::string_view text, int& lines);

}  // namespace tonnage::sources
