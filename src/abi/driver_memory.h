// What the driver took memory for (EventKind::kModuleLoad).
#pragma once

#include <cstdint>

namespace tonnage::abi {

// Serialised: append only, never renumber. Records of older versions have 0 for all of it.
enum class DriverMemory : uint8_t {
  kCode = 0,         // machine code of kernels
  kLocalMemory = 1,  // of all threads that can run at once; name = the kernel that needed more
  kVariables = 2,
  kStreams = 3,
  kGraphs = 4,
  kDeviceFunctions = 5,  // buffers of device-side printf, assertions and malloc
  kRemoteDomain = 6,     // launches that write to other cards' memory
};

}  // namespace tonnage::abi
