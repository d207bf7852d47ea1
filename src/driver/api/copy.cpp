// Copies and sets: host memory really moves; device memory has content only where it is known
// (gpu/shadow_memory.h).
#include <string.h>

#include <vector>

#include "driver/api/copy.h"
#include "driver/graphs/graph.h"
#include "driver/recording.h"
#include "driver/state.h"

namespace tonnage::driver {
namespace {

int device_of(uint64_t address) {
  Allocation allocation;
  return find_allocation(address, &allocation) && allocation.device ? allocation.device->index : 0;
}

bool keep_upload(Driver* state, size_t n) {
  const int policy = upload_policy();
  if (policy != 0) return policy > 0;
  return n <= state->session->known_integer_bytes;
}

}  // namespace

void move_bytes(uint64_t dst, uint64_t src, size_t n) {
  if (n == 0) return;
  Driver* state = driver();
  const bool to_device = state->is_device_address(dst), from_device = state->is_device_address(src);
  if (!to_device && !from_device) {
    memmove(reinterpret_cast<void*>(dst), reinterpret_cast<const void*>(src), n);
  } else if (to_device && !from_device) {
    if (keep_upload(state, n))
      state->content.set(dst, reinterpret_cast<const void*>(src), n);
    else
      state->content.forget(dst, n);
  } else if (to_device) {
    state->content.copy(dst, src, n);
  } else {
    const size_t unknown = state->content.read(src, reinterpret_cast<void*>(dst), n);
    if (unknown == 0) return;
    int64_t posted = 0;
    if (unknown == n && (n == 4 || n == 8) && take_posted_read(&posted)) {
      memcpy(reinterpret_cast<void*>(dst), &posted, n);
      return;
    }
    record_unknown_read(device_of(src), src, unknown);
  }
}

void fill_bytes(uint64_t dst, uint32_t pattern, unsigned width, size_t n) {
  if (n == 0) return;
  Driver* state = driver();
  if (state->is_device_address(dst)) {
    state->content.fill(dst, pattern, width, n);
    return;
  }
  auto* out = reinterpret_cast<unsigned char*>(dst);
  for (size_t i = 0; i < n; i += width) memcpy(out + i, &pattern, width);
}

// Whether [address, address + n) is memory that a copy may touch: device addresses must be allocated.
static bool valid_range(uint64_t address, size_t n) {
  Driver* state = driver();
  if (!state->is_device_address(address))
    return true;  // host: trusted, as the driver does with pageable memory
  Allocation allocation;
  if (!find_allocation(address, &allocation)) return false;
  const uint64_t end =
      allocation.address + std::max(allocation.requested_bytes, allocation.accounted_bytes);
  if (address + n <= end) return true;
  // Adjacent mappings of one reservation (expandable segments) are separate allocations.
  return allocation.kind == abi::DeviceMemoryKind::kVirtual;
}

CUresult copy_linear(uint64_t dst, uint64_t src, size_t n, CUstream handle) {
  VGPU_CONTEXT(context);
  Stream* stream = to_stream(handle, context);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (n == 0) return CUDA_SUCCESS;
  if (!dst || !src || !valid_range(dst, n) || !valid_range(src, n)) return CUDA_ERROR_INVALID_VALUE;
  bool capturing = false;
  if (const CUresult result = capture_state(stream, &capturing); result != CUDA_SUCCESS)
    return result;
  if (capturing) {
    CUDA_MEMCPY3D copy = {};
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
    copy.srcDevice = src;
    copy.dstDevice = dst;
    copy.srcPitch = copy.dstPitch = n;
    copy.WidthInBytes = n;
    copy.Height = copy.Depth = 1;
    return capture_memcpy(stream, copy);
  }
  advance(stream);
  move_bytes(dst, src, n);
  return CUDA_SUCCESS;
}

namespace {

// `rows` rows of `columns` elements of `width` bytes, `pitch` bytes apart.
CUresult set_rows(uint64_t dst, size_t pitch, uint32_t pattern, unsigned width, size_t columns,
                  size_t rows, CUstream handle) {
  VGPU_CONTEXT(context);
  Stream* stream = to_stream(handle, context);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (columns == 0 || rows == 0) return CUDA_SUCCESS;
  if (!dst || dst % width || (rows > 1 && pitch < columns * width) ||
      !valid_range(dst, pitch * (rows - 1) + columns * width))
    return CUDA_ERROR_INVALID_VALUE;
  bool capturing = false;
  if (const CUresult result = capture_state(stream, &capturing); result != CUDA_SUCCESS)
    return result;
  if (capturing) {
    CUDA_MEMSET_NODE_PARAMS node = {};
    node.dst = dst;
    node.pitch = pitch;
    node.value = pattern;
    node.elementSize = width;
    node.width = columns;
    node.height = rows;
    return capture_memset(stream, node);
  }
  advance(stream);
  for (size_t row = 0; row < rows; row++)
    fill_bytes(dst + row * pitch, pattern, width, columns * width);
  return CUDA_SUCCESS;
}

CUresult set_linear(uint64_t dst, uint32_t pattern, unsigned width, size_t count, CUstream stream) {
  return set_rows(dst, count * width, pattern, width, count, 1, stream);
}

CUresult copy_3d(const CUDA_MEMCPY3D& copy, CUstream handle) {
  VGPU_CONTEXT(context);
  Stream* stream = to_stream(handle, context);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (copy.WidthInBytes == 0 || copy.Height == 0 || copy.Depth == 0) return CUDA_SUCCESS;
  bool capturing = false;
  if (const CUresult result = capture_state(stream, &capturing); result != CUDA_SUCCESS)
    return result;
  if (capturing) return capture_memcpy(stream, copy);
  advance(stream);
  run_memcpy(copy);
  return CUDA_SUCCESS;
}

CUresult copy_3d(const CUDA_MEMCPY3D* copy, CUstream stream) {
  return copy ? copy_3d(*copy, stream) : CUDA_ERROR_INVALID_VALUE;
}

CUresult copy_2d(const CUDA_MEMCPY2D* p, CUstream stream) {
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  CUDA_MEMCPY3D copy = {};
  copy.srcXInBytes = p->srcXInBytes;
  copy.srcY = p->srcY;
  copy.srcMemoryType = p->srcMemoryType;
  copy.srcHost = p->srcHost;
  copy.srcDevice = p->srcDevice;
  copy.srcArray = p->srcArray;
  copy.srcPitch = p->srcPitch;
  copy.dstXInBytes = p->dstXInBytes;
  copy.dstY = p->dstY;
  copy.dstMemoryType = p->dstMemoryType;
  copy.dstHost = p->dstHost;
  copy.dstDevice = p->dstDevice;
  copy.dstArray = p->dstArray;
  copy.dstPitch = p->dstPitch;
  copy.WidthInBytes = p->WidthInBytes;
  copy.Height = p->Height;
  copy.Depth = 1;
  return copy_3d(copy, stream);
}

CUresult copy_3d_peer(const CUDA_MEMCPY3D_PEER* p, CUstream stream) {
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  CUDA_MEMCPY3D copy = {};
  copy.srcXInBytes = p->srcXInBytes;
  copy.srcY = p->srcY;
  copy.srcZ = p->srcZ;
  copy.srcMemoryType = p->srcMemoryType;
  copy.srcHost = p->srcHost;
  copy.srcDevice = p->srcDevice;
  copy.srcArray = p->srcArray;
  copy.srcPitch = p->srcPitch;
  copy.srcHeight = p->srcHeight;
  copy.dstXInBytes = p->dstXInBytes;
  copy.dstY = p->dstY;
  copy.dstZ = p->dstZ;
  copy.dstMemoryType = p->dstMemoryType;
  copy.dstHost = p->dstHost;
  copy.dstDevice = p->dstDevice;
  copy.dstArray = p->dstArray;
  copy.dstPitch = p->dstPitch;
  copy.dstHeight = p->dstHeight;
  copy.WidthInBytes = p->WidthInBytes;
  copy.Height = p->Height;
  copy.Depth = p->Depth;
  return copy_3d(copy, stream);
}

uint64_t number(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

}  // namespace
}  // namespace tonnage::driver

using namespace tonnage::driver;

VGPU_API cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t n) {
  return copy_linear(dst, src, n, nullptr);
}
VGPU_API cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream) {
  return copy_linear(dst, src, n, stream);
}
VGPU_API cuMemcpyHtoD_v2(CUdeviceptr dst, const void* src, size_t n) {
  return copy_linear(dst, number(src), n, nullptr);
}
VGPU_API cuMemcpyDtoH_v2(void* dst, CUdeviceptr src, size_t n) {
  return copy_linear(number(dst), src, n, nullptr);
}
VGPU_API cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t n) {
  return copy_linear(dst, src, n, nullptr);
}
VGPU_API cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void* src, size_t n, CUstream stream) {
  return copy_linear(dst, number(src), n, stream);
}
VGPU_API cuMemcpyDtoHAsync_v2(void* dst, CUdeviceptr src, size_t n, CUstream stream) {
  return copy_linear(number(dst), src, n, stream);
}
VGPU_API cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream) {
  return copy_linear(dst, src, n, stream);
}
VGPU_API cuMemcpyPeer(CUdeviceptr dst, CUcontext, CUdeviceptr src, CUcontext, size_t n) {
  return copy_linear(dst, src, n, nullptr);
}
VGPU_API cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext, CUdeviceptr src, CUcontext, size_t n,
                           CUstream stream) {
  return copy_linear(dst, src, n, stream);
}
VGPU_API cuMemcpyBatchAsync_v2(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count,
                               CUmemcpyAttributes*, size_t*, size_t, CUstream stream) {
  if (count && (!dsts || !srcs || !sizes)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; i++)
    if (const CUresult result = copy_linear(dsts[i], srcs[i], sizes[i], stream);
        result != CUDA_SUCCESS)
      return result;
  return CUDA_SUCCESS;
}
VGPU_API cuMemcpyBatchAsync(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count,
                            CUmemcpyAttributes* attributes, size_t* indices, size_t attribute_count,
                            size_t* fail_index, CUstream stream) {
  const CUresult result =
      cuMemcpyBatchAsync_v2(dsts, srcs, sizes, count, attributes, indices, attribute_count, stream);
  if (result != CUDA_SUCCESS && fail_index) *fail_index = SIZE_MAX;
  return result;
}

VGPU_API cuMemcpy2D_v2(const CUDA_MEMCPY2D* copy) { return copy_2d(copy, nullptr); }
VGPU_API cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* copy) { return copy_2d(copy, nullptr); }
VGPU_API cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* copy, CUstream stream) {
  return copy_2d(copy, stream);
}
VGPU_API cuMemcpy3D_v2(const CUDA_MEMCPY3D* copy) { return copy_3d(copy, nullptr); }
VGPU_API cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* copy, CUstream stream) {
  return copy_3d(copy, stream);
}
VGPU_API cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* copy) { return copy_3d_peer(copy, nullptr); }
VGPU_API cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* copy, CUstream stream) {
  return copy_3d_peer(copy, stream);
}

VGPU_API cuMemsetD8_v2(CUdeviceptr dst, unsigned char v, size_t n) {
  return set_linear(dst, v, 1, n, nullptr);
}
VGPU_API cuMemsetD16_v2(CUdeviceptr dst, unsigned short v, size_t n) {
  return set_linear(dst, v, 2, n, nullptr);
}
VGPU_API cuMemsetD32_v2(CUdeviceptr dst, unsigned int v, size_t n) {
  return set_linear(dst, v, 4, n, nullptr);
}
VGPU_API cuMemsetD8Async(CUdeviceptr dst, unsigned char v, size_t n, CUstream s) {
  return set_linear(dst, v, 1, n, s);
}
VGPU_API cuMemsetD16Async(CUdeviceptr dst, unsigned short v, size_t n, CUstream s) {
  return set_linear(dst, v, 2, n, s);
}
VGPU_API cuMemsetD32Async(CUdeviceptr dst, unsigned int v, size_t n, CUstream s) {
  return set_linear(dst, v, 4, n, s);
}
VGPU_API cuMemsetD2D8_v2(CUdeviceptr dst, size_t pitch, unsigned char v, size_t w, size_t h) {
  return set_rows(dst, pitch, v, 1, w, h, nullptr);
}
VGPU_API cuMemsetD2D16_v2(CUdeviceptr dst, size_t pitch, unsigned short v, size_t w, size_t h) {
  return set_rows(dst, pitch, v, 2, w, h, nullptr);
}
VGPU_API cuMemsetD2D32_v2(CUdeviceptr dst, size_t pitch, unsigned int v, size_t w, size_t h) {
  return set_rows(dst, pitch, v, 4, w, h, nullptr);
}
VGPU_API cuMemsetD2D8Async(CUdeviceptr dst, size_t pitch, unsigned char v, size_t w, size_t h,
                           CUstream s) {
  return set_rows(dst, pitch, v, 1, w, h, s);
}
VGPU_API cuMemsetD2D16Async(CUdeviceptr dst, size_t pitch, unsigned short v, size_t w, size_t h,
                            CUstream s) {
  return set_rows(dst, pitch, v, 2, w, h, s);
}
VGPU_API cuMemsetD2D32Async(CUdeviceptr dst, size_t pitch, unsigned int v, size_t w, size_t h,
                            CUstream s) {
  return set_rows(dst, pitch, v, 4, w, h, s);
}
