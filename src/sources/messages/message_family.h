// The families of messages. Each function fills `oom` and returns true if the text has a message of
// its family.
#pragma once

#include <string_view>
#include <vector>

#include "sources/messages/log_oom.h"

namespace tonnage::sources {

bool parse_pytorch(std::string_view text, LogOom& oom);
bool parse_tensorflow(std::string_view text, LogOom& oom);
bool parse_jax(std::string_view text, LogOom& oom);
// Messages that do not look like one of memory, and those of the host.
bool parse_disguised(std::string_view text, LogOom& oom);
// The table's rows; lines: how many further lines may belong to the message.
bool parse_library(std::string_view text, LogOom& oom, int& lines);

std::vector<uint64_t> parse_shape(std::string_view text);
// A message that prints a number of bytes.
LogSize exact_bytes(uint64_t bytes);

}  // namespace tonnage::sources
