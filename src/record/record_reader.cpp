#include "record/record_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "record/format.h"
#include "record/record_decoder.h"

namespace tonnage::record {

namespace {

using record::ChunkHeader;

constexpr size_t kHeaderBytes = sizeof(ChunkHeader);
constexpr size_t kWindowBytes = 16 << 10;  // looked through at once for a chunk's beginning
// Memory that a file may ask for: far more than an honest one of its size needs (an event is a few
// bytes in it and 96 here), far less than one made to unpack to as much as possible.
constexpr uint64_t kLeastBudgetBytes = 256u << 20, kBudgetPerByte = 512;
constexpr uint32_t kMaxPayloadBytes = record::kMaxUncompressedBytes + (64u << 10);

// Bytes at an offset: a file or memory. Files are read and never mapped: one that shrinks must not
// kill us.
class Input {
 public:
  virtual ~Input() = default;
  // Fewer than n only at the end; -1: errno.
  virtual ssize_t read_at(uint64_t offset, uint8_t* out, size_t n) = 0;
  virtual uint64_t size() const = 0;
};

class MemoryInput : public Input {
 public:
  explicit MemoryInput(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  ssize_t read_at(uint64_t offset, uint8_t* out, size_t n) override {
    if (n == 0 || offset >= bytes_.size()) return 0;
    n = std::min<uint64_t>(n, bytes_.size() - offset);
    ::memcpy(out, bytes_.data() + offset, n);
    return static_cast<ssize_t>(n);
  }
  uint64_t size() const override { return bytes_.size(); }

 private:
  std::span<const uint8_t> bytes_;
};

class FileInput : public Input {
 public:
  FileInput(int fd, uint64_t size) : fd_(fd), size_(size) {}
  ~FileInput() override { ::close(fd_); }
  ssize_t read_at(uint64_t offset, uint8_t* out, size_t n) override {
    size_t done = 0;
    while (done < n) {
      const ssize_t got = ::pread(fd_, out + done, n - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return -1;
      if (got == 0) break;
      done += static_cast<size_t>(got);
    }
    return static_cast<ssize_t>(done);
  }
  uint64_t size() const override { return size_; }

 private:
  int fd_;
  uint64_t size_;
};

class ChunkReader {
 public:
  ChunkReader(Input& input, std::string source, const ReadOptions& options)
      : input_(input),
        source_(std::move(source)),
        budget_(std::min(options.memory_limit_bytes,
                         kLeastBudgetBytes +
                             kBudgetPerByte * std::min<uint64_t>(input.size(), uint64_t{1} << 40))),
        decoder_(budget_),
        waste_left_(8 * input.size() + (64u << 20)),
        context_(ZSTD_createDCtx(), ZSTD_freeDCtx) {}

  Result<Record> read();

 private:
  enum class Found { kChunk, kDamaged, kCutOff, kUnreadable };
  Found chunk_at(uint64_t offset);
  bool header_at(const uint8_t* bytes, ChunkHeader& header) const;
  std::optional<uint64_t> next_header(uint64_t from);  // nullopt: none, or errno set
  bool unpack();
  Error error(ErrorCode code, std::string message, std::string hint = "") const {
    return Error{code, std::move(message), source_, std::move(hint)};
  }
  Error read_error() const {
    return error(ErrorCode::kIo, std::string("cannot be read: ") + ::strerror(errno));
  }
  std::optional<Error> check_beginning();

  Input& input_;
  std::string source_;
  MemoryBudget budget_;
  RecordDecoder decoder_;
  uint64_t waste_left_;  // bytes that may be read in vain: a file of headers that lie must not take
                         // forever
  std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context_;
  ChunkHeader header_;
  std::vector<uint8_t> packed_, payload_, window_;
};

bool ChunkReader::header_at(const uint8_t* bytes, ChunkHeader& header) const {
  ::memcpy(&header, bytes, kHeaderBytes);
  return header.magic == record::kChunkMagic &&
         header.header_crc == record::crc32(0, bytes, offsetof(ChunkHeader, header_crc)) &&
         header.version >= record::kOldestReadableVersion &&
         header.version <= record::kNewestReadableVersion &&
         header.payload_bytes <= kMaxPayloadBytes &&
         header.uncompressed_bytes <= record::kMaxUncompressedBytes;
}

bool ChunkReader::unpack() {
  if (header_.compression == record::Compression::kNone) {
    if (header_.payload_bytes != header_.uncompressed_bytes) return false;
    payload_.swap(packed_);
    return true;
  }
  if (header_.compression != record::Compression::kZstd || context_ == nullptr) return false;
  payload_.resize(header_.uncompressed_bytes);
  const size_t n = ZSTD_decompressDCtx(context_.get(), payload_.data(), payload_.size(),
                                       packed_.data(), packed_.size());
  return !ZSTD_isError(n) && n == header_.uncompressed_bytes;
}

// Reads the chunk at `offset` into header_ and payload_.
ChunkReader::Found ChunkReader::chunk_at(uint64_t offset) {
  uint8_t bytes[kHeaderBytes];
  const ssize_t n = input_.read_at(offset, bytes, kHeaderBytes);
  if (n < 0) return Found::kUnreadable;
  if (static_cast<size_t>(n) < kHeaderBytes) return Found::kCutOff;
  if (!header_at(bytes, header_)) return Found::kDamaged;
  if (header_.payload_bytes > input_.size() - offset - kHeaderBytes) return Found::kCutOff;
  packed_.resize(header_.payload_bytes);
  const ssize_t got = input_.read_at(offset + kHeaderBytes, packed_.data(), packed_.size());
  if (got < 0) return Found::kUnreadable;
  if (static_cast<size_t>(got) < packed_.size()) return Found::kCutOff;
  return record::crc32(0, packed_.data(), packed_.size()) == header_.payload_crc ? Found::kChunk
                                                                                 : Found::kDamaged;
}

std::optional<uint64_t> ChunkReader::next_header(uint64_t from) {
  std::vector<uint8_t>& window = window_;
  window.resize(kWindowBytes);
  for (uint64_t at = from;; at += window.size() - kHeaderBytes + 1) {
    errno = 0;
    const ssize_t n = input_.read_at(at, window.data(), window.size());
    if (n < static_cast<ssize_t>(kHeaderBytes)) return std::nullopt;
    const uint8_t* const end = window.data() + n - kHeaderBytes + 1;
    for (const uint8_t* p = window.data(); p < end; ++p) {
      p = static_cast<const uint8_t*>(
          ::memchr(p, record::kChunkMagic & 0xff, static_cast<size_t>(end - p)));
      if (p == nullptr) break;
      ChunkHeader header;
      if (header_at(p, header)) return at + static_cast<uint64_t>(p - window.data());
    }
    if (static_cast<size_t>(n) < window.size()) return std::nullopt;
  }
}

std::optional<Error> ChunkReader::check_beginning() {
  uint8_t bytes[kHeaderBytes];
  const ssize_t n = input_.read_at(0, bytes, kHeaderBytes);
  if (n < 0) return read_error();
  if (n == 0)
    return error(ErrorCode::kCorrupt, "the file is empty",
                 "the run ended before anything was recorded");
  if (!looks_like_record({bytes, static_cast<size_t>(n)}))
    return error(ErrorCode::kCorrupt, "not a Tonnage record");
  if (n < static_cast<ssize_t>(offsetof(ChunkHeader, version) + 2)) return std::nullopt;
  uint16_t version;
  ::memcpy(&version, bytes + offsetof(ChunkHeader, version), sizeof version);
  if (version > record::kNewestReadableVersion) {
    return error(ErrorCode::kTooNew,
                 "the record has format " + std::to_string(version) +
                     ", and this Tonnage reads up to " +
                     std::to_string(record::kNewestReadableVersion),
                 "read it with the Tonnage that wrote it, or a newer one");
  }
  if (version < record::kOldestReadableVersion) {
    return error(ErrorCode::kTooOld,
                 "the record has format " + std::to_string(version) +
                     ", and this Tonnage reads from " +
                     std::to_string(record::kOldestReadableVersion) + " on",
                 "read it with the Tonnage that wrote it, or record again");
  }
  return std::nullopt;
}

Result<Record> ChunkReader::read() {
  if (auto bad = check_beginning()) return *bad;
  Record record;
  uint64_t chunks = 0, damaged_places = 0, damaged_bytes = 0, damaged_chunks = 0, first_damaged = 0,
           cut_off_bytes = 0;
  for (uint64_t at = 0; at < input_.size();) {
    const Found found = chunk_at(at);
    if (found == Found::kUnreadable) return read_error();
    if (found == Found::kChunk) {
      const uint64_t bytes = kHeaderBytes + header_.payload_bytes;
      // payload_ and packed_ may have swapped; the header says all that is needed from here on.
      if (!unpack() || !decoder_.add_chunk(header_, payload_)) ++damaged_chunks;
      if (budget_.exceeded()) break;
      ++chunks;
      at += bytes;
      continue;
    }
    const uint64_t waste = kHeaderBytes + (found == Found::kDamaged ? packed_.size() : 0);
    if (waste > waste_left_) return error(ErrorCode::kCorrupt, "too much of the record is damaged");
    waste_left_ -= waste;
    packed_.clear();
    const auto next = next_header(at + 1);
    if (!next && errno != 0) return read_error();
    const uint64_t skipped = (next ? *next : input_.size()) - at;
    if (!next && found == Found::kCutOff) {
      cut_off_bytes = skipped;
      break;
    }
    if (damaged_places++ == 0) first_damaged = at;
    damaged_bytes += skipped;
    at += skipped;
  }
  if (!budget_.exceeded() && chunks == 0) {
    return error(ErrorCode::kCorrupt, "the record is cut off before its first chunk ends",
                 "there is nothing in it to read");
  }
  if (budget_.exceeded() || !decoder_.finish(record)) {
    return error(ErrorCode::kLimit,
                 "the record unpacks to more memory than a record of its size may take",
                 "it was not written by Tonnage, or is far too long: record a shorter run, or one "
                 "with --no-stacks");
  }
  record.source = source_;
  record.missing_parts += (cut_off_bytes > 0 ? 1 : 0) + damaged_places + damaged_chunks;
  if (cut_off_bytes > 0) {
    record.notes.push_back("the record ends in the middle of a chunk (" +
                           std::to_string(cut_off_bytes) + " bytes): all before it was read");
  }
  if (damaged_places > 0) {
    record.notes.push_back("the record is damaged in " + std::to_string(damaged_places) +
                           " place(s), the first at byte " + std::to_string(first_damaged) + ": " +
                           std::to_string(damaged_bytes) + " bytes were skipped");
  }
  if (damaged_chunks > 0) {
    record.notes.push_back(
        std::to_string(damaged_chunks) +
        " chunk(s) of the record have contents that make no sense and were left out");
  }
  return record;
}

}  // namespace

bool looks_like_record(std::span<const uint8_t> beginning) {
  const uint32_t magic = record::kChunkMagic;
  return !beginning.empty() &&
         ::memcmp(beginning.data(), &magic, std::min(beginning.size(), sizeof magic)) == 0;
}

Result<Record> read_record(const std::string& path, const ReadOptions& options) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return Error{errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
                 std::string("cannot be opened: ") + ::strerror(errno), path, ""};
  }
  struct stat is {};
  if (::fstat(fd, &is) != 0 || !S_ISREG(is.st_mode)) {
    ::close(fd);
    return Error{ErrorCode::kIo, "not an ordinary file", path,
                 "name a record that `tonnage run --record` has written"};
  }
  FileInput input(fd, static_cast<uint64_t>(is.st_size));
  return ChunkReader(input, path, options).read();
}

Result<Record> read_record_bytes(std::span<const uint8_t> bytes, const std::string& source,
                                 const ReadOptions& options) {
  MemoryInput input(bytes);
  return ChunkReader(input, source, options).read();
}

}  // namespace tonnage::record
