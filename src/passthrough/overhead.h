// The memory that the driver itself takes on a real card: contexts, machine code, streams, local
// memory.
//
// No function reports it. It is the memory in use that belongs to no allocation. It is measured
// twice: when a context has been made (with NVML, which needs no context), and at each later
// allocation. The memory of other processes is assumed to stay the same.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

namespace tonnage::passthrough {

// One device of one process. Not thread-safe.
class Overhead {
 public:
  // A context was made. NVML's figures before and after, where there is NVML; the driver's own
  // after. Returns what the context took; without NVML that is all that is in use.
  uint64_t context_made(std::optional<uint64_t> nvml_before, std::optional<uint64_t> nvml_after,
                        uint64_t in_use) {
    const bool measured = nvml_before && nvml_after && *nvml_after >= *nvml_before;
    const uint64_t context = std::min(in_use, measured ? *nvml_after - *nvml_before : in_use);
    others_ = in_use - context;
    known_ = context;
    has_context_ = true;
    return context;
  }
  // `own_bytes` of what is in use are this process's allocations. Returns by how much more than
  // ever before the driver has taken for itself.
  uint64_t grew(uint64_t in_use, uint64_t own_bytes) {
    if (!has_context_ || in_use < others_ + own_bytes) return 0;
    const uint64_t now = in_use - others_ - own_bytes;
    const uint64_t more = now > known_ ? now - known_ : 0;
    known_ += more;
    return more;
  }

 private:
  uint64_t others_ = 0, known_ = 0;
  bool has_context_ = false;
};

}  // namespace tonnage::passthrough
