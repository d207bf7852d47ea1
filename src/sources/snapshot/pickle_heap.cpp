#include "sources/snapshot/pickle_heap.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <new>

namespace tonnage::sources::pickle {
namespace {

constexpr size_t kSlabValues = 64 << 10;
constexpr size_t kTextChunk = 256 << 10;

uint64_t hash_text(std::string_view text) {
  uint64_t hash = 0x9e3779b97f4a7c15ull ^ (text.size() * 0xff51afd7ed558ccdull);
  const char* p = text.data();
  size_t left = text.size();
  const auto mix = [&hash](uint64_t word) {
    hash = (hash ^ word) * 0xc4ceb9fe1a85ec53ull;
    hash ^= hash >> 29;
  };
  for (; left >= 8; p += 8, left -= 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    mix(word);
  }
  uint64_t word = 0;
  for (size_t i = 0; i < left; ++i)
    word |= static_cast<uint64_t>(static_cast<unsigned char>(p[i])) << (8 * i);
  mix(word);
  return hash ^ hash >> 32;
}

}  // namespace

Heap::Heap() : string_table_(1024, 0) { intern(""); }

Heap::~Heap() {
  // Arrays beyond the pooled sizes are malloc'ed one by one.
  for (uint64_t id = 0; id < object_count_; ++id) {
    Object& object = object_chunks_[id >> kChunkLog2][id & (kChunk - 1)];
    if (object.class_log2 > kMaxPooledLog2) std::free(object.items);
  }
}

void Heap::add_object_chunk() {
  object_chunks_.push_back(std::make_unique_for_overwrite<Object[]>(kChunk));
  memory_bytes_ += kChunk * sizeof(Object);
}

Value* Heap::take_items(int class_log2) {
  const size_t count = size_t{1} << class_log2;
  if (class_log2 > kMaxPooledLog2) {
    auto* items = static_cast<Value*>(std::malloc(count * sizeof(Value)));
    if (!items) throw std::bad_alloc();
    memory_bytes_ += count * sizeof(Value);
    return items;
  }
  if (Value* items = free_items_[class_log2]) {
    std::memcpy(&free_items_[class_log2], items, sizeof(Value*));
    return items;
  }
  if (slabs_.empty() || slab_used_ + count > kSlabValues) {
    slabs_.push_back(std::make_unique_for_overwrite<Value[]>(kSlabValues));
    memory_bytes_ += kSlabValues * sizeof(Value);
    slab_used_ = 0;
  }
  Value* items = slabs_.back().get() + slab_used_;
  slab_used_ += count;
  return items;
}

void Heap::give_items(Value* items, int class_log2) {
  if (class_log2 > kMaxPooledLog2) {
    std::free(items);
    memory_bytes_ -= (size_t{1} << class_log2) * sizeof(Value);
    return;
  }
  std::memcpy(static_cast<void*>(items), &free_items_[class_log2], sizeof(Value*));
  free_items_[class_log2] = items;
}

void Heap::append(Object& object, const Value* values, size_t count) {
  if (count == 0) return;
  const size_t needed = object.size + count;
  if (object.class_log2 == 0 || needed > (size_t{1} << object.class_log2)) {
    const int wanted = std::max<int>(2, std::bit_width(needed - 1));
    Value* items = take_items(wanted);
    if (object.size)
      std::memcpy(static_cast<void*>(items), object.items, object.size * sizeof(Value));
    if (object.class_log2) give_items(object.items, object.class_log2);
    object.items = items;
    object.class_log2 = static_cast<uint8_t>(wanted);
  }
  std::memcpy(static_cast<void*>(object.items + object.size), values, count * sizeof(Value));
  object.size = static_cast<uint32_t>(needed);
}

void Heap::release(Object& object) {
  if (object.class_log2) give_items(object.items, object.class_log2);
  object.items = nullptr;
  object.class_log2 = 0;
  object.size = 0;
}

Value Heap::find(const Object& dict, uint32_t key) const {
  if (dict.kind != ObjectKind::kDict) return {};
  const Value wanted = Value::make(Tag::kString, key);
  for (uint32_t i = dict.size; i >= 2; i -= 2)
    if (dict.items[i - 2].bits == wanted.bits) return dict.items[i - 1];
  return {};
}

void Heap::grow_string_table() {
  std::vector<uint32_t> table(string_table_.size() * 2, 0);
  const size_t mask = table.size() - 1;
  for (uint32_t id = 0; id < strings_.size(); ++id) {
    size_t slot = strings_[id].hash & mask;
    while (table[slot]) slot = (slot + 1) & mask;
    table[slot] = id + 1;
  }
  memory_bytes_ += string_table_.size() * sizeof(uint32_t);
  string_table_ = std::move(table);
}

uint32_t Heap::intern(std::string_view text) {
  const uint64_t hash = hash_text(text);
  const size_t mask = string_table_.size() - 1;
  size_t slot = hash & mask;
  while (const uint32_t entry = string_table_[slot]) {
    const Text& known = strings_[entry - 1];
    if (known.hash == hash && known.size == text.size() &&
        (text.empty() || std::memcmp(known.data, text.data(), text.size()) == 0))
      return entry - 1;
    slot = (slot + 1) & mask;
  }
  if (text.size() > text_capacity_ - text_used_) {
    text_capacity_ = std::max(kTextChunk, text.size());
    text_chunks_.push_back(std::make_unique_for_overwrite<char[]>(text_capacity_));
    memory_bytes_ += text_capacity_;
    text_used_ = 0;
  }
  char* copy = text_chunks_.empty() ? nullptr : text_chunks_.back().get() + text_used_;
  if (!text.empty()) std::memcpy(copy, text.data(), text.size());
  text_used_ += text.size();
  strings_.push_back({copy, text.size(), hash});
  memory_bytes_ += sizeof(Text);
  const auto id = static_cast<uint32_t>(strings_.size() - 1);
  string_table_[slot] = id + 1;
  if (strings_.size() * 2 > string_table_.size()) grow_string_table();
  return id;
}

Value Heap::make_big(BigInt number) {
  big_ints_.push_back(number);
  memory_bytes_ += sizeof(BigInt);
  return Value::make(Tag::kBigInt, big_ints_.size() - 1);
}

Value Heap::make_float(double number) {
  floats_.push_back(number);
  memory_bytes_ += sizeof(double);
  return Value::make(Tag::kFloat, floats_.size() - 1);
}

std::optional<uint64_t> Heap::to_unsigned_slow(Value value) const {
  switch (value.tag()) {
    case Tag::kBigInt: {
      const BigInt& number = big_ints_[value.payload()];
      if (number.negative || number.overflow) return std::nullopt;
      return number.bits;
    }
    case Tag::kTrue: return 1;
    case Tag::kFalse: return 0;
    default: return std::nullopt;
  }
}

std::optional<int64_t> Heap::to_signed(Value value) const {
  if (value.is(Tag::kInt)) return value.signed_payload();
  if (value.is(Tag::kTrue)) return 1;
  if (value.is(Tag::kFalse)) return 0;
  if (value.is(Tag::kBigInt)) {
    const BigInt& number = big_ints_[value.payload()];
    if (number.overflow || (!number.negative && number.bits > INT64_MAX)) return std::nullopt;
    return static_cast<int64_t>(number.bits);
  }
  return std::nullopt;
}

std::optional<double> Heap::to_double(Value value) const {
  if (value.is(Tag::kFloat)) return floats_[value.payload()];
  if (const auto number = to_signed(value)) return static_cast<double>(*number);
  if (const auto number = to_unsigned(value)) return static_cast<double>(*number);
  return std::nullopt;
}

}  // namespace tonnage::sources::pickle
