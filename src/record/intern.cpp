#include "record/intern.h"

#include <cstdlib>
#include <cstring>

#include "record/format.h"

namespace tonnage::record::detail {

namespace {

constexpr uint64_t kMultiplier = 0x9e3779b97f4a7c15u;
constexpr size_t kArenaBytes = 64 << 10;

uint64_t mix(uint64_t h, uint64_t word) {
  h = (h ^ word) * kMultiplier;
  return h ^ (h >> 32);
}

uint32_t hash_text(const char* text, size_t n) {
  uint64_t h = n;
  for (; n >= 8; n -= 8, text += 8) {
    uint64_t word;
    std::memcpy(&word, text, 8);
    h = mix(h, word);
  }
  uint64_t rest = 0;
  std::memcpy(&rest, text, n);
  return static_cast<uint32_t>(mix(h, rest));
}

uint32_t hash_node(const StackTable::Node& node) {
  const uint64_t h =
      mix(uint64_t{node.parent} << 32 | node.line, uint64_t{node.function} << 32 | node.file);
  return static_cast<uint32_t>(mix(h, 0));
}

// Room for one more element; the slots are kept at most half full.
template <class T>
bool grow(T*& elements, uint32_t count, uint32_t& capacity) {
  if (count < capacity) return true;
  const uint32_t larger = capacity == 0 ? 256 : capacity * 2;
  void* moved = std::realloc(elements, sizeof(T) * larger);
  if (moved == nullptr) return false;
  elements = static_cast<T*>(moved);
  capacity = larger;
  return true;
}

template <class HashOf>
bool grow_slots(uint32_t*& slots, uint32_t& slot_count, uint32_t count, HashOf hash_of) {
  if (2 * (count + 1) <= slot_count) return true;
  const uint32_t larger = slot_count == 0 ? 1024 : slot_count * 2;
  auto* fresh = static_cast<uint32_t*>(std::calloc(larger, sizeof(uint32_t)));
  if (fresh == nullptr) return false;
  for (uint32_t id = 1; id <= count; ++id) {
    uint32_t at = hash_of(id) & (larger - 1);
    while (fresh[at] != 0) at = (at + 1) & (larger - 1);
    fresh[at] = id;
  }
  std::free(slots);
  slots = fresh;
  slot_count = larger;
  return true;
}

}  // namespace

StringTable::~StringTable() {
  while (arenas != nullptr) {
    void* before;
    std::memcpy(&before, arenas, sizeof before);
    std::free(arenas);
    arenas = before;
  }
  std::free(entries);
  std::free(slots);
}

char* StringTable::keep(const char* text, size_t n) {
  if (n > arena_left) {
    const size_t bytes = n + sizeof(void*) > kArenaBytes ? n + sizeof(void*) : kArenaBytes;
    auto* fresh = static_cast<char*>(std::malloc(bytes));
    if (fresh == nullptr) return nullptr;
    std::memcpy(fresh, &arenas, sizeof(void*));
    arenas = fresh;
    arena = fresh + sizeof(void*);
    arena_left = bytes - sizeof(void*);
  }
  char* const kept = arena;
  std::memcpy(kept, text, n);
  arena += n;
  arena_left -= n;
  return kept;
}

uint32_t StringTable::intern(const char* text, size_t n) {
  if (!grow_slots(slots, slot_count, count, [this](uint32_t id) { return entries[id - 1].hash; }))
    return abi::kNoId;
  const uint32_t hash = hash_text(text, n);
  uint32_t at = hash & (slot_count - 1);
  for (; slots[at] != 0; at = (at + 1) & (slot_count - 1)) {
    const Entry& entry = entries[slots[at] - 1];
    if (entry.hash == hash && entry.length == n && std::memcmp(entry.text, text, n) == 0)
      return slots[at];
  }
  if (count + 1 >= kMaxIds || !grow(entries, count, capacity)) return abi::kNoId;
  const char* kept = keep(text, n);
  if (kept == nullptr) return abi::kNoId;
  entries[count++] = Entry{kept, static_cast<uint32_t>(n), hash};
  slots[at] = count;
  return count;
}

StackTable::~StackTable() {
  std::free(nodes);
  std::free(slots);
}

uint32_t StackTable::intern_node(const Node& node) {
  if (!grow_slots(slots, slot_count, count,
                  [this](uint32_t id) { return hash_node(nodes[id - 1]); }))
    return abi::kNoId;
  uint32_t at = hash_node(node) & (slot_count - 1);
  for (; slots[at] != 0; at = (at + 1) & (slot_count - 1)) {
    const Node& other = nodes[slots[at] - 1];
    if (other.parent == node.parent && other.function == node.function && other.file == node.file &&
        other.line == node.line) {
      return slots[at];
    }
  }
  if (count + 1 >= kMaxIds || !grow(nodes, count, capacity)) return abi::kNoId;
  nodes[count++] = node;
  slots[at] = count;
  return count;
}

uint32_t StackTable::intern(const abi::Frame* frames, size_t n) {
  if (n > kMaxStackDepth) n = kMaxStackDepth;
  uint32_t node = abi::kNoId;
  for (size_t i = n; i-- > 0;) {
    node = intern_node(Node{node, frames[i].function, frames[i].file, frames[i].line});
    if (node == abi::kNoId) return abi::kNoId;
  }
  return node;
}

}  // namespace tonnage::record::detail
