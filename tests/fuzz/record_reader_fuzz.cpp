// libFuzzer target of the record reader. The first byte chooses how the rest is taken: as a file,
// or as the payload of a chunk whose header is right, which reaches the decoder directly.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "record/format.h"
#include "record/record_reader.h"

using namespace tonnage;

namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

void check_record(const record::Record& record) {
  for (const auto& e : record.events) {
    check(e.process < record.processes.size());
    check(e.stack < record.stacks.size());
    check(e.op < record.strings.size() && e.module < record.strings.size() &&
          e.name < record.strings.size());
    check(e.phase <= abi::Phase::kEval);
  }
  for (const auto& stack : record.stacks) {
    check(stack.size() <= record::kMaxStackDepth);
    for (const auto& frame : stack)
      check(frame.function < record.strings.size() && frame.file < record.strings.size());
  }
}

// A file with one chunk after another, of the lengths that the first bytes of each give.
std::vector<uint8_t> as_chunks(const uint8_t* data, size_t n) {
  std::vector<uint8_t> file;
  uint32_t sequence = 0;
  while (n >= 4) {
    record::ChunkHeader header;
    header.kind = static_cast<record::ChunkKind>(1 + data[0] % 5);
    header.stream = data[1] % 3;
    header.sequence = sequence++;
    header.event_count = data[2];
    const size_t length = data[3] < n - 4 ? data[3] : n - 4;
    header.payload_bytes = header.uncompressed_bytes = static_cast<uint32_t>(length);
    header.payload_crc = record::crc32(0, data + 4, length);
    header.header_crc = record::crc32(0, &header, offsetof(record::ChunkHeader, header_crc));
    const auto* p = reinterpret_cast<const uint8_t*>(&header);
    file.insert(file.end(), p, p + sizeof header);
    file.insert(file.end(), data + 4, data + 4 + length);
    data += 4 + length;
    n -= 4 + length;
  }
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n) {
  if (n == 0) return 0;
  const std::vector<uint8_t> file =
      data[0] % 2 == 0 ? std::vector<uint8_t>(data + 1, data + n) : as_chunks(data + 1, n - 1);
  const auto record =
      record::read_record_bytes(file, "fuzz", record::ReadOptions{.memory_limit_bytes = 64u << 20});
  if (record) check_record(*record);
  return 0;
}
