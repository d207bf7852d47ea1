// Reads a Tonnage record (record/format.h says how it is laid out) into a Record.
//
// A record may end at any byte, may still grow, may have damaged parts, or may be hostile. All
// whole chunks are read. Record::notes says what is missing. Memory stays within
// ReadOptions::memory_limit_bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "record/record.h"

namespace tonnage::record {

struct ReadOptions {
  uint64_t memory_limit_bytes = 16ull << 30;  // of the Record and what it takes to make it
};

// True if the bytes, the first of a file, may be a record's (4 suffice).
bool looks_like_record(std::span<const uint8_t> beginning);

// Record::source is the path. Record::processes has one entry per process image, in the order in
// which they first wrote; strings and stacks are one table for all of them. Events are in time
// order, each process's in its own order. Errors: kIo (cannot be opened or read), kCorrupt (not a
// record, or no whole chunk in it), kTooNew, kTooOld, kLimit.
Result<Record> read_record(const std::string& path, const ReadOptions& options = {});

// The same from memory; `source` names it.
Result<Record> read_record_bytes(std::span<const uint8_t> bytes, const std::string& source,
                                 const ReadOptions& options = {});

}  // namespace tonnage::record
