// The pickle machine: runs a pickle program of protocol 0 to 5 that builds plain data, and nothing
// else.
//
// Opcodes that could import or call anything (GLOBAL, STACK_GLOBAL, INST, OBJ, NEWOBJ, NEWOBJ_EX,
// REDUCE, BUILD, EXT1/2/4, PERSID, BINPERSID, NEXT_BUFFER, READONLY_BUFFER) are refused by name
// with their offset; so are unknown ones. Nothing recurses; lengths are never believed (memory
// grows as bytes arrive); stack, memo and values together stay under 64 MiB plus four times the
// input read so far. It reads from a stream and keeps no more of it than a buffer.
//
// A Visitor takes data away while it is parsed: it names the lists it cares about by their place
// (Machine::place), and is handed what is put into them at once. So a snapshot of millions of
// events never exists as a tree. Opcodes and their meaning: Python's Lib/pickletools.py
// documentation.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "sources/compressed_input.h"
#include "sources/snapshot/pickle_heap.h"

namespace tonnage::sources::pickle {

class Machine;

inline constexpr uint8_t kRolePlain = 1;
inline constexpr uint8_t kRoleEarly =
    128;  // and above: dicts are handed over while they are filled, not when they are appended
inline constexpr uint64_t kNoToken = UINT64_MAX;

class Visitor {
 public:
  virtual ~Visitor() = default;
  struct Role {
    uint8_t kind = kRolePlain;  // > 1: what is appended to this list goes to the visitor, the list
                                // itself stays empty
    uint64_t tag = 0;
  };
  // Called once for a list on the stack, before anything is put into it. role > 1 makes it a kStream.
  virtual Role list_role(Machine& machine, size_t position) = 0;
  // Items of a dict in a list of an early role: `count` values, key, value, …. `token`: what an
  // earlier call for the same dict gave, or kNoToken. Returns the dict's token (its type is
  // Visitor's business: any number below 2^60).
  virtual uint64_t dict_items(Machine& machine, Role role, uint64_t token, const Value* items,
                              size_t count) = 0;
  // Values appended to a list with a role. Dicts that were handed over early are tokens of type
  // kDictToken; all others are the visitor's to release.
  virtual void list_items(Machine& machine, Role role, const Value* items, size_t count) = 0;
};

inline constexpr uint8_t kDictToken = 1;

// What is known about the surroundings of a stack slot.
struct Place {
  bool known = false;
  size_t container = 0;  // position of the list or dict that the value will go into
  bool in_list = false;
  uint64_t index = 0;  // in_list: the index that it will have
  Value key{};         // in a dict: the key
};

class Machine {
 public:
  explicit Machine(Input& input, Visitor* visitor = nullptr);

  // The value that STOP leaves. Errors: kCorrupt (not a pickle, truncated, damaged), kUnsupported
  // (a forbidden opcode), kLimit, kIo. After kCorrupt by truncation, close_open_containers() gives
  // what was complete.
  Result<Value> run();
  bool truncated() const { return truncated_; }
  // Ends every open list and dict as if the rest of the file had been empty; an unfinished
  // innermost dict is dropped.
  Value close_open_containers();

  Heap& heap() { return heap_; }
  uint64_t offset() const { return base_offset_ + static_cast<uint64_t>(next_ - buffer_.get()); }
  Value at(size_t position) const { return stack_[position]; }
  Place place(size_t position) const;
  bool has_trailing_bytes() const { return trailing_; }
  int protocol() const { return protocol_; }

 private:
  struct Failure {
    Error error;
  };

  bool refill();
  void need_stack();
  [[noreturn]] void fail(ErrorCode code, std::string message, std::string hint = "") const;
  [[noreturn]] void fail_truncated();
  [[noreturn]] void refuse(uint8_t opcode);
  void check_memory();

  void execute();
  void execute_rare(uint8_t opcode);
  bool execute_structure(uint8_t opcode);
  bool execute_scalar(uint8_t opcode);
  void fill_container(uint8_t opcode);
  void push(Value value) { stack_[top_++] = value; }
  size_t pop_mark(const char* opcode);
  void require(size_t count, const char* opcode) const;
  const char* bytes(uint64_t size);  // the next `size` bytes, contiguous; valid until the next read
  std::string_view line();           // up to the next newline, which is consumed
  void skip(uint64_t size);
  void memo_put(uint64_t index, Value value);
  Value memo_get(uint64_t index, const char* opcode) const;
  void append_to(size_t position, const Value* items, size_t count, const char* opcode);
  void set_items(size_t position, const Value* items, size_t count, const char* opcode);
  void add_to_set(size_t position, const Value* items, size_t count);
  Visitor::Role role_of(size_t position);
  void collect(ObjectKind kind, size_t mark);
  void collect_from_mark(uint8_t opcode, ObjectKind kind);
  Value parse_long(const char* data, uint64_t size);
  Value parse_decimal(std::string_view text);

  Input& input_;
  Visitor* visitor_;
  Heap heap_;
  std::unique_ptr<char[]> buffer_;
  const char* next_ = nullptr;
  const char* end_ = nullptr;  // bytes beyond it are zero padding
  uint64_t base_offset_ = 0;   // of buffer_[0] in the stream
  bool input_ended_ = false, truncated_ = false, trailing_ = false;
  int protocol_ = 0;
  uint64_t op_offset_ = 0;
  std::unique_ptr<Value[]> stack_;  // sized ahead of need
  size_t top_ = 0, stack_capacity_ = 0;
  std::vector<size_t> marks_;
  std::vector<std::vector<Value>> memo_chunks_;
  std::unordered_map<uint64_t, Value> far_memo_;  // indices far beyond the number of puts
  uint64_t memo_count_ = 0, memo_bytes_ = 0;
  std::string scratch_;
};

const char* opcode_name(uint8_t opcode);  // "GLOBAL"; "" if there is no such opcode

}  // namespace tonnage::sources::pickle
