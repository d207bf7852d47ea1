// The names and numbers of the driver's device attributes (CUdevice_attribute of cuda.h), without
// the prefix.
#pragma once

#include <optional>
#include <string_view>

namespace tonnage::cards {

// 0: no such name. Numbers as cuda.h 13.0 has them; append only.
int attribute_number(std::string_view name);
// Empty: no such number.
std::string_view attribute_name(int number);
inline constexpr int kLastAttribute = 147;

// The ones this room sets or reads by itself.
inline constexpr int kClockRate = 13, kMultiprocessorCount = 16, kPciBusId = 33, kPciDeviceId = 34,
                     kMemoryClockRate = 36, kMemoryBusWidth = 37, kL2CacheSize = 38,
                     kAsyncEngineCount = 40, kPciDomainId = 50, kComputeMajor = 75,
                     kComputeMinor = 76, kMaxPersistingL2 = 108;

}  // namespace tonnage::cards
