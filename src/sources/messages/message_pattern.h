// Messages as data: one row is one message of one library, written as it is printed, with fields.
//
//   "Out of memory allocating <req> bytes (allocated so far: <alloc> bytes[[, limit set to:
//   <allowed> bytes]])"
//
// Any run of white space matches any other. `[[ ]]` may be missing. A field:
//   <req> <alloc> <resv> <free> <cap> <allowed> <other> <peak> <unalloc>   sizes:
//       "12.5GB", "1,024 MiB", "2 gib"; without a unit they are bytes, or what stands behind the
//       colon: <req:MiB>
//   <arg> <out> <temp> <prog> <frag>   sizes of the parts of a compiled program
//   <dev> <rank> <tok> <tokfit> <units> <unitsthere> <ooms> <retries>   whole numbers
//   <frac>     a number from 0 to 1, or per cent
//   <word>     a word that becomes the detail; <detail> everything up to the next literal
//   <*>        anything up to the next literal, at most 400 characters; <**> at most 8000
#pragma once

#include <string_view>

#include "sources/messages/log_oom.h"

namespace tonnage::sources {

struct MessageRow {
  LogFramework framework;
  OomFormat format;
  const char* backend;
  const char* pattern;
  int lines = 0;  // further lines that may belong to it
};

// Fills the fields of `oom` and returns true if the text has the message anywhere.
bool match_pattern(std::string_view text, std::string_view pattern, LogOom& oom);

// The longest literal at the beginning of a pattern: a line without it cannot begin the message.
std::string_view first_literal(std::string_view pattern);

}  // namespace tonnage::sources
