// Texture and surface objects and (deprecated) texture references: kept, checked and given back;
// kernels do not read them.
#include <string.h>

#include <map>

#include "driver/api/array.h"
#include "driver/entry_points.h"

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

CUresult cuTexObjectCreate(Context*, CUtexObject* out, const CUDA_RESOURCE_DESC* resource,
                           const CUDA_TEXTURE_DESC* texture, const CUDA_RESOURCE_VIEW_DESC* view) {
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
CUresult cuTexObjectDestroy(Driver*, CUtexObject object) {
  std::lock_guard lock(table().mutex);
  return table().textures.erase(object) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuTexObjectGetResourceDesc(Driver*, CUDA_RESOURCE_DESC* out, CUtexObject object) {
  std::lock_guard lock(table().mutex);
  const auto it = table().textures.find(object);
  return it == table().textures.end() ? CUDA_ERROR_INVALID_VALUE : give(out, it->second.resource);
}
CUresult cuTexObjectGetTextureDesc(Driver*, CUDA_TEXTURE_DESC* out, CUtexObject object) {
  std::lock_guard lock(table().mutex);
  const auto it = table().textures.find(object);
  return it == table().textures.end() ? CUDA_ERROR_INVALID_VALUE : give(out, it->second.texture);
}
CUresult cuTexObjectGetResourceViewDesc(Driver*, CUDA_RESOURCE_VIEW_DESC* out, CUtexObject object) {
  std::lock_guard lock(table().mutex);
  const auto it = table().textures.find(object);
  return it == table().textures.end() || !it->second.has_view ? CUDA_ERROR_INVALID_VALUE
                                                              : give(out, it->second.view);
}

CUresult cuSurfObjectCreate(Context*, CUsurfObject* out, const CUDA_RESOURCE_DESC* resource) {
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
CUresult cuSurfObjectDestroy(Driver*, CUsurfObject object) {
  std::lock_guard lock(table().mutex);
  return table().surfaces.erase(object) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuSurfObjectGetResourceDesc(Driver*, CUDA_RESOURCE_DESC* out, CUsurfObject object) {
  std::lock_guard lock(table().mutex);
  const auto it = table().surfaces.find(object);
  return it == table().surfaces.end() ? CUDA_ERROR_INVALID_VALUE : give(out, it->second);
}

// --- References ---

CUresult cuTexRefCreate(Context*, CUtexref* out) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  auto reference = std::make_unique<TextureReference>();
  std::lock_guard lock(table().mutex);
  *out = reinterpret_cast<CUtexref>(reference.get());
  table().references[*out] = std::move(reference);
  return CUDA_SUCCESS;
}
CUresult cuTexRefDestroy(Driver*, CUtexref handle) {
  std::lock_guard lock(table().mutex);
  return table().references.erase(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuTexRefSetArray(Driver*, CUtexref handle, CUarray array_handle, unsigned int) {
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
CUresult cuTexRefSetMipmappedArray(Driver*, CUtexref handle, CUmipmappedArray array, unsigned int) {
  if (!is_mipmapped_array(array)) return CUDA_ERROR_INVALID_VALUE;
  return with(handle, [&](TextureReference& t) {
    t.mipmapped = array;
    t.array = nullptr;
    t.address = 0;
    return CUDA_SUCCESS;
  });
}
CUresult cuTexRefSetAddress_v2(Driver*, size_t* offset, CUtexref handle, CUdeviceptr address,
                               size_t) {
  return with(handle, [&](TextureReference& t) {
    t.address = address;
    t.array = nullptr;
    t.mipmapped = nullptr;
    if (offset) *offset = 0;
    return CUDA_SUCCESS;
  });
}
CUresult cuTexRefSetAddress2D_v3(Driver*, CUtexref handle, const CUDA_ARRAY_DESCRIPTOR* descriptor,
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
CUresult cuTexRefSetAddress2D_v2(Driver* state, CUtexref handle,
                                 const CUDA_ARRAY_DESCRIPTOR* descriptor, CUdeviceptr address,
                                 size_t pitch) {
  return cuTexRefSetAddress2D_v3(state, handle, descriptor, address, pitch);
}
CUresult cuTexRefSetFormat(Driver*, CUtexref handle, CUarray_format format, int channels) {
  return with(handle, [&](TextureReference& t) {
    t.format = format;
    t.channels = channels;
    return CUDA_SUCCESS;
  });
}
CUresult cuTexRefSetAddressMode(Driver*, CUtexref handle, int dimension, CUaddress_mode mode) {
  if (dimension < 0 || dimension > 2) return CUDA_ERROR_INVALID_VALUE;
  return with(handle, [&](TextureReference& t) {
    t.address_mode[dimension] = mode;
    return CUDA_SUCCESS;
  });
}
CUresult cuTexRefSetFilterMode(Driver*, CUtexref handle, CUfilter_mode mode) {
  return with(handle, [&](TextureReference& t) { return t.filter = mode, CUDA_SUCCESS; });
}
CUresult cuTexRefSetMipmapFilterMode(Driver*, CUtexref handle, CUfilter_mode mode) {
  return with(handle, [&](TextureReference& t) { return t.mipmap_filter = mode, CUDA_SUCCESS; });
}
CUresult cuTexRefSetMipmapLevelBias(Driver*, CUtexref handle, float bias) {
  return with(handle, [&](TextureReference& t) { return t.bias = bias, CUDA_SUCCESS; });
}
CUresult cuTexRefSetMipmapLevelClamp(Driver*, CUtexref handle, float low, float high) {
  return with(handle, [&](TextureReference& t) {
    return t.clamp_low = low, t.clamp_high = high, CUDA_SUCCESS;
  });
}
CUresult cuTexRefSetMaxAnisotropy(Driver*, CUtexref handle, unsigned int most) {
  return with(handle, [&](TextureReference& t) { return t.anisotropy = most, CUDA_SUCCESS; });
}
CUresult cuTexRefSetBorderColor(Driver*, CUtexref handle, float* color) {
  if (!color) return CUDA_ERROR_INVALID_VALUE;
  return with(handle, [&](TextureReference& t) {
    memcpy(t.border, color, sizeof t.border);
    return CUDA_SUCCESS;
  });
}
CUresult cuTexRefSetFlags(Driver*, CUtexref handle, unsigned int flags) {
  return with(handle, [&](TextureReference& t) { return t.flags = flags, CUDA_SUCCESS; });
}

CUresult cuTexRefGetAddress_v2(Driver*, CUdeviceptr* out, CUtexref handle) {
  return with(handle, [&](TextureReference& t) {
    return t.address ? give(out, t.address) : CUDA_ERROR_INVALID_VALUE;
  });
}
CUresult cuTexRefGetArray(Driver*, CUarray* out, CUtexref handle) {
  return with(handle, [&](TextureReference& t) {
    return t.array ? give(out, t.array) : CUDA_ERROR_INVALID_VALUE;
  });
}
CUresult cuTexRefGetMipmappedArray(Driver*, CUmipmappedArray* out, CUtexref handle) {
  return with(handle, [&](TextureReference& t) {
    return t.mipmapped ? give(out, t.mipmapped) : CUDA_ERROR_INVALID_VALUE;
  });
}
CUresult cuTexRefGetAddressMode(Driver*, CUaddress_mode* out, CUtexref handle, int dimension) {
  if (dimension < 0 || dimension > 2) return CUDA_ERROR_INVALID_VALUE;
  return with(handle, [&](TextureReference& t) { return give(out, t.address_mode[dimension]); });
}
CUresult cuTexRefGetFilterMode(Driver*, CUfilter_mode* out, CUtexref handle) {
  return with(handle, [&](TextureReference& t) { return give(out, t.filter); });
}
CUresult cuTexRefGetFormat(Driver*, CUarray_format* format, int* channels, CUtexref handle) {
  return with(handle, [&](TextureReference& t) {
    if (format) *format = t.format;
    if (channels) *channels = t.channels;
    return CUDA_SUCCESS;
  });
}
CUresult cuTexRefGetMipmapFilterMode(Driver*, CUfilter_mode* out, CUtexref handle) {
  return with(handle, [&](TextureReference& t) { return give(out, t.mipmap_filter); });
}
CUresult cuTexRefGetMipmapLevelBias(Driver*, float* out, CUtexref handle) {
  return with(handle, [&](TextureReference& t) { return give(out, t.bias); });
}
CUresult cuTexRefGetMipmapLevelClamp(Driver*, float* low, float* high, CUtexref handle) {
  return with(handle, [&](TextureReference& t) {
    if (low) *low = t.clamp_low;
    if (high) *high = t.clamp_high;
    return CUDA_SUCCESS;
  });
}
CUresult cuTexRefGetMaxAnisotropy(Driver*, int* out, CUtexref handle) {
  return with(handle,
              [&](TextureReference& t) { return give(out, static_cast<int>(t.anisotropy)); });
}
CUresult cuTexRefGetBorderColor(Driver*, float* out, CUtexref handle) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  return with(handle, [&](TextureReference& t) {
    memcpy(out, t.border, sizeof t.border);
    return CUDA_SUCCESS;
  });
}
CUresult cuTexRefGetFlags(Driver*, unsigned int* out, CUtexref handle) {
  return with(handle, [&](TextureReference& t) { return give(out, t.flags); });
}

// Surface references come only from modules of CUDA 11 and older, which have none here.
CUresult cuSurfRefSetArray(Driver*, CUsurfref, CUarray, unsigned int) {
  return CUDA_ERROR_INVALID_HANDLE;
}
CUresult cuSurfRefGetArray(Driver*, CUarray*, CUsurfref) { return CUDA_ERROR_INVALID_HANDLE; }

}  // namespace tonnage::driver
