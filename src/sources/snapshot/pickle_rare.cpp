// Opcodes that are rare in snapshots: long strings and bytes, big integers, protocol 0's text
// forms; and the refusals.
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "sources/snapshot/pickle_machine.h"
#include "sources/snapshot/pickle_opcodes.h"

namespace tonnage::sources::pickle {
namespace {

uint64_t little_endian(const char* data, int size) {
  uint64_t number = 0;
  std::memcpy(&number, data, static_cast<size_t>(size));
  return number;
}

void append_utf8(std::string& out, uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0 | code >> 6);
    out += static_cast<char>(0x80 | (code & 63));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xe0 | code >> 12);
    out += static_cast<char>(0x80 | (code >> 6 & 63));
    out += static_cast<char>(0x80 | (code & 63));
  } else {
    out += static_cast<char>(0xf0 | (code >> 18 & 7));
    out += static_cast<char>(0x80 | (code >> 12 & 63));
    out += static_cast<char>(0x80 | (code >> 6 & 63));
    out += static_cast<char>(0x80 | (code & 63));
  }
}

// "\u" with 4 or "\U" with 8 hex digits at text[at] (the backslash); 0 consumed if it is none.
size_t parse_unicode_escape(std::string_view text, size_t at, uint32_t& code) {
  if (at + 1 >= text.size()) return 0;
  const size_t digits = text[at + 1] == 'u' ? 4 : text[at + 1] == 'U' ? 8 : 0;
  if (digits == 0 || at + 2 + digits > text.size()) return 0;
  const char* first = text.data() + at + 2;
  const auto [end, error] = std::from_chars(first, first + digits, code, 16);
  if (error != std::errc() || end != first + digits || code > 0x10ffff) return 0;
  return 2 + digits;
}

// Protocol 0 writes text as Latin-1 with \u escapes.
std::string decode_raw_unicode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    uint32_t code = 0;
    if (text[i] == '\\') {
      if (const size_t used = parse_unicode_escape(text, i, code)) {
        append_utf8(out, code);
        i += used;
        continue;
      }
    }
    append_utf8(out, static_cast<unsigned char>(text[i]));
    ++i;
  }
  return out;
}

// Python 2's repr of a byte string: quotes around, backslash escapes inside.
std::string decode_quoted(std::string_view text) {
  if (text.size() >= 2 && (text.front() == '\'' || text.front() == '"') &&
      text.back() == text.front())
    text = text.substr(1, text.size() - 2);
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
      continue;
    }
    const char c = text[++i];
    switch (c) {
      case 'n': out += '\n'; break;
      case 't': out += '\t'; break;
      case 'r': out += '\r'; break;
      case 'x': {
        unsigned code = 0;
        if (i + 2 < text.size() &&
            std::from_chars(text.data() + i + 1, text.data() + i + 3, code, 16).ec == std::errc()) {
          out += static_cast<char>(code);
          i += 2;
        } else {
          out += 'x';
        }
        break;
      }
      default: out += c;
    }
  }
  return out;
}

}  // namespace

const char* opcode_name(uint8_t opcode) {
  switch (opcode) {
    case op::kMark: return "MARK";
    case op::kStop: return "STOP";
    case op::kPop: return "POP";
    case op::kPopMark: return "POP_MARK";
    case op::kDup: return "DUP";
    case op::kFloat: return "FLOAT";
    case op::kInt: return "INT";
    case op::kBinInt: return "BININT";
    case op::kBinInt1: return "BININT1";
    case op::kLong: return "LONG";
    case op::kBinInt2: return "BININT2";
    case op::kNone: return "NONE";
    case op::kPersId: return "PERSID";
    case op::kBinPersId: return "BINPERSID";
    case op::kReduce: return "REDUCE";
    case op::kString: return "STRING";
    case op::kBinString: return "BINSTRING";
    case op::kShortBinString: return "SHORT_BINSTRING";
    case op::kUnicode: return "UNICODE";
    case op::kBinUnicode: return "BINUNICODE";
    case op::kAppend: return "APPEND";
    case op::kBuild: return "BUILD";
    case op::kGlobal: return "GLOBAL";
    case op::kDict: return "DICT";
    case op::kEmptyDict: return "EMPTY_DICT";
    case op::kAppends: return "APPENDS";
    case op::kGet: return "GET";
    case op::kBinGet: return "BINGET";
    case op::kInst: return "INST";
    case op::kLongBinGet: return "LONG_BINGET";
    case op::kList: return "LIST";
    case op::kEmptyList: return "EMPTY_LIST";
    case op::kObj: return "OBJ";
    case op::kPut: return "PUT";
    case op::kBinPut: return "BINPUT";
    case op::kLongBinPut: return "LONG_BINPUT";
    case op::kSetItem: return "SETITEM";
    case op::kTuple: return "TUPLE";
    case op::kEmptyTuple: return "EMPTY_TUPLE";
    case op::kSetItems: return "SETITEMS";
    case op::kBinFloat: return "BINFLOAT";
    case op::kProto: return "PROTO";
    case op::kNewObj: return "NEWOBJ";
    case op::kExt1: return "EXT1";
    case op::kExt2: return "EXT2";
    case op::kExt4: return "EXT4";
    case op::kTuple1: return "TUPLE1";
    case op::kTuple2: return "TUPLE2";
    case op::kTuple3: return "TUPLE3";
    case op::kNewTrue: return "NEWTRUE";
    case op::kNewFalse: return "NEWFALSE";
    case op::kLong1: return "LONG1";
    case op::kLong4: return "LONG4";
    case op::kBinBytes: return "BINBYTES";
    case op::kShortBinBytes: return "SHORT_BINBYTES";
    case op::kShortBinUnicode: return "SHORT_BINUNICODE";
    case op::kBinUnicode8: return "BINUNICODE8";
    case op::kBinBytes8: return "BINBYTES8";
    case op::kEmptySet: return "EMPTY_SET";
    case op::kAddItems: return "ADDITEMS";
    case op::kFrozenSet: return "FROZENSET";
    case op::kNewObjEx: return "NEWOBJ_EX";
    case op::kStackGlobal: return "STACK_GLOBAL";
    case op::kMemoize: return "MEMOIZE";
    case op::kFrame: return "FRAME";
    case op::kByteArray8: return "BYTEARRAY8";
    case op::kNextBuffer: return "NEXT_BUFFER";
    case op::kReadonlyBuffer: return "READONLY_BUFFER";
    default: return "";
  }
}

// Two's complement, little endian. Numbers beyond 64 bits become an overflow value: nothing in a
// snapshot needs them.
Value Machine::parse_long(const char* data, uint64_t size) {
  while (size > 1) {
    // Sign extension bytes carry nothing.
    const auto last = static_cast<unsigned char>(data[size - 1]);
    const bool next_negative = static_cast<unsigned char>(data[size - 2]) & 0x80;
    if ((last == 0 && !next_negative) || (last == 0xff && next_negative))
      --size;
    else
      break;
  }
  if (size == 0) return heap_.make_int(0);
  const bool negative = static_cast<unsigned char>(data[size - 1]) & 0x80;
  if (size == 9 && data[8] == 0) return heap_.make_unsigned(little_endian(data, 8));
  if (size > 8) return heap_.make_overflow(negative);
  const int shift = 64 - 8 * static_cast<int>(size);
  return heap_.make_int(
      static_cast<int64_t>(little_endian(data, static_cast<int>(size)) << shift) >> shift);
}

Value Machine::parse_decimal(std::string_view text) {
  while (!text.empty() && (text.back() == '\r' || text.back() == ' ')) text.remove_suffix(1);
  if (!text.empty() && text.back() == 'L') text.remove_suffix(1);
  int64_t number = 0;
  auto signed_result = std::from_chars(text.data(), text.data() + text.size(), number);
  if (signed_result.ec == std::errc() && signed_result.ptr == text.data() + text.size())
    return heap_.make_int(number);
  uint64_t large = 0;
  auto unsigned_result = std::from_chars(text.data(), text.data() + text.size(), large);
  if (unsigned_result.ec == std::errc() && unsigned_result.ptr == text.data() + text.size())
    return heap_.make_unsigned(large);
  if (signed_result.ec == std::errc::result_out_of_range &&
      signed_result.ptr == text.data() + text.size())
    return heap_.make_overflow(!text.empty() && text[0] == '-');
  fail(ErrorCode::kCorrupt, "a number was expected");
}

// Containers that snapshots seldom have, and what only moves values on the stack. False: the opcode
// is another one's.
bool Machine::execute_structure(uint8_t opcode) {
  switch (opcode) {
    case op::kEmptySet: push(heap_.make_object(ObjectKind::kSet)); return true;
    case op::kTuple1:
    case op::kTuple2:
    case op::kTuple3: {
      const size_t count = opcode - op::kTuple1 + 1u;
      require(count, "TUPLE");
      collect(ObjectKind::kTuple, top_ - count);
      return true;
    }
    case op::kTuple: collect_from_mark(opcode, ObjectKind::kTuple); return true;
    case op::kList: collect_from_mark(opcode, ObjectKind::kList); return true;
    case op::kDict: collect_from_mark(opcode, ObjectKind::kDict); return true;
    case op::kFrozenSet: collect_from_mark(opcode, ObjectKind::kSet); return true;
    case op::kAddItems: {
      const size_t mark = pop_mark("ADDITEMS");
      if (mark == 0 || mark > top_) fail(ErrorCode::kCorrupt, "ADDITEMS without a set");
      add_to_set(mark - 1, &stack_[mark], top_ - mark);
      top_ = mark;
      return true;
    }
    case op::kPop:
      if (top_ > (marks_.empty() ? 0 : marks_.back())) {
        --top_;
        return true;
      }
      // Python pops the MARK itself here.
      if (marks_.empty()) fail(ErrorCode::kCorrupt, "POP on an empty stack");
      marks_.pop_back();
      return true;
    case op::kPopMark: top_ = std::min(top_, pop_mark("POP_MARK")); return true;
    case op::kDup:
      require(1, "DUP");
      push(stack_[top_ - 1]);
      return true;
    default: return false;
  }
}

void Machine::collect_from_mark(uint8_t opcode, ObjectKind kind) {
  const size_t mark = pop_mark(opcode_name(opcode));
  if (mark > top_) fail(ErrorCode::kCorrupt, "a MARK above the stack");
  if (kind == ObjectKind::kDict && (top_ - mark) % 2)
    fail(ErrorCode::kCorrupt, "DICT with a key that has no value");
  collect(kind, mark);
}

// Numbers and texts that announce their length, or are lines of protocol 0.
bool Machine::execute_scalar(uint8_t opcode) {
  const char* const argument = next_;
  switch (opcode) {
    case op::kShortBinUnicode:
    case op::kShortBinString:
    case op::kBinUnicode:
    case op::kBinUnicode8:
    case op::kBinString: {
      const int width = op::fixed_argument(opcode);
      const uint64_t size = little_endian(argument, width);
      next_ += width;
      const char* data = bytes(size);
      push(heap_.make_string({data, static_cast<size_t>(size)}));
      return true;
    }
    case op::kBinBytes:
    case op::kBinBytes8:
    case op::kByteArray8:
    case op::kShortBinBytes: {
      const int width = op::fixed_argument(opcode);
      const uint64_t size = little_endian(argument, width);
      next_ += width;
      const char* data = bytes(size);
      push(Value::make(Tag::kBytes, heap_.intern({data, static_cast<size_t>(size)})));
      return true;
    }
    case op::kLong1: {
      const auto size = static_cast<uint8_t>(*argument);
      ++next_;
      push(parse_long(bytes(size), size));
      return true;
    }
    case op::kLong4: {
      const auto size = static_cast<int32_t>(little_endian(argument, 4));
      next_ += 4;
      if (size < 0) fail(ErrorCode::kCorrupt, "LONG4 with a negative length");
      if (size > 16) {
        skip(static_cast<uint64_t>(size));
        push(heap_.make_overflow(false));
      } else {
        const char* data = bytes(static_cast<uint64_t>(size));
        push(parse_long(data, static_cast<uint64_t>(size)));
      }
      return true;
    }
    case op::kBinFloat: {
      uint64_t bits = __builtin_bswap64(little_endian(argument, 8));
      double number;
      std::memcpy(&number, &bits, 8);
      push(heap_.make_float(number));
      next_ += 8;
      return true;
    }
    case op::kInt: {
      const std::string_view text = line();
      // Protocol 0 and 1 write booleans as "00" and "01".
      if (text == "01")
        push(Value::make(Tag::kTrue, 0));
      else if (text == "00")
        push(Value::make(Tag::kFalse, 0));
      else
        push(parse_decimal(text));
      return true;
    }
    case op::kLong: push(parse_decimal(line())); return true;
    case op::kFloat: {
      const std::string text(line());
      char* end = nullptr;
      const double number = std::strtod(text.c_str(), &end);
      if (end == text.c_str()) fail(ErrorCode::kCorrupt, "FLOAT without a number");
      push(heap_.make_float(number));
      return true;
    }
    case op::kString: push(heap_.make_string(decode_quoted(line()))); return true;
    case op::kUnicode: push(heap_.make_string(decode_raw_unicode(line()))); return true;
    default: return false;
  }
}

// Runs with next_ behind the opcode and all of its fixed argument available.
void Machine::execute_rare(uint8_t opcode) {
  if (execute_structure(opcode) || execute_scalar(opcode)) return;
  switch (opcode) {
    case op::kProto:
      protocol_ = static_cast<uint8_t>(*next_++);
      if (protocol_ > 5)
        fail(ErrorCode::kUnsupported,
             "pickle protocol " + std::to_string(protocol_) + " is not known (0 to 5 are)",
             "this may not be a pickle, or one that a newer Python wrote");
      return;
    // A hint about buffering; its length is not needed, so not believed.
    case op::kFrame: next_ += 8; return;
    case op::kGet: {
      const Value index = parse_decimal(line());
      if (!index.is(Tag::kInt) || index.signed_payload() < 0)
        fail(ErrorCode::kCorrupt, "GET without an index");
      push(memo_get(index.payload(), "GET"));
      return;
    }
    case op::kPut: {
      const Value index = parse_decimal(line());
      if (!index.is(Tag::kInt) || index.signed_payload() < 0)
        fail(ErrorCode::kCorrupt, "PUT without an index");
      require(1, "PUT");
      memo_put(index.payload(), stack_[top_ - 1]);
      return;
    }
    case op::kGlobal:
    case op::kStackGlobal:
    case op::kInst:
    case op::kObj:
    case op::kNewObj:
    case op::kNewObjEx:
    case op::kReduce:
    case op::kBuild:
    case op::kExt1:
    case op::kExt2:
    case op::kExt4:
    case op::kPersId:
    case op::kBinPersId:
    case op::kNextBuffer:
    case op::kReadonlyBuffer: refuse(opcode);
    default: break;
  }
  char hex[8];
  std::snprintf(hex, sizeof hex, "0x%02x", opcode);
  fail(ErrorCode::kCorrupt, std::string("not a pickle: ") + hex + " is no opcode",
       "a memory snapshot comes from torch.cuda.memory._dump_snapshot()");
}

}  // namespace tonnage::sources::pickle
