// The recorder's state for the whole process: connection to the driver, settings, counts.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "abi/bridge.h"
#include "abi/session.h"

namespace tonnage::recorder {

struct Settings {
  bool known_values = true;
  bool stacks = true;
  uint64_t known_integer_bytes = 64ull << 20;
  uint64_t known_float_elements = 16384;
  double assume_selected = -1;
};

// Counted, and told in the record at the end: what did not work.
struct Counters {
  std::atomic<uint64_t> computed{0}, failed{0}, exceptions{0};
};

struct Recorder {
  const abi::Bridge* bridge = nullptr;
  Settings settings;
  Counters counters;
  std::atomic<uint32_t> steps{0};  // training steps completed
};

// The one instance; set up by tonnage_torch_start before any callback can run, never destroyed.
Recorder& recorder();
inline const abi::Bridge& bridge() { return *recorder().bridge; }
inline uint32_t intern(std::string_view text) {
  return bridge().intern_string(text.data(), text.size());
}
inline void count_exception() {
  recorder().counters.exceptions.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace tonnage::recorder
