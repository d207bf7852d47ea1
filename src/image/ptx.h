// PTX text, which a real driver compiles just in time. Here nothing is compiled. A scan finds the
// kernels, their parameters, launch bounds, static shared memory and module variables. Registers
// and code size are estimates, and are marked as such. Source: the PTX ISA manual ("Directives").
#pragma once

#include "image/cubin.h"

namespace tonnage::image {

// Whether the text begins like PTX (white space and comments, then .version).
bool looks_like_ptx(Bytes text);

// Reads .target: false where there is none. sm_90a: 90 and kArchSpecific.
bool ptx_target(std::string_view text, int* sm, ArchSuffix* suffix);

// Reads .version as major * 10 + minor; 0: there is none.
int ptx_isa(std::string_view text);

// `device_sm` becomes the kernels' binary version. Returns kSuccess, kInvalidPtx or kOutOfMemory;
// never throws.
int parse_ptx(Bytes text, int device_sm, CodeInfo* out);

}  // namespace tonnage::image
