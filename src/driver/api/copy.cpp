// Copies and memsets. Host memory is really copied. Device memory has content only where it is
// known (gpu/shadow_memory.h).
#include <string.h>

#include <vector>

#include "driver/api/copy.h"
#include "driver/bridge.h"
#include "driver/entry_points.h"
#include "driver/graphs/graph.h"
#include "driver/host_regions.h"
#include "driver/recording.h"
#include "driver/state.h"

namespace tonnage::driver {
namespace {

int device_of(uint64_t address) {
  Allocation allocation;
  return find_allocation(address, &allocation) && allocation.device ? allocation.device->index : 0;
}

// Memsets of managed memory from this size on take no host memory, because the host may not have
// enough.
constexpr size_t kLargeFill = 64u << 20;

void write_pattern(unsigned char* out, uint32_t pattern, unsigned width, size_t n) {
  for (size_t i = 0; i < n; i += width) memcpy(out + i, &pattern, width);
}

bool lies_in_managed(uint64_t address, size_t n) {
  Allocation allocation;
  return find_allocation(address, &allocation) &&
         allocation.kind == abi::DeviceMemoryKind::kManaged &&
         n <= allocation.address + allocation.requested_bytes - address;
}

// A managed range as the device uses it, where there is any.
void use_managed(const Stream* stream, uint64_t address) {
  Driver* state = driver();
  if (state->managed.any()) state->managed.use(address, stream->context->device);
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
  if (n >= kLargeFill && lies_in_managed(dst, n) && fill_host_pages(dst, pattern, width, n)) return;
  write_pattern(reinterpret_cast<unsigned char*>(dst), pattern, width, n);
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

CUresult copy_linear(uint64_t dst, uint64_t src, size_t n, Stream* stream) {
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
  use_managed(stream, dst);
  use_managed(stream, src);
  move_bytes(dst, src, n);
  return CUDA_SUCCESS;
}

namespace {

// `rows` rows of `columns` elements of `width` bytes, `pitch` bytes apart.
CUresult set_rows(uint64_t dst, size_t pitch, uint32_t pattern, unsigned width, size_t columns,
                  size_t rows, Stream* stream) {
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
  use_managed(stream, dst);
  for (size_t row = 0; row < rows; row++)
    fill_bytes(dst + row * pitch, pattern, width, columns * width);
  return CUDA_SUCCESS;
}

CUresult set_linear(uint64_t dst, uint32_t pattern, unsigned width, size_t count, Stream* stream) {
  return set_rows(dst, count * width, pattern, width, count, 1, stream);
}

CUresult copy_3d(const CUDA_MEMCPY3D& copy, Stream* stream) {
  if (copy.WidthInBytes == 0 || copy.Height == 0 || copy.Depth == 0) return CUDA_SUCCESS;
  bool capturing = false;
  if (const CUresult result = capture_state(stream, &capturing); result != CUDA_SUCCESS)
    return result;
  if (capturing) return capture_memcpy(stream, copy);
  advance(stream);
  run_memcpy(copy);
  return CUDA_SUCCESS;
}

CUresult copy_3d(const CUDA_MEMCPY3D* copy, Stream* stream) {
  return copy ? copy_3d(*copy, stream) : CUDA_ERROR_INVALID_VALUE;
}

CUresult copy_2d(const CUDA_MEMCPY2D* p, Stream* stream) {
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

CUresult copy_3d_peer(const CUDA_MEMCPY3D_PEER* p, Stream* stream) {
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

CUresult cuMemcpy(Context* context, CUdeviceptr dst, CUdeviceptr src, size_t n) {
  return copy_linear(dst, src, n, &context->legacy_stream);
}
CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t n, Stream* stream) {
  return copy_linear(dst, src, n, stream);
}
CUresult cuMemcpyHtoD_v2(Context* context, CUdeviceptr dst, const void* src, size_t n) {
  return copy_linear(dst, number(src), n, &context->legacy_stream);
}
CUresult cuMemcpyDtoH_v2(Context* context, void* dst, CUdeviceptr src, size_t n) {
  return copy_linear(number(dst), src, n, &context->legacy_stream);
}
CUresult cuMemcpyDtoD_v2(Context* context, CUdeviceptr dst, CUdeviceptr src, size_t n) {
  return copy_linear(dst, src, n, &context->legacy_stream);
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void* src, size_t n, Stream* stream) {
  return copy_linear(dst, number(src), n, stream);
}
CUresult cuMemcpyDtoHAsync_v2(void* dst, CUdeviceptr src, size_t n, Stream* stream) {
  return copy_linear(number(dst), src, n, stream);
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t n, Stream* stream) {
  return copy_linear(dst, src, n, stream);
}
CUresult cuMemcpyPeer(Context* context, CUdeviceptr dst, CUcontext, CUdeviceptr src, CUcontext,
                      size_t n) {
  return copy_linear(dst, src, n, &context->legacy_stream);
}
CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext, CUdeviceptr src, CUcontext, size_t n,
                           Stream* stream) {
  return copy_linear(dst, src, n, stream);
}
CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count,
                               CUmemcpyAttributes*, size_t*, size_t, Stream* stream) {
  if (count && (!dsts || !srcs || !sizes)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; i++)
    if (const CUresult result = copy_linear(dsts[i], srcs[i], sizes[i], stream);
        result != CUDA_SUCCESS)
      return result;
  return CUDA_SUCCESS;
}
CUresult cuMemcpyBatchAsync(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count,
                            CUmemcpyAttributes* attributes, size_t* indices, size_t attribute_count,
                            size_t* fail_index, Stream* stream) {
  const CUresult result =
      cuMemcpyBatchAsync_v2(dsts, srcs, sizes, count, attributes, indices, attribute_count, stream);
  if (result != CUDA_SUCCESS && fail_index) *fail_index = SIZE_MAX;
  return result;
}

CUresult cuMemcpy2D_v2(Context* context, const CUDA_MEMCPY2D* copy) {
  return copy_2d(copy, &context->legacy_stream);
}
CUresult cuMemcpy2DUnaligned_v2(Context* context, const CUDA_MEMCPY2D* copy) {
  return copy_2d(copy, &context->legacy_stream);
}
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* copy, Stream* stream) {
  return copy_2d(copy, stream);
}
CUresult cuMemcpy3D_v2(Context* context, const CUDA_MEMCPY3D* copy) {
  return copy_3d(copy, &context->legacy_stream);
}
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* copy, Stream* stream) {
  return copy_3d(copy, stream);
}
CUresult cuMemcpy3DPeer(Context* context, const CUDA_MEMCPY3D_PEER* copy) {
  return copy_3d_peer(copy, &context->legacy_stream);
}
CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* copy, Stream* stream) {
  return copy_3d_peer(copy, stream);
}

CUresult cuMemsetD8_v2(Context* context, CUdeviceptr dst, unsigned char v, size_t n) {
  return set_linear(dst, v, 1, n, &context->legacy_stream);
}
CUresult cuMemsetD16_v2(Context* context, CUdeviceptr dst, unsigned short v, size_t n) {
  return set_linear(dst, v, 2, n, &context->legacy_stream);
}
CUresult cuMemsetD32_v2(Context* context, CUdeviceptr dst, unsigned int v, size_t n) {
  return set_linear(dst, v, 4, n, &context->legacy_stream);
}
CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char v, size_t n, Stream* s) {
  return set_linear(dst, v, 1, n, s);
}
CUresult cuMemsetD16Async(CUdeviceptr dst, unsigned short v, size_t n, Stream* s) {
  return set_linear(dst, v, 2, n, s);
}
CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned int v, size_t n, Stream* s) {
  return set_linear(dst, v, 4, n, s);
}
CUresult cuMemsetD2D8_v2(Context* context, CUdeviceptr dst, size_t pitch, unsigned char v, size_t w,
                         size_t h) {
  return set_rows(dst, pitch, v, 1, w, h, &context->legacy_stream);
}
CUresult cuMemsetD2D16_v2(Context* context, CUdeviceptr dst, size_t pitch, unsigned short v,
                          size_t w, size_t h) {
  return set_rows(dst, pitch, v, 2, w, h, &context->legacy_stream);
}
CUresult cuMemsetD2D32_v2(Context* context, CUdeviceptr dst, size_t pitch, unsigned int v, size_t w,
                          size_t h) {
  return set_rows(dst, pitch, v, 4, w, h, &context->legacy_stream);
}
CUresult cuMemsetD2D8Async(CUdeviceptr dst, size_t pitch, unsigned char v, size_t w, size_t h,
                           Stream* s) {
  return set_rows(dst, pitch, v, 1, w, h, s);
}
CUresult cuMemsetD2D16Async(CUdeviceptr dst, size_t pitch, unsigned short v, size_t w, size_t h,
                            Stream* s) {
  return set_rows(dst, pitch, v, 2, w, h, s);
}
CUresult cuMemsetD2D32Async(CUdeviceptr dst, size_t pitch, unsigned int v, size_t w, size_t h,
                            Stream* s) {
  return set_rows(dst, pitch, v, 4, w, h, s);
}

}  // namespace tonnage::driver
