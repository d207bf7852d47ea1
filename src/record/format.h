// The record file: what happened to the memory of every process of one session, in one file, append
// only.
//
// The file is a sequence of chunks. A chunk is appended with one write() to a descriptor opened
// with O_APPEND, so several processes interleave whole chunks, and a kill at any moment loses at
// most what was not written yet. A reader skips a torn chunk (killed inside write(), disk full): it
// looks for the next header whose checksum holds.
//
// Chunk = header (48 bytes, little endian) + payload
//    0 u32 magic "TNGR"
//    4 u16 version
//    6 u8  kind (ChunkKind)
//    7 u8  0 plain, 1 zstd
//    8 u32 pid
//   12 u32 sequence: 0, 1, 2 ... within the stream; a gap means that a chunk is missing
//   16 u64 stream: names one process image; new after fork() and exec()
//   24 u32 payload bytes in the file
//   28 u32 payload bytes uncompressed
//   32 u32 events in the payload
//   36 u32 CRC-32 of the payload as in the file
//   40 u32 CRC-32 of header bytes 0..39
//   44 u32 0
//
// Session and session-end chunks hold JSON. The first chunk of a file, written by `tonnage run`,
// describes the devices and settings; the last one says how the command ended. Data chunks hold, as
// varints (LEB128):
//   strings  first id, count, then per string: length, bytes. Ids count from 1 within a stream; 0
//            is "".
//   stacks   first id, count, then per node: id - parent, function id, file id, line. A stack is
//            its innermost node; the parent is the caller's node, 0 for the outermost frame. Ids
//            count from 1 within a stream; 0 is the empty stack.
//   events   count, then per event: kind (1 byte), mask (FieldBit), then the fields whose bit is
//            set, lowest bit first.
// A "carried" field without its bit has the value of the previous event of the chunk; any other
// field without its bit is 0. Before the first event all fields are 0. Time and address are zigzag
// differences from the previous event (for the address: the previous event that has one). A chunk
// has the strings and stacks that were interned since the stream's last chunk.
//
// Example: the payload of a chunk with the string "x.py", one frame (function 0, file 1, line 7),
// and two events: kAlloc of 512 bytes at 0x7000 at 1000 ns on that stack, and its kFreeCompleted
// 500 ns later at 1500 ns.
//   01 01 04 78 2e 70 79       strings: from id 1, one: 4 bytes "x.py"
//   01 01 01 00 01 07          stacks:  from id 1, one: parent 1-1=0, function 0, file 1, line 7
//   02                         two events
//   14 e1 08                   kAlloc (20), mask 0x461: time, address, size, stack
//      d0 0f                     time    zigzag(+1000)  = 2000
//      80 c0 03                  address zigzag(+0x7000) = 57344
//      80 04                     size    512
//      01                        stack   1
//   16 e1 08                   kFreeCompleted (22), the same mask
//      e8 07                     time    zigzag(+500) = 1000
//      00                        address the same
//      80 04                     size    512
//      00                        stack   0
// (tests/record/record_format_test.cpp holds the same bytes.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "abi/event.h"

namespace tonnage::record {

inline constexpr uint32_t kChunkMagic = 0x52474e54;  // "TNGR"
inline constexpr uint16_t kFormatVersion = 2;        // written; 2 has kFreed
inline constexpr uint16_t kOldestReadableVersion = 1;
inline constexpr uint16_t kNewestReadableVersion = 2;

// Serialised: append only. A reader skips kinds that it does not know.
enum class ChunkKind : uint8_t { kSession = 1, kData = 2, kStreamEnd = 3, kSessionEnd = 4 };
enum class Compression : uint8_t { kNone = 0, kZstd = 1 };

// A stream-end chunk is a data chunk (possibly empty) after which the process left in good order.

struct ChunkHeader {
  uint32_t magic = kChunkMagic;
  uint16_t version = kFormatVersion;
  ChunkKind kind = ChunkKind::kData;
  Compression compression = Compression::kNone;
  uint32_t pid = 0;
  uint32_t sequence = 0;
  uint64_t stream = 0;
  uint32_t payload_bytes = 0;
  uint32_t uncompressed_bytes = 0;
  uint32_t event_count = 0;
  uint32_t payload_crc = 0;
  uint32_t header_crc = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(ChunkHeader) == 48 && offsetof(ChunkHeader, header_crc) == 40);
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "the header is written as it lies in memory");

// Limits that a writer keeps and a reader insists on.
inline constexpr uint32_t kMaxUncompressedBytes = 16u << 20;
inline constexpr uint32_t kMaxStringBytes = 64u << 10;  // longer strings are cut
inline constexpr uint32_t kMaxStackDepth = 512;  // frames beyond, the outermost ones, are left out
inline constexpr uint32_t kMaxIds = 1u << 24;    // of strings, and of stack nodes, in one stream

enum FieldBit : uint32_t {
  kFieldTime = 1u << 0,    // carried, as a difference
  kFieldDevice = 1u << 1,  // carried, like the next five
  kFieldPhase = 1u << 2,
  kFieldThread = 1u << 3,
  kFieldStep = 1u << 4,
  kFieldAddress = 1u << 5,  // 0 without its bit
  kFieldSize = 1u << 6,     // 0 without its bit
  kFieldValue = 1u << 7,    // 0 without its bit
  kFieldStream = 1u << 8,   // carried, like the next three
  kFieldModule = 1u << 9,
  kFieldStack = 1u << 10,
  kFieldOp = 1u << 11,
  kFieldName = 1u << 12,   // 0 without its bit
  kFieldFlags = 1u << 13,  // 0 without its bit
  kAllFields = (1u << 14) - 1,
};

// Packed size of one event at most: kind, mask, and 14 fields.
inline constexpr size_t kMaxPackedEventBytes = 1 + 3 + 14 * 10;

// CRC-32 (ISO-HDLC, as zlib's crc32) of n bytes, continuing from `crc` (0 at the start).
uint32_t crc32(uint32_t crc, const void* bytes, size_t n);

inline uint64_t zigzag(uint64_t difference) { return (difference << 1) ^ (0 - (difference >> 63)); }
inline uint64_t unzigzag(uint64_t packed) { return (packed >> 1) ^ (0 - (packed & 1)); }

// Writes at most 10 bytes; returns the end.
inline uint8_t* put_varint(uint8_t* out, uint64_t value) {
  while (value >= 0x80) {
    *out++ = static_cast<uint8_t>(value) | 0x80;
    value >>= 7;
  }
  *out++ = static_cast<uint8_t>(value);
  return out;
}

// What an event is packed against; fresh at the start of every chunk.
struct PackState {
  abi::MemoryEvent previous;  // carried fields and time
  uint64_t last_address = 0;
};

// Packs `event` at `out` (kMaxPackedEventBytes must be free); returns the end. `process` is not
// packed: the chunk says it.
inline uint8_t* pack_event(uint8_t* out, const abi::MemoryEvent& event, PackState& state) {
  abi::MemoryEvent& previous = state.previous;
  uint8_t* const kind_at = out;
  *kind_at = static_cast<uint8_t>(event.kind);
  uint32_t mask = 0;
  uint8_t fields[14 * 10];
  uint8_t* f = fields;
  const auto carried = [&](FieldBit bit, uint64_t now, uint64_t before) {
    if (now == before) return;
    mask |= bit;
    f = put_varint(f, now);
  };
  const auto plain = [&](FieldBit bit, uint64_t now) {
    if (now == 0) return;
    mask |= bit;
    f = put_varint(f, now);
  };
  if (event.time_ns != previous.time_ns) {
    mask |= kFieldTime;
    f = put_varint(f, zigzag(event.time_ns - previous.time_ns));
  }
  carried(kFieldDevice, event.device, previous.device);
  carried(kFieldPhase, static_cast<uint8_t>(event.phase), static_cast<uint8_t>(previous.phase));
  carried(kFieldThread, event.thread, previous.thread);
  carried(kFieldStep, event.step, previous.step);
  if (event.address != 0) {
    mask |= kFieldAddress;
    f = put_varint(f, zigzag(event.address - state.last_address));
    state.last_address = event.address;
  }
  plain(kFieldSize, event.size_bytes);
  plain(kFieldValue, event.value);
  carried(kFieldStream, event.stream, previous.stream);
  carried(kFieldModule, event.module, previous.module);
  carried(kFieldStack, event.stack, previous.stack);
  carried(kFieldOp, event.op, previous.op);
  plain(kFieldName, event.name);
  plain(kFieldFlags, event.flags);
  previous = event;
  out = put_varint(kind_at + 1, mask);
  const size_t n = static_cast<size_t>(f - fields);
  std::memcpy(out, fields, n);
  return out + n;
}

}  // namespace tonnage::record
