// What copies and memsets do to shadow memory. Used by the API functions and when graphs run.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tonnage::driver {

// Moves n bytes between host and device addresses; unknown device bytes read by the host become
// zero and are recorded.
void move_bytes(uint64_t dst, uint64_t src, size_t n);
// Sets n bytes to a repeated pattern of `width` bytes.
void fill_bytes(uint64_t dst, uint32_t pattern, unsigned width, size_t n);

}  // namespace tonnage::driver
