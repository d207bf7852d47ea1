// How much memory of the card loaded machine code takes. Measured on an H200 with driver 580
// (cuMemGetInfo around every load; tests/data/h200/code-memory.txt). The driver takes code and
// variables from pools of 2 MiB that all modules of a context share. So most loads change nothing,
// and some take 2 MiB.
#pragma once

#include <cstdint>
#include <vector>

#include "image/cubin.h"

namespace tonnage::image {

inline constexpr uint64_t kPoolChunkBytes = 2ull << 20;

// A function takes its code and this much more when it is loaded.
inline constexpr uint64_t kFunctionOverheadBytes = 2304;
inline uint64_t resident_code_bytes(const KernelInfo& kernel) {
  return kernel.code_bytes + kFunctionOverheadBytes;
}
// Functions that are not part of a kernel come with the first kernel of their module, all of them.
// Seen on an H200 with NCCL, whose 847 functions took 96 MiB.
inline uint64_t resident_function_bytes(const CodeInfo& code) {
  return code.function_bytes + code.functions * kFunctionOverheadBytes;
}

// What a fresh context has left in its first pool of code; the rest holds the driver's own kernels.
inline constexpr uint64_t kFirstCodeChunkFree = 153 * 2560;

// Module variables, each kind of a module together: the unit in which the pool hands out. There is
// no chunk at first.
inline constexpr uint64_t kVariableUnitBytes = 256;

// Once per context, when the first kernel of a module that needs it is loaded. Device-side
// assertions need printf's part as well; device-side malloc takes its own, and its heap of
// kMallocHeapBytes at the first launch of a kernel that calls it.
inline constexpr uint64_t kPrintfBytes = 62ull << 20;
inline constexpr uint64_t kAssertBytes = 28ull << 20;
// Machine code that comes with assertions. Known to be between 128 and 1,408 bytes: at which
// operator 26 PyTorch programs needed their next chunk on an H200.
inline constexpr uint64_t kAssertCodeBytes = 1280;
// Pinned host memory for what they say, at the first launch of a kernel that calls them: it costs
// the card nothing, but takes addresses where device memory gets its own. Seen in memory maps on an
// H200 (tools/device/first_launch.cu, and six PyTorch programs).
inline constexpr uint64_t kReportBufferBytes = 8654848;
inline constexpr uint64_t kMallocBytes = 48ull << 20;
inline constexpr uint64_t kMallocHeapBytes = 10ull << 20;

// Chunks of 2 MiB, first fit.
class ChunkPool {
 public:
  explicit ChunkPool(uint64_t first_free = 0) {
    if (first_free) free_.push_back(first_free);
  }

  // Memory that the card gives away for this: 0 while there is room, else whole chunks.
  uint64_t take(uint64_t bytes) {
    for (uint64_t& free : free_) {
      if (free >= bytes) {
        free -= bytes;
        return 0;
      }
    }
    const uint64_t chunks = (bytes + kPoolChunkBytes - 1) / kPoolChunkBytes * kPoolChunkBytes;
    free_.push_back(chunks - bytes);
    return chunks;
  }
  // The card did not have the chunks that take() asked for last.
  void drop_last() { free_.pop_back(); }

 private:
  std::vector<uint64_t> free_;
};

}  // namespace tonnage::image
