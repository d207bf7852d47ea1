// Sizes that several tests name; they are compiled together.
#pragma once

#include <cstdint>

namespace tonnage_test {

inline constexpr int64_t kMiB = int64_t{1} << 20;

}  // namespace tonnage_test
