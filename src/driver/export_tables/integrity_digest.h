// MD2 (RFC 1319), which the runtime's check of the driver is built on.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tonnage::driver {

void compute_digest(const uint8_t* message, size_t n, uint8_t digest[16]);

}  // namespace tonnage::driver
