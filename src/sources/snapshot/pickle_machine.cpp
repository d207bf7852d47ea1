#include "sources/snapshot/pickle_machine.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "sources/snapshot/pickle_opcodes.h"

namespace tonnage::sources::pickle {
namespace {

constexpr size_t kBufferBytes = 256 << 10;
constexpr size_t kPadding = 16;  // no opcode with a fixed argument is longer than 9 bytes
constexpr uint64_t kFreeMemoryBytes = 64ull << 20;
constexpr uint64_t kMemoryPerInputByte = 4;
constexpr int kMemoChunkLog2 = 16;
constexpr uint64_t kMemoChunk = 1ull << kMemoChunkLog2;

uint64_t little_endian(const char* data, int size) {
  uint64_t number = 0;
  std::memcpy(&number, data, static_cast<size_t>(size));
  return number;
}

int64_t signed_little_endian(const char* data, int size) {
  if (size == 0) return 0;
  const int shift = 64 - 8 * size;
  return static_cast<int64_t>(little_endian(data, size) << shift) >> shift;
}

}  // namespace

Machine::Machine(Input& input, Visitor* visitor)
    : input_(input),
      visitor_(visitor),
      buffer_(std::make_unique_for_overwrite<char[]>(kBufferBytes + kPadding)) {
  next_ = end_ = buffer_.get();
}

void Machine::fail(ErrorCode code, std::string message, std::string hint) const {
  throw Failure{{code, std::move(message) + " at offset " + std::to_string(op_offset_),
                 input_.name(), std::move(hint)}};
}

void Machine::fail_truncated() {
  truncated_ = true;
  throw Failure{{ErrorCode::kCorrupt,
                 "the pickle ends in the middle (" + std::to_string(offset()) + " bytes read)",
                 input_.name(),
                 "the file was cut short: was the program killed while it wrote it?"}};
}

// Moves what is left to the front and reads more. False if the input has ended.
bool Machine::refill() {
  if (input_ended_) return false;
  const size_t left = static_cast<size_t>(end_ - next_);
  base_offset_ += static_cast<uint64_t>(next_ - buffer_.get());
  std::memmove(buffer_.get(), next_, left);
  next_ = buffer_.get();
  size_t have = left;
  while (have < kBufferBytes) {
    auto got = input_.read(buffer_.get() + have, kBufferBytes - have);
    if (!got) {
      end_ = buffer_.get() + have;
      input_ended_ = truncated_ = true;
      throw Failure{got.error()};
    }
    if (*got == 0) {
      input_ended_ = true;
      break;
    }
    have += *got;
  }
  end_ = buffer_.get() + have;
  std::memset(buffer_.get() + have, 0, kPadding);
  check_memory();
  need_stack();
  return have > left;
}

// Every opcode pushes at most one value and is at least one byte long: room for one buffer is
// checked once per buffer.
void Machine::need_stack() {
  const size_t needed = top_ + kBufferBytes + kPadding;
  if (needed <= stack_capacity_) return;
  auto larger = std::make_unique_for_overwrite<Value[]>(needed + needed / 2);
  if (top_) std::memcpy(larger.get(), stack_.get(), top_ * sizeof(Value));
  stack_ = std::move(larger);
  stack_capacity_ = needed + needed / 2;
}

void Machine::check_memory() {
  const uint64_t used = heap_.memory_bytes() + memo_bytes_ + scratch_.capacity() +
                        top_ * sizeof(Value) + marks_.capacity() * sizeof(size_t);
  if (used > kFreeMemoryBytes + kMemoryPerInputByte * offset())
    fail(ErrorCode::kLimit,
         "the pickle needs far more memory than its size (" + std::to_string(used >> 20) + " MiB)",
         "no snapshot looks like this: the file is damaged or hostile");
}

const char* Machine::bytes(uint64_t size) {
  if (size <= static_cast<uint64_t>(end_ - next_)) {
    const char* data = next_;
    next_ += size;
    return data;
  }
  scratch_.clear();
  while (size > 0) {
    if (next_ == end_ && !refill()) fail_truncated();
    const uint64_t take = std::min<uint64_t>(size, static_cast<uint64_t>(end_ - next_));
    scratch_.append(next_, take);
    next_ += take;
    size -= take;
  }
  return scratch_.data();
}

void Machine::skip(uint64_t size) {
  while (size > 0) {
    if (next_ == end_ && !refill()) fail_truncated();
    const uint64_t take = std::min<uint64_t>(size, static_cast<uint64_t>(end_ - next_));
    next_ += take;
    size -= take;
  }
}

std::string_view Machine::line() {
  scratch_.clear();
  for (;;) {
    if (next_ == end_ && !refill()) fail_truncated();
    const size_t left = static_cast<size_t>(end_ - next_);
    const auto* newline = static_cast<const char*>(std::memchr(next_, '\n', left));
    const size_t take = newline ? static_cast<size_t>(newline - next_) : left;
    scratch_.append(next_, take);
    next_ += take;
    if (newline) {
      ++next_;
      return scratch_;
    }
  }
}

size_t Machine::pop_mark(const char* opcode) {
  if (marks_.empty()) fail(ErrorCode::kCorrupt, std::string(opcode) + " without a MARK");
  const size_t mark = marks_.back();
  marks_.pop_back();
  return mark;
}

void Machine::require(size_t count, const char* opcode) const {
  // A MARK is a wall: opcodes without a mark may not take what lies below it.
  const size_t floor = marks_.empty() ? 0 : marks_.back();
  if (top_ - floor < count)
    fail(ErrorCode::kCorrupt, std::string(opcode) + " on a stack that is too short");
}

void Machine::memo_put(uint64_t index, Value value) {
  if (index > 4 * (memo_count_ + 256)) {
    far_memo_[index] = value;
    memo_bytes_ += 48;
  } else {
    const uint64_t chunk = index >> kMemoChunkLog2;
    while (memo_chunks_.size() <= chunk) {
      memo_chunks_.emplace_back(kMemoChunk);
      memo_bytes_ += kMemoChunk * sizeof(Value);
    }
    memo_chunks_[chunk][index & (kMemoChunk - 1)] = value;
  }
  ++memo_count_;
}

Value Machine::memo_get(uint64_t index, const char* opcode) const {
  const uint64_t chunk = index >> kMemoChunkLog2;
  if (chunk < memo_chunks_.size()) {
    const Value value = memo_chunks_[chunk][index & (kMemoChunk - 1)];
    if (!value.is(Tag::kNull)) return value;
  }
  const auto far = far_memo_.find(index);
  if (far == far_memo_.end())
    fail(ErrorCode::kCorrupt,
         std::string(opcode) + " of memo entry " + std::to_string(index) + ", which was never set");
  return far->second;
}

Place Machine::place(size_t position) const {
  Place place;
  const auto after = std::upper_bound(marks_.begin(), marks_.end(), position);
  const auto is_list = [this](Value value) {
    return heap_.is_object(value, ObjectKind::kList) || heap_.is_object(value, ObjectKind::kStream);
  };
  if (after != marks_.begin()) {
    const size_t mark = *(after - 1);
    if (mark >= 1) {
      const Value container = stack_[mark - 1];
      place.container = mark - 1;
      const size_t offset = position - mark;
      if (is_list(container)) {
        place.known = place.in_list = true;
        place.index = heap_.object(container).size + offset;
        return place;
      }
      if (heap_.is_object(container, ObjectKind::kDict) && offset % 2 == 1) {
        place.known = true;
        place.key = stack_[position - 1];
        return place;
      }
    }
  }
  // No MARK of its own: APPEND or SETITEM will follow.
  if (position >= 1 && is_list(stack_[position - 1])) {
    place.known = place.in_list = true;
    place.container = position - 1;
    place.index = heap_.object(stack_[position - 1]).size;
  } else if (position >= 2 && heap_.is_object(stack_[position - 2], ObjectKind::kDict)) {
    place.known = true;
    place.container = position - 2;
    place.key = stack_[position - 1];
  }
  return place;
}

// The role of the list at `position`; looked up on first use, and fixed then.
Visitor::Role Machine::role_of(size_t position) {
  Object& list = heap_.object(stack_[position]);
  if (list.kind == ObjectKind::kStream) return {list.role, list.token};
  if (list.role == 0) {
    Visitor::Role role;
    if (visitor_ && list.size == 0) role = visitor_->list_role(*this, position);
    list.role = role.kind;
    if (role.kind > kRolePlain) {
      heap_.release(list);
      list.kind = ObjectKind::kStream;
      list.token = role.tag;
    }
    return role;
  }
  return {kRolePlain, 0};
}

void Machine::append_to(size_t position, const Value* items, size_t count, const char* opcode) {
  const Value value = stack_[position];
  if (!heap_.is_object(value, ObjectKind::kList) && !heap_.is_object(value, ObjectKind::kStream))
    fail(ErrorCode::kCorrupt, std::string(opcode) + " to something that is not a list");
  Object& list = heap_.object(value);
  if (list.size > UINT32_MAX - count)
    fail(ErrorCode::kLimit, "a list of more than 4 billion items");
  const Visitor::Role role = role_of(position);
  if (role.kind > kRolePlain) {
    visitor_->list_items(*this, role, items, count);
    list.size += static_cast<uint32_t>(count);
  } else {
    heap_.append(list, items, count);
  }
}

void Machine::set_items(size_t position, const Value* items, size_t count, const char* opcode) {
  const Value value = stack_[position];
  if (!value.is(Tag::kObject))
    fail(ErrorCode::kCorrupt, std::string(opcode) + " to something that is not a dict");
  Object& dict = heap_.object(value);
  const bool taken = dict.kind == ObjectKind::kToken && dict.role == kDictToken;
  if (dict.kind != ObjectKind::kDict && !taken)
    fail(ErrorCode::kCorrupt, std::string(opcode) + " to something that is not a dict");
  if (count % 2) fail(ErrorCode::kCorrupt, std::string(opcode) + " with a key that has no value");
  if (visitor_) {
    size_t parent = SIZE_MAX;
    const auto is_list = [this](Value v) {
      return heap_.is_object(v, ObjectKind::kList) || heap_.is_object(v, ObjectKind::kStream);
    };
    if (!marks_.empty() && marks_.back() >= 1 && marks_.back() <= position &&
        is_list(stack_[marks_.back() - 1])) {
      parent = marks_.back() - 1;
    } else if (position >= 1 && is_list(stack_[position - 1])) {
      parent = position - 1;
    }
    if (parent != SIZE_MAX) {
      const Visitor::Role role = role_of(parent);
      if (role.kind >= kRoleEarly) {
        uint64_t token = taken ? dict.token : kNoToken;
        if (dict.kind == ObjectKind::kDict && dict.size)
          token = visitor_->dict_items(*this, role, token, dict.items, dict.size);
        token = visitor_->dict_items(*this, role, token, items, count);
        heap_.make_token(dict, kDictToken, token);
        return;
      }
    }
  }
  if (taken) fail(ErrorCode::kUnsupported, "a dict is changed after it was used");
  if (dict.size > UINT32_MAX - count)
    fail(ErrorCode::kLimit, "a dict of more than 2 billion items");
  heap_.append(dict, items, count);
}

void Machine::add_to_set(size_t position, const Value* items, size_t count) {
  const Value value = stack_[position];
  if (!heap_.is_object(value, ObjectKind::kSet))
    fail(ErrorCode::kCorrupt, "ADDITEMS to something that is not a set");
  Object& set = heap_.object(value);
  if (set.size > UINT32_MAX - count) fail(ErrorCode::kLimit, "a set of more than 4 billion items");
  heap_.append(set, items, count);
}

void Machine::collect(ObjectKind kind, size_t from) {
  const Value value = heap_.make_object(kind);
  Object& object = heap_.object(value);
  heap_.append(object, stack_.get() + from, top_ - from);
  top_ = from;
  push(value);
}

Result<Value> Machine::run() {
  try {
    refill();
    if (next_ == end_) {
      truncated_ = true;
      return Error{ErrorCode::kCorrupt, "the file is empty", input_.name(),
                   "The program ended before it was written. Write the snapshot again."};
    }
    execute();
    if (top_ != 1 || !marks_.empty()) {
      // Python's own machine takes the top and forgets the rest; so does this one.
      if (top_ == 0) fail(ErrorCode::kCorrupt, "STOP on an empty stack");
    }
    trailing_ = next_ != end_;
    if (!trailing_ && !input_ended_) trailing_ = refill();
    return stack_[top_ - 1];
  } catch (const Failure& failure) {
    return failure.error;
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::kLimit, "out of host memory at offset " + std::to_string(offset()),
                 input_.name(), ""};
  }
}

Value Machine::close_open_containers() {
  try {
    bool innermost = true;
    while (!marks_.empty()) {
      const size_t mark = marks_.back();
      if (mark == 0 || mark > top_) break;
      const Value container = stack_[mark - 1];
      if (heap_.is_object(container, ObjectKind::kDict) ||
          heap_.is_object(container, ObjectKind::kToken)) {
        if (innermost && mark > 1) {
          marks_.pop_back();
          top_ = mark - 1;
        } else {
          // [key value … key list sublist]: a list that waits for its own APPEND.
          while (top_ > mark + 1 && (top_ - 1 - mark) % 2 == 0 &&
                 stack_[top_ - 1].is(Tag::kObject) && stack_[top_ - 2].is(Tag::kObject)) {
            append_to(top_ - 2, &stack_[top_ - 1], 1, "APPEND");
            --top_;
          }
          const size_t count = (top_ - mark) / 2 * 2;
          marks_.pop_back();
          set_items(mark - 1, &stack_[mark], count, "SETITEMS");
          top_ = mark;
        }
      } else {
        marks_.pop_back();
        if (heap_.is_object(container, ObjectKind::kList) ||
            heap_.is_object(container, ObjectKind::kStream))
          append_to(mark - 1, &stack_[mark], top_ - mark, "APPENDS");
        top_ = mark;
      }
      innermost = false;
    }
    while (top_ > 1) {
      const Value below = stack_[top_ - 2];
      if (heap_.is_object(below, ObjectKind::kList) ||
          heap_.is_object(below, ObjectKind::kStream)) {
        append_to(top_ - 2, &stack_[top_ - 1], 1, "APPEND");
      } else if (top_ >= 3 && heap_.is_object(stack_[top_ - 3], ObjectKind::kDict)) {
        set_items(top_ - 3, &stack_[top_ - 2], 2, "SETITEM");
        --top_;
      }
      --top_;
    }
  } catch (const Failure&) {
    // What was closed so far stands.
  } catch (const std::bad_alloc&) {
  }
  return top_ ? stack_[0] : Value{};
}

void Machine::refuse(uint8_t opcode) {
  std::string what = opcode_name(opcode);
  if (opcode == op::kGlobal || opcode == op::kInst) {
    // The names make the message useful; they are shown, never looked up.
    std::string module(line().substr(0, 80));
    std::string name(line().substr(0, 80));
    for (std::string* text : {&module, &name})
      for (char& c : *text)
        if (static_cast<unsigned char>(c) < 32 || static_cast<unsigned char>(c) >= 127) c = '?';
    what += " " + module + " " + name;
  } else if (opcode == op::kStackGlobal && top_ >= 2 && stack_[top_ - 1].is(Tag::kString) &&
             stack_[top_ - 2].is(Tag::kString)) {
    what += " " + std::string(heap_.string(stack_[top_ - 2]).substr(0, 80)) + " " +
            std::string(heap_.string(stack_[top_ - 1]).substr(0, 80));
    for (char& c : what)
      if (static_cast<unsigned char>(c) < 32 || static_cast<unsigned char>(c) >= 127) c = '?';
  }
  fail(ErrorCode::kUnsupported, "refused: the pickle would import or call something (" + what + ")",
       "a memory snapshot holds plain data only; this is another kind of pickle, or an attack: do "
       "not open it with Python");
}

// The inner loop. It works on local copies of next_ and top_; what can read more, fail or call out
// first stores them, and then takes them up again. Opcodes that are rare in snapshots, and
// arguments that are not wholly in the buffer, are execute_rare's.
void Machine::execute() {
  for (;;) {
    if (end_ - next_ <= static_cast<ptrdiff_t>(kPadding) && !input_ended_) refill();
    const char* p = next_;
    const char* const end = end_;
    const bool tail = input_ended_;
    const char* const safe = tail ? end : end - kPadding;
    Value* const stack = stack_.get();
    size_t top = top_;
    bool rare = false;
    const auto store = [&]() __attribute__((always_inline)) { next_ = p, top_ = top; };
    const auto need_one = [&](const char* name) __attribute__((always_inline)) {
      if (top > (marks_.empty() ? 0 : marks_.back())) return;
      store();
      require(1, name);
    };
    while (p < safe) {
      const auto opcode = static_cast<uint8_t>(*p);
      op_offset_ = base_offset_ + static_cast<uint64_t>(p - buffer_.get());
      ++p;
      if (tail && end - p < op::fixed_argument(opcode)) {
        store();
        fail_truncated();
      }
      switch (opcode) {
        case op::kBinGet:
          top_ = top;
          stack[top++] = memo_get(static_cast<uint8_t>(*p++), "BINGET");
          continue;
        case op::kLongBinGet:
          top_ = top;
          stack[top++] = memo_get(little_endian(p, 4), "LONG_BINGET");
          p += 4;
          continue;
        case op::kMemoize:
          need_one("MEMOIZE");
          memo_put(memo_count_, stack[top - 1]);
          continue;
        case op::kBinPut:
          need_one("BINPUT");
          memo_put(static_cast<uint8_t>(*p++), stack[top - 1]);
          continue;
        case op::kLongBinPut:
          need_one("LONG_BINPUT");
          memo_put(little_endian(p, 4), stack[top - 1]);
          p += 4;
          continue;
        case op::kMark: marks_.push_back(top); continue;
        case op::kEmptyDict: stack[top++] = heap_.make_object(ObjectKind::kDict); continue;
        case op::kEmptyList: stack[top++] = heap_.make_object(ObjectKind::kList); continue;
        case op::kEmptyTuple: stack[top++] = heap_.make_object(ObjectKind::kTuple); continue;
        case op::kNone: stack[top++] = Value::make(Tag::kNone, 0); continue;
        case op::kNewTrue: stack[top++] = Value::make(Tag::kTrue, 0); continue;
        case op::kNewFalse: stack[top++] = Value::make(Tag::kFalse, 0); continue;
        case op::kBinInt1: stack[top++] = heap_.make_int(static_cast<uint8_t>(*p++)); continue;
        case op::kBinInt2:
          stack[top++] = heap_.make_int(static_cast<int64_t>(little_endian(p, 2)));
          p += 2;
          continue;
        case op::kBinInt:
          stack[top++] = heap_.make_int(static_cast<int32_t>(little_endian(p, 4)));
          p += 4;
          continue;
        case op::kLong1: {
          const auto size = static_cast<uint8_t>(*p);
          if (size > 7 || p + 1 + size > end) break;
          stack[top++] = heap_.make_int(signed_little_endian(p + 1, size));
          p += 1 + size;
          continue;
        }
        case op::kShortBinUnicode:
        case op::kShortBinString: {
          const auto size = static_cast<uint8_t>(*p);
          if (p + 1 + size > end) break;
          stack[top++] = heap_.make_string({p + 1, size});
          p += 1 + size;
          continue;
        }
        case op::kSetItems:
        case op::kAppends:
        case op::kAppend:
        case op::kSetItem:
          store();
          fill_container(opcode);
          top = top_;
          continue;
        case op::kStop: store(); return;
        default: break;
      }
      store();  // behind the opcode, before its argument
      execute_rare(opcode);
      rare = true;
      break;
    }
    if (rare) continue;
    store();
    if (tail) fail_truncated();
  }
}

// SETITEMS and APPENDS take what lies above the last MARK, SETITEM and APPEND the topmost values.
void Machine::fill_container(uint8_t opcode) {
  const char* const name = opcode_name(opcode);
  const bool is_dict = opcode == op::kSetItems || opcode == op::kSetItem;
  size_t first;
  if (opcode == op::kSetItems || opcode == op::kAppends) {
    first = pop_mark(name);
    if (first == 0 || first > top_)
      fail(ErrorCode::kCorrupt, std::string(name) + " without a " + (is_dict ? "dict" : "list"));
  } else {
    const size_t count = is_dict ? 2 : 1;
    require(count + 1, name);
    first = top_ - count;
  }
  const size_t count = top_ - first;
  if (is_dict)
    set_items(first - 1, &stack_[first], count, name);
  else
    append_to(first - 1, &stack_[first], count, name);
  top_ = first;
}

}  // namespace tonnage::sources::pickle
