// Tensor maps (TMA descriptors) and the linker of machine code.
//
// A tensor map is read by kernels only, and those do nothing: it is checked as the documentation
// says and cleared. Linking joins images for one module; here the last image that holds kernels is
// what a module is loaded from, since what matters is which kernels there are and what they need.
#include <string.h>

#include <memory>
#include <string>
#include <vector>

#include "driver/entry_points.h"
#include "driver/state.h"

namespace tonnage::driver {

namespace {

CUresult clear_map(CUtensorMap* map, cuuint32_t rank, void* address, cuuint32_t least_rank) {
  if (!map || rank < least_rank || rank > 5 || !address || reinterpret_cast<uint64_t>(address) % 16)
    return CUDA_ERROR_INVALID_VALUE;
  memset(map, 0, sizeof *map);
  memcpy(map, &address, sizeof address);
  return CUDA_SUCCESS;
}

struct Link {
  std::vector<std::string> images;
};

}  // namespace

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t rank,
                                void* address, const cuuint64_t* dims, const cuuint64_t*,
                                const cuuint32_t* box, const cuuint32_t*, CUtensorMapInterleave,
                                CUtensorMapSwizzle, CUtensorMapL2promotion,
                                CUtensorMapFloatOOBfill) {
  if (!dims || !box) return CUDA_ERROR_INVALID_VALUE;
  return clear_map(map, rank, address, 1);
}
CUresult cuTensorMapEncodeIm2col(CUtensorMap* map, CUtensorMapDataType, cuuint32_t rank,
                                 void* address, const cuuint64_t* dims, const cuuint64_t*,
                                 const int*, const int*, cuuint32_t, cuuint32_t, const cuuint32_t*,
                                 CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                 CUtensorMapFloatOOBfill) {
  return dims ? clear_map(map, rank, address, 3) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuTensorMapEncodeIm2colWide(CUtensorMap* map, CUtensorMapDataType, cuuint32_t rank,
                                     void* address, const cuuint64_t* dims, const cuuint64_t*, int,
                                     int, cuuint32_t, cuuint32_t, const cuuint32_t*,
                                     CUtensorMapInterleave, CUtensorMapIm2ColWideMode,
                                     CUtensorMapSwizzle, CUtensorMapL2promotion,
                                     CUtensorMapFloatOOBfill) {
  return dims ? clear_map(map, rank, address, 3) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuTensorMapReplaceAddress(CUtensorMap* map, void* address) {
  if (!map || !address || reinterpret_cast<uint64_t>(address) % 16) return CUDA_ERROR_INVALID_VALUE;
  memcpy(map, &address, sizeof address);
  return CUDA_SUCCESS;
}

CUresult cuLinkCreate_v2(Context*, unsigned int, CUjit_option*, void**, CUlinkState* out) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUlinkState>(new Link);
  return CUDA_SUCCESS;
}
CUresult cuLinkAddData_v2(Driver*, CUlinkState handle, CUjitInputType type, void* data, size_t size,
                          const char*, unsigned int, CUjit_option*, void**) {
  if (!handle) return CUDA_ERROR_INVALID_HANDLE;
  if (!data || size == 0 || type >= CU_JIT_NUM_INPUT_TYPES) return CUDA_ERROR_INVALID_VALUE;
  std::string image(static_cast<const char*>(data), size);
  if (type == CU_JIT_INPUT_PTX) image.push_back('\0');
  reinterpret_cast<Link*>(handle)->images.push_back(std::move(image));
  return CUDA_SUCCESS;
}
CUresult cuLinkAddFile_v2(Driver* state, CUlinkState handle, CUjitInputType type, const char* path,
                          unsigned int count, CUjit_option* options, void** values) {
  if (!path) return CUDA_ERROR_INVALID_VALUE;
  FILE* file = fopen(path, "rbe");
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  std::string bytes;
  char buffer[65536];
  for (size_t n; (n = fread(buffer, 1, sizeof buffer, file)) > 0;) bytes.append(buffer, n);
  fclose(file);
  return cuLinkAddData_v2(state, handle, type, bytes.data(), bytes.size(), path, count, options,
                          values);
}
CUresult cuLinkComplete(Driver*, CUlinkState handle, void** image, size_t* size) {
  if (!handle) return CUDA_ERROR_INVALID_HANDLE;
  auto* link = reinterpret_cast<Link*>(handle);
  if (!image || link->images.empty()) return CUDA_ERROR_INVALID_VALUE;
  *image = link->images.back().data();
  if (size) *size = link->images.back().size();
  return CUDA_SUCCESS;
}
CUresult cuLinkDestroy(Driver*, CUlinkState handle) {
  if (!handle) return CUDA_ERROR_INVALID_HANDLE;
  delete reinterpret_cast<Link*>(handle);
  return CUDA_SUCCESS;
}

}  // namespace tonnage::driver
