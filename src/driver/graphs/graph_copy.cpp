// Copies and memsets in their general, three-dimensional form, in shadow memory.
#include "driver/api/array.h"
#include "driver/api/copy.h"
#include "driver/graphs/graph.h"

namespace tonnage::driver {
namespace {

// One side of a copy as plain addresses.
struct Side {
  uint64_t base = 0;
  uint64_t row_bytes = 0, slice_bytes = 0;
};

Side side_of(CUmemorytype type, const void* host, CUdeviceptr device, CUarray array, size_t x,
             size_t y, size_t z, size_t pitch, size_t height, const CUDA_MEMCPY3D& copy) {
  Side side;
  if (type == CU_MEMORYTYPE_ARRAY) {
    ArrayPlace place;
    if (!array_place(array, &place)) return side;
    side.base = place.address;
    side.row_bytes = place.row_bytes;
    side.slice_bytes = place.row_bytes * place.rows;
  } else {
    side.base = type == CU_MEMORYTYPE_HOST ? reinterpret_cast<uint64_t>(host) : device;
    side.row_bytes = pitch ? pitch : copy.WidthInBytes;
    side.slice_bytes = side.row_bytes * (height ? height : copy.Height);
  }
  if (side.base) side.base += x + y * side.row_bytes + z * side.slice_bytes;
  return side;
}

}  // namespace

void run_memcpy(const CUDA_MEMCPY3D& copy) {
  const Side from =
      side_of(copy.srcMemoryType, copy.srcHost, copy.srcDevice, copy.srcArray, copy.srcXInBytes,
              copy.srcY, copy.srcZ, copy.srcPitch, copy.srcHeight, copy);
  const Side to =
      side_of(copy.dstMemoryType, copy.dstHost, copy.dstDevice, copy.dstArray, copy.dstXInBytes,
              copy.dstY, copy.dstZ, copy.dstPitch, copy.dstHeight, copy);
  if (!from.base || !to.base) return;
  const size_t width = copy.WidthInBytes;
  const bool whole_rows = from.row_bytes == width && to.row_bytes == width;
  for (size_t z = 0; z < copy.Depth; z++) {
    const uint64_t source = from.base + z * from.slice_bytes, target = to.base + z * to.slice_bytes;
    if (whole_rows) {
      move_bytes(target, source, width * copy.Height);
      continue;
    }
    for (size_t y = 0; y < copy.Height; y++)
      move_bytes(target + y * to.row_bytes, source + y * from.row_bytes, width);
  }
}

void run_memset(const CUDA_MEMSET_NODE_PARAMS& set) {
  const size_t row = set.width * set.elementSize;
  if (set.height == 1 || set.pitch == row) {
    fill_bytes(set.dst, set.value, set.elementSize, row * set.height);
    return;
  }
  for (size_t y = 0; y < set.height; y++)
    fill_bytes(set.dst + y * set.pitch, set.value, set.elementSize, row);
}

}  // namespace tonnage::driver
