// The memory in use on a real card, asked from NVML. This works before there is a context.
#pragma once

#include <cstdint>
#include <optional>

namespace tonnage::passthrough {

// All processes' together, on the device with this UUID (16 bytes, as cuDeviceGetUuid gives it);
// nullopt without NVML.
std::optional<uint64_t> nvml_used_bytes(const char* uuid);

}  // namespace tonnage::passthrough
