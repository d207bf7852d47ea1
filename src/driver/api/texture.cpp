// Texture and surface objects and (deprecated) texture references: kept, checked and given back;
// kernels do not read them.
#include <string.h>

#include <map>

#include "driver/api/array.h"

namespace tonnage::driver {
namespace {

struct Texture {
  CUDA_RESOURCE_DESC resource = {};
  CUDA_TEXTURE_DESC texture = {};
  CUDA_RESOURCE_VIEW_DESC view = {};
  bool has_view = false;
};
struct TextureReference {
  CUarray array = nullptr;
  CUmipmappedArray mipmapped = nullptr;
  CUdeviceptr address = 0;
  CUarray_format format = CU_AD_FORMAT_UNSIGNED_INT8;
  int channels = 1;
  CUaddress_mode address_mode[3] = {CU_TR_ADDRESS_MODE_CLAMP, CU_TR_ADDRESS_MODE_CLAMP,
                                    CU_TR_ADDRESS_MODE_CLAMP};
  CUfilter_mode filter = CU_TR_FILTER_MODE_POINT, mipmap_filter = CU_TR_FILTER_MODE_POINT;
  float bias = 0, clamp_low = 0, clamp_high = 0, border[4] = {};
  unsigned anisotropy = 0, flags = 0;
};

struct Table {
  std::mutex mutex;
  std::map<uint64_t, Texture> textures;
  std::map<uint64_t, CUDA_RESOURCE_DESC> surfaces;
  std::unordered_map<const void*, std::unique_ptr<TextureReference>> references;
};
Table& table() {
  static Table* instance = new Table;
  return *instance;
}

CUresult check_resource(const CUDA_RESOURCE_DESC& d) {
  if (d.flags) return CUDA_ERROR_INVALID_VALUE;
  Array array;
  switch (d.resType) {
    case CU_RESOURCE_TYPE_ARRAY:
      return find_array(d.res.array.hArray, &array) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
      return is_mipmapped_array(d.res.mipmap.hMipmappedArray) ? CUDA_SUCCESS
                                                              : CUDA_ERROR_INVALID_VALUE;
    case CU_RESOURCE_TYPE_LINEAR:
      return d.res.linear.devPtr && d.res.linear.sizeInBytes &&
                     element_bytes(d.res.linear.format, d.res.linear.numChannels)
                 ? CUDA_SUCCESS
                 : CUDA_ERROR_INVALID_VALUE;
    case CU_RESOURCE_TYPE_PITCH2D: {
      const auto& p = d.res.pitch2D;
      const size_t element = element_bytes(p.format, p.numChannels);
      return p.devPtr && p.width && p.height && element && p.pitchInBytes >= p.width * element
                 ? CUDA_SUCCESS
                 : CUDA_ERROR_INVALID_VALUE;
    }
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

// Calls `use` with a live reference.
template <class Use>
CUresult with(CUtexref handle, Use use) {
  VGPU_DRIVER(state);
  (void)state;
  std::lock_guard lock(table().mutex);
  const auto it = table().references.find(handle);
  return it == table().references.end() ? CUDA_ERROR_INVALID_VALUE : use(*it->second);
}

template <class T>
CUresult give(T* out, const T& value) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = value;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace tonnage::driver

using namespace tonnage::driver;

VGPU_API cuTexObjectCreate(CUtexObject* out, const CUDA_RESOURCE_DESC* resource,
                           const CUDA_TEXTURE_DESC* texture, const CUDA_RESOURCE_VIEW_DESC* view) {
  VGPU_CONTEXT(context);
  (void)context;
  if (!out || !resource || !texture) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = check_resource(*resource); result != CUDA_SUCCESS) return result;
  const bool arrays = resource->resType == CU_RESOURCE_TYPE_ARRAY ||
                      resource->resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
  if (view && !arrays) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(table().mutex);
  *out = driver()->new_id();
  table().textures[*out] = {*resource, *texture, view ? *view : CUDA_RESOURCE_VIEW_DESC{},
                            view != nullptr};
  return CUDA_SUCCESS;
}
VGPU_API cuTexObjectDestroy(CUtexObject object) {
  VGPU_DRIVER(state);
  (void)state;
  std::lock_guard lock(table().mutex);
  return table().textures.erase(object) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
VGPU_API cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC* out, CUtexObject object) {
  VGPU_DRIVER(state);
  (void)state;
  std::lock_guard lock(table().mutex);
  const auto it = table().textures.find(object);
  return it == table().textures.end() ? CUDA_ERROR_INVALID_VALUE : give(out, it->second.resource);
}
VGPU_API cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC* out, CUtexObject object) {
  VGPU_DRIVER(state);
  (void)state;
  std::lock_guard lock(table().mutex);
  const auto it = table().textures.find(object);
  return it == table().textures.end() ? CUDA_ERROR_INVALID_VALUE : give(out, it->second.texture);
}
VGPU_API cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC* out, CUtexObject object) {
  VGPU_DRIVER(state);
  (void)state;
  std::lock_guard lock(table().mutex);
  const auto it = table().textures.find(object);
  return it == table().textures.end() || !it->second.has_view ? CUDA_ERROR_INVALID_VALUE
                                                              : give(out, it->second.view);
}

VGPU_API cuSurfObjectCreate(CUsurfObject* out, const CUDA_RESOURCE_DESC* resource) {
  VGPU_CONTEXT(context);
  (void)context;
  if (!out || !resource || resource->resType != CU_RESOURCE_TYPE_ARRAY)
    return CUDA_ERROR_INVALID_VALUE;
  Array array;
  if (!find_array(resource->res.array.hArray, &array)) return CUDA_ERROR_INVALID_VALUE;
  if (!(array.descriptor.Flags & CUDA_ARRAY3D_SURFACE_LDST)) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(table().mutex);
  *out = driver()->new_id();
  table().surfaces[*out] = *resource;
  return CUDA_SUCCESS;
}
VGPU_API cuSurfObjectDestroy(CUsurfObject object) {
  VGPU_DRIVER(state);
  (void)state;
  std::lock_guard lock(table().mutex);
  return table().surfaces.erase(object) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
VGPU_API cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC* out, CUsurfObject object) {
  VGPU_DRIVER(state);
  (void)state;
  std::lock_guard lock(table().mutex);
  const auto it = table().surfaces.find(object);
  return it == table().surfaces.end() ? CUDA_ERROR_INVALID_VALUE : give(out, it->second);
}

// --- References ---

VGPU_API cuTexRefCreate(CUtexref* out) {
  VGPU_CONTEXT(context);
  (void)context;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  auto reference = std::make_unique<TextureReference>();
  std::lock_guard lock(table().mutex);
  *out = reinterpret_cast<CUtexref>(reference.get());
  table().references[*out] = std::move(reference);
  return CUDA_SUCCESS;
}
VGPU_API cuTexRefDestroy(CUtexref handle) {
  VGPU_DRIVER(state);
  (void)state;
  std::lock_guard lock(table().mutex);
  return table().references.erase(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
VGPU_API cuTexRefSetArray(CUtexref handle, CUarray array_handle, unsigned int) {
  Array array;
  if (!find_array(array_handle, &array)) return CUDA_ERROR_INVALID_VALUE;
  return with(handle, [&](TextureReference& t) {
    t.array = array_handle;
    t.mipmapped = nullptr;
    t.address = 0;
    t.format = array.descriptor.Format;
    t.channels = static_cast<int>(array.descriptor.NumChannels);
    return CUDA_SUCCESS;
  });
}
VGPU_API cuTexRefSetMipmappedArray(CUtexref handle, CUmipmappedArray array, unsigned int) {
  if (!is_mipmapped_array(array)) return CUDA_ERROR_INVALID_VALUE;
  return with(handle, [&](TextureReference& t) {
    t.mipmapped = array;
    t.array = nullptr;
    t.address = 0;
    return CUDA_SUCCESS;
  });
}
VGPU_API cuTexRefSetAddress_v2(size_t* offset, CUtexref handle, CUdeviceptr address, size_t) {
  return with(handle, [&](TextureReference& t) {
    t.address = address;
    t.array = nullptr;
    t.mipmapped = nullptr;
    if (offset) *offset = 0;
    return CUDA_SUCCESS;
  });
}
VGPU_API cuTexRefSetAddress2D_v3(CUtexref handle, const CUDA_ARRAY_DESCRIPTOR* descriptor,
                                 CUdeviceptr address, size_t) {
  if (!descriptor) return CUDA_ERROR_INVALID_VALUE;
  return with(handle, [&](TextureReference& t) {
    t.address = address;
    t.array = nullptr;
    t.mipmapped = nullptr;
    t.format = descriptor->Format;
    t.channels = static_cast<int>(descriptor->NumChannels);
    return CUDA_SUCCESS;
  });
}
VGPU_API cuTexRefSetAddress2D_v2(CUtexref handle, const CUDA_ARRAY_DESCRIPTOR* descriptor,
                                 CUdeviceptr address, size_t pitch) {
  return cuTexRefSetAddress2D_v3(handle, descriptor, address, pitch);
}
VGPU_API cuTexRefSetFormat(CUtexref handle, CUarray_format format, int channels) {
  return with(handle, [&](TextureReference& t) {
    t.format = format;
    t.channels = channels;
    return CUDA_SUCCESS;
  });
}
VGPU_API cuTexRefSetAddressMode(CUtexref handle, int dimension, CUaddress_mode mode) {
  if (dimension < 0 || dimension > 2) return CUDA_ERROR_INVALID_VALUE;
  return with(handle, [&](TextureReference& t) {
    t.address_mode[dimension] = mode;
    return CUDA_SUCCESS;
  });
}
VGPU_API cuTexRefSetFilterMode(CUtexref handle, CUfilter_mode mode) {
  return with(handle, [&](TextureReference& t) { return t.filter = mode, CUDA_SUCCESS; });
}
VGPU_API cuTexRefSetMipmapFilterMode(CUtexref handle, CUfilter_mode mode) {
  return with(handle, [&](TextureReference& t) { return t.mipmap_filter = mode, CUDA_SUCCESS; });
}
VGPU_API cuTexRefSetMipmapLevelBias(CUtexref handle, float bias) {
  return with(handle, [&](TextureReference& t) { return t.bias = bias, CUDA_SUCCESS; });
}
VGPU_API cuTexRefSetMipmapLevelClamp(CUtexref handle, float low, float high) {
  return with(handle, [&](TextureReference& t) {
    return t.clamp_low = low, t.clamp_high = high, CUDA_SUCCESS;
  });
}
VGPU_API cuTexRefSetMaxAnisotropy(CUtexref handle, unsigned int most) {
  return with(handle, [&](TextureReference& t) { return t.anisotropy = most, CUDA_SUCCESS; });
}
VGPU_API cuTexRefSetBorderColor(CUtexref handle, float* color) {
  if (!color) return CUDA_ERROR_INVALID_VALUE;
  return with(handle, [&](TextureReference& t) {
    memcpy(t.border, color, sizeof t.border);
    return CUDA_SUCCESS;
  });
}
VGPU_API cuTexRefSetFlags(CUtexref handle, unsigned int flags) {
  return with(handle, [&](TextureReference& t) { return t.flags = flags, CUDA_SUCCESS; });
}

VGPU_API cuTexRefGetAddress_v2(CUdeviceptr* out, CUtexref handle) {
  return with(handle, [&](TextureReference& t) {
    return t.address ? give(out, t.address) : CUDA_ERROR_INVALID_VALUE;
  });
}
VGPU_API cuTexRefGetArray(CUarray* out, CUtexref handle) {
  return with(handle, [&](TextureReference& t) {
    return t.array ? give(out, t.array) : CUDA_ERROR_INVALID_VALUE;
  });
}
VGPU_API cuTexRefGetMipmappedArray(CUmipmappedArray* out, CUtexref handle) {
  return with(handle, [&](TextureReference& t) {
    return t.mipmapped ? give(out, t.mipmapped) : CUDA_ERROR_INVALID_VALUE;
  });
}
VGPU_API cuTexRefGetAddressMode(CUaddress_mode* out, CUtexref handle, int dimension) {
  if (dimension < 0 || dimension > 2) return CUDA_ERROR_INVALID_VALUE;
  return with(handle, [&](TextureReference& t) { return give(out, t.address_mode[dimension]); });
}
VGPU_API cuTexRefGetFilterMode(CUfilter_mode* out, CUtexref handle) {
  return with(handle, [&](TextureReference& t) { return give(out, t.filter); });
}
VGPU_API cuTexRefGetFormat(CUarray_format* format, int* channels, CUtexref handle) {
  return with(handle, [&](TextureReference& t) {
    if (format) *format = t.format;
    if (channels) *channels = t.channels;
    return CUDA_SUCCESS;
  });
}
VGPU_API cuTexRefGetMipmapFilterMode(CUfilter_mode* out, CUtexref handle) {
  return with(handle, [&](TextureReference& t) { return give(out, t.mipmap_filter); });
}
VGPU_API cuTexRefGetMipmapLevelBias(float* out, CUtexref handle) {
  return with(handle, [&](TextureReference& t) { return give(out, t.bias); });
}
VGPU_API cuTexRefGetMipmapLevelClamp(float* low, float* high, CUtexref handle) {
  return with(handle, [&](TextureReference& t) {
    if (low) *low = t.clamp_low;
    if (high) *high = t.clamp_high;
    return CUDA_SUCCESS;
  });
}
VGPU_API cuTexRefGetMaxAnisotropy(int* out, CUtexref handle) {
  return with(handle,
              [&](TextureReference& t) { return give(out, static_cast<int>(t.anisotropy)); });
}
VGPU_API cuTexRefGetBorderColor(float* out, CUtexref handle) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  return with(handle, [&](TextureReference& t) {
    memcpy(out, t.border, sizeof t.border);
    return CUDA_SUCCESS;
  });
}
VGPU_API cuTexRefGetFlags(unsigned int* out, CUtexref handle) {
  return with(handle, [&](TextureReference& t) { return give(out, t.flags); });
}

// Surface references come only from modules of CUDA 11 and older, which have none here.
VGPU_API cuSurfRefSetArray(CUsurfref, CUarray, unsigned int) {
  VGPU_DRIVER(state);
  (void)state;
  return CUDA_ERROR_INVALID_HANDLE;
}
VGPU_API cuSurfRefGetArray(CUarray*, CUsurfref) {
  VGPU_DRIVER(state);
  (void)state;
  return CUDA_ERROR_INVALID_HANDLE;
}
