// Fat binaries: several builds of the same device code, for different architectures, in one image.
//
// The layout of the wrapper is public (fatbinary_section.h of the CUDA Toolkit). The container has
// a header of 16 bytes, then entries, each with a header of its own (fatbin.cpp has the fields).
// Sources: files that nvcc writes, and ZLUDA's public source.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "image/bytes.h"

namespace tonnage::image {

inline constexpr uint32_t kWrapperMagic = 0x466243b1;
inline constexpr uint32_t kFatbinMagic = 0xba55ed50;

// CUresult values in which reading an image can end.
inline constexpr int kSuccess = 0;
inline constexpr int kOutOfMemory = 2;       // CUDA_ERROR_OUT_OF_MEMORY
inline constexpr int kInvalidImage = 200;    // CUDA_ERROR_INVALID_IMAGE
inline constexpr int kNoBinaryForGpu = 209;  // CUDA_ERROR_NO_BINARY_FOR_GPU
inline constexpr int kInvalidPtx = 218;      // CUDA_ERROR_INVALID_PTX
inline constexpr int kUnsupportedPtx = 222;  // CUDA_ERROR_UNSUPPORTED_PTX_VERSION

// The newest PTX ISA that a driver for CUDA 13.0 compiles, as major * 10 + minor.
inline constexpr int kNewestPtxIsa = 90;

// The number that the container uses; kinds that are not named here are skipped (intermediate code
// for link-time optimisation).
enum class EntryKind : uint16_t { kPtx = 1, kElf = 2 };

// sm_90a runs on 9.0 alone; sm_100f on every device of its family, that is 10.0 and later minors.
enum class ArchSuffix : uint8_t { kNone, kArchSpecific, kFamily };

enum class Packing : uint8_t { kNone, kLz4, kZstd };

struct Entry {
  EntryKind kind = EntryKind::kElf;
  ArchSuffix suffix = ArchSuffix::kNone;
  Packing packing = Packing::kNone;
  int sm = 0;       // 90 for sm_90 and compute_90
  int ptx_isa = 0;  // PTX: version of its language, 90 for 9.0
  uint64_t flags = 0;
  Bytes payload;                // as stored: packed bytes without their padding
  uint64_t unpacked_bytes = 0;  // what it takes once unpacked
  std::string_view identifier;  // source name, in debug builds; usually empty
};

// Lists a bare fat binary's entries from their headers alone. `image` may be unbounded.
// Returns kSuccess or kInvalidImage; entries of unknown kind are left out and counted in *skipped
// where given.
int list_entries(Bytes image, std::vector<Entry>* entries, int* skipped = nullptr);

// The entry that a driver for compute capability major.minor takes, by the rules of the CUDA C++
// Programming Guide
// ("Application Compatibility"): machine code of the same major and the highest minor not above the
// device's, an architecture- specific build only on exactly its own; else the newest PTX that is
// not newer than the device. nullptr: nothing fits.
const Entry* select_entry(const std::vector<Entry>& entries, int cc_major, int cc_minor);

// Whether code for this architecture runs on the device.
bool runs_on(EntryKind kind, int sm, ArchSuffix suffix, int cc_major, int cc_minor);

}  // namespace tonnage::image
