// Shared by the two kinds of growth: tensors that are left behind (leak.cpp) and tensors that are replaced by larger ones
// (leak_replaced.cpp).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "analysis/leak.h"

namespace tonnage::analysis {

inline constexpr uint64_t kMinBytesPerIteration = 64 << 10;

using LineKey = std::tuple<std::string, uint32_t, std::string>;

LineKey key_of(const Site& site);

// The iteration that contains the event; SIZE_MAX if none does.
size_t iteration_of(const std::vector<Iteration>& iterations, uint32_t event);

// What stays by design: it is made once per parameter, layer or stream, even where that happens late (layers that are unfrozen one by
// one get their optimizer state one by one).
bool stays_by_design(const Timeline& timeline, const Allocation& a);

// Lines whose tensors are replaced by larger ones: joined to themselves each time, a cache that is never cut.
// left_behind: bytes that survive one by one, which is the other kind of growth. failed: end_event is an out-of-memory event.
std::vector<Growth> find_replaced(const Timeline& timeline, int device, uint32_t process, const std::vector<Iteration>& iterations, uint64_t end_event, bool failed, const std::map<LineKey, uint64_t>& left_behind);

}  // namespace tonnage::analysis
