#include "sources/compressed_input.h"

#include <fcntl.h>
#include <lzma.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

namespace tonnage::sources {
namespace {

constexpr size_t kBufferBytes = 256 << 10;
constexpr uint64_t kXzMemoryLimit = 256ull << 20;
constexpr uint64_t kFreeGrowthBytes = 1ull << 30;
constexpr uint64_t kMaxGrowth = 400;

// Raw bytes before decompression.
class RawBytes {
 public:
  virtual ~RawBytes() = default;
  virtual Result<size_t> read(char* out, size_t capacity) = 0;
};

class FileBytes final : public RawBytes {
 public:
  FileBytes(int fd, bool owned, std::string name)
      : fd_(fd), owned_(owned), name_(std::move(name)) {}
  ~FileBytes() override {
    if (owned_) ::close(fd_);
  }
  Result<size_t> read(char* out, size_t capacity) override {
    for (;;) {
      const ssize_t got = ::read(fd_, out, capacity);
      if (got >= 0) return static_cast<size_t>(got);
      if (errno != EINTR)
        return Error{ErrorCode::kIo, std::string("reading failed: ") + std::strerror(errno), name_,
                     ""};
    }
  }

 private:
  int fd_;
  bool owned_;
  std::string name_;
};

class MemoryBytes final : public RawBytes {
 public:
  explicit MemoryBytes(std::string_view bytes) : bytes_(bytes) {}
  Result<size_t> read(char* out, size_t capacity) override {
    const size_t take = std::min(capacity, bytes_.size());
    std::memcpy(out, bytes_.data(), take);
    bytes_.remove_prefix(take);
    return take;
  }

 private:
  std::string_view bytes_;
};

// Puts the bytes that were looked at for the magic number back in front.
class Prefixed final : public RawBytes {
 public:
  Prefixed(std::string prefix, std::unique_ptr<RawBytes> rest)
      : prefix_(std::move(prefix)), rest_(std::move(rest)) {}
  Result<size_t> read(char* out, size_t capacity) override {
    if (used_ < prefix_.size()) {
      const size_t take = std::min(capacity, prefix_.size() - used_);
      std::memcpy(out, prefix_.data() + used_, take);
      used_ += take;
      return take;
    }
    return rest_->read(out, capacity);
  }

 private:
  std::string prefix_;
  size_t used_ = 0;
  std::unique_ptr<RawBytes> rest_;
};

class PlainInput final : public Input {
 public:
  PlainInput(std::unique_ptr<RawBytes> raw, std::string name, uint64_t known_size)
      : raw_(std::move(raw)) {
    name_ = std::move(name);
    known_size_ = known_size;
  }

 private:
  Result<size_t> read_decoded(char* out, size_t capacity) override {
    return raw_->read(out, capacity);
  }
  std::unique_ptr<RawBytes> raw_;
};

// What the three decompressors share: the compressed buffer, errors, the guard against bombs.
class CompressedInput : public Input {
 protected:
  CompressedInput(std::unique_ptr<RawBytes> raw, std::string name, Compression compression)
      : raw_(std::move(raw)), in_(kBufferBytes) {
    name_ = std::move(name);
    compression_ = compression;
  }

  // Makes more input available if there is none left. False at the end of the file.
  Result<bool> fill() {
    if (in_pos_ < in_size_) return true;
    if (ended_) return false;
    auto got = raw_->read(in_.data(), in_.size());
    if (!got) return got.error();
    in_pos_ = 0;
    in_size_ = *got;
    consumed_ += *got;
    ended_ = *got == 0;
    return !ended_;
  }

  Error damaged(const std::string& detail) const {
    return {ErrorCode::kCorrupt,
            std::string("damaged ") + compression_name(compression_) + " data: " + detail, name_,
            "copy the file again, or decompress it by hand to see how much of it is good"};
  }
  Error cut() const {
    return {ErrorCode::kCorrupt,
            std::string("the ") + compression_name(compression_) + " data ends too early", name_,
            "the file was cut short: copy it again"};
  }

  Result<size_t> deliver(size_t size) {
    produced_ += size;
    if (produced_ > kFreeGrowthBytes && produced_ / kMaxGrowth > consumed_)
      return Error{ErrorCode::kLimit, "it decompresses to more than 400 times its size", name_,
                   "if you trust the file, decompress it first and pass the result"};
    return size;
  }

  std::unique_ptr<RawBytes> raw_;
  std::vector<char> in_;
  size_t in_pos_ = 0, in_size_ = 0;
  bool ended_ = false;
  uint64_t consumed_ = 0, produced_ = 0;
};

class GzipInput final : public CompressedInput {
 public:
  GzipInput(std::unique_ptr<RawBytes> raw, std::string name)
      : CompressedInput(std::move(raw), std::move(name), Compression::kGzip) {
    ready_ = inflateInit2(&stream_, 15 + 16) == Z_OK;
  }
  ~GzipInput() override {
    if (ready_) inflateEnd(&stream_);
  }

 private:
  Result<size_t> read_decoded(char* out, size_t capacity) override {
    if (!ready_) return Error{ErrorCode::kSystem, "zlib could not be started", name_, ""};
    capacity = std::min<size_t>(capacity, 1u << 30);
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = static_cast<uInt>(capacity);
    while (stream_.avail_out == capacity) {
      auto more = fill();
      if (!more) return more.error();
      if (!*more) {
        if (between_members_) return size_t{0};
        return cut();
      }
      if (between_members_) {
        // gzip allows zero padding and further members after the first.
        if (in_[in_pos_] == 0) {
          ++in_pos_;
          continue;
        }
        if (inflateReset(&stream_) != Z_OK) return damaged("cannot restart");
        between_members_ = false;
      }
      stream_.next_in = reinterpret_cast<Bytef*>(in_.data() + in_pos_);
      stream_.avail_in = static_cast<uInt>(in_size_ - in_pos_);
      const int rc = inflate(&stream_, Z_NO_FLUSH);
      in_pos_ = in_size_ - stream_.avail_in;
      if (rc == Z_STREAM_END) {
        between_members_ = true;
      } else if (rc != Z_OK && rc != Z_BUF_ERROR) {
        return damaged(stream_.msg ? stream_.msg : "inflate failed");
      }
    }
    return deliver(capacity - stream_.avail_out);
  }

  z_stream stream_{};
  bool ready_ = false, between_members_ = false;
};

class XzInput final : public CompressedInput {
 public:
  XzInput(std::unique_ptr<RawBytes> raw, std::string name)
      : CompressedInput(std::move(raw), std::move(name), Compression::kXz) {
    ready_ = lzma_stream_decoder(&stream_, kXzMemoryLimit, LZMA_CONCATENATED) == LZMA_OK;
  }
  ~XzInput() override { lzma_end(&stream_); }

 private:
  Result<size_t> read_decoded(char* out, size_t capacity) override {
    if (!ready_) return Error{ErrorCode::kSystem, "liblzma could not be started", name_, ""};
    if (finished_) return size_t{0};
    stream_.next_out = reinterpret_cast<uint8_t*>(out);
    stream_.avail_out = capacity;
    while (stream_.avail_out == capacity) {
      auto more = fill();
      if (!more) return more.error();
      stream_.next_in = reinterpret_cast<const uint8_t*>(in_.data() + in_pos_);
      stream_.avail_in = in_size_ - in_pos_;
      const lzma_ret rc = lzma_code(&stream_, *more ? LZMA_RUN : LZMA_FINISH);
      in_pos_ = in_size_ - stream_.avail_in;
      if (rc == LZMA_STREAM_END) {
        finished_ = true;
        break;
      }
      if (rc == LZMA_MEMLIMIT_ERROR)
        return Error{ErrorCode::kLimit, "the xz data needs more than 256 MiB to decompress", name_,
                     "decompress it first: xz -d"};
      if (rc == LZMA_BUF_ERROR || (rc == LZMA_OK && !*more && stream_.avail_out == capacity))
        return cut();
      if (rc != LZMA_OK) return damaged("lzma error " + std::to_string(static_cast<int>(rc)));
    }
    return deliver(capacity - stream_.avail_out);
  }

  lzma_stream stream_ = LZMA_STREAM_INIT;
  bool ready_ = false, finished_ = false;
};

class ZstdInput final : public CompressedInput {
 public:
  ZstdInput(std::unique_ptr<RawBytes> raw, std::string name)
      : CompressedInput(std::move(raw), std::move(name), Compression::kZstd),
        stream_(ZSTD_createDStream()) {}
  ~ZstdInput() override { ZSTD_freeDStream(stream_); }

 private:
  Result<size_t> read_decoded(char* out, size_t capacity) override {
    if (!stream_) return Error{ErrorCode::kSystem, "zstd could not be started", name_, ""};
    ZSTD_outBuffer output{out, capacity, 0};
    while (output.pos == 0) {
      auto more = fill();
      if (!more) return more.error();
      if (!*more) {
        if (at_frame_end_) return size_t{0};
        return cut();
      }
      ZSTD_inBuffer input{in_.data(), in_size_, in_pos_};
      const size_t rc = ZSTD_decompressStream(stream_, &output, &input);
      in_pos_ = input.pos;
      if (ZSTD_isError(rc)) return damaged(ZSTD_getErrorName(rc));
      at_frame_end_ = rc == 0;
    }
    return deliver(output.pos);
  }

  ZSTD_DStream* stream_;
  bool at_frame_end_ = false;
};

bool starts_with(std::string_view text, std::string_view magic) {
  return text.substr(0, magic.size()) == magic;
}

Result<std::unique_ptr<Input>> make(std::unique_ptr<RawBytes> raw, std::string name,
                                    uint64_t known_size) {
  std::string head(8, '\0');
  size_t have = 0;
  while (have < head.size()) {
    auto got = raw->read(head.data() + have, head.size() - have);
    if (!got) return got.error();
    if (*got == 0) break;
    have += *got;
  }
  head.resize(have);
  const std::string_view magic = head;
  auto all = std::make_unique<Prefixed>(head, std::move(raw));
  std::unique_ptr<Input> input;
  if (starts_with(magic, "\x1f\x8b")) {
    input = std::make_unique<GzipInput>(std::move(all), std::move(name));
  } else if (starts_with(magic, std::string_view("\xfd"
                                                 "7zXZ\0",
                                                 6))) {
    input = std::make_unique<XzInput>(std::move(all), std::move(name));
  } else if (starts_with(magic, "\x28\xb5\x2f\xfd")) {
    input = std::make_unique<ZstdInput>(std::move(all), std::move(name));
  } else if (starts_with(magic, "PK\x03\x04")) {
    return Error{ErrorCode::kUnsupported, "this is a zip file", name,
                 "torch.save makes such files; a memory snapshot comes from "
                 "torch.cuda.memory._dump_snapshot(); unzip it otherwise"};
  } else if (starts_with(magic, "\x04\x22\x4d\x18")) {
    return Error{ErrorCode::kUnsupported, "lz4 files are not read", name,
                 "decompress it first: lz4 -d"};
  } else if (starts_with(magic, "BZh")) {
    return Error{ErrorCode::kUnsupported, "bzip2 files are not read", name,
                 "decompress it first: bzip2 -d"};
  } else {
    input = std::make_unique<PlainInput>(std::move(all), std::move(name), known_size);
  }
  return input;
}

}  // namespace

const char* compression_name(Compression compression) {
  switch (compression) {
    case Compression::kGzip: return "gzip";
    case Compression::kXz: return "xz";
    case Compression::kZstd: return "zstd";
    case Compression::kNone: break;
  }
  return "plain";
}

Result<std::unique_ptr<Input>> Input::open(const std::string& path) {
  if (path == "-") return make(std::make_unique<FileBytes>(STDIN_FILENO, false, "-"), "-", 0);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    const int error = errno;
    return Error{error == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
                 std::string("cannot be opened: ") + std::strerror(error), path, ""};
  }
  auto raw = std::make_unique<FileBytes>(fd, true, path);
  struct stat info {};
  uint64_t size = 0;
  if (::fstat(fd, &info) == 0) {
    if (S_ISDIR(info.st_mode))
      return Error{ErrorCode::kIo, "this is a folder, not a file", path, ""};
    if (S_ISREG(info.st_mode)) size = static_cast<uint64_t>(info.st_size);
  }
  return make(std::move(raw), path, size);
}

Result<std::unique_ptr<Input>> Input::from_memory(std::string_view bytes, std::string name) {
  return make(std::make_unique<MemoryBytes>(bytes), std::move(name), bytes.size());
}

Result<size_t> Input::read(char* out, size_t capacity) {
  if (capacity == 0) return size_t{0};
  if (peeked_used_ < peeked_.size()) {
    const size_t take = std::min(capacity, peeked_.size() - peeked_used_);
    std::memcpy(out, peeked_.data() + peeked_used_, take);
    peeked_used_ += take;
    delivered_ += take;
    return take;
  }
  auto got = read_decoded(out, capacity);
  if (got) delivered_ += *got;
  return got;
}

Result<std::string_view> Input::peek(size_t size) {
  size = std::min<size_t>(size, 4096);
  while (peeked_.size() < size) {
    char chunk[4096];
    auto got = read_decoded(chunk, size - peeked_.size());
    if (!got) return got.error();
    if (*got == 0) break;
    peeked_.append(chunk, *got);
  }
  return std::string_view(peeked_).substr(0, size);
}

}  // namespace tonnage::sources
