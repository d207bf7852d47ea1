// Input: bytes from a file, standard input or memory, decompressed on the fly.
//
// gzip, xz and zstd are recognised by their first bytes, never by the file's name; several members
// or frames in a row are one stream. Memory: two buffers of 256 KiB and what the decompressor needs
// (xz: at most 256 MiB, as its header demands). A stream that grows beyond reason (more than 1 GiB
// and more than 400 times its compressed size) is refused with kLimit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tonnage::sources {

enum class Compression { kNone, kGzip, kXz, kZstd };

class Input {
 public:
  // path "-": standard input. Errors: kNotFound, kIo (cannot be read, is a folder), kUnsupported (a
  // zip file, lz4, bzip2).
  static Result<std::unique_ptr<Input>> open(const std::string& path);
  // The bytes must outlive the Input. For tests and fuzzing; decompresses too.
  static Result<std::unique_ptr<Input>> from_memory(std::string_view bytes,
                                                    std::string name = "memory");

  virtual ~Input() = default;
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  // Up to `capacity` bytes into `out`; 0 at the end. Errors: kIo, kCorrupt (damaged or cut
  // compressed data), kLimit.
  Result<size_t> read(char* out, size_t capacity);
  // The first bytes (at most `size` <= 4096, fewer if the stream is shorter) without consuming
  // them. Call before read.
  Result<std::string_view> peek(size_t size);

  const std::string& name() const { return name_; }
  Compression compression() const { return compression_; }
  uint64_t bytes_delivered() const { return delivered_; }
  // Size of all bytes that read will deliver; 0 if unknown (compressed, standard input, a pipe).
  uint64_t known_size() const { return known_size_; }

 protected:
  Input() = default;
  virtual Result<size_t> read_decoded(char* out, size_t capacity) = 0;

  std::string name_;
  Compression compression_ = Compression::kNone;
  uint64_t known_size_ = 0;

 private:
  std::string peeked_;
  size_t peeked_used_ = 0;
  uint64_t delivered_ = 0;
};

const char* compression_name(Compression compression);

}  // namespace tonnage::sources
