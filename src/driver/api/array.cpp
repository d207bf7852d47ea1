// Arrays and mipmapped arrays. Here their elements are stored row after row (a real driver tiles
// them), so that data that is copied in can be copied out. Their sizes are those of a real driver,
// measured on an H200: rows of whole 512 bytes, heights of whole tiles (8 rows, or more in powers
// of two up to 128), and arrays below 2 MiB share blocks of that size with others of the same
// element size.
#include <string.h>

#include <algorithm>
#include <map>

#include "driver/api/array.h"
#include "driver/entry_points.h"

namespace tonnage::driver {
namespace {

// A block that small arrays share.
struct ArrayBlock {
  uint64_t start = 0;
  Device* device = nullptr;
  unsigned element = 0;
  std::map<uint64_t, uint64_t> free;  // address, bytes: merged
};

struct Table {
  std::mutex mutex;                // before memory_mutex
  std::vector<ArrayBlock> blocks;  // oldest first
  std::unordered_map<const void*, std::unique_ptr<Array>> arrays;
  std::unordered_map<const void*, std::unique_ptr<MipmappedArray>> mipmapped;
};
Table& table() {
  static Table* instance = new Table;
  return *instance;
}

constexpr unsigned kKnownFlags = CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST |
                                 CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_TEXTURE_GATHER |
                                 CUDA_ARRAY3D_DEPTH_TEXTURE | CUDA_ARRAY3D_COLOR_ATTACHMENT |
                                 CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;
constexpr unsigned kUnbacked = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;

CUresult check(const CUDA_ARRAY3D_DESCRIPTOR& d, const Device* device) {
  if (d.Width == 0 || (d.Flags & ~kKnownFlags)) return CUDA_ERROR_INVALID_VALUE;
  if (d.NumChannels != 1 && d.NumChannels != 2 && d.NumChannels != 4)
    return CUDA_ERROR_INVALID_VALUE;
  if (element_bytes(d.Format, d.NumChannels) == 0)
    return CUDA_ERROR_NOT_SUPPORTED;  // compressed and planar formats
  const bool layered = d.Flags & CUDA_ARRAY3D_LAYERED, cube = d.Flags & CUDA_ARRAY3D_CUBEMAP;
  if (cube && (d.Width != d.Height || d.Depth == 0 || d.Depth % 6 || (!layered && d.Depth != 6)))
    return CUDA_ERROR_INVALID_VALUE;
  if (d.Depth && !d.Height && !layered) return CUDA_ERROR_INVALID_VALUE;
  const int32_t* limit = device->card->attributes;
  const auto within = [&](size_t extent, int attribute) {
    return limit[attribute] <= 0 || extent <= static_cast<size_t>(limit[attribute]);
  };
  if (d.Depth && !layered && !cube)
    return within(d.Width, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH) &&
                   within(d.Height, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT) &&
                   within(d.Depth, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH)
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
  if (d.Height)
    return within(d.Width, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH) &&
                   within(d.Height, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT)
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
  return within(d.Width, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH) ? CUDA_SUCCESS
                                                                      : CUDA_ERROR_INVALID_VALUE;
}

uint64_t bytes_of(const CUDA_ARRAY3D_DESCRIPTOR& d) {
  const uint64_t row =
      gpu::round_up(static_cast<uint64_t>(d.Width) * element_bytes(d.Format, d.NumChannels), 512);
  uint64_t rows = std::max<size_t>(d.Height, 1);
  if (rows > 1) {
    uint64_t tile = 8;
    while (tile < rows && tile < 128) tile *= 2;
    rows = gpu::round_up(rows, tile);
  }
  return row * rows * std::max<size_t>(d.Depth, 1);
}

// Memory for `bytes` of elements of one size. Under table().mutex.
CUresult take_memory(Context* context, uint64_t bytes, unsigned element, uint64_t* out) {
  CUdeviceptr address = 0;
  if (bytes >= gpu::kAllocationGranularity) {
    const CUresult result = allocate_device_memory(context->device, context, bytes,
                                                   abi::DeviceMemoryKind::kArray, &address);
    *out = address;
    return result;
  }
  auto& blocks = table().blocks;
  for (ArrayBlock& block : blocks) {
    if (block.device != context->device || block.element != element) continue;
    for (auto it = block.free.begin(); it != block.free.end(); ++it) {
      if (it->second < bytes) continue;
      *out = it->first;
      const uint64_t rest = it->second - bytes;
      block.free.erase(it);
      if (rest) block.free[*out + bytes] = rest;
      return CUDA_SUCCESS;
    }
  }
  // Not the context's: arrays of others may share it.
  const CUresult result =
      allocate_device_memory(context->device, nullptr, gpu::kAllocationGranularity,
                             abi::DeviceMemoryKind::kArray, &address);
  if (result != CUDA_SUCCESS) return result;
  ArrayBlock& block = blocks.emplace_back();
  block.start = address;
  block.device = context->device;
  block.element = element;
  if (bytes < gpu::kAllocationGranularity)
    block.free[address + bytes] = gpu::kAllocationGranularity - bytes;
  *out = address;
  return CUDA_SUCCESS;
}

void give_memory(uint64_t address, uint64_t bytes) {
  if (!address) return;
  auto& blocks = table().blocks;
  const auto it = std::find_if(blocks.begin(), blocks.end(), [address](const ArrayBlock& block) {
    return address >= block.start && address < block.start + gpu::kAllocationGranularity;
  });
  if (it == blocks.end()) {
    free_device_memory(address);
    return;
  }
  driver()->content.forget(address, bytes);
  auto& free = it->free;
  auto next = free.lower_bound(address);
  if (next != free.end() && next->first == address + bytes) {
    bytes += next->second;
    next = free.erase(next);
  }
  if (next != free.begin() && std::prev(next)->first + std::prev(next)->second == address) {
    --next;
    next->second += bytes;
    bytes = next->second;
  } else {
    free[address] = bytes;
  }
  if (bytes < gpu::kAllocationGranularity) return;
  const uint64_t start = it->start;
  blocks.erase(it);
  free_device_memory(start);
}

CUresult create(Context* context, CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR& descriptor) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = check(descriptor, context->device); result != CUDA_SUCCESS)
    return result;
  if (const CUresult result = capture_unsafe(); result != CUDA_SUCCESS) return result;
  auto array = std::make_unique<Array>();
  array->descriptor = descriptor;
  array->device = context->device;
  std::lock_guard lock(table().mutex);
  if (!(descriptor.Flags & kUnbacked)) {
    const unsigned element = element_bytes(descriptor.Format, descriptor.NumChannels);
    const CUresult result = take_memory(context, bytes_of(descriptor), element, &array->address);
    if (result != CUDA_SUCCESS) return result;
  }
  *out = reinterpret_cast<CUarray>(array.get());
  table().arrays[*out] = std::move(array);
  return CUDA_SUCCESS;
}

CUresult requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* out, uint64_t bytes, bool deferred) {
  if (!out || !deferred) return CUDA_ERROR_INVALID_VALUE;
  memset(out, 0, sizeof *out);
  out->size = gpu::round_up(bytes, gpu::kAllocationGranularity);
  out->alignment = gpu::kAllocationGranularity;
  return CUDA_SUCCESS;
}

// Tiles of 64 KiB, square in elements (CUDA's sparse tile).
CUresult sparse(CUDA_ARRAY_SPARSE_PROPERTIES* out, const CUDA_ARRAY3D_DESCRIPTOR& d) {
  if (!out || !(d.Flags & CUDA_ARRAY3D_SPARSE)) return CUDA_ERROR_INVALID_VALUE;
  memset(out, 0, sizeof *out);
  unsigned width = 1, height = 1;
  const unsigned elements = (64u << 10) / element_bytes(d.Format, d.NumChannels);
  while (width * height < elements) (width <= height ? width : height) *= 2;
  out->tileExtent = {width, height, 1};
  return CUDA_SUCCESS;
}

}  // namespace

unsigned element_bytes(CUarray_format format, unsigned channels) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return 2 * channels;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return 4 * channels;
    case CU_AD_FORMAT_UNORM_INT8X1:
    case CU_AD_FORMAT_SNORM_INT8X1: return 1;
    case CU_AD_FORMAT_UNORM_INT8X2:
    case CU_AD_FORMAT_SNORM_INT8X2:
    case CU_AD_FORMAT_UNORM_INT16X1:
    case CU_AD_FORMAT_SNORM_INT16X1: return 2;
    case CU_AD_FORMAT_UNORM_INT8X4:
    case CU_AD_FORMAT_SNORM_INT8X4:
    case CU_AD_FORMAT_UNORM_INT16X2:
    case CU_AD_FORMAT_SNORM_INT16X2:
    case CU_AD_FORMAT_UNORM_INT_101010_2: return 4;
    case CU_AD_FORMAT_UNORM_INT16X4:
    case CU_AD_FORMAT_SNORM_INT16X4: return 8;
    default: return 0;
  }
}

bool find_array(CUarray handle, Array* out) {
  std::lock_guard lock(table().mutex);
  const auto it = table().arrays.find(handle);
  if (it == table().arrays.end()) return false;
  *out = *it->second;
  return true;
}

bool is_mipmapped_array(CUmipmappedArray handle) {
  std::lock_guard lock(table().mutex);
  return table().mipmapped.count(handle) != 0;
}

bool array_place(CUarray handle, ArrayPlace* out) {
  Array array;
  if (!find_array(handle, &array)) return false;
  out->address = array.address;
  out->row_bytes =
      array.descriptor.Width * element_bytes(array.descriptor.Format, array.descriptor.NumChannels);
  out->rows = std::max<size_t>(array.descriptor.Height, 1);
  out->slices = std::max<size_t>(array.descriptor.Depth, 1);
  return true;
}

CUresult cuArray3DCreate_v2(Context* context, CUarray* out,
                            const CUDA_ARRAY3D_DESCRIPTOR* descriptor) {
  return descriptor ? create(context, out, *descriptor) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuArrayCreate_v2(Context* context, CUarray* out, const CUDA_ARRAY_DESCRIPTOR* d) {
  if (!d) return CUDA_ERROR_INVALID_VALUE;
  return create(context, out, {d->Width, d->Height, 0, d->Format, d->NumChannels, 0});
}
CUresult cuArray3DCreate(Context* context, CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR_v1* d) {
  if (!d) return CUDA_ERROR_INVALID_VALUE;
  return create(context, out, {d->Width, d->Height, d->Depth, d->Format, d->NumChannels, d->Flags});
}
CUresult cuArrayCreate(Context* context, CUarray* out, const CUDA_ARRAY_DESCRIPTOR_v1* d) {
  if (!d) return CUDA_ERROR_INVALID_VALUE;
  return create(context, out, {d->Width, d->Height, 0, d->Format, d->NumChannels, 0});
}

CUresult cuArray3DGetDescriptor_v2(Driver*, CUDA_ARRAY3D_DESCRIPTOR* out, CUarray handle) {
  Array array;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (!find_array(handle, &array)) return CUDA_ERROR_INVALID_HANDLE;
  *out = array.descriptor;
  return CUDA_SUCCESS;
}
CUresult cuArray3DGetDescriptor(Driver* state, CUDA_ARRAY3D_DESCRIPTOR_v1* out, CUarray handle) {
  CUDA_ARRAY3D_DESCRIPTOR d;
  const CUresult result =
      out ? cuArray3DGetDescriptor_v2(state, &d, handle) : CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS)
    *out = {static_cast<unsigned>(d.Width),
            static_cast<unsigned>(d.Height),
            static_cast<unsigned>(d.Depth),
            d.Format,
            d.NumChannels,
            d.Flags};
  return result;
}
CUresult cuArrayGetDescriptor_v2(Driver* state, CUDA_ARRAY_DESCRIPTOR* out, CUarray handle) {
  CUDA_ARRAY3D_DESCRIPTOR d;
  const CUresult result =
      out ? cuArray3DGetDescriptor_v2(state, &d, handle) : CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS) *out = {d.Width, d.Height, d.Format, d.NumChannels};
  return result;
}
CUresult cuArrayGetDescriptor(Driver* state, CUDA_ARRAY_DESCRIPTOR_v1* out, CUarray handle) {
  CUDA_ARRAY3D_DESCRIPTOR d;
  const CUresult result =
      out ? cuArray3DGetDescriptor_v2(state, &d, handle) : CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS)
    *out = {static_cast<unsigned>(d.Width), static_cast<unsigned>(d.Height), d.Format,
            d.NumChannels};
  return result;
}

CUresult cuArrayDestroy(Driver*, CUarray handle) {
  if (const CUresult result = capture_unsafe(); result != CUDA_SUCCESS) return result;
  std::lock_guard lock(table().mutex);
  const auto it = table().arrays.find(handle);
  if (it == table().arrays.end()) return CUDA_ERROR_INVALID_HANDLE;
  if (it->second->level_of) return CUDA_ERROR_INVALID_HANDLE;  // goes with its mipmapped array
  give_memory(it->second->address, bytes_of(it->second->descriptor));
  table().arrays.erase(it);
  return CUDA_SUCCESS;
}

CUresult cuArrayGetPlane(Driver*, CUarray* out, CUarray handle, unsigned int) {
  Array array;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (!find_array(handle, &array)) return CUDA_ERROR_INVALID_HANDLE;
  return CUDA_ERROR_INVALID_VALUE;  // planar formats cannot be made
}
CUresult cuArrayGetSparseProperties(Driver*, CUDA_ARRAY_SPARSE_PROPERTIES* out, CUarray handle) {
  Array array;
  if (!find_array(handle, &array)) return CUDA_ERROR_INVALID_HANDLE;
  return sparse(out, array.descriptor);
}
CUresult cuArrayGetMemoryRequirements(Driver* state, CUDA_ARRAY_MEMORY_REQUIREMENTS* out,
                                      CUarray handle, CUdevice device) {
  Array array;
  if (!state->device(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (!find_array(handle, &array)) return CUDA_ERROR_INVALID_HANDLE;
  return requirements(out, bytes_of(array.descriptor),
                      array.descriptor.Flags & CUDA_ARRAY3D_DEFERRED_MAPPING);
}

// --- Mipmapped arrays ---

CUresult cuMipmappedArrayCreate(Context* context, CUmipmappedArray* out,
                                const CUDA_ARRAY3D_DESCRIPTOR* descriptor, unsigned int levels) {
  if (!out || !descriptor || levels == 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = check(*descriptor, context->device); result != CUDA_SUCCESS)
    return result;
  if (const CUresult result = capture_unsafe(); result != CUDA_SUCCESS) return result;
  const bool flat_depth =
      descriptor->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);  // layers do not shrink
  const size_t largest =
      std::max({descriptor->Width, descriptor->Height, flat_depth ? size_t{0} : descriptor->Depth});
  unsigned most = 1;
  while (largest >> most) most++;
  auto mipmapped = std::make_unique<MipmappedArray>();
  mipmapped->descriptor = *descriptor;
  uint64_t bytes = 0;
  std::vector<uint64_t> offsets;
  for (unsigned level = 0; level < std::min(levels, most); level++) {
    CUDA_ARRAY3D_DESCRIPTOR d = *descriptor;
    d.Width = std::max<size_t>(d.Width >> level, 1);
    if (d.Height) d.Height = std::max<size_t>(d.Height >> level, 1);
    if (d.Depth && !flat_depth) d.Depth = std::max<size_t>(d.Depth >> level, 1);
    auto array = std::make_unique<Array>();
    array->descriptor = d;
    array->device = context->device;
    array->level_of = mipmapped.get();
    offsets.push_back(bytes);
    bytes += bytes_of(d);
    mipmapped->levels.push_back(reinterpret_cast<CUarray>(array.get()));
    mipmapped->owned.push_back(std::move(array));
  }
  std::lock_guard lock(table().mutex);
  if (!(descriptor->Flags & kUnbacked)) {
    const unsigned element = element_bytes(descriptor->Format, descriptor->NumChannels);
    const CUresult result = take_memory(context, bytes, element, &mipmapped->address);
    if (result != CUDA_SUCCESS) return result;
    for (size_t i = 0; i < offsets.size(); i++)
      mipmapped->owned[i]->address = mipmapped->address + offsets[i];
  }
  mipmapped->bytes = bytes;
  for (auto& array : mipmapped->owned) {
    const void* key = array.get();
    table().arrays[key] = std::move(array);
  }
  mipmapped->owned.clear();
  *out = reinterpret_cast<CUmipmappedArray>(mipmapped.get());
  table().mipmapped[*out] = std::move(mipmapped);
  return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayGetLevel(Driver*, CUarray* out, CUmipmappedArray handle,
                                  unsigned int level) {
  std::lock_guard lock(table().mutex);
  const auto it = table().mipmapped.find(handle);
  if (it == table().mipmapped.end()) return CUDA_ERROR_INVALID_HANDLE;
  if (!out || level >= it->second->levels.size()) return CUDA_ERROR_INVALID_VALUE;
  *out = it->second->levels[level];
  return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayDestroy(Driver*, CUmipmappedArray handle) {
  if (const CUresult result = capture_unsafe(); result != CUDA_SUCCESS) return result;
  std::lock_guard lock(table().mutex);
  const auto it = table().mipmapped.find(handle);
  if (it == table().mipmapped.end()) return CUDA_ERROR_INVALID_HANDLE;
  give_memory(it->second->address, it->second->bytes);
  for (CUarray level : it->second->levels) table().arrays.erase(level);
  table().mipmapped.erase(it);
  return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayGetSparseProperties(Driver*, CUDA_ARRAY_SPARSE_PROPERTIES* out,
                                             CUmipmappedArray handle) {
  std::lock_guard lock(table().mutex);
  const auto it = table().mipmapped.find(handle);
  if (it == table().mipmapped.end()) return CUDA_ERROR_INVALID_HANDLE;
  const CUresult result = sparse(out, it->second->descriptor);
  if (result == CUDA_SUCCESS)
    out->miptailFirstLevel = static_cast<unsigned>(it->second->levels.size());
  return result;
}
CUresult cuMipmappedArrayGetMemoryRequirements(Driver* state, CUDA_ARRAY_MEMORY_REQUIREMENTS* out,
                                               CUmipmappedArray handle, CUdevice device) {
  if (!state->device(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::lock_guard lock(table().mutex);
  const auto it = table().mipmapped.find(handle);
  if (it == table().mipmapped.end()) return CUDA_ERROR_INVALID_HANDLE;
  return requirements(out, it->second->bytes,
                      it->second->descriptor.Flags & CUDA_ARRAY3D_DEFERRED_MAPPING);
}

// Memory behind parts of sparse arrays comes from cuMemCreate, which is in the ledger already;
// nothing reads the arrays.
CUresult cuMemMapArrayAsync(CUarrayMapInfo* list, unsigned int count, Stream* stream) {
  if (!list || count == 0) return CUDA_ERROR_INVALID_VALUE;
  bool capturing = false;
  if (const CUresult result = capture_state(stream, &capturing); result != CUDA_SUCCESS)
    return result;
  if (capturing) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  for (unsigned i = 0; i < count; i++) {
    const CUarrayMapInfo& info = list[i];
    if (info.flags || info.reserved[0] || info.reserved[1] ||
        (info.memOperationType != CU_MEM_OPERATION_TYPE_MAP &&
         info.memOperationType != CU_MEM_OPERATION_TYPE_UNMAP))
      return CUDA_ERROR_INVALID_VALUE;
    Array array;
    if (info.resourceType == CU_RESOURCE_TYPE_ARRAY) {
      if (!find_array(info.resource.array, &array)) return CUDA_ERROR_INVALID_HANDLE;
      if (array.level_of || !(array.descriptor.Flags & kUnbacked)) return CUDA_ERROR_INVALID_VALUE;
    } else if (info.resourceType != CU_RESOURCE_TYPE_MIPMAPPED_ARRAY) {
      return CUDA_ERROR_INVALID_VALUE;
    } else if (!is_mipmapped_array(info.resource.mipmap)) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
  }
  advance(stream);
  return CUDA_SUCCESS;
}

}  // namespace tonnage::driver
