// One machine-code image (an ELF file for EM_CUDA) or one PTX text: its kernels, their resources,
// its variables.
//
// Sources: LLVM's ELF.h for the layout (EM_CUDA flags); the numbers of .nv.info attributes have
// their public names (EIATTR_..., listed for example in GVirtuS).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "image/bytes.h"
#include "image/fatbin.h"

namespace tonnage::image {

struct ParamInfo {
  uint32_t offset_bytes;  // within the kernel's parameter block
  uint32_t size_bytes;
};

// What the machine code says about one kernel; what a device makes of it (the default largest
// block) is in cards/kernel_attributes.h. Names and parameters live as long as the CodeInfo they
// came from.
struct KernelInfo {
  std::string_view name;
  int32_t registers = 0;             // per thread
  uint32_t static_shared_bytes = 0;  // without what the system reserves per block
  uint32_t local_bytes = 0;          // per thread, stack included
  uint32_t const_bytes = 0;  // the module's __constant__ variables that the kernel can reach
  uint32_t param_bytes = 0;
  int32_t max_threads = 0;  // launch bounds: product of .maxntid; 0: none given
  int32_t required_block[3] =
      {};  // .reqntid; 0: none. A driver does not count it among the bounds (H200, 580)
  int32_t required_cluster[3] = {};   // .reqnctapercluster; 0: none
  bool explicit_cluster = false;      // .explicitcluster: a launch must be in clusters
  int32_t max_cluster_rank = 0;       // .maxclusterrank; 0: none
  int32_t barriers = 0;               // named barriers that it uses
  int16_t ptx_version = 0;            // virtual architecture, 90 for compute_90
  int16_t binary_version = 0;         // real architecture
  uint64_t code_bytes = 0;            // its .text section
  std::span<const ParamInfo> params;  // in order
  bool calls_reporter = false;  // printf or a device-side assertion, itself or through a function
  bool calls_malloc = false;    // likewise
  bool is_estimate =
      false;  // from PTX: registers, local memory and code size are not known before compilation
};

struct GlobalInfo {
  std::string_view name;
  uint64_t size_bytes = 0;
  bool is_constant = false;  // __constant__
  bool is_managed = false;   // __managed__
};

// Everything that was read from one image; immutable.
struct CodeInfo {
  std::vector<KernelInfo> kernels;  // by name
  std::vector<GlobalInfo> globals;  // by name
  int sm = 0;
  ArchSuffix suffix = ArchSuffix::kNone;
  uint64_t code_bytes = 0;      // every .text section
  uint64_t function_bytes = 0;  // those of functions that kernels call
  uint64_t functions = 0;       // how many these are
  uint64_t variable_bytes = 0;  // .nv.global, .nv.global.init
  uint64_t constant_bytes = 0;  // constant banks, the kernels' parameter banks included
  bool relocatable = false;  // an object file that was never linked: a driver loads it, but finds
                             // no kernel in it (200)
  // Parts of the device runtime that the code calls; their first use in a context costs memory
  // (resident.h).
  bool uses_printf = false, uses_assert = false, uses_malloc = false, has_managed = false;
  uint64_t loaded_bytes() const { return code_bytes + variable_bytes + constant_bytes; }

  const KernelInfo* kernel(std::string_view name) const;
  const GlobalInfo* global(std::string_view name) const;

  // Storage behind the views above.
  std::unique_ptr<char[]> names;
  std::vector<ParamInfo> params;
};

// The total size of an ELF image by its headers, for one whose length nobody told; 0: not an ELF
// file for CUDA.
uint64_t elf_image_bytes(Bytes image);

// Architecture from the ELF header: false where it is not machine code for a GPU. `image` may be
// unbounded.
bool elf_architecture(Bytes image, int* sm, ArchSuffix* suffix);

// Reads the whole image (bounded). Returns kSuccess, kInvalidImage or kOutOfMemory; never throws.
int parse_cubin(Bytes image, CodeInfo* out);

}  // namespace tonnage::image
