// The contents of a record's chunks -> Record. Used by record_reader.cpp, which finds the chunks.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "record/format.h"
#include "record/record.h"

namespace tonnage::record {

// Counts what was allocated against a limit.
class MemoryBudget {
 public:
  explicit MemoryBudget(uint64_t limit_bytes) : left_(limit_bytes) {}
  bool take(uint64_t bytes) {
    if (bytes > left_) return exceeded_ = true, false;
    left_ -= bytes;
    return true;
  }
  bool exceeded() const { return exceeded_; }

 private:
  uint64_t left_;
  bool exceeded_ = false;
};

class RecordDecoder {
 public:
  explicit RecordDecoder(MemoryBudget& budget);

  // `payload` is uncompressed. False: it is damaged and nothing of it was taken, or the budget is
  // exceeded.
  bool add_chunk(const record::ChunkHeader& header, std::span<const uint8_t> payload);

  // Puts the processes' events in order. Call once, last. False: the budget is exceeded.
  bool finish(Record& record);

 private:
  struct Node {
    uint32_t parent = 0;  // local id
    abi::Frame frame;     // strings by their ids in the record
    uint32_t depth = 0;
    uint32_t stack = abi::kNoId;  // id in the record once it was asked for
  };
  struct Stream {
    uint32_t process = 0;
    uint32_t next_sequence = 0;
    bool missing = false;  // a chunk of it
    bool end_seen = false;
    std::vector<uint32_t> strings{0};  // local id -> id in the record
    std::vector<Node> nodes{Node{}};   // by local id
    std::vector<abi::MemoryEvent> events;
  };
  class Cursor;

  bool add_session(std::span<const uint8_t> json);
  bool add_session_end(std::span<const uint8_t> json);
  bool add_data(const record::ChunkHeader& header, std::span<const uint8_t> payload);
  bool read_strings(Cursor& in, Stream& stream);
  bool read_nodes(Cursor& in, Stream& stream);
  bool read_events(Cursor& in, Stream& stream, uint32_t count);
  void add_fact(const std::string& text);
  uint32_t intern(std::string_view text);
  uint32_t stack_of(Stream& stream, uint32_t local);
  bool merge();
  void end_the_dead();

  struct TextHash {
    using is_transparent = void;
    const std::vector<std::string>* strings;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
    size_t operator()(uint32_t id) const { return (*this)((*strings)[id]); }
  };
  struct TextEqual {
    using is_transparent = void;
    const std::vector<std::string>* strings;
    bool operator()(uint32_t a, uint32_t b) const { return a == b; }
    bool operator()(uint32_t a, std::string_view b) const { return (*strings)[a] == b; }
    bool operator()(std::string_view a, uint32_t b) const { return (*this)(b, a); }
  };

  MemoryBudget& budget_;
  Record record_;
  std::unordered_set<uint32_t, TextHash, TextEqual> string_ids_;
  std::unordered_multimap<uint64_t, uint32_t> stack_ids_;  // hash of the frames -> ids
  std::unordered_map<uint64_t, size_t> stream_index_;
  std::vector<Stream> streams_;
  std::unordered_map<uint64_t, uint32_t> slots_;  // identity in the session's account -> process
  bool session_seen_ = false;
};

}  // namespace tonnage::record
