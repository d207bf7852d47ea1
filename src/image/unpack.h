// Unpacks the entries of fat binaries (LZ4, zstd).
#pragma once

#include <memory>

#include "image/fatbin.h"

namespace tonnage::image {

// The entry's bytes: in place where it is stored plain, else unpacked into *owned. A result without
// data: *status says why (kInvalidImage: the packed bytes are damaged or larger than stated;
// kOutOfMemory). Never throws.
Bytes unpack(const Entry& entry, std::unique_ptr<uint8_t[]>* owned, int* status);

}  // namespace tonnage::image
