// Copies between one-dimensional places in arrays and memory: the older, flat form of cuMemcpy3D.
#include "driver/api/array.h"
#include "driver/entry_points.h"

namespace tonnage::driver {

namespace {

struct Place {
  CUarray array = nullptr;
  uint64_t address = 0;  // device or host, if there is no array
  size_t offset = 0;
};

// Offsets in arrays are in bytes; a flat copy stays inside the first row.
CUresult flat(const Place& to, const Place& from, size_t n, CUstream stream, bool wait) {
  CUDA_MEMCPY3D copy = {};
  copy.srcMemoryType = from.array ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_UNIFIED;
  copy.srcArray = from.array;
  copy.srcDevice = from.address;
  copy.srcXInBytes = from.offset;
  copy.dstMemoryType = to.array ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_UNIFIED;
  copy.dstArray = to.array;
  copy.dstDevice = to.address;
  copy.dstXInBytes = to.offset;
  copy.srcPitch = copy.dstPitch = copy.WidthInBytes = n;
  copy.Height = copy.Depth = 1;
  for (const Place* place : {&to, &from}) {
    ArrayPlace where;
    if (!place->array) {
      if (n && !place->address) return CUDA_ERROR_INVALID_VALUE;
    } else if (!array_place(place->array, &where)) {
      return CUDA_ERROR_INVALID_HANDLE;
    } else if (place->offset > where.row_bytes || n > where.row_bytes - place->offset) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return wait ? cuMemcpy3D_v2(&copy) : cuMemcpy3DAsync_v2(&copy, stream);
}

uint64_t number(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

}  // namespace

CUresult cuMemcpyDtoA_v2(Driver*, CUarray to, size_t offset, CUdeviceptr from, size_t n) {
  return flat({to, 0, offset}, {nullptr, from, 0}, n, nullptr, true);
}
CUresult cuMemcpyAtoD_v2(Driver*, CUdeviceptr to, CUarray from, size_t offset, size_t n) {
  return flat({nullptr, to, 0}, {from, 0, offset}, n, nullptr, true);
}
CUresult cuMemcpyHtoA_v2(Driver*, CUarray to, size_t offset, const void* from, size_t n) {
  return flat({to, 0, offset}, {nullptr, number(from), 0}, n, nullptr, true);
}
CUresult cuMemcpyAtoH_v2(Driver*, void* to, CUarray from, size_t offset, size_t n) {
  return flat({nullptr, number(to), 0}, {from, 0, offset}, n, nullptr, true);
}
CUresult cuMemcpyAtoA_v2(Driver*, CUarray to, size_t to_offset, CUarray from, size_t from_offset,
                         size_t n) {
  return flat({to, 0, to_offset}, {from, 0, from_offset}, n, nullptr, true);
}
CUresult cuMemcpyHtoAAsync_v2(Driver*, CUarray to, size_t offset, const void* from, size_t n,
                              CUstream stream) {
  return flat({to, 0, offset}, {nullptr, number(from), 0}, n, stream, false);
}
CUresult cuMemcpyAtoHAsync_v2(Driver*, void* to, CUarray from, size_t offset, size_t n,
                              CUstream stream) {
  return flat({nullptr, number(to), 0}, {from, 0, offset}, n, stream, false);
}

}  // namespace tonnage::driver
