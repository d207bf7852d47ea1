// Compact values of a pickle: 8 bytes each, containers in pooled arrays, strings interned.
//
// A Heap owns everything; Values are handles into it. Containers are shared and may be cyclic,
// exactly as in the pickle: walk them by a fixed schema, never by recursion. A container that a
// Visitor has turned into something of its own is a *token*: its storage is gone, but whoever
// refers to it again (through the memo) still finds the token.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <type_traits>
#include <vector>

namespace tonnage::sources::pickle {

enum class Tag : uint8_t {
  kNull = 0,
  kNone,
  kTrue,
  kFalse,
  kInt,
  kBigInt,
  kFloat,
  kString,
  kBytes,
  kObject
};

struct Value {
  uint64_t bits;  // tag in the low 4 bits; payload (signed for kInt) above

  Tag tag() const { return static_cast<Tag>(bits & 15); }
  bool is(Tag wanted) const { return tag() == wanted; }
  uint64_t payload() const { return bits >> 4; }
  int64_t signed_payload() const { return static_cast<int64_t>(bits) >> 4; }
  static Value make(Tag tag, uint64_t payload) {
    return {payload << 4 | static_cast<uint64_t>(tag)};
  }
};

// kStream: a list whose items went to the visitor; only their number is left.
enum class ObjectKind : uint8_t { kList, kDict, kTuple, kSet, kToken, kStream };

struct Object {
  union {
    Value* items;    // list, tuple, set: values; dict: key, value, key, value, …
    uint64_t token;  // kToken, kStream: the visitor's number
  };
  uint32_t size;  // values; a dict's is even
  ObjectKind kind;
  uint8_t role;  // lists: 0 not looked up, 1 plain, else the visitor's; tokens: the visitor's type
  uint8_t class_log2;  // items has room for 1 << class_log2 values; 0: none
  uint8_t unused;
};
static_assert(sizeof(Object) == 16 &&
              std::is_trivial_v<Object>);  // tables of them stay untouched until used

class Heap {
 public:
  Heap();
  ~Heap();
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  Value make_object(ObjectKind kind) {
    if ((object_count_ & (kChunk - 1)) == 0) add_object_chunk();
    const uint64_t id = object_count_++;
    Object& object = object_chunks_[id >> kChunkLog2][id & (kChunk - 1)];
    object = {{nullptr}, 0, kind, 0, 0, 0};
    return Value::make(Tag::kObject, id);
  }
  Object& object(Value value) {
    return object_chunks_[value.payload() >> kChunkLog2][value.payload() & (kChunk - 1)];
  }
  const Object& object(Value value) const { return const_cast<Heap*>(this)->object(value); }
  bool is_object(Value value, ObjectKind kind) const {
    return value.is(Tag::kObject) && object(value).kind == kind;
  }
  // A list or a tuple (writers differ), not a token.
  bool is_sequence(Value value) const {
    return value.is(Tag::kObject) &&
           (object(value).kind == ObjectKind::kList || object(value).kind == ObjectKind::kTuple);
  }
  void append(Object& object, const Value* values, size_t count);
  void release(Object& object);  // frees its items; it becomes empty
  void make_token(Object& object, uint8_t type, uint64_t token) {
    release(object);
    object.kind = ObjectKind::kToken;
    object.role = type;
    object.token = token;
  }
  // The value of `key` (a string id) in a dict, the last one if there are several; kNull if there
  // is none.
  Value find(const Object& dict, uint32_t key) const;

  uint32_t intern(std::string_view text);
  Value make_string(std::string_view text) { return Value::make(Tag::kString, intern(text)); }
  std::string_view string(uint32_t id) const { return {strings_[id].data, strings_[id].size}; }
  std::string_view string(Value value) const {
    return string(static_cast<uint32_t>(value.payload()));
  }
  size_t string_count() const { return strings_.size(); }

  Value make_int(int64_t number) {
    if (number >= -(1ll << 59) && number < (1ll << 59))
      return {static_cast<uint64_t>(number) << 4 | static_cast<uint64_t>(Tag::kInt)};
    return make_big({static_cast<uint64_t>(number), number < 0, false});
  }
  Value make_unsigned(uint64_t number) {
    if (number < (1ull << 59)) return make_int(static_cast<int64_t>(number));
    return make_big({number, false, false});
  }
  Value make_overflow(bool negative) { return make_big({0, negative, true}); }
  Value make_float(double number);

  // Non-negative integers up to 2^64 - 1 (bools too); nothing for all else.
  std::optional<uint64_t> to_unsigned(Value value) const {
    if (value.is(Tag::kInt) && value.signed_payload() >= 0)
      return static_cast<uint64_t>(value.signed_payload());
    return to_unsigned_slow(value);
  }
  std::optional<int64_t> to_signed(Value value) const;
  std::optional<double> to_double(Value value) const;

  uint64_t memory_bytes() const { return memory_bytes_; }

 private:
  static constexpr int kChunkLog2 = 16;
  static constexpr uint64_t kChunk = 1ull << kChunkLog2;
  static constexpr int kMaxPooledLog2 = 14;
  struct Text {
    const char* data;
    size_t size;
    uint64_t hash;
  };
  struct BigInt {
    uint64_t bits;
    bool negative, overflow;
  };

  std::optional<uint64_t> to_unsigned_slow(Value value) const;
  Value make_big(BigInt number);
  void add_object_chunk();
  Value* take_items(int class_log2);
  void give_items(Value* items, int class_log2);
  void grow_string_table();

  std::vector<std::unique_ptr<Object[]>> object_chunks_;
  uint64_t object_count_ = 0;
  Value* free_items_[kMaxPooledLog2 + 1] = {};
  std::vector<std::unique_ptr<Value[]>> slabs_;
  size_t slab_used_ = 0;
  std::vector<Text> strings_;
  std::vector<uint32_t> string_table_;  // id + 1; open addressing
  std::vector<std::unique_ptr<char[]>> text_chunks_;
  size_t text_used_ = 0, text_capacity_ = 0;
  std::vector<BigInt> big_ints_;
  std::vector<double> floats_;
  uint64_t memory_bytes_ = 0;
};

}  // namespace tonnage::sources::pickle
