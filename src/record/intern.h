// The writer's tables of strings and stacks. They turn texts and frames into small ids. They use
// malloc only; every function returns 0 or false if there is no memory. Not thread-safe: the
// writer's lock protects them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi/event.h"

namespace tonnage::record::detail {

struct StringTable {
  struct Entry {
    const char* text;
    uint32_t length;
    uint32_t hash;
  };
  Entry* entries = nullptr;  // by id - 1
  uint32_t count = 0, capacity = 0;
  uint32_t* slots = nullptr;  // open addressing: ids, 0 = free
  uint32_t slot_count = 0;
  char* arena = nullptr;  // the arena in hand; full ones stay where they are
  size_t arena_left = 0;
  void* arenas = nullptr;  // all of them, each begins with a pointer to the one before

  ~StringTable();
  uint32_t intern(const char* text, size_t n);  // n > 0

 private:
  char* keep(const char* text, size_t n);
};

// Stacks share their outer frames: a node is a frame and the id of its caller's node; a stack is
// its innermost node.
struct StackTable {
  struct Node {
    uint32_t parent, function, file, line;
  };
  Node* nodes = nullptr;  // by id - 1
  uint32_t count = 0, capacity = 0;
  uint32_t* slots = nullptr;
  uint32_t slot_count = 0;

  ~StackTable();
  uint32_t intern(const abi::Frame* frames, size_t n);  // innermost first

 private:
  uint32_t intern_node(const Node& node);
};

}  // namespace tonnage::record::detail
